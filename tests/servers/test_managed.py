"""Servers of our own: states come back exactly, settings hold, nothing is left behind."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest

from pgservers.errors import CannotRun, ServerError, SpaceError, StudyError
from pgservers.files import says_full
from pgservers.paths import run_dir
from pgservers.programs.accounts import server_account
from pgservers.programs.installations import Binaries, find_binaries, require_version
from pgservers.programs.releases import reason_not_available
from pgservers.programs.versions import parse_version
from pgservers.servers.leftovers import sweep
from pgservers.servers.managed import ManagedServer, harmless_extensions
from pgservers.servers.postmaster import Postmaster, StartError
from pgservers.servers.serve import serve
from pgservers.servers.snapshots import mirror
from tests.servers_at_hand import wait_until_dead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgservers.servers.serve import Server

pytestmark = pytest.mark.usefixtures("private")


def builder(server: ManagedServer, built: list[str], name: str = "t") -> Callable[[], None]:
    def build() -> None:
        built.append(name)
        with server.connect() as connection:
            connection.execute(f"CREATE TABLE {name} AS SELECT generate_series(1, 1000) AS i")

    return build


def test_a_state_is_built_once_and_comes_back_exactly(managed: ManagedServer) -> None:
    built: list[str] = []
    for _ in range(3):
        managed.restore("thousand", builder(managed, built))
        with managed.connect() as c:
            assert c.execute("SELECT count(*), sum(i) FROM t").fetchone() == (1000, 500500)
            c.execute("DELETE FROM t WHERE i % 2 = 0")
            c.execute("CREATE TABLE intruder (i int)")
    assert built == ["t"]
    managed.restore("thousand", builder(managed, built))
    with managed.connect() as c:
        assert c.execute("SELECT to_regclass('intruder')").fetchone() == (None,)


def test_extensions_are_made_in_one_order(managed: ManagedServer) -> None:
    # A set's order is another in every process, and so would be the places of rows in the catalogs.
    query = "SELECT extname FROM pg_extension WHERE extname LIKE 'pg\\_%' ORDER BY oid"
    with managed.connect() as connection:
        made = [name for (name,) in connection.execute(query).fetchall()]
    assert made == ["pg_stat_statements", "pg_buffercache"]


def test_extensions_that_others_may_have_are_made_in_one_order(managed: ManagedServer) -> None:
    wanted = {"btree_gin", "btree_gist", "citext", "hstore", "intarray", "ltree", "pg_trgm"}
    with managed.connect() as connection:
        assert harmless_extensions(connection, wanted) == sorted(wanted)


def test_states_do_not_see_each_other(managed: ManagedServer) -> None:
    built: list[str] = []
    managed.restore("first", builder(managed, built, "one"))
    managed.restore("second", builder(managed, built, "two"))
    with managed.connect() as c:
        assert c.execute("SELECT to_regclass('one'), to_regclass('two')").fetchone() == (
            None,
            "two",
        )


def test_every_state_begins_a_segment_of_wal(managed: ManagedServer) -> None:
    # Else the same writes would end a segment, and make a new one, at other turns here than there.
    offsets = []
    for rows in (1, 50_000):

        def build(rows: int = rows) -> None:
            with managed.connect() as c:
                c.execute(f"CREATE TABLE t AS SELECT generate_series(1, {rows}) AS i")

        managed.restore(f"{rows} rows", build)
        query = "SELECT (pg_current_wal_insert_lsn() - '0/0') % (16 * 1024 * 1024)::numeric"
        with managed.connect() as c:
            offsets.append(c.execute(query).fetchone())
    assert offsets[0] == offsets[1]
    assert offsets[0][0] < 100_000  # type: ignore[index]


def test_settings_of_an_arm_hold_for_that_arm_only(managed: ManagedServer) -> None:
    def shown() -> str:
        with managed.connect() as c:
            row = c.execute("SHOW shared_buffers").fetchone()
            return str(row[0]) if row else ""

    managed.restore("thousand", builder(managed, []), {"shared_buffers": "4MB"})
    assert shown() == "4MB"
    managed.restore("thousand", builder(managed, []))
    assert shown() == "128MB"


def test_a_servers_writers_are_quiet_unless_a_study_wants_them(managed: ManagedServer) -> None:
    quiet = {"bgwriter_lru_maxpages": "0", "wal_writer_delay": "10s"}
    managed.restore("quiet", lambda: None)
    assert {name: shown(managed, name) for name in quiet} == quiet
    with serve("embedded", settings={"BgWriter_LRU_MaxPages": "7"}) as server:
        assert {name: shown(server, name) for name in quiet} == quiet | {
            "bgwriter_lru_maxpages": "7"
        }


def test_a_release_before_18_has_checksums_as_18_has_by_default() -> None:
    with serve("16") as server:
        assert shown(server, "data_checksums") == "on"


def test_a_state_without_checksums_leaves_the_others_theirs(managed: ManagedServer) -> None:
    managed.restore("bare", managed.disable_checksums, {"work_mem": "5MB"})
    assert (shown(managed, "data_checksums"), shown(managed, "work_mem")) == ("off", "5MB")
    managed.restore("usual", lambda: None)
    assert shown(managed, "data_checksums") == "on"


def test_binaries_that_cannot_turn_checksums_off_say_so(
    managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Binaries, "program", lambda *_: None)
    with pytest.raises(CannotRun, match="no pg_checksums"):
        managed.disable_checksums()
    assert shown(managed, "data_checksums") == "on"


def shown(server: Server, name: str) -> object:
    with server.connect() as connection:
        row = connection.execute(f"SHOW {name}".encode()).fetchone()
    return row and row[0]


def test_a_setting_it_does_not_know_is_told_in_its_own_words(managed: ManagedServer) -> None:
    with pytest.raises(CannotRun, match="has no setting no_such"):
        managed.restart({"no_such": "1"})
    managed.start()


def listening(server: ManagedServer) -> list[object]:
    found = psutil.Process(server.postmaster_pid).net_connections("inet")
    return [c for c in found if c.status == "LISTEN"]


def test_no_tcp_port_is_open(managed: ManagedServer) -> None:
    assert listening(managed) == []


def test_no_setting_opens_a_port_or_lets_anybody_in(managed: ManagedServer, tmp_path: Path) -> None:
    managed.restart(
        {"Listen_Addresses": "*", "port": "5499", "unix_socket_directories": str(tmp_path)}
        | {"hba_file": "/nonexistent", "ident_file": "/nonexistent"}
    )
    assert listening(managed) == []
    assert list(tmp_path.iterdir()) == []
    with managed.connect() as c:
        assert c.execute("SHOW listen_addresses").fetchone() == ("",)
    managed.restart()


CONNECT = """
import os, sys, psycopg
host, uid, gid = sys.argv[1:]
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
psycopg.connect(host=host, port=5432, user="postgres", dbname="postgres")
"""


@pytest.mark.root
@pytest.mark.parametrize("spec", ["embedded", "9.3", "9.6", "13", "17"])
def test_no_other_account_gets_in(spec: str) -> None:
    """Not even the server's own, which may enter the directory of its socket."""
    if spec != "embedded" and reason_not_available(spec):
        pytest.skip(f"release {spec} is not on this machine")
    account = server_account()
    with serve(spec) as server:
        assert isinstance(server, ManagedServer)
        socket = Path(server.environment()["PGHOST"])
        assert (socket.stat().st_mode & 0o777, socket.stat().st_uid) == (0o700, account.uid)
        done = subprocess.run(
            [sys.executable, "-c", CONNECT, socket, str(account.uid), str(account.gid)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Peer authentication failed" in done.stderr
        with server.connect() as c:
            rules = Path(str(c.execute("SHOW hba_file").fetchone()[0]))  # type: ignore[index]
            assert "host all all all reject" in rules.read_text()
        with (server.data_directory / "pg_hba.conf").open() as initial:
            methods = {line.split()[-1] for line in initial if line.startswith(("local", "host"))}
        assert methods <= {"peer", "reject"}
        assert rules.stat().st_uid == 0  # the server's account cannot change it


def test_what_is_of_nobody_elses_business_is_closed(managed: ManagedServer) -> None:
    instance = managed.data_directory.parent
    for name in ("log", "owner.lock"):
        assert (instance / name).stat().st_mode & 0o077 == 0


def test_an_account_without_a_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(ServerError, match="has no name on this machine"):
        serve("embedded")


@pytest.mark.root
def test_root_runs_the_server_as_another_account(managed: ManagedServer) -> None:
    account = server_account()
    assert account is not None
    assert psutil.Process(managed.postmaster_pid).uids().real == account.uid != 0


@pytest.mark.root
def test_binaries_in_a_private_home_are_copied_within_reach(tmp_path: Path) -> None:
    original = find_binaries("embedded")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    package = original.bindir.parents[1]
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.exists():
            shutil.copytree(part, home / part.name, symlinks=True)
    hidden = str(home / package.name / original.bindir.parent.name)
    with serve(hidden) as server, server.connect() as c:
        assert c.execute("SELECT 1").fetchone() == (1,)


def test_the_environment_of_libpq_does_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGDATA", "/nonexistent")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGOPTIONS", "-c jit=no_such")
    with serve("embedded") as server, server.connect() as c:
        assert c.execute("SELECT 1").fetchone() == (1,)


def test_a_server_with_programs_of_its_own_runs_a_copy_with_the_same_states(
    managed: ManagedServer,
) -> None:
    with managed.another() as same, managed.another(own_programs=True) as apart:
        servers = managed, same, apart
        for server in servers:
            server.restore("thousand", builder(managed, []))
            with server.connect() as c:
                assert c.execute("SELECT count(*) FROM t").fetchone() == (1000,)
        programs = [Path(psutil.Process(s.postmaster_pid).exe()) for s in servers]
    assert programs[0].samefile(programs[1])
    assert not programs[2].exists(), "it goes with its server"
    assert programs[2] not in programs[:2]


def test_two_servers_at_once_do_not_collide(run_base: Path) -> None:
    with serve("embedded") as one, serve("embedded") as two:
        with one.connect() as c:
            c.execute("CREATE TABLE only_in_one ()")
        with two.connect() as c:
            assert c.execute("SELECT to_regclass('only_in_one')").fetchone() == (None,)
        directories = [d for d in run_base.iterdir() if d.name.startswith("s-")]
        assert len(directories) >= 2


def test_closing_leaves_no_process_and_no_file(run_base: Path) -> None:
    before = set(run_base.iterdir())
    with serve("embedded") as server:
        assert isinstance(server, ManagedServer)
        processes = [psutil.Process(pid) for pid in server.pids()]
        assert len(processes) > 1
    assert set(run_base.iterdir()) == before
    assert wait_until_dead(processes)


def test_a_directory_of_binaries_serves(run_base: Path) -> None:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not debian:
        pytest.skip("Debian's PostgreSQL is not installed")
    with serve(str(debian[-1].parents[1])) as server, server.connect() as c:
        assert server.version == c.info.server_version
        assert server.capabilities.has("superuser")
    del run_base


def test_a_directory_without_programs_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "initdb").touch()
    with pytest.raises(ServerError, match="initdb and postgres must be in it or in its bin"):
        serve(str(tmp_path))


def test_a_word_that_is_no_server_says_what_is_understood() -> None:
    with pytest.raises(
        StudyError, match=r"is not a server: give `embedded`, one of the releases 9\.3, 9\.6,"
    ):
        serve("no_such_thing")


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


def test_an_old_server_is_refused() -> None:
    old = Binaries(Path("/somewhere"), 80200, "PostgreSQL 8.2", "somewhere")
    with pytest.raises(ServerError, match=r"PostgreSQL 8\.2 is too old: pgstudies starts"):
        require_version(old)


def test_a_server_out_of_semaphores_says_what_they_are_for(run_base: Path) -> None:
    place = run_base / "out-of-semaphores"
    place.mkdir(mode=0o755)
    program = place / "postgres"
    program.write_text(
        "#!/bin/sh\n"
        "echo 'FATAL:  the database system is starting up' >&2\n"
        "echo 'FATAL:  could not create semaphores: No space left on device' >&2\n"
        "exit 1\n"
    )
    program.chmod(0o755)
    with pytest.raises(
        StartError, match=r"^could not create semaphores: .* lower max_connections, or raise kernel"
    ):
        Postmaster(
            program,
            place,
            place / "log",
            {},
            version=90624,
            address="",
            account=server_account(),
            environment={},
            cpu=None,
            started=lambda _: None,
        )


def test_a_full_disk_is_noticed_before_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil._ntuple_diskusage(100, 99, 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(SpaceError, match=r"free some.*, or set PGSTUDIES_RUN_DIR"):
        serve("embedded")


@contextmanager
def small_disk(place: Path, size_mb: int) -> Iterator[Path]:
    """A file system of that size; skips where we may not mount one."""
    place.mkdir()
    options = f"size={size_mb}m,mode=711"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.root
@pytest.mark.parametrize("size_mb", [1, 16, 20, 24, 34, 38, 60, 80])
def test_a_server_that_finds_no_room_says_so(
    size_mb: int, run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In initdb, at the start, while the server is made, in the copy of its files."""
    with small_disk(run_base / f"disk-{size_mb}", size_mb) as disk:
        monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(disk))
        with pytest.raises(SpaceError, match="set PGSTUDIES_RUN_DIR to a directory on another"):
            serve("embedded")
        assert list(disk.glob("s-*")) == []


@pytest.mark.root
def test_a_disk_that_fills_while_a_state_is_made_is_named(
    run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(run_base / "disk", 160) as disk:
        monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(disk))
        with serve("embedded") as server:

            def build() -> None:
                with server.connect() as c:
                    c.execute(
                        "CREATE TABLE wide AS SELECT repeat('x', 1000) FROM generate_series(1, 9e5)"
                    )

            with pytest.raises(SpaceError, match=r"No space left in .* for the server's data"):
                server.restore("wide", build)
        assert list(disk.glob("s-*")) == []


def fill_with_wal(c: psycopg.Connection[Any]) -> None:
    for _ in range(100):
        c.execute("INSERT INTO logged SELECT i, repeat('x', 1000) FROM generate_series(1, 3000) i")
        c.execute("TRUNCATE logged")


@pytest.mark.root
def test_a_server_that_dies_of_a_full_disk_has_not_simply_gone_away(
    run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(run_base / "dying-disk", 160) as disk:
        monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(disk))
        with serve("embedded", settings={"restart_after_crash": "off"}) as server:
            with server.connect() as c:
                c.execute("CREATE TABLE logged (i int, d text)")
                (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - 20_000_000))
                with pytest.raises(psycopg.Error) as caught:
                    fill_with_wal(c)
            assert isinstance(server.space_error(caught.value), SpaceError)
            assert server.space_error(psycopg.errors.UndefinedTable("no such table")) is None


def test_only_a_disk_is_called_full() -> None:
    assert says_full('FATAL: could not write to file "x": No space left on device')
    assert not says_full("FATAL:  could not create semaphores: No space left on device")
    assert not says_full("could not create shared memory segment: No space left on device")


def test_a_state_is_not_kept_of_a_server_that_stopped_badly(managed: ManagedServer) -> None:
    def build() -> None:
        # With its children, which else hold the shared memory until they notice.
        killed = list(map(psutil.Process, managed.pids()))
        for process in killed:
            process.kill()
        assert wait_until_dead(killed)

    with pytest.raises(ServerError, match="stopped by itself"):
        managed.restore("killed", build)
    assert "killed" not in managed._states
    managed.restore("brought back", lambda: None)  # for the test after this one, whichever it is


def test_an_installation_knows_its_programs() -> None:
    binaries = find_binaries("embedded")
    assert isinstance(binaries, Binaries)
    assert binaries.program("postgres") is not None
    assert binaries.program("no_such_program") is None


def test_mirror_copies_only_what_differs(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "deep").mkdir(parents=True)
    (source / "same").write_text("12345")
    (source / "deep" / "changed").write_text("old")
    (source / "link").symlink_to("same")
    assert mirror(source, target) == 8

    (target / "deep" / "changed").write_text("new and longer")
    (target / "deep" / "extra").write_text("extra")
    (target / "gone").mkdir()
    assert mirror(source, target) == 3

    shown = subprocess.run(["diff", "-r", source, target], capture_output=True, check=False)
    assert shown.returncode == 0, shown.stdout
    assert (target / "link").readlink() == Path("same")


def test_mirror_notices_a_change_that_keeps_the_size(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    (source / "file").write_text("aaa")
    mirror(source, target)
    (target / "file").write_text("bbb")
    assert mirror(source, target) == 3
    assert (target / "file").read_text() == "aaa"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_mirror_follows_no_link_that_was_put_there(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    """The server's account could put one into its data directory, and root copies there."""
    source, target, victim = tmp_path / "a", tmp_path / "b", tmp_path / "victim"
    source.mkdir()
    (source / "file").write_text("state")
    victim.write_text("not ours")
    mirror(source, target)
    (target / "file").unlink()
    link(victim, target / "file")

    mirror(source, target)
    assert (target / "file").read_text() == "state"
    assert victim.read_text() == "not ours"
    assert victim.stat().st_ino != (target / "file").stat().st_ino


def test_mirror_shortens_a_file_and_trades_files_for_directories(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "was_file").mkdir(parents=True)
    (source / "was_file" / "inner").write_text("1")
    (source / "was_directory").write_text("22")
    (source / "longer").write_text("333")
    target.mkdir()
    (target / "was_file").write_text("x")
    (target / "was_directory" / "deep").mkdir(parents=True)
    (target / "longer").write_text("x" * 100_000)

    assert mirror(source, target) == 6
    shown = subprocess.run(["diff", "-r", source, target], capture_output=True, check=False)
    assert shown.returncode == 0, shown.stdout
    assert mirror(source, target) == 0


def test_a_disk_that_fills_while_copying_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    source = tmp_path / "a"
    source.mkdir()
    (source / "file").write_text("state")
    monkeypatch.setattr("os.copy_file_range", full)
    with pytest.raises(SpaceError, match=r"free some.*, or set PGSTUDIES_RUN_DIR"):
        mirror(source, tmp_path / "b")


def test_a_disk_that_fills_while_programs_are_copied_is_named(
    managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise shutil.Error([("a/postgres", "b/postgres", "[Errno 28] No space left on device")])

    monkeypatch.setattr("pgservers.servers.managed.copy_installation", full)
    with pytest.raises(SpaceError, match=r"free some.*, or set PGSTUDIES_RUN_DIR"):
        managed.another(own_programs=True)


def test_a_killed_server_is_told_and_the_next_restore_brings_it_back(
    managed: ManagedServer,
) -> None:
    built: list[str] = []
    managed.restore("thousand", builder(managed, built))
    postmaster = psutil.Process(managed.postmaster_pid)
    postmaster.kill()
    assert wait_until_dead([postmaster])
    with pytest.raises(ServerError, match="The server has stopped by itself"):
        managed.connect()
    managed.restore("thousand", builder(managed, built))
    with managed.connect() as c:
        assert c.execute("SELECT count(*) FROM t").fetchone() == (1000,)


def test_a_build_that_fails_leaves_no_state(managed: ManagedServer) -> None:
    def fail() -> None:
        with managed.connect() as c:
            c.execute("CREATE TABLE half ()")
        raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        managed.restore("failing", fail)
    built: list[str] = []
    managed.restore("failing", builder(managed, built, "half"))
    assert built == ["half"]


def test_an_arm_that_does_not_start_leaves_the_others_able_to(managed: ManagedServer) -> None:
    with pytest.raises(CannotRun, match=r"does not start with work_mem=many: invalid .*\"many\"$"):
        managed.restore("thousand", builder(managed, []), {"work_mem": "many"})
    with pytest.raises(CannotRun, match=r"\(Available values: minimal, replica, logical\)$"):
        managed.restore("thousand", builder(managed, []), {"wal_level": "most"})
    managed.restore("thousand", builder(managed, []))
    with managed.connect() as c:
        assert c.execute("SELECT count(*) FROM t").fetchone() == (1000,)


def test_connections_made_before_a_restore_are_closed(managed: ManagedServer) -> None:
    before = managed.connect()
    managed.restore("thousand", builder(managed, []))
    assert before.closed


def test_a_state_carries_no_wal_but_its_last_segment(managed: ManagedServer) -> None:
    def build() -> None:
        with managed.connect() as c:
            c.execute("CREATE TABLE wide AS SELECT repeat('x', 1000) FROM generate_series(1, 9e4)")
            c.execute("CHECKPOINT")

    def segments() -> int:
        return len([f for f in (managed.data_directory / "pg_wal").iterdir() if len(f.name) == 24])

    def build_and_count() -> None:
        build()
        many.append(segments())

    many: list[int] = []
    managed.restore("wide", build_and_count)
    assert many[0] > 1
    kept = managed._states["wide"][0]
    assert len([f for f in (kept / "pg_wal").iterdir() if len(f.name) == 24]) == 1


def test_settings_that_hold_are_listed_and_no_path_is(managed: ManagedServer) -> None:
    managed.restore("thousand", builder(managed, []), {"work_mem": "8MB"})
    settings = managed.nondefault_settings()
    assert settings.columns == ["name", "value", "unit", "source", "context"]
    values = dict(settings.select("name", "value").iter_rows())
    assert (values["fsync"], values["work_mem"]) == ("off", "8192")
    assert values["shared_preload_libraries"] == "pg_stat_statements"
    assert not [value for value in values.values() if str(managed.data_directory.parent) in value]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin")
def test_a_pinned_server_keeps_to_its_core_and_we_do_not() -> None:
    cores = os.sched_getaffinity(0)
    core = max(cores)
    settings = {"no_such_setting": "1", "Work_Mem": "7MB"}
    with serve("embedded", settings=settings, cpu=core) as server:
        assert isinstance(server, ManagedServer)
        assert os.sched_getaffinity(0) == cores
        assert {tuple(os.sched_getaffinity(pid)) for pid in server.pids()} == {(core,)}
        # One that this release does not have is told, as an old server must serve a new study.
        absent = f"not in {server.version_text}"
        assert server.unmet_settings == {"no_such_setting": ("1", absent)}
        assert server.settings["work_mem"] == "7MB"


def test_a_run_directory_with_a_long_path_serves(
    run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a socket is limited to about a hundred bytes."""
    deep = run_base / ("d" * 100)
    monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(deep))
    with serve("embedded") as server, server.connect() as c:
        host = Path(server.environment()["PGHOST"])
        assert c.execute("SELECT 1").fetchone() == (1,)
        (link,) = [p / "socket" for p in deep.iterdir() if p.name.startswith("s-")]
        assert link.readlink() == host.parent
        assert (host.parent.stat().st_uid, host.parent.stat().st_mode & 0o777) == (
            os.geteuid(),
            0o711,  # in /tmp, where nobody else may remove or rename it
        )
    assert not host.parent.exists()
    assert [p.name for p in deep.iterdir() if p.name.startswith("s-")] == []
    shutil.rmtree(deep)


@pytest.mark.parametrize("name", ["a,b", 'a"b', "it's", "a b"])
def test_a_run_directory_with_a_comma_or_a_quote_serves(
    name: str, run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a list of directories or hosts a comma parts two of them."""
    odd = run_base / name
    monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(odd))
    with serve("embedded") as server, server.connect() as c:
        assert c.execute("SELECT 1").fetchone() == (1,)
    shutil.rmtree(odd)


def test_a_run_directory_with_a_line_break_is_refused(
    run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(run_base / "a\nb"))
    with pytest.raises(ServerError, match=r"No server can run in '.*a\\nb': set PGSTUDIES_RUN_DIR"):
        serve("embedded")


def test_client_programs_find_the_database_by_its_environment(managed: ManagedServer) -> None:
    pgbench = managed.capabilities.pgbench
    if pgbench is None:
        pytest.skip("there is no pgbench")
    managed.restore("thousand", builder(managed, []))
    done = subprocess.run(
        [pgbench, "-n", "-t", "3", "-f", "/dev/stdin"],
        input="SELECT count(*) FROM t;",
        env={**os.environ, **managed.environment()},
        text=True,
        capture_output=True,
        check=True,
    )
    assert "transactions actually processed: 3/3" in done.stdout


def test_a_run_directory_that_others_can_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(tmp_path))
    with pytest.raises(ServerError, match="Other accounts can change"):
        serve("embedded")


@pytest.mark.root
@pytest.mark.parametrize("use", [serve, lambda _: sweep(run_dir())], ids=["serve", "sweep"])
def test_a_run_directory_that_is_a_strangers_link_is_refused(
    use: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is swept in it."""
    (tmp_path / "ours").mkdir(mode=0o711)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "ours")
    os.chown(link, server_account().uid, -1, follow_symlinks=False)
    monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(link))
    with pytest.raises(ServerError, match="Other accounts can change"):
        use("embedded")
    assert list((tmp_path / "ours").iterdir()) == []


@pytest.mark.root
def test_root_is_told_when_the_account_cannot_get_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(tmp_path / "home" / "run"))
    with pytest.raises(ServerError, match="is out of reach of the account"):
        serve("embedded")


@pytest.mark.root
@pytest.mark.parametrize("name", ["root", "no_such_account"])
def test_an_account_that_will_not_do_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSTUDIES_ACCOUNT", name)
    with pytest.raises(ServerError, match="set PGSTUDIES_ACCOUNT to"):
        server_account()
