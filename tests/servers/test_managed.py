"""Servers of our own: states come back exactly, settings hold, nothing is left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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
from pgservers.programs.installations import Binaries, find_binaries
from pgservers.programs.releases import reason_not_available
from pgservers.servers.cluster.guests import harmless_extensions
from pgservers.servers.cluster.postmaster import Postmaster, StartError
from pgservers.servers.leftovers import sweep
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve
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


def answer(server: Server, query: str) -> Any:
    """The first row."""
    with server.connect() as connection:
        return connection.execute(query.encode()).fetchone()


def shown(server: Server, name: str) -> object:
    return answer(server, f"SHOW {name}")[0]


def test_a_state_is_built_once_and_comes_back_exactly(managed: ManagedServer) -> None:
    built: list[str] = []
    before = managed.connect()
    for _ in range(3):
        managed.restore("exact", builder(managed, built))
        with managed.connect() as c:
            assert c.execute("SELECT count(*), sum(i) FROM t").fetchone() == (1000, 500500)
            c.execute("DELETE FROM t WHERE i % 2 = 0")
            c.execute("CREATE TABLE intruder (i int)")
    assert built == ["t"]
    assert before.closed
    managed.restore("another", builder(managed, built, "other"))
    tables = "SELECT to_regclass('t'), to_regclass('intruder'), to_regclass('other')"
    assert answer(managed, tables) == (None, None, "other")


def test_extensions_are_made_in_one_order(managed: ManagedServer) -> None:
    # A set's order is another in every process, and so would be the places of rows in the catalogs.
    query = "SELECT extname FROM pg_extension WHERE extname LIKE 'pg\\_%' ORDER BY oid"
    wanted = {"btree_gin", "btree_gist", "citext", "hstore", "intarray", "ltree", "pg_trgm"}
    with managed.connect() as connection:
        made = [name for (name,) in connection.execute(query).fetchall()]
        assert harmless_extensions(connection, wanted) == sorted(wanted)
    assert made == ["pg_stat_statements", "pg_buffercache"]


def test_every_state_begins_a_segment_of_wal(managed: ManagedServer) -> None:
    # Else the same writes would end a segment, and make a new one, at other turns here than there.
    offsets = []
    for rows in (1, 50_000):

        def build(rows: int = rows) -> None:
            with managed.connect() as c:
                c.execute(f"CREATE TABLE t AS SELECT generate_series(1, {rows}) AS i")

        managed.restore(f"{rows} rows", build)
        query = "SELECT (pg_current_wal_insert_lsn() - '0/0') % (16 * 1024 * 1024)::numeric"
        offsets.append(answer(managed, query)[0])
    assert offsets[0] == offsets[1] < 100_000


def test_settings_of_an_arm_hold_for_that_arm_only(managed: ManagedServer) -> None:
    managed.restore("thousand", builder(managed, []), {"shared_buffers": "4MB"})
    assert shown(managed, "shared_buffers") == "4MB"
    managed.restore("thousand", builder(managed, []))
    assert shown(managed, "shared_buffers") == "128MB"


def test_a_servers_writers_are_quiet_unless_a_study_wants_them(managed: ManagedServer) -> None:
    quiet = {"bgwriter_lru_maxpages": "0", "wal_writer_delay": "10s"}
    managed.restore("quiet", lambda: None)
    assert {name: shown(managed, name) for name in quiet} == quiet
    with serve("embedded", settings={"BgWriter_LRU_MaxPages": "7"}) as server:
        quiet["bgwriter_lru_maxpages"] = "7"
        assert {name: shown(server, name) for name in quiet} == quiet


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


def listening(server: ManagedServer) -> list[object]:
    found = psutil.Process(server.postmaster_pid).net_connections("inet")
    return [c for c in found if c.status == "LISTEN"]


def test_no_setting_opens_a_port_or_lets_anybody_in(managed: ManagedServer, tmp_path: Path) -> None:
    assert listening(managed) == []
    managed.restart(
        {"Listen_Addresses": "*", "port": "5499", "unix_socket_directories": str(tmp_path)}
        | {"hba_file": "/nonexistent", "ident_file": "/nonexistent"}
    )
    assert listening(managed) == []
    assert list(tmp_path.iterdir()) == []
    assert shown(managed, "listen_addresses") == ""
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
        rules = Path(str(shown(server, "hba_file")))
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
    assert psutil.Process(managed.postmaster_pid).uids().real == server_account().uid != 0


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
    with serve(hidden) as server:
        assert answer(server, "SELECT 1") == (1,)


def test_the_environment_of_libpq_does_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGDATA", "/nonexistent")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGOPTIONS", "-c jit=no_such")
    with serve("embedded") as server:
        assert answer(server, "SELECT 1") == (1,)


def test_a_server_with_programs_of_its_own_runs_a_copy_with_the_same_states(
    managed: ManagedServer,
) -> None:
    with managed.another() as same, managed.another(own_programs=True) as apart:
        servers = managed, same, apart
        for server in servers:
            server.restore("thousand", builder(managed, []))
            assert answer(server, "SELECT count(*) FROM t") == (1000,)
        programs = [Path(psutil.Process(s.postmaster_pid).exe()) for s in servers]
    assert programs[0].samefile(programs[1])
    assert not programs[2].exists(), "it goes with its server"
    assert programs[2] not in programs[:2]


def test_two_servers_at_once_do_not_collide_and_leave_nothing(run_base: Path) -> None:
    before = set(run_base.iterdir())
    with serve("embedded") as one, serve("embedded") as two:
        with one.connect() as c:
            c.execute("CREATE TABLE only_in_one ()")
        assert answer(two, "SELECT to_regclass('only_in_one')") == (None,)
        processes = [psutil.Process(pid) for server in (one, two) for pid in server.pids()]
        assert len(processes) > 2
    assert set(run_base.iterdir()) == before
    assert wait_until_dead(processes)


def test_a_directory_of_binaries_serves() -> None:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not debian:
        pytest.skip("Debian's PostgreSQL is not installed")
    with serve(str(debian[-1].parents[1])) as server, server.connect() as c:
        assert server.version == c.info.server_version
        assert server.capabilities.has("superuser")


def test_what_is_no_server_is_told_what_is_understood(tmp_path: Path) -> None:
    (tmp_path / "initdb").touch()
    with pytest.raises(ServerError, match="initdb and postgres must be in it"):
        serve(str(tmp_path))
    with pytest.raises(StudyError, match=r"`embedded`, one of the releases 9\.3, 9\.6,"):
        serve("no_such_thing")


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
    with pytest.raises(StartError, match=r"^could not create semaphores: .* max_connections"):
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
    with pytest.raises(SpaceError, match="PGSTUDIES_RUN_DIR"):
        serve("embedded")


@contextmanager
def small_disk(place: Path, size_mb: int) -> Iterator[Path]:
    """A run directory of that size, where nothing may be left; skips where we may not mount one."""
    place.mkdir()
    options = f"size={size_mb}m,mode=711"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGSTUDIES_RUN_DIR", str(place))
            yield place
        assert list(place.glob("s-*")) == []
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.root
@pytest.mark.parametrize("size_mb", [1, 16, 20, 24, 34, 38, 60, 80])
def test_a_server_that_finds_no_room_says_so(size_mb: int, run_base: Path) -> None:
    """In initdb, at the start, while the server is made, in the copy of its files."""
    with (
        small_disk(run_base / f"disk-{size_mb}", size_mb),
        pytest.raises(SpaceError, match="PGSTUDIES_RUN_DIR"),
    ):
        serve("embedded")


@pytest.mark.root
def test_a_disk_that_fills_while_a_state_is_made_is_named(run_base: Path) -> None:
    with small_disk(run_base / "disk", 160), serve("embedded") as server:

        def build() -> None:
            with server.connect() as c:
                c.execute(
                    "CREATE TABLE wide AS SELECT repeat('x', 1000) FROM generate_series(1, 9e5)"
                )

        with pytest.raises(SpaceError, match=r"No space left in .* for the server's data"):
            server.restore("wide", build)


def fill_with_wal(c: psycopg.Connection[Any]) -> None:
    for _ in range(100):
        c.execute("INSERT INTO logged SELECT i, repeat('x', 1000) FROM generate_series(1, 3000) i")
        c.execute("TRUNCATE logged")


@pytest.mark.root
def test_a_server_that_dies_of_a_full_disk_has_not_simply_gone_away(run_base: Path) -> None:
    settings = {"restart_after_crash": "off"}
    with (
        small_disk(run_base / "dying-disk", 160) as disk,
        serve("embedded", settings=settings) as server,
    ):
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


def test_a_disk_that_fills_while_programs_are_copied_is_named(
    managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise shutil.Error([("a/postgres", "b/postgres", "[Errno 28] No space left on device")])

    monkeypatch.setattr("pgservers.servers.cluster.cluster.copy_installation", full)
    with pytest.raises(SpaceError, match="PGSTUDIES_RUN_DIR"):
        managed.another(own_programs=True)


@pytest.mark.parametrize("children", [True, False])
def test_a_killed_server_is_told_and_the_next_restore_brings_it_back(
    managed: ManagedServer, *, children: bool
) -> None:
    def build() -> None:
        # Children that live hold the shared memory until they notice.
        pids = managed.pids() if children else [managed.postmaster_pid]
        killed = list(map(psutil.Process, pids))
        for process in killed:
            process.kill()
        assert wait_until_dead(killed)

    with pytest.raises(ServerError, match="stopped by itself"):
        managed.restore("killed", build)
    assert "killed" not in managed._states
    with pytest.raises(ServerError, match="stopped by itself"):
        managed.connect()
    managed.restore("thousand", builder(managed, []))
    assert answer(managed, "SELECT count(*) FROM t") == (1000,)


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


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"work_mem": "many"}, r"does not start with work_mem=many: invalid .*\"many\"$"),
        ({"wal_level": "most"}, r"\(Available values: minimal, replica, logical\)$"),
        ({"no_such": "1"}, "has no setting no_such"),
    ],
)
def test_an_arm_that_does_not_start_leaves_the_others_able_to(
    managed: ManagedServer, settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(CannotRun, match=reason):
        managed.restore("thousand", builder(managed, []), settings)
    managed.restore("thousand", builder(managed, []))
    assert answer(managed, "SELECT count(*) FROM t") == (1000,)


def segments(data: Path) -> int:
    return len([f for f in (data / "pg_wal").iterdir() if len(f.name) == 24])


def test_a_state_carries_no_wal_but_its_last_segment(managed: ManagedServer) -> None:
    def build() -> None:
        with managed.connect() as c:
            c.execute("CREATE TABLE wide AS SELECT repeat('x', 1000) FROM generate_series(1, 9e4)")
            c.execute("CHECKPOINT")
        assert segments(managed.data_directory) > 1
        built.append("wide")

    built: list[str] = []
    managed.restore("many segments", build)
    assert built == ["wide"]
    assert segments(managed._states["many segments"][0]) == 1


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
    with serve("embedded") as server:
        assert answer(server, "SELECT 1") == (1,)
    shutil.rmtree(odd)


def test_a_run_directory_with_a_line_break_is_refused(
    run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(run_base / "a\nb"))
    with pytest.raises(ServerError, match=r"No server can run in '.*a\\nb': set PGSTUDIES_RUN_DIR"):
        serve("embedded")


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


DEAF = "n=0; trap 'n=$((n+1))' TERM; : > \"$0\"; while [ $n -lt 2 ]; do sleep 0.05; done; echo over"


def test_a_lone_backend_that_misses_a_signal_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgservers.servers.cluster.cluster._BETWEEN_SIGNALS_S", 0.2)
    with serve("embedded") as server, ThreadPoolExecutor(1) as pool:  # nothing else can run on it
        assert isinstance(server, ManagedServer)
        server.prepare("t", builder(server, []))
        begun = server.workplace / "begun"
        under: list[str | Path] = ["/bin/sh", "-c", DEAF, begun]
        running = pool.submit(server.run_alone, "t", "", under=under)
        while not begun.exists() and not running.done():
            time.sleep(0.01)
        server.end()
        assert running.result() == (0, "over\n")
