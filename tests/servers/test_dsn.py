"""A server reached by a DSN: our own place, nothing else touched, one sentence for each refusal."""

from __future__ import annotations

import atexit
import os
import subprocess
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from pgstudies.addresses import Address
from pgstudies.errors import CannotRun, ServerError
from pgstudies.servers._dsn import DsnServer
from pgstudies.servers._places import DatabasePlace
from pgstudies.servers._serve import serve
from tests.conftest import BUILDER, LESSER, PASSWORD, dsn_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgstudies.servers.owned import OwnedServer

pytestmark = pytest.mark.usefixtures("private")


def reach(dsn: str, *, settings: Mapping[str, str] = {}) -> DsnServer:
    return DsnServer(Address.parse(dsn), settings=settings)


SETTINGS = {"enable_seqscan": "off", "shared_buffers": "64MB", "max_parallel_workers": "8"}


def places(stranger: OwnedServer) -> list[str]:
    with stranger.connect() as c:
        rows = c.execute(
            """
            SELECT datname FROM pg_database WHERE datname ~ '^pgstudies_'
            UNION ALL SELECT nspname FROM pg_namespace WHERE nspname ~ '^pgstudies_'
            """
        ).fetchall()
    return [row[0] for row in rows]


def users_table(stranger: OwnedServer) -> Any:
    with stranger.connect() as c:
        return c.execute(
            """
            SELECT pg_relation_filenode('public.testtab'),
                   md5(string_agg(t::text, '' ORDER BY ctid)),
                   array_agg(xmin::text)
            FROM public.testtab t
            """
        ).fetchone()


def build_testtab(server: DsnServer, built: list[int]) -> None:
    built.append(1)
    with server.connect() as c:
        c.execute("DROP TABLE IF EXISTS testtab")
        c.execute("CREATE TABLE testtab AS SELECT generate_series(1, 10) AS i")


def test_a_users_table_of_the_same_name_is_never_touched(dsn: str, stranger: OwnedServer) -> None:
    before = users_table(stranger)
    built: list[int] = []
    with reach(dsn, settings=SETTINGS) as server:
        for _ in range(3):
            server.restore("ten", lambda: build_testtab(server, built))
            with server.connect() as c:
                assert c.execute("SELECT count(*) FROM testtab").fetchone() == (10,)
                c.execute("DELETE FROM testtab")
        assert len(built) == (1 if isinstance(server._place, DatabasePlace) else 3)
        assert len(places(stranger)) == (2 if isinstance(server._place, DatabasePlace) else 1)
    assert users_table(stranger) == before
    assert places(stranger) == []


def test_which_place_depends_on_the_role(stranger: OwnedServer) -> None:
    for role, database in ((BUILDER, True), (LESSER, False)):
        with reach(dsn_of(stranger, role), settings={}) as server:
            assert isinstance(server._place, DatabasePlace) is database
            assert server.capabilities.superuser is False
            assert server.capabilities.checkpoint is False


def test_session_settings_hold_and_others_are_told(dsn: str) -> None:
    with reach(dsn, settings=SETTINGS) as server:
        with server.connect() as c:
            assert c.execute("SHOW enable_seqscan").fetchone() == ("off",)
        assert server.unmet_settings == {"shared_buffers": ("64MB", "128MB")}


def test_a_setting_already_at_its_value_is_met_in_any_unit(dsn: str) -> None:
    with reach(dsn, settings={"shared_buffers": "131072kB"}) as server:
        assert server.unmet_settings == {}


def test_an_arm_that_needs_a_restart_is_refused_with_the_reason(dsn: str) -> None:
    with reach(dsn, settings={}) as server:
        with pytest.raises(CannotRun, match="setting shared_buffers needs a restart of the server"):
            server.restore("ten", lambda: None, {"shared_buffers": "1GB"})
        server.restore("ten", lambda: build_testtab(server, []), {"enable_hashjoin": "off"})
        with server.connect() as c:
            assert c.execute("SHOW enable_hashjoin").fetchone() == ("off",)


def test_the_password_is_shown_nowhere(dsn: str) -> None:
    with reach(dsn, settings={}) as server:
        assert "p@ss" not in server.spec
        assert "p%40ss" not in server.spec
        assert "pgstudies" in server.spec
    with pytest.raises(ServerError) as error:
        reach(dsn.replace("%2Fw0rd", "wrong"), settings={})
    assert "p%40ss" not in str(error.value)
    assert "p@ss" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("a%20password", "another"), "it refuses the password: check the user and the password"),
        (
            ("/pgstudies", "/no_such_database"),
            "it has no such database: create it, or name another",
        ),
        ((":5432", ":5499"), "it does not answer: start it, or check host and port"),
    ],
)
def test_a_server_that_does_not_let_us_in_says_what_to_check(
    stranger: OwnedServer, change: tuple[str, str], sentence: str
) -> None:
    wrong = dsn_of(stranger, BUILDER).replace(*change)
    with pytest.raises(ServerError, match="No connection to postgresql://dba@") as error:
        serve(wrong)
    assert sentence in str(error.value)
    assert error.value.exit_code == 3


def test_a_role_without_any_right_is_told_what_to_grant(stranger: OwnedServer) -> None:
    with stranger.connect() as c:
        c.execute(f"CREATE ROLE nothing LOGIN PASSWORD '{PASSWORD}'")
    with pytest.raises(ServerError, match="grant it CREATEDB, or CREATE on that database"):
        serve(dsn_of(stranger, "nothing"))


def test_something_foreign_under_our_name_is_left_alone(
    dsn: str, stranger: OwnedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgstudies.servers._places.secrets.token_hex", lambda _: "00000000")
    with stranger.connect() as c:
        c.execute("CREATE SCHEMA pgstudies_00000000")
        c.execute("CREATE DATABASE pgstudies_00000000")
    try:
        with pytest.raises(ServerError, match="that pgstudies did not make: rename it, then run"):
            reach(dsn, settings={})
        assert places(stranger) == ["pgstudies_00000000"] * 2
    finally:
        with stranger.connect() as c:
            c.execute("DROP SCHEMA pgstudies_00000000")
            c.execute("DROP DATABASE pgstudies_00000000")


def test_what_a_killed_run_left_is_dropped_by_the_next(dsn: str, stranger: OwnedServer) -> None:
    dead = reach(dsn, settings={})
    dead.restore("ten", lambda: build_testtab(dead, []))
    dead.close_connections()
    dead._keeper.close()  # as the kernel does when a process dies
    atexit.unregister(dead.close)
    left = places(stranger)
    assert len(left) >= 1
    with reach(dsn, settings={}) as server:
        assert set(places(stranger)) & set(left) == set()
        assert places(stranger) == [server.place]


def test_two_runs_at_once_do_not_see_each_other(dsn: str, stranger: OwnedServer) -> None:
    with reach(dsn, settings={}) as one, reach(dsn, settings={}) as two:
        assert len(places(stranger)) == 2
        one.restore("ten", lambda: build_testtab(one, []))
        with two.connect() as c:
            assert c.execute("SELECT to_regclass('testtab')").fetchone() == (None,)


def test_our_name_without_our_mark_is_not_ours(dsn: str, stranger: OwnedServer) -> None:
    """Not even when it belongs to the same role."""
    with psycopg.connect(dsn, autocommit=True) as c:
        kind = "DATABASE" if BUILDER in dsn else "SCHEMA"
        name = sql.SQL("{} pgstudies_0123abcd").format(sql.SQL(kind))
        c.execute(sql.SQL("CREATE ") + name)
        try:
            with reach(dsn, settings={}):
                assert "pgstudies_0123abcd" in places(stranger)
        finally:
            c.execute(sql.SQL("DROP ") + name)


def test_a_server_that_goes_away_does_not_hide_the_error_of_the_run(
    dsn: str, stranger: OwnedServer
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
    stranger: OwnedServer, monkeypatch: pytest.MonkeyPatch
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
        server.restore("ten", lambda: build_testtab(server, []))
        done = subprocess.run(
            [pgbench, "-n", "-t", "1", "-f", "/dev/stdin"],
            input="SELECT 1 / (count(*) = 10)::int FROM testtab;",
            env={**os.environ, **server.environment()},
            text=True,
            capture_output=True,
            check=True,
        )
    assert "transactions actually processed: 1/1" in done.stdout


def test_a_superuser_may_have_what_needs_one(stranger: OwnedServer) -> None:
    asked = {"track_io_timing": "on"}
    with reach(dsn_of(stranger, "postgres"), settings=asked) as server:
        assert server.capabilities.superuser
        assert server.capabilities.checkpoint
        assert "pg_buffercache" in server.capabilities.contrib
        assert server.unmet_settings == {}
    with reach(dsn_of(stranger, BUILDER), settings=asked) as server:
        assert server.unmet_settings == {"track_io_timing": ("on", "off")}
        with pytest.raises(CannotRun, match="setting track_io_timing needs a superuser"):
            server.restore("ten", lambda: None, asked)


def test_no_setting_of_the_server_changes(dsn: str, stranger: OwnedServer) -> None:
    def settings() -> list[Any]:
        with stranger.connect() as c:
            return (
                c.execute("SELECT name, setting, source FROM pg_settings ORDER BY name").fetchall()
                + c.execute("SELECT setdatabase, setconfig FROM pg_db_role_setting").fetchall()
            )

    before = settings()
    with reach(dsn, settings=SETTINGS) as server:
        server.restore("ten", lambda: build_testtab(server, []), {"enable_hashjoin": "off"})
    assert settings() == before


@pytest.mark.parametrize("value", ["many", "-5"])
def test_a_value_that_a_setting_cannot_have_is_refused(dsn: str, value: str) -> None:
    with (
        reach(dsn) as server,
        pytest.raises(CannotRun, match=f"work_mem.*{value}|{value}.*wor"),
    ):
        server.restore("ten", lambda: None, {"work_mem": value})
