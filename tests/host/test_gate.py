"""The gate: each finding comes when it should and stays away when it should not."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pgservers.host import situation
from pgservers.host.gate import Finding, findings_in, gate
from pgservers.host.situation import Process, Situation, cpu_quota_cores, look, throttle_count

GB = 10**9

QUIET = Situation(
    cores=4,
    load_average=1.9,
    processes=(Process(1, "init", 0.0), Process(7, "editor", 0.19)),
    steal_share=0.01,
    cpu_quota_cores=None,
    governor="performance",
    throttled=0,
    on_battery=False,
    swap_used_bytes=GB // 32,
    memory_bytes=16 * GB,
    memory_available_bytes=8 * GB,
    disk=Path("/var/tmp"),
    disk_free_bytes=50 * GB,
)


def test_quiet_machine_has_no_findings() -> None:
    assert findings_in(QUIET) == []


def test_what_is_unknown_is_no_finding() -> None:
    unknown = replace(
        QUIET,
        load_average=None,
        steal_share=None,
        governor=None,
        throttled=None,
        on_battery=None,
        swap_used_bytes=None,
    )
    assert findings_in(unknown) == []


@pytest.mark.parametrize(
    ("name", "seen", "words"),
    [
        ("load", replace(QUIET, load_average=2.1), "load average is 2.1 on 4 cores"),
        ("load", replace(QUIET, cores=1, load_average=1.0), "load average is 1.0 on 1 core:"),
        (
            "processes",
            replace(QUIET, processes=(Process(9, "backup", 0.5),)),
            "backup (process 9, 50%)",
        ),
        (
            "servers",
            replace(QUIET, processes=(Process(9, "postgres", 0.0, postmaster=True),)),
            "1 other PostgreSQL server on this machine (process 9)",
        ),
        ("steal", replace(QUIET, steal_share=0.05), "gives 5% of this machine's CPU time"),
        ("quota", replace(QUIET, cpu_quota_cores=1.5), "CPU quota of 1.5 cores"),
        ("governor", replace(QUIET, governor="powersave"), 'governor is "powersave"'),
        ("heat", replace(QUIET, throttled=3), "because it is hot"),
        ("battery", replace(QUIET, on_battery=True), "runs on its battery"),
        ("swap", replace(QUIET, swap_used_bytes=GB), "1.0 GB of swap"),
        (
            "memory",
            replace(QUIET, memory_available_bytes=GB),
            "1.0 GB of 16.0 GB memory are available",
        ),
        ("disk", replace(QUIET, disk_free_bytes=GB), "1.0 GB are free at /var/tmp"),
    ],
)
def test_each_disturbance_is_found_alone(name: str, seen: Situation, words: str) -> None:
    (finding,) = findings_in(seen)
    assert finding.name == name
    assert words in finding.sentence
    assert finding.sentence.endswith(".")


def test_the_hungriest_processes_are_named_and_the_rest_counted() -> None:
    processes = tuple(Process(pid, f"p{pid}", pid / 10) for pid in range(3, 9))
    (finding,) = findings_in(replace(QUIET, processes=processes))
    assert "p8" in finding.sentence
    assert "p5" not in finding.sentence
    assert "and 3 more" in finding.sentence


def test_gate_looks_at_this_machine(tmp_path: Path) -> None:
    assert all(isinstance(finding, Finding) for finding in gate(tmp_path / "to come"))


def test_situation_is_that_of_the_disk_asked_about(tmp_path: Path) -> None:
    seen = look(tmp_path / "to come", sample_s=0.01)
    assert seen.disk == tmp_path
    assert 0 < seen.memory_available_bytes < seen.memory_bytes
    assert seen.cores >= 1


def test_our_own_children_are_not_a_disturbance(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        seen = look(tmp_path, sample_s=0.01)
        child.communicate(b"\n")
    assert child.pid not in {process.pid for process in seen.processes}


@pytest.mark.parametrize(
    ("name", "command", "expected"),
    [
        ("postgres", ["/usr/lib/postgresql/bin/postgres", "-D", "/data"], True),
        ("postgres", ["postgres: checkpointer "], False),
        ("postgres", [], False),
        ("bash", ["bash", "postgres"], False),
    ],
)
def test_postmasters_are_told_from_their_children(
    name: str, command: list[str], expected: bool
) -> None:
    process = SimpleNamespace(name=lambda: name, cmdline=lambda: command)
    assert situation._is_postmaster(process) is expected  # type: ignore[arg-type]


def test_stolen_time_is_a_share_of_all_time() -> None:
    class Times(SimpleNamespace):
        _fields = ("user", "idle", "steal", "guest")

    before = Times(user=10.0, idle=10.0, steal=0.0, guest=5.0)
    after = Times(user=14.0, idle=15.0, steal=1.0, guest=9.0)
    assert situation.stolen_share(before, after) == pytest.approx(0.1)
    assert situation.stolen_share(before, before) is None
    assert situation.stolen_share(SimpleNamespace(), SimpleNamespace()) is None


def test_throttling_is_counted_over_all_cores(tmp_path: Path) -> None:
    assert throttle_count(tmp_path) is None
    for core, count in enumerate((2, 5)):
        file = tmp_path / f"cpu{core}" / "thermal_throttle" / "core_throttle_count"
        file.parent.mkdir(parents=True)
        file.write_text(f"{count}\n")
    assert throttle_count(tmp_path) == 7


@pytest.mark.parametrize(
    ("battery", "expected"),
    [
        (None, None),
        (SimpleNamespace(power_plugged=None), None),
        (SimpleNamespace(power_plugged=True), False),
        (SimpleNamespace(power_plugged=False), True),
    ],
)
def test_battery_in_use_is_told_from_one_that_charges(
    battery: object, expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery)
    assert situation._on_battery() is expected


class TestQuota:
    def membership(self, directory: Path, *lines: str) -> Path:
        file = directory / "cgroup"
        file.write_text("".join(f"{line}\n" for line in lines))
        return file

    def test_of_a_group_above_counts(self, tmp_path: Path) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
        (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
        assert cpu_quota_cores(self.membership(tmp_path, "0::/a/b"), tmp_path) == 1.5

    def test_of_version_1_is_read_too(self, tmp_path: Path) -> None:
        group = tmp_path / "cpu" / "job"
        group.mkdir(parents=True)
        (group / "cpu.cfs_quota_us").write_text("50000\n")
        (group / "cpu.cfs_period_us").write_text("100000\n")
        lines = ["4:memory:/job", "1:cpu:/job", "0::/"]
        assert cpu_quota_cores(self.membership(tmp_path, *lines), tmp_path) == 0.5

    def test_none_where_there_is_no_limit(self, tmp_path: Path) -> None:
        (tmp_path / "cpu.max").write_text("max 100000\n")
        assert cpu_quota_cores(self.membership(tmp_path, "0::/"), tmp_path) is None

    def test_none_where_there_are_no_groups(self, tmp_path: Path) -> None:
        assert cpu_quota_cores(tmp_path / "absent", tmp_path) is None
