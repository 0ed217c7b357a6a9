"""A server reached by a DSN: our own place, nothing else touched, one sentence for each refusal."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from pgservers.addresses import Address
from pgservers.errors import CannotRun, ServerError
from pgservers.programs.installations import find_binaries
from pgservers.programs.releases import reason_not_available
from pgservers.servers import places as _places
from pgservers.servers.dsn import DsnServer
from pgservers.servers.facts import server_facts
from pgservers.servers.managed import ManagedServer
from pgservers.servers.places import DatabasePlace, _checksum
from pgservers.servers.serve import serve
from tests.servers_at_hand import BUILDER, LESSER, PASSWORD, dsn_of, skip_but_not_in_ci

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.usefixtures("private")


def reach(dsn: str, *, settings: Mapping[str, str] = {}) -> DsnServer:
    return DsnServer(Address.parse(dsn), settings=settings)


MARK = '{"pgstudies": 1, "host": "h", "pid": 1, "started": "2026-11-22T00:00:00+00:00"}'

SETTINGS = {"enable_seqscan": "off", "shared_buffers": "64MB", "max_parallel_workers": "8"}


def asked(server: DsnServer | ManagedServer, query: str) -> list[Any]:
    with server.connect() as c:
        return c.execute(query.encode()).fetchall()


def places(stranger: ManagedServer) -> list[str]:
    rows = asked(
        stranger,
        """
        SELECT datname FROM pg_database WHERE datname ~ '^pgstudies_'
        UNION ALL SELECT nspname FROM pg_namespace WHERE nspname ~ '^pgstudies_'
        """,
    )
    return [row[0] for row in rows]


USERS_TABLE = """
    SELECT pg_relation_filenode('public.testtab'),
           md5(string_agg(t::text, '' ORDER BY ctid)),
           array_agg(xmin::text)
    FROM public.testtab t
"""


def restore_ten(server: DsnServer, settings: Mapping[str, str] = {}) -> list[str]:
    """Have ten rows in ``testtab``; returns how often it was built."""

    def build() -> None:
        built.append("testtab")
        with server.connect() as c:
            c.execute("DROP TABLE IF EXISTS testtab")
            c.execute("CREATE TABLE testtab AS SELECT generate_series(1, 10) AS i")

    built: list[str] = []
    server.restore("ten", build, settings)
    return built


def test_a_users_table_of_the_same_name_is_never_touched(dsn: str, stranger: ManagedServer) -> None:
    before = asked(stranger, USERS_TABLE)
    with reach(dsn, settings=SETTINGS) as server:
        built: list[str] = []
        for _ in range(3):
            built += restore_ten(server)
            with server.connect() as c:
                assert c.execute("SELECT count(*) FROM testtab").fetchone() == (10,)
                c.execute("DELETE FROM testtab")
        in_database = isinstance(server._place, DatabasePlace)
        assert (len(built), len(places(stranger))) == ((1, 2) if in_database else (3, 1))
    assert asked(stranger, USERS_TABLE) == before
    assert places(stranger) == []


@pytest.mark.parametrize("role", ["postgres", BUILDER, LESSER])
def test_the_role_decides_the_place_and_what_may_be_had(role: str, stranger: ManagedServer) -> None:
    timing, is_superuser = {"track_io_timing": "on"}, role == "postgres"
    with reach(dsn_of(stranger, role), settings=timing) as server:
        assert isinstance(server._place, DatabasePlace) is (role != LESSER)
        assert server.capabilities.has("superuser") is is_superuser
        assert server.capabilities.has("checkpoint") is is_superuser
        if is_superuser:
            assert "pg_buffercache" in server.capabilities.contrib
            assert server.unmet_settings == {}
        else:
            assert server.unmet_settings == {"track_io_timing": ("on", "off")}
            with pytest.raises(CannotRun, match="setting track_io_timing needs a superuser"):
                server.restore("ten", lambda: None, timing)


def test_session_settings_hold_and_others_are_told(dsn: str) -> None:
    with reach(dsn, settings=SETTINGS) as server:
        assert asked(server, "SHOW enable_seqscan") == [("off",)]
        assert server.unmet_settings == {"shared_buffers": ("64MB", "128MB")}
    with reach(dsn, settings={"shared_buffers": "131072kB"}) as server:  # which it has, in MB
        assert server.unmet_settings == {}


def test_an_arm_that_cannot_have_its_settings_is_refused_with_the_reason(dsn: str) -> None:
    with reach(dsn) as server:
        for name, value, reason in (
            ("shared_buffers", "1GB", "setting shared_buffers needs a restart"),
            ("work_mem", "many", "work_mem.*many"),
            ("work_mem", "-5", "-5.*work_mem"),
        ):
            with pytest.raises(CannotRun, match=reason):
                server.restore("ten", lambda: None, {name: value})
        restore_ten(server, {"enable_hashjoin": "off"})
        assert asked(server, "SHOW enable_hashjoin") == [("off",)]


def test_whether_it_is_on_another_machine_is_told_by_its_address(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"": False, "127.0.0.1": False, "::1": False, "203.0.113.9": True}
    with reach(dsn) as server:
        for address, elsewhere in known.items():
            monkeypatch.setattr(psycopg.ConnectionInfo, "hostaddr", address)
            assert server_facts(server)["elsewhere"] is elsewhere


def test_the_password_is_shown_nowhere(dsn: str) -> None:
    with reach(dsn) as server:
        spec = server.spec
    with pytest.raises(ServerError) as error:
        reach(dsn.replace("%2Fw0rd", "wrong"))
    assert "pgstudies" in spec
    for said in (spec, str(error.value)):
        assert "p@ss" not in said
        assert "p%40ss" not in said


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("a%20password", "another"), "it refuses the password"),
        (("/pgstudies", "/no_such_database"), "it has no such database"),
        ((":5432", ":5499"), "it does not answer"),
    ],
)
def test_a_server_that_does_not_let_us_in_says_what_to_check(
    stranger: ManagedServer, change: tuple[str, str], reason: str
) -> None:
    said = f"No connection to postgresql://dba@.*: {reason}"
    with pytest.raises(ServerError, match=said) as error:
        serve(dsn_of(stranger, BUILDER).replace(*change))
    assert error.value.exit_code == 3


def test_a_role_without_any_right_is_told_what_to_grant(stranger: ManagedServer) -> None:
    with stranger.connect() as c:
        c.execute(f"CREATE ROLE nothing LOGIN PASSWORD '{PASSWORD}'")
    with pytest.raises(ServerError, match="CREATEDB"):
        serve(dsn_of(stranger, "nothing"))


def test_something_foreign_under_our_name_is_left_alone(
    dsn: str, stranger: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgservers.servers.places.secrets.token_hex", lambda _: "00000000")
    name = f"pgstudies_00000000{_checksum('00000000')}"
    with stranger.connect() as c:
        c.execute(f"CREATE SCHEMA {name}")
        c.execute(f"CREATE DATABASE {name}")
    try:
        with pytest.raises(ServerError, match="that pgstudies did not make"):
            reach(dsn)
        assert places(stranger) == [name] * 2
    finally:
        with stranger.connect() as c:
            c.execute(f"DROP SCHEMA {name}")
            c.execute(f"DROP DATABASE {name}")


def test_what_a_killed_run_left_is_dropped_by_the_next(dsn: str, stranger: ManagedServer) -> None:
    dead = reach(dsn)
    restore_ten(dead)
    dead.close_connections()
    dead._keeper.close()  # as the kernel does when a process dies
    atexit.unregister(dead.close)
    left = places(stranger)
    assert len(left) >= 1
    with reach(dsn) as server:
        assert set(places(stranger)) & set(left) == set()
        assert places(stranger) == [server.place]


def test_two_runs_at_once_do_not_see_each_other(dsn: str, stranger: ManagedServer) -> None:
    with reach(dsn) as one, reach(dsn) as two:
        assert len(places(stranger)) == 2
        restore_ten(one)
        assert asked(two, "SELECT to_regclass('testtab')") == [(None,)]


OURS = f"pgstudies_0123abcd{_checksum('0123abcd')}"


@pytest.mark.parametrize(
    ("name", "comment"),
    [
        ("pgstudies_0123abcd", None),
        ("pgstudies_0123abcd01234567", None),
        ("pgstudies_0123abcd01234567", MARK),
        (OURS, "pgstudies"),
        (OURS, '{"pgstudies": "mine"}'),
        (OURS, '{"pgstudies": 1, "of": "the team"}'),
        (OURS, MARK.replace("1,", "true,", 1)),
        (OURS, MARK.replace("2026-11-22", "yesterday")),
        (OURS, "[" * 100_000),
    ],
)
def test_a_name_like_ours_without_our_mark_is_not_ours(
    dsn: str, stranger: ManagedServer, name: str, comment: str | None
) -> None:
    """Not even when it belongs to the same role."""
    with psycopg.connect(dsn, autocommit=True) as c:
        kind = sql.SQL("DATABASE" if BUILDER in dsn else "SCHEMA")
        names = {"kind": kind, "name": sql.Identifier(name), "comment": sql.Literal(comment)}
        c.execute(sql.SQL("CREATE {kind} {name}").format(**names))
        try:
            c.execute(sql.SQL("COMMENT ON {kind} {name} IS {comment}").format(**names))
            with reach(dsn):
                assert name in places(stranger)
        finally:
            c.execute(sql.SQL("DROP {kind} {name}").format(**names))


DIES_BEFORE_ITS_MARK = """
import os, sys
from pgservers.addresses import Address
from pgservers.servers import dsn, places
marks = int(sys.argv[2])
def mark(place, name, mark=places.Place._mark):
    global marks
    marks -= 1
    mark(place, name) if marks >= 0 else os._exit(9)
places.Place._mark = mark
dsn.DsnServer(Address.parse(sys.argv[1])).restore("state", lambda: None)
"""


@pytest.mark.parametrize("marks", [0, 1, 2])
def test_what_a_run_had_no_time_to_mark_is_dropped_by_the_next(
    dsn: str, stranger: ManagedServer, marks: int
) -> None:
    command = [sys.executable, "-c", DIES_BEFORE_ITS_MARK, dsn, str(marks)]
    died = subprocess.run(command, check=False, capture_output=True, text=True)
    if BUILDER in dsn:
        assert died.returncode == 9, died.stderr
        assert len(places(stranger)) == (2 if marks == 2 else 1)
    reach(dsn).close()
    assert places(stranger) == []


def test_an_error_before_the_mark_leaves_nothing(
    stranger: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise psycopg.errors.QueryCanceled

    monkeypatch.setattr(DatabasePlace, "_mark", fail)
    with pytest.raises(ServerError, match="does not allow a run there"):
        reach(dsn_of(stranger, BUILDER))
    assert places(stranger) == []


@pytest.mark.parametrize("release", ["embedded", "14"])
def test_a_database_of_ours_is_closed_to_everybody_else_from_its_beginning(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 15 anybody who may connect may make functions in public, where our sessions look."""
    reason = None if release == "embedded" else reason_not_available(release)
    if reason:
        skip_but_not_in_ci(reason)
    refused: list[str] = []

    def mark(place, name, mark=_places.Place._mark):  # type: ignore[no-untyped-def]
        require_closed(name)
        mark(place, name)

    def require_closed(name: str) -> None:
        with pytest.raises(ServerError) as error:
            server.connect(dbname=name, user=LESSER)
        refused.append(str(error.value))

    monkeypatch.setattr(_places.Place, "_mark", mark)
    binaries = find_binaries(release)
    with ManagedServer(binaries, spec=release, settings={"fsync": "off"}) as server:
        with server.connect() as c:
            c.execute(f"CREATE ROLE {BUILDER} LOGIN CREATEDB")
            c.execute(f"CREATE ROLE {LESSER} LOGIN")
            found = c.execute("SHOW hba_file").fetchone()
            assert found
            Path(found[0]).write_text("local all all trust\n")
            c.execute("SELECT pg_reload_conf()")
        with reach(dsn_of(server, BUILDER)) as ours:
            require_closed(ours.place)
            restore_ten(ours)
            require_closed(ours.place)
    assert len(refused) == 5
    assert "is not currently accepting connections" in refused[0]
    assert "permission denied for database" in refused[-1]


@pytest.fixture
def counted(stranger: ManagedServer) -> Iterator[psycopg.Connection[Any]]:
    """A session that sees pg_stat_statements, in a schema that only it looks into."""
    with stranger.connect() as c:
        c.execute("CREATE SCHEMA counting")
        c.execute("ALTER EXTENSION pg_stat_statements SET SCHEMA counting")
        c.execute("SET search_path = counting, public")
        yield c
        c.execute("DROP EXTENSION pg_stat_statements")  # with what was granted
        c.execute("DROP SCHEMA counting CASCADE")
        c.execute("CREATE EXTENSION pg_stat_statements SCHEMA public")


LEFT = """
    SELECT count(*) FILTER (WHERE dbid NOT IN (SELECT oid FROM pg_database)),
           count(*) FILTER (WHERE strpos(query, 'pgstudies_') > 0 AND calls > 0 AND userid = %s),
           count(*) FILTER (WHERE query = 'SELECT $1 AS of_a_user')
    FROM pg_stat_statements
"""
"""Entries of dropped databases, of statements that name ours, and one of the user's own."""


@pytest.mark.parametrize("role", ["postgres", BUILDER, LESSER])
def test_where_the_role_may_reset_them_no_statistics_of_statements_are_left(
    role: str, stranger: ManagedServer, counted: psycopg.Connection[Any]
) -> None:
    oid = counted.execute("SELECT oid FROM pg_roles WHERE rolname = %s", [role]).fetchone()
    assert oid
    counted.execute(f"GRANT USAGE ON SCHEMA counting TO {role}")
    for granted in (False, True):
        if granted:
            counted.execute(f"GRANT EXECUTE ON FUNCTION pg_stat_statements_reset TO {role}")
        counted.execute("SELECT pg_stat_statements_reset()")
        counted.execute("SELECT 1 AS of_a_user")
        with reach(dsn_of(stranger, role)) as server:
            for _ in range(2):
                restore_ten(server)
        found = counted.execute(LEFT, [oid[0]]).fetchone()
        assert found
        assert found[2] == 1
        if granted or role == "postgres":
            assert found[:2] == (0, 0)
        else:
            assert found[1] > 0


def test_a_superuser_leaves_none_in_a_database_without_the_view(stranger: ManagedServer) -> None:
    with stranger.connect() as c:
        c.execute("DROP EXTENSION pg_stat_statements")
    with reach(dsn_of(stranger, "postgres")) as server:
        oid = server._ask("SELECT oid FROM pg_database WHERE datname = %s", server.place)
        restore_ten(server)
        query = f"SELECT count(*) FROM pg_stat_statements WHERE dbid = {oid}"
        assert asked(server, query) == [(0,)]
    with stranger.connect() as c:
        c.execute("CREATE EXTENSION pg_stat_statements")


def test_a_function_that_looks_like_the_reset_is_not_called(
    stranger: ManagedServer, counted: psycopg.Connection[Any]
) -> None:
    """On 17 and later the last argument has a default, so that one with three matches better."""
    counted.execute(
        "CREATE FUNCTION counting.pg_stat_statements_reset(oid, oid, bigint) RETURNS void "
        "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'called'; END $$"
    )
    counted.execute("SELECT pg_stat_statements_reset(0, 0, 0, false)")
    with reach(dsn_of(stranger, "postgres")) as server:
        restore_ten(server)
    found = counted.execute(LEFT, [10]).fetchone()
    assert found
    assert found[:2] == (0, 0)


@pytest.fixture
def eager_autovacuum(stranger: ManagedServer) -> Iterator[None]:
    """Autovacuum that comes every second and takes its time."""
    eager = {"autovacuum_naptime": "1s", "autovacuum_vacuum_insert_threshold": "0"}
    eager |= {"autovacuum_vacuum_cost_delay": "100ms", "autovacuum_vacuum_cost_limit": "1"}
    with stranger.connect() as c:
        for name, value in eager.items():
            c.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        c.execute("SELECT pg_reload_conf()")
        yield
        for name in eager:
            c.execute(f"ALTER SYSTEM RESET {name}")
        c.execute("SELECT pg_reload_conf()")


@pytest.mark.usefixtures("eager_autovacuum")
def test_a_database_that_autovacuum_is_at_work_in_is_dropped(stranger: ManagedServer) -> None:
    at_work = "SELECT FROM pg_stat_activity WHERE backend_type ~ 'autovacuum w' AND datname = %s"
    with reach(dsn_of(stranger, BUILDER)) as server, stranger.connect() as c:
        with server.connect() as ours:
            ours.execute(
                "CREATE TABLE large AS SELECT repeat('x', 7000) FROM generate_series(1, 9999)"
            )
        while c.execute(at_work, [server.place]).fetchone() is None:
            time.sleep(0.1)
        restore_ten(server)
    assert places(stranger) == []


def test_a_database_that_is_in_use_is_left_to_the_next_run(
    stranger: ManagedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pgservers.servers.places._DROPS", 1)
    with reach(dsn_of(stranger, BUILDER)) as server:
        first = server.place
        with stranger.connect(dbname=first):  # a superuser, whom our role may not put out
            restore_ten(server)
            assert server.place != first
            assert asked(server, "SELECT count(*) FROM testtab") == [(10,)]
            server.close()
            assert places(stranger) == [first]
    assert f"database {first} stays until the next run there" in caplog.text
    reach(dsn_of(stranger, BUILDER)).close()
    assert places(stranger) == []


def test_a_server_that_goes_away_does_not_hide_the_error_of_the_run(
    dsn: str, stranger: ManagedServer
) -> None:
    def run() -> None:
        with reach(dsn) as server:
            left.append(server.place)
            backend = server._keeper.info.backend_pid
            with stranger.connect() as c:
                c.execute("SELECT pg_terminate_backend(%s, 10000)", [backend])
            raise ValueError("the run's own")

    left: list[str] = []
    with pytest.raises(ValueError, match="the run's own"):
        run()
    assert places(stranger) == left
    reach(dsn).close()
    assert places(stranger) == []


def test_libpq_variables_fill_in_what_the_dsn_leaves_open(
    stranger: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (stranger.environment() | {"PGUSER": BUILDER}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGOPTIONS", "-c enable_sort=off")
    with serve("postgresql://") as server, server.connect() as c:
        assert server.spec.startswith(f"postgresql://{BUILDER}@")
        row = c.execute("SELECT current_setting('enable_sort'), current_setting('search_path')")
        assert row.fetchone() == ("off", "public")


def test_client_programs_reach_our_place_by_its_environment(dsn: str) -> None:
    with reach(dsn) as server:
        pgbench = server.capabilities.pgbench
        if pgbench is None:
            pytest.skip("there is no pgbench")
        restore_ten(server)
        done = subprocess.run(
            [pgbench, "-n", "-t", "1", "-f", "/dev/stdin"],
            input="SELECT 1 / (count(*) = 10)::int FROM testtab;",
            env={**os.environ, **server.environment()},
            text=True,
            capture_output=True,
            check=True,
        )
    assert "transactions actually processed: 1/1" in done.stdout


def test_no_setting_of_the_server_changes(dsn: str, stranger: ManagedServer) -> None:
    queries = (
        "SELECT name, setting, source FROM pg_settings ORDER BY name",
        "SELECT setdatabase, setconfig FROM pg_db_role_setting",
    )
    before = [asked(stranger, query) for query in queries]
    with reach(dsn, settings=SETTINGS) as server:
        restore_ten(server, {"enable_hashjoin": "off"})
    assert [asked(stranger, query) for query in queries] == before
