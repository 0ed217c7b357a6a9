"""Releases by name: fetched whole and as expected or not at all, and every one of them serves."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from data import update_releases as updating
from data.update_releases import update_releases
from pgservers import paths
from pgservers.errors import ServerError, SpaceError, StudyError
from pgservers.files import try_lock
from pgservers.programs import fetching, releases
from pgservers.programs.fetching import fetch
from pgservers.programs.installations import find_binaries
from pgservers.programs.releases import (
    Release,
    find_release,
    reason_not_available,
    reason_not_fetched,
)
from pgservers.programs.versions import has, parse_version
from pgservers.servers.facts import server_facts
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve
from pgservers.tools import installing
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.counters import StatementCounters
from pgstudies.measuring.trial import Trial
from pgstudies.records.reading import built_with
from tests.made_up import rows_of
from tests.servers_at_hand import is_alive, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JAR = "postgres-99.1.jar"
OLDEST_AND_NEWEST = ["9.3", "17"]

REFUSED = (
    "[ERROR] Failed to execute goal org.apache.maven.plugins:maven-dependency-plugin:2.8:copy "
    "(default-cli) on project standalone-pom: Unable to find artifact. Cannot access central in "
    "offline mode -> [Help 1]"
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have this machine be another: x86_64, aarch64, or a word that is none."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    return lambda name: monkeypatch.setattr("platform.machine", lambda: name)


def test_the_catalogs_are_complete_and_well_formed() -> None:
    every = [*releases.builds(paths.RELEASES), *releases.builds(paths.MINOR_RELEASES)]
    for release in every:
        assert release.version.startswith(release.name)
        assert re.fullmatch(r"[\w.]+:[\w-]+:[\d.]+", release.artifact)
        assert release.artifact.rpartition(":")[2].startswith(release.version) or (
            release.name == "9.3"
        )
        assert re.fullmatch(r"[0-9a-f]{64}", release.sha256)
        assert 5e6 < release.size_bytes < 5e7
        assert re.fullmatch(r"gcc \d+\.\d\.\d, -O[2s]", release.built)
        arm = release.machine == "aarch64"
        assert ("arm_64" in release.member, "arm64v8" in release.artifact) == (arm, arm)
    for field in ("artifact", "sha256"):
        assert len({getattr(release, field) for release in every}) == len(every)
    assert {(release.system, release.machine) for release in every} == {
        ("Linux", "x86_64"),
        ("Linux", "aarch64"),
    }


@pytest.mark.parametrize("name", ["x86_64", "aarch64", "pdp11"])
def test_every_machine_has_each_release_once_and_its_own_build(
    machine: Callable[[str], None], name: str
) -> None:
    machine(name)
    known = releases.releases()
    assert [release.name for release in known] == list(
        tomllib.loads(paths.RELEASES.read_text(encoding="utf-8"))
    )
    versions = [parse_version(release.version) for release in known]
    assert versions == sorted(set(versions))
    built = [r.name for r in releases.builds(paths.RELEASES) if r.machine == name]
    assert [r.name for r in known if reason_not_fetched(r.name) is None] == built
    newest = {release.name: release.numbers for release in known[-2:]}
    minors = releases.minor_releases()
    assert {minor.name.partition(".")[0] for minor in minors} == (set(newest) if built else set())
    for minor in minors:
        assert (minor.name, minor.machine) == (minor.version, name)
        assert minor.numbers < newest[minor.name.partition(".")[0]]
        assert find_release(minor.version) is minor


def test_what_was_not_built_for_a_machine_says_so(machine: Callable[[str], None]) -> None:
    machine("aarch64")
    assert {find_release(name).machine for name in ("16", "18", "17.2")} == {"aarch64"}
    for spec, version in (("9.6", "9.6.24"), ("17.0", "17.0"), ("18.6", "18.6")):
        assert releases.is_release(spec)
        assert reason_not_fetched(spec) == (
            f"PostgreSQL {version} is built for Linux x86_64, and this is Linux aarch64"
        )
        with pytest.raises(ServerError, match=r"is Linux aarch64\.$"):
            fetch(spec)


def test_a_release_is_found_by_name_and_by_version_or_the_known_are_told() -> None:
    assert find_release("16") is find_release(find_release("16").version)
    with pytest.raises(StudyError, match=r"'8\.4'; there are 9\.3, 9\.6, 10, "):
        find_release("8.4")


class Mirror:
    """A catalog of one release, "99", whose jar a pretended ``mvn`` hands out, and its calls."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.calls = directory / "calls"
        self.calls.touch()
        self.kept = directory / "repository" / "org" / "example" / "postgres" / "99.1"
        self.catalog = directory / "releases.toml"
        self.minor = directory / "minor_releases.toml"
        self.mvn = directory / "bin" / "mvn"
        self.mvn.parent.mkdir()
        jar = self.jar("postgres-99.1.jar", "99.1")
        self.catalog.write_text(
            f'["99"]\nversion = "99.1"\nartifact = "org.example:postgres:99.1"\n'
            f'member = "postgres.txz"\nsystem = "Linux"\nmachine = "{os.uname().machine}"\n'
            f"size_bytes = {jar.stat().st_size}\n"
            f'sha256 = "{hashlib.sha256(jar.read_bytes()).hexdigest()}"\nbuilt = "by hand"\n'
        )
        before = re.sub(r"sha256 = .*", 'sha256 = "0"', self.catalog.read_text())
        self.minor.write_text(before.replace('["99"]', '["99.0"]').replace("99.1", "99.0"))
        self.serves(jar)

    def jar(self, name: str, version: str) -> Path:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:xz") as tar:
            for program in ("initdb", "postgres"):
                text = f'#!/bin/sh\necho "{program} (PostgreSQL) {version}"\n'.encode()
                entry = tarfile.TarInfo(f"bin/{program}")
                entry.size, entry.mode, entry.uid = len(text), 0o722, 4321
                tar.addfile(entry, io.BytesIO(text))
        path = self.directory / name
        with zipfile.ZipFile(path, "w") as jar:
            jar.writestr("postgres.txz", archive.getvalue())
        return path

    def serves(self, jar: Path) -> None:
        self.does(
            f"mkdir -p {self.kept}\ncp {jar} {self.kept}/postgres-99.1.jar\n"
            f'cp {jar} "${{6#-DoutputDirectory=}}"/postgres-99.1.jar'
        )

    def publishes(self, content: bytes, member: zipfile.ZipInfo | None = None) -> None:
        """Have the catalog expect a jar with this member, and serve it."""
        path = self.directory / JAR
        with zipfile.ZipFile(path, "w") as jar:
            jar.writestr(member or "postgres.txz", content)
        self.serves(path)
        self.expects(path)

    def expects(self, jar: Path) -> None:
        sha256 = hashlib.sha256(jar.read_bytes()).hexdigest()
        text = re.sub('sha256 = ".*"', f'sha256 = "{sha256}"', self.catalog.read_text())
        self.catalog.write_text(text)
        releases.builds.cache_clear()

    def has(self, *versions: str) -> None:
        """Say that there are these versions, and serve the jar of each that is asked for."""
        told = "".join(f"<version>{version}</version>" for version in versions)
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        (self.kept.parent / "maven-metadata-central.xml").write_text(f"<versions>{told}</versions>")
        self.does(
            'case "$*" in *:resolve*) echo "[ERROR] No versions available"; exit 1;; esac\n'
            f'cp {self.directory}/postgres-"${{5##*:}}".jar "${{6#-DoutputDirectory=}}"/'
        )

    def does(self, script: str) -> None:
        begin = f'echo "$@" >> {self.calls}\necho "[DEBUG] Using local repository at '
        self.mvn.write_text(f'#!/bin/sh\n{begin}{self.directory / "repository"}"\n{script}\n')
        self.mvn.chmod(0o755)

    @property
    def fetched(self) -> list[str]:
        return self.calls.read_text().splitlines()

    @property
    def cache(self) -> list[str]:
        home = releases.releases_dir()
        return [p.name for p in home.iterdir() if not p.name.startswith(".lock")]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    mirror = Mirror(tmp_path)
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{mirror.mvn.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    for module in (releases, updating):
        monkeypatch.setattr(module, "RELEASES", mirror.catalog)
        monkeypatch.setattr(module, "MINOR_RELEASES", mirror.minor)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    releases.builds.cache_clear()
    yield mirror
    monkeypatch.undo()
    releases.builds.cache_clear()


def test_a_release_is_fetched_once_and_open_to_all(
    mirror: Mirror, capfd: pytest.CaptureFixture[str]
) -> None:
    before = os.umask(0o077)
    try:
        directory = fetch("99")
    finally:
        os.umask(before)
    assert "fetching PostgreSQL 99.1" in capfd.readouterr().err
    assert find_binaries("99").version == 990001
    assert fetch("99.1") == directory
    assert capfd.readouterr().err == ""
    assert len(mirror.fetched) == 1
    assert mirror.cache == [directory.name]
    record = directory / "finished.json"
    within = set(directory.rglob("*")) - {record}
    found = [p.stat() for p in [directory.parent, directory, *within]]
    assert {(file.st_mode & 0o777, file.st_uid) for file in found} == {(0o755, os.geteuid())}
    assert record.stat().st_mode & 0o777 == 0o644


def test_a_jar_that_is_not_the_one_expected_is_refused_and_deleted(mirror: Mirror) -> None:
    mirror.serves(mirror.jar("other.jar", "99.2"))
    with pytest.raises(ServerError, match=r"99\.1 is not the one expected .* was deleted"):
        fetch("99")
    assert mirror.cache == []
    assert list(mirror.kept.iterdir()) == []


def test_what_a_killed_process_left_is_not_used(mirror: Mirror) -> None:
    final = find_release("99").directory
    (final.parent / f"{final.name}.tmp-dead" / "unpacked" / "bin").mkdir(parents=True)
    (final / "share").mkdir(parents=True)
    assert reason_not_available("99") is None
    assert not find_release("99").cached
    fetch("99")
    assert mirror.cache == [final.name]
    assert find_binaries("99").version == 990001


def test_of_two_processes_at_once_one_fetches(mirror: Mirror) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from pgservers.programs import releases, fetching;"
        "releases.RELEASES = Path(sys.argv[1]); print(fetching.fetch('99'))"
    )
    command = [sys.executable, "-c", code, str(mirror.catalog)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = {process.communicate()[0] for process in both}
    assert outputs == {f"{find_release('99').directory}\n"}
    assert len(mirror.fetched) == 1


def test_waiting_for_another_process_is_told(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    releases.releases_dir().mkdir(parents=True)
    locks = [try_lock(releases.releases_dir() / ".lock-99")]
    assert locks[0] is not None

    def sleep(_: float) -> None:
        for lock in filter(None, locks):
            os.close(lock)
        locks.clear()

    monkeypatch.setattr(fetching, "_SILENT_S", -1.0)
    monkeypatch.setattr(time, "sleep", sleep)
    fetch("99")
    told = "Another process is fetching PostgreSQL 99.1: waiting for it.\n"
    assert capfd.readouterr().err.startswith(told)
    assert len(mirror.fetched) == 1


def test_without_mvn_a_cached_release_serves_and_any_other_says_how_to_get_it(
    mirror: Mirror,
) -> None:
    directory = fetch("99")
    mirror.mvn.unlink()
    os.environ["PATH"] = str(mirror.mvn.parent)  # put back by the fixture
    assert reason_not_available("99") is None
    assert fetch("99") == directory
    shutil.rmtree(directory)
    reason = f"PostgreSQL 99.1 cannot be fetched: there is no mvn on PATH ({installing('mvn')})"
    assert reason_not_available("99") == reason
    with pytest.raises(ServerError, match=re.escape(f"{reason}.")):
        fetch("99")


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (f"echo '{REFUSED}'; exit 1", ServerError, r"org\.example:postgres:99\.1: Unable to "),
        ("echo The JAVA_HOME is not set >&2; exit 1", ServerError, "fetch .*: The JAVA_HOME is "),
        ("exit 1", ServerError, "could not fetch"),
        ("exit 0", ServerError, "could not fetch"),
        ("head -c 1000000 /dev/zero; echo; echo no jar", ServerError, "fetch .*: no jar"),
        ("echo '[ERROR] cp: No space left on device'; exit 1", SpaceError, "no space left"),
    ],
)
def test_a_maven_that_fails_is_quoted(
    mirror: Mirror, script: str, error: type[StudyError], words: str
) -> None:
    mirror.does(script)
    with pytest.raises(error, match=words) as caught:
        fetch("99")
    assert "\n" not in str(caught.value)
    assert "Help 1" not in str(caught.value)
    assert mirror.cache == []


def test_an_interrupted_fetch_leaves_nothing_running(mirror: Mirror) -> None:
    pid = mirror.directory / "pid"
    mirror.does(f"sleep 60 &\necho $! > {pid}; sleep 1; kill -INT $PPID; wait")
    with pytest.raises(KeyboardInterrupt):
        fetch("99")
    number = int(pid.read_text())
    while psutil.pid_exists(number) and is_alive(psutil.Process(number)):
        time.sleep(0.01)
    assert mirror.cache == []


def entry(name: str, **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    for field, value in more.items():
        setattr(made, field, value)
    content = b"#!/bin/sh\n" if made.isreg() else b""
    made.size = more.get("size", len(content))
    return made, content


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=kind, linkname=target)


PROGRAMS = [entry("bin/initdb"), entry("bin/postgres")]


def packed(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:xz") as tar:
        for made, content in entries:
            if made.size == len(content):
                tar.addfile(made, io.BytesIO(content))
            else:
                tar.addfile(made)  # a header that promises more than there is
    return archive.getvalue()


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (packed(entry("../outside"), *PROGRAMS), r"\.\./outside would be written elsewhere"),
        (packed(entry("/tmp/outside"), *PROGRAMS), "/tmp/outside would be written elsewhere"),
        (packed(link("a", ".."), entry("a/b"), *PROGRAMS), "outside|a/b would be written"),
        (packed(link("a", "b"), entry("a/b"), *PROGRAMS), "a/b would be written elsewhere"),
        (packed(link("a", "b"), entry("a"), *PROGRAMS), "a would be written elsewhere"),
        (packed(link("a", "../../etc/passwd"), *PROGRAMS), "outside|is a link to"),
        (packed(link("a", "/etc/passwd"), *PROGRAMS), "absolute|is a link to /etc/passwd"),
        (packed(link("a", "../x", tarfile.LNKTYPE), *PROGRAMS), "a would be written elsewhere"),
        (packed(entry("pipe", type=tarfile.FIFOTYPE), *PROGRAMS), "pipe is neither a file, a "),
        (packed(entry("disk", type=tarfile.BLKTYPE), *PROGRAMS), "disk is neither a file, a "),
        (packed(PROGRAMS[0], link("bin/postgres", "initdb")), "it has no bin/postgres"),
        (packed(PROGRAMS[1]), "it has no bin/initdb"),
        (packed(entry("huge", size=2**40)), r"it holds more than 1\.1 GB"),
        (packed(*PROGRAMS)[:100], "."),
        (packed(*PROGRAMS, entry("short", size=2**20)), "."),
        (b"/usr/bin", "."),
        (b"", "."),
    ],
)
def test_a_jar_as_expected_that_is_no_release_is_refused(
    mirror: Mirror, member: bytes, why: str
) -> None:
    """Whoever changed the catalog has changed its checksum as well."""
    mirror.publishes(member)
    before = {path for path in mirror.directory.rglob("*") if "cache" not in path.parts}
    with pytest.raises(ServerError, match=rf"99\.1 cannot be unpacked: .*{why}"):
        fetch("99")
    assert mirror.cache == []
    made = {path for path in mirror.directory.rglob("*") if "cache" not in path.parts} - before
    assert {path.name for path in made} <= {"repository", "org", "example", "postgres", "99.1", JAR}


def test_a_jar_without_its_member_or_with_a_link_for_it_is_refused(mirror: Mirror) -> None:
    mirror.publishes(packed(*PROGRAMS), zipfile.ZipInfo("other.txz"))
    with pytest.raises(ServerError, match=r"99\.1 cannot be unpacked: .*postgres\.txz"):
        fetch("99")
    member = zipfile.ZipInfo("postgres.txz")
    member.external_attr = 0o120777 << 16
    mirror.publishes(b"/etc/passwd", member)
    with pytest.raises(ServerError, match=r"99\.1 cannot be unpacked: "):
        fetch("99")
    assert mirror.cache == []


@pytest.mark.parametrize("cut", [1, 50, 200])
def test_a_jar_that_was_cut_is_refused(mirror: Mirror, cut: int) -> None:
    whole = mirror.directory / JAR
    part = mirror.directory / "part.jar"
    part.write_bytes(whole.read_bytes()[:-cut])
    mirror.serves(part)
    with pytest.raises(ServerError, match="is not the one expected"):
        fetch("99")
    mirror.expects(part)
    with pytest.raises(ServerError, match=r"99\.1 cannot be unpacked: "):
        fetch("99")
    assert mirror.cache == []


def test_each_machines_build_is_exchanged_for_its_own_newest(mirror: Mirror) -> None:
    mine = mirror.catalog.read_text()
    other = mine.replace('["99"]', '["99".pdp11]').replace(
        "org.example:postgres:", "org.example:pdp:"
    )
    other = other.replace(os.uname().machine, "pdp11")
    mirror.catalog.write_text(f"{mine}\n{other}")
    mirror.has("99.1", "99.2")
    (mirror.kept.parent.parent / "pdp").mkdir()
    (mirror.kept.parent.parent / "pdp" / "maven-metadata-central.xml").write_text(
        "<versions><version>99.1</version><version>99.3</version></versions>"
    )
    jars = {n: mirror.jar(f"{n}.jar", n.partition("-")[2]) for n in ("postgres-99.2", "pdp-99.3")}
    mirror.does(
        'case "$*" in *:resolve*) echo "[ERROR] No versions available"; exit 1;; esac\n'
        "name=${5#-Dartifact=org.example:}; name=$(echo $name | tr : -)\n"
        f'cp {mirror.directory}/$name.jar "${{6#-DoutputDirectory=}}"/'
    )
    releases.builds.cache_clear()
    assert list(update_releases()) == [
        "99: 99.2 in place of 99.1",
        "99.pdp11: 99.3 in place of 99.1",
    ]
    found = {build.machine: build for build in releases.builds(mirror.catalog)}
    assert {(b.version, b.sha256) for b in found.values()} == {
        (name.partition("-")[2], hashlib.sha256(jar.read_bytes()).hexdigest())
        for name, jar in jars.items()
    }
    assert found["pdp11"].artifact == "org.example:pdp:99.3"
    minors = [(b.name, b.version, b.machine) for b in releases.builds(mirror.minor)]
    here = os.uname().machine
    assert minors == [("99.0", "99.0", here), ("99.1", "99.1", here), ("99.1", "99.1", "pdp11")]


def test_newer_minor_versions_are_written_into_the_catalog(mirror: Mirror) -> None:
    others = '["9.3"]\nversion = "9.3.5"\nartifact = "org.example:old:0.3.0"\n'
    others += (
        mirror.catalog.read_text().partition("\n")[2].partition("artifact")[2].partition("\n")[2]
    )
    mirror.catalog.write_text(f"# A comment.\n{others}\n{mirror.catalog.read_text()}")
    mirror.has("99.0", "99.1", "99.1-1", "99.2", "99.10", "99.11-beta", "100.0", "9.9")
    newest = mirror.jar("postgres-99.10.jar", "99.10")
    releases.builds.cache_clear()
    assert list(update_releases()) == [
        "9.3: 9.3.5 (its artifact has versions of its own)",
        "99: 99.10 in place of 99.1",
        "100: published; add it to releases.toml",
    ]
    assert mirror.catalog.read_text().startswith(f"# A comment.\n{others}\n[")
    found = find_release("99")
    assert (found.version, found.artifact) == ("99.10", "org.example:postgres:99.10")
    assert found.size_bytes == newest.stat().st_size
    assert found.sha256 == hashlib.sha256(newest.read_bytes()).hexdigest()
    assert find_binaries("99").version == 990010
    before = mirror.catalog.read_bytes()
    assert "99: 99.10 is the newest" in list(update_releases())
    assert find_release("99.0").name == "99.0"
    assert find_release("99.1").sha256 != found.sha256
    assert mirror.catalog.read_bytes() == before


@pytest.mark.parametrize("said", ["Could not transfer metadata", "No plugin found"])
def test_a_maven_that_tells_no_versions_changes_nothing(mirror: Mirror, said: str) -> None:
    before = mirror.catalog.read_bytes()
    mirror.has("99.1", "99.2")
    mirror.does(f"echo '[ERROR] {said}'; exit 1")
    with pytest.raises(ServerError, match=said):
        list(update_releases())
    assert mirror.catalog.read_bytes() == before


def test_a_newer_jar_without_its_member_changes_nothing(mirror: Mirror) -> None:
    before = mirror.catalog.read_bytes()
    mirror.has("99.2")
    with zipfile.ZipFile(mirror.directory / "postgres-99.2.jar", "w") as jar:
        jar.writestr("other", b"")
    with pytest.raises(ServerError, match=r"postgres:99\.2 does not hold postgres\.txz"):
        list(update_releases())
    assert mirror.catalog.read_bytes() == before


@pytest.mark.usefixtures("mirror")
@pytest.mark.parametrize("below", ["../..", "..", ".", "bin", "bin/postgres"])
def test_nothing_that_others_can_change_is_run(below: str) -> None:
    changed = fetch("99") / below
    changed.chmod(changed.stat().st_mode | 0o002)
    with pytest.raises(ServerError, match=r"Other accounts can change .* set PGSTUDIES_CACHE"):
        find_binaries("99")


@pytest.mark.usefixtures("mirror")
@pytest.mark.root
@pytest.mark.parametrize("below", ["..", ".", "bin", "bin/postgres"])
def test_nothing_of_another_account_is_run(below: str) -> None:
    os.chown(fetch("99") / below, 4321, -1)
    with pytest.raises(ServerError, match=r"Other accounts can change"):
        find_binaries("99")


@pytest.mark.usefixtures("mirror")
@pytest.mark.root
def test_what_lies_in_a_strangers_directory_is_not_run_however_sticky() -> None:
    above = fetch("99").parent.parent
    above.chmod(0o1777)
    assert find_binaries("99")
    os.chown(above, 4321, -1)
    with pytest.raises(ServerError, match=r"Other accounts can change"):
        find_binaries("99")


@pytest.mark.usefixtures("mirror")
@pytest.mark.parametrize("name", ["postgres", "initdb", "pg_ctl"])
def test_a_program_that_was_replaced_is_not_run(name: str) -> None:
    program = fetch("99") / "bin" / name
    program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 99.7'\n")
    program.chmod(0o755)
    with pytest.raises(ServerError, match="have changed since they were stored"):
        find_binaries("99")


def test_a_cache_that_cannot_be_made_names_the_variable(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_CACHE", str(mirror.calls / "below-a-file"))
    with pytest.raises(SpaceError, match="set PGSTUDIES_CACHE"):
        fetch("99")


def test_a_release_is_meant_before_a_directory_of_that_name(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = mirror.directory / "99"
    directory.mkdir()
    monkeypatch.chdir(mirror.directory)
    assert find_binaries("99").source == "release 99"
    with pytest.raises(ServerError, match=f"{directory} holds no PostgreSQL"):
        serve("./99")


@pytest.fixture(
    params=[
        release.name
        if release.name in OLDEST_AND_NEWEST
        else pytest.param(release.name, marks=pytest.mark.slow)
        for release in releases.releases()
    ]
)
def release(request: pytest.FixtureRequest) -> Release:
    """A release that is cached, or in CI may be fetched."""
    require(str(request.param))
    return find_release(str(request.param))


@pytest.mark.usefixtures("private")
def test_every_release_starts_restarts_and_stops(release: Release) -> None:
    settings = {"fsync": "off", "autovacuum": "off", "jit": "off"}
    with serve(release.name, settings=settings) as server:
        assert isinstance(server, ManagedServer)
        assert (server.spec, server.version) == (release.name, parse_version(release.version))
        assert server.unmet_settings.keys() <= {"jit"}
        assert built_with(server_facts(server)) == release.built
        # Not a copy of its programs, which the account that root's servers run as cannot reach.
        exe = Path(psutil.Process(server.postmaster_pid).exe())
        assert exe == release.directory / "bin" / "postgres"
        with server.connect() as c:
            assert c.execute("SHOW data_checksums").fetchone() == ("on",)  # as 18 by default
            c.execute("CREATE TABLE t AS SELECT generate_series(1, 1000) AS i")
            counters = StatementCounters(c).read()
            assert (counters.buffers_hit or 0) > 0
            assert (counters.wal_bytes is not None) is has(server.version, "counts WAL")
        postmaster = psutil.Process(server.postmaster_pid)
        processes = [postmaster, *postmaster.children()]
        server.restart({"shared_buffers": "4MB"})
        assert not any(map(is_alive, processes))
        with server.connect() as c:
            query = "SELECT count(*), current_setting('shared_buffers') FROM t"
            assert c.execute(query).fetchone() == (1000, "4MB")
        server.stop()
        assert server.pids() == []


@pytest.mark.usefixtures("private")
def test_all_that_a_study_does_is_possible_on_the_oldest_release() -> None:
    require("9.3")
    with serve("9.3", settings={"max_parallel_workers_per_gather": "0"}) as server:
        assert isinstance(server, ManagedServer)

        def build() -> None:
            with server.connect() as c:
                c.execute("CREATE TABLE t AS SELECT i FROM generate_series(1, 20000) i")
                c.execute("CHECKPOINT")

        arm = Arm("old", settings={"work_mem": "8MB"})
        for _ in range(2):
            server.restore("built", build, arm.settings)
            with Trial(server, arm, block=1) as trial:
                assert trial.value("SELECT count(*) FROM t") == 20000
                assert trial.make_cold("t", step="scan")
                trial.timed("scan", "SELECT sum(i) FROM t")
                trial.repeated("one", "SELECT 1", 10)
                trial.execute("DELETE FROM t")
                values = {(row["step"], row["metric"]): row["value"] for row in rows_of(trial)}
            assert values["scan", "buffers_read"] > 80
            assert ("scan", "cpu_s") in values
            assert ("scan", "wal_bytes") not in values
        settings = dict(server.nondefault_settings().select("name", "value").rows())
        assert settings["work_mem"] == "8192"
        pgbench = server.capabilities.pgbench
        assert pgbench is not None
        done = subprocess.run(
            [pgbench, "-n", "-M", "prepared", "-t", "3", "-f", "/dev/stdin"],
            input="SELECT count(*) FROM t;",
            env={**os.environ, **server.environment()},
            text=True,
            capture_output=True,
            check=True,
        )
        assert "transactions actually processed: 3/3" in done.stdout
