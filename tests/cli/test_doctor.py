"""What the doctor says of this machine, of a server of ours and of somebody else's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from pgapps.doctor import doctor
from pgapps.doctor.checks import Check
from pgapps.doctor.command import commands
from pgapps.doctor.doctor import examine, exit_code
from pgservers.host.gate import Finding
from pgservers.tools import Tool, installing
from tests.servers_at_hand import BUILDER, LESSER, dsn_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgservers.servers.managed import ManagedServer

pytestmark = pytest.mark.usefixtures("private")


def by_name(spec: str) -> dict[str, Check]:
    return {check.name: check for check in examine(spec)}


def test_lines_begin_with_their_verdict() -> None:
    lines = [Check("cold cache", ok, "sentence").line for ok in (True, None, False)]
    assert lines == [f"{mark}  cold cache      sentence" for mark in ("ok", "--", "NO")]


def test_only_what_keeps_the_studies_from_running_has_an_exit_code() -> None:
    left_out = [Check("a", True, ""), Check("b", None, "")]
    assert exit_code(left_out) == 0
    assert exit_code([*left_out, Check("c", False, "", 5), Check("d", False, "", 3)]) == 5


def test_counting_instructions_takes_valgrind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "valgrind_version", lambda: "valgrind-3.19.0")
    for reason, ok, word in ((None, True, "valgrind-3.19.0"), ("no such file", None, "no such")):
        monkeypatch.setattr(doctor, "reason_no_valgrind", lambda reason=reason: reason)
        assert doctor._valgrind().ok is ok
        assert word in doctor._valgrind().sentence


def test_an_embedded_server_can_do_everything(
    run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_CACHE", str(run_base / "cache"))
    before = set(run_base.glob("s-*"))
    checks = by_name("embedded")
    assert exit_code(list(checks.values())) == 0
    able = {"server", "superuser", "settings", "states", "checkpoints", "counters", "pgbench"}
    assert {name for name in able if checks[name].ok} == able
    assert checks["server"].sentence.startswith("PostgreSQL 18.6 (embedded), managed")
    assert checks["features"].sentence.startswith("the server is built with")
    assert checks["cold cache"].sentence.startswith("by emptying buffers")
    assert ("account" in checks) is (os.geteuid() == 0)
    assert str(run_base) in checks["server data"].sentence
    assert set(run_base.glob("s-*")) == before
    assert checks["cluster_order"].sentence.startswith("5 of 5 claims can be judged")
    assert checks["claims"].ok


@pytest.mark.parametrize("role", [BUILDER, LESSER])
def test_an_external_server_has_its_limits_named(role: str, stranger: ManagedServer) -> None:
    checks = by_name(dsn_of(stranger, role))
    assert exit_code(list(checks.values())) == 0
    assert checks["server"].ok
    assert "w0rd" not in checks["server"].sentence
    assert "not run: an external server is not restarted" in checks["settings"].sentence
    assert "not run: the files of an external server" in checks["cold cache"].sentence
    lost = "CPU time and bytes read from the device: not recorded: the processes of an external"
    assert checks["cpu and device"].sentence.startswith(lost)
    assert checks["states"].ok is (True if role == BUILDER else None)
    assert checks["checkpoints"].ok is None
    assert checks["superuser"].ok is None
    none, *whys = checks["cluster_order"].sentence.split("; ")
    assert none.startswith("0 of 5 claims")
    assert [why[:9] for why in whys] == ["1 cannot:", "4 cannot:"]
    assert "shared_buffers" in whys[0]
    assert "extension" in whys[1]
    assert checks["hash_index"].sentence.startswith("4 of 19 claims can be judged")
    assert "not run: no extension is built" in checks["extensions"].sentence


def test_a_server_that_does_not_let_us_in_is_the_first_line(stranger: ManagedServer) -> None:
    first, *_ = examine(dsn_of(stranger, LESSER, "wrong"))
    assert (first.name, first.ok, first.exit_code) == ("server", False, 3)
    assert first.sentence.endswith(": it refuses the password: check the user and the password.")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bool], None]:
    """Pretend to be on this processor, with or without mvn, and with no release cached."""
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path))
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("pgservers.programs.releases._PACKAGES", ())

    def pretend(processor: str, has_mvn: bool) -> None:
        mvn = "/usr/bin/mvn" if has_mvn else None
        monkeypatch.setattr("pgservers.programs.releases.shutil.which", lambda _: mvn)
        monkeypatch.setattr("platform.machine", lambda: processor)

    return pretend


def test_releases_that_are_out_of_reach_are_told(machine: Callable[[str, bool], None]) -> None:
    machine("x86_64", False)
    known = "11 of PostgreSQL, 9.3 to 18, 0 cached"
    found = doctor._releases()
    assert found.ok is None
    assert found.sentence.startswith(f"{known}; arms on other releases: not run: ")
    assert found.sentence.endswith(f"there is no mvn on PATH ({installing('mvn')})")
    machine("x86_64", True)
    found = doctor._releases()
    assert (found.ok, found.sentence.partition(";")[0]) == (True, known)


def test_a_kernel_that_accounts_for_no_cpu_time_is_told(
    managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor._cpu_and_device(managed).ok
    monkeypatch.setattr(doctor, "cpu_seconds", lambda *_: None)
    found = doctor._cpu_and_device(managed)
    assert found.ok is None
    assert found.sentence.startswith("CPU time: not recorded: ")
    assert "/proc/<pid>/schedstat" in found.sentence


def test_on_arm_the_releases_that_were_not_built_for_it_are_named(
    machine: Callable[[str, bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("aarch64", True)
    found = doctor._releases()
    assert found.ok is None
    assert "arms on 9.3, 9.6, 10, 11, 13: not run: " in found.sentence
    assert "built for Linux x86_64, and this is Linux aarch64" in found.sentence
    fetched: list[str] = []
    monkeypatch.setattr("pgservers.programs.fetching.fetch", fetched.append)
    lines = CliRunner().invoke(commands, ["servers", "fetch", "all"]).output.splitlines()
    assert fetched == ["12", "14", "15", "16", "17", "18"]
    assert lines[0].startswith("9.3: not fetched: PostgreSQL 9.3.5 is built for Linux x86_64")
    assert sum("not fetched" in line for line in lines) == 5


def test_missing_tools_are_told_with_what_needs_them_and_one_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Tool("here", "here", "this", ("sh",))
    gone = [
        Tool("a browser", "chromium", "tests of pages", ("no-such-program",)),
        Tool("headers", "libc6-dev", "arms in C", file="/no/such/file"),
    ]
    monkeypatch.setattr("pgservers.tools.TOOLS", (here,))
    assert doctor._tools().ok
    monkeypatch.setattr("pgservers.tools.TOOLS", (here, *gone))
    assert doctor._tools().ok is None
    assert doctor._tools().sentence == (
        "no a browser: not run: tests of pages; no headers: not run: arms in C "
        f"({installing('a browser', 'headers')})"
    )
    if Path("/usr/bin/apt-get").exists():
        assert installing("headers") == "apt-get install libc6-dev"


def test_a_directory_that_cannot_be_written_to_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSTUDIES_RECORDS", "/proc/records")
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != Path("/proc"))
    (check,) = (c for c in doctor._machine() if c.name == "records")
    assert "set PGSTUDIES_RECORDS to a directory that can" in check.sentence
    assert exit_code([check]) == 5


def test_what_the_gate_finds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("load", "The load average is 9.0 on 2 cores.")
    for found, name, ok in (([], "quiet", True), ([finding], "load", None)):
        monkeypatch.setattr(doctor, "gate", lambda _, found=found: found)
        assert {check.name: check.ok for check in doctor._machine()}[name] is ok
