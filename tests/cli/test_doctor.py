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
from pgservers.programs.releases import releases
from pgservers.tools import Tool, installing
from tests.servers_at_hand import BUILDER, LESSER, dsn_of

if TYPE_CHECKING:
    from pgservers.servers.managed import ManagedServer

pytestmark = pytest.mark.usefixtures("private")


def by_name(spec: str | None = None) -> dict[str, Check]:
    return {check.name: check for check in examine(spec)}


def test_lines_begin_with_their_verdict() -> None:
    lines = [Check("cold cache", ok, "sentence").line for ok in (True, None, False)]
    assert lines == [
        "ok  cold cache      sentence",
        "--  cold cache      sentence",
        "NO  cold cache      sentence",
    ]


def test_only_what_keeps_the_studies_from_running_has_an_exit_code() -> None:
    assert exit_code([Check("a", True, ""), Check("b", None, "")]) == 0
    assert (
        exit_code([Check("a", None, ""), Check("b", False, "", 5), Check("c", False, "", 3)]) == 5
    )


def test_counting_instructions_takes_valgrind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "reason_no_valgrind", lambda: None)
    monkeypatch.setattr(doctor, "valgrind_version", lambda: "valgrind-3.19.0")
    line = Check("valgrind", True, "instructions are counted under valgrind-3.19.0")
    assert doctor._valgrind() == line
    monkeypatch.setattr(doctor, "reason_no_valgrind", lambda: "there is no valgrind on PATH")
    line = Check("valgrind", None, "counts of instructions: not run: there is no valgrind on PATH")
    assert doctor._valgrind() == line


def test_an_embedded_server_can_do_everything(
    run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_CACHE", str(run_base / "cache"))
    before = set(run_base.glob("s-*"))
    checks = by_name("embedded")
    assert exit_code(list(checks.values())) == 0
    able = {"server", "superuser", "settings", "states", "checkpoints", "counters", "pgbench"}
    assert {name for name in able if checks[name].ok} == able
    assert checks["server"].sentence == (
        "PostgreSQL 18.6 (embedded), managed: each run starts and stops it"
    )
    assert checks["features"].sentence.startswith(
        ("the server is built with lz4 and ICU", "the server is built without ")
    )
    assert checks["cold cache"].sentence == (
        "by emptying buffers and dropping the run's own files from the page cache"
    )
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
    assert checks["settings"].sentence == (
        "arms that change a setting of the whole server: not run: an external server is not "
        "restarted"
    )
    assert checks["cold cache"].sentence == (
        "steps with a cold cache: not run: the files of an external server cannot be reached"
    )
    assert checks["cpu and device"].sentence == (
        "CPU time and bytes read from the device: not recorded: the processes of an external "
        "server cannot be seen"
    )
    assert checks["states"].ok is (True if role == BUILDER else None)
    assert checks["checkpoints"].ok is None
    assert checks["superuser"].ok is None
    assert checks["cluster_order"].sentence == (
        "0 of 5 claims can be judged on this server; 1 cannot: setting shared_buffers needs a "
        "restart of the server; 4 cannot: no extension is built for an external server"
    )
    assert checks["hash_index"].sentence.startswith("4 of 19 claims can be judged")
    assert checks["extensions"].sentence == (
        "arms that need a C extension: not run: no extension is built for an external server"
    )


def test_a_server_that_does_not_let_us_in_is_the_first_line(stranger: ManagedServer) -> None:
    first, *_ = examine(dsn_of(stranger, LESSER, "wrong"))
    assert (first.name, first.ok, first.exit_code) == ("server", False, 3)
    assert first.sentence.endswith(": it refuses the password: check the user and the password.")


def test_releases_that_are_out_of_reach_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path))
    monkeypatch.setattr("pgservers.programs.releases.shutil.which", lambda _: None)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("pgservers.programs.releases._PACKAGES", ())
    known = "11 of PostgreSQL, 9.3 to 18, 0 cached"
    assert doctor._releases().ok is None
    assert doctor._releases().sentence == (
        f"{known}; arms on other releases: not run: PostgreSQL {releases()[-1].version} cannot be "
        f"fetched: there is no mvn on PATH ({installing('mvn')})"
    )
    monkeypatch.setattr("pgservers.programs.releases.shutil.which", lambda _: "/usr/bin/mvn")
    assert doctor._releases() == Check(
        "releases", True, f"{known}; mvn fetches the others when they are needed"
    )


def test_a_kernel_that_accounts_for_no_cpu_time_is_told(
    managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor._cpu_and_device(managed).ok
    monkeypatch.setattr(doctor, "cpu_seconds", lambda *_: None)
    found = doctor._cpu_and_device(managed)
    assert found.ok is None
    assert found.sentence == (
        "CPU time: not recorded: this kernel does not account for it in nanoseconds "
        "(/proc/<pid>/schedstat); what would be judged by it is judged by wall time"
    )


def test_on_arm_the_releases_that_were_not_built_for_it_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path))
    monkeypatch.setattr("pgservers.programs.releases.shutil.which", lambda _: "/usr/bin/mvn")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("pgservers.programs.releases._PACKAGES", ())
    assert doctor._releases() == Check(
        "releases",
        None,
        "11 of PostgreSQL, 9.3 to 18, 0 cached; arms on 9.3, 9.6, 10, 11, 13: not run: "
        "PostgreSQL 13.23 is built for Linux x86_64, and this is Linux aarch64",
    )
    fetched: list[str] = []
    monkeypatch.setattr("pgservers.programs.fetching.fetch", fetched.append)
    lines = CliRunner().invoke(commands, ["servers", "fetch", "all"]).output.splitlines()
    assert fetched == ["12", "14", "15", "16", "17", "18"]
    assert lines[0] == (
        "9.3: not fetched: PostgreSQL 9.3.5 is built for Linux x86_64, and this is Linux aarch64."
    )
    assert sum("not fetched" in line for line in lines) == 5


def test_missing_tools_are_told_with_what_needs_them_and_one_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, gone = (
        Tool("here", "here", "this", ("sh",)),
        [
            Tool("a browser", "chromium", "tests of pages", ("no-such-program",)),
            Tool("headers", "libc6-dev", "arms in C", file="/no/such/file"),
        ],
    )
    monkeypatch.setattr("pgservers.tools.TOOLS", (here,))
    assert doctor._tools() == Check("tools", True, "all that studies and tests need")
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
    assert check.sentence == (
        "/proc/records cannot be written to: set PGSTUDIES_RECORDS to a directory that can"
    )
    assert exit_code([check]) == 5


def test_what_the_gate_finds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "gate", lambda _: [])
    assert Check("quiet", True, "nothing was found that would disturb a measurement") in list(
        doctor._machine()
    )
    finding = Finding("load", "The load average is 9.0 on 2 cores.")
    monkeypatch.setattr(doctor, "gate", lambda _: [finding])
    assert Check("load", None, "The load average is 9.0 on 2 cores.") in list(doctor._machine())
