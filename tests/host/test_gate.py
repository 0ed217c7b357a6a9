"""The gate: each finding comes when it should and stays away when it should not."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def test_a_quiet_machine_has_no_findings_nor_has_what_is_unknown() -> None:
    assert findings_in(QUIET) == []
    names = ("load_average", "steal_share", "governor", "throttled", "on_battery")
    unknown: dict[str, Any] = dict.fromkeys((*names, "swap_used_bytes"))
    assert findings_in(replace(QUIET, **unknown)) == []


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
        ("memory", replace(QUIET, memory_available_bytes=GB), "1.0 GB of 16.0 GB memory are"),
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


def test_gate_looks_at_this_machine_and_the_disk_asked_about(tmp_path: Path) -> None:
    assert all(isinstance(finding, Finding) for finding in gate(tmp_path / "to come"))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        seen = look(tmp_path / "to come", sample_s=0.01)
        child.communicate(b"\n")
    assert child.pid not in {process.pid for process in seen.processes}, "it is our own"
    assert seen.disk == tmp_path
    assert 0 < seen.memory_available_bytes < seen.memory_bytes
    assert seen.cores >= 1


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


@pytest.mark.parametrize(
    ("files", "membership", "quota"),
    [
        ({"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 1.5),
        (
            {"cpu/job/cpu.cfs_quota_us": "50000", "cpu/job/cpu.cfs_period_us": "100000"},
            "4:memory:/job\n1:cpu:/job\n0::/\n",
            0.5,
        ),
        ({"cpu.max": "max 100000"}, "0::/\n", None),
        ({}, None, None),
    ],
    ids=["of a group above", "version 1", "no limit", "no groups"],
)
def test_the_tightest_quota_is_found(
    tmp_path: Path, files: dict[str, str], membership: str | None, quota: float | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    if membership is not None:
        (tmp_path / "cgroup").write_text(membership)
    assert cpu_quota_cores(tmp_path / "cgroup", tmp_path) == quota
