"""Workloads of others: what they cannot do, and what does not count as loaded."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from pgapps.compare.counted import counted
from pgapps.compare.design import Side
from pgapps.compare.request import Request
from pgapps.counting.counter import Counter
from pgapps.counting.valgrind import reason_no_valgrind
from pgapps.workload.counting import statement_units
from pgapps.workload.loaded import tell_loaded, vacuum
from pgapps.workload.loading import Tables, load
from pgapps.workload.scripts import read_workload
from pgapps.workload.steps import steps_of
from pgapps.workload.turns import tried
from pgservers.errors import SpaceError, StudyError
from pgservers.servers.dsn import DsnServer
from pgservers.servers.instance import GUEST
from pgservers.servers.managed import ManagedServer
from pgservers.servers.places import shared_objects
from pgservers.servers.serve import serve
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.trial import Trial
from pgstudies.rooms import find_room
from tests.servers_at_hand import (
    BUILDER,
    LESSER,
    MAKER,
    PASSWORD,
    dsn_of,
    embedded,
    require,
    skip_but_not_in_ci,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.servers.serve import Server
    from tests.workload.conftest import Loaded

pytestmark = pytest.mark.usefixtures("private")

EVERYWHERE = ["embedded", "9.6", "14"]


@pytest.fixture
def marked(run_base: Path) -> Iterator[Path]:
    """A file that does not exist, in a directory where every account may create it."""
    place = run_base / "marked"
    place.mkdir()
    place.chmod(0o777)
    yield place / "file"
    shutil.rmtree(place)


# What is refused before anything is started


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\\! id", r"line 1: \\! is not allowed in a schema, because it runs a program"),
        ("select 1;\n select 1 \\g |id", r"line 2: \\g is not allowed"),
        ("\\o |id", r"\\o is not allowed"),
        ("\\set x `id`", r"\\set is not allowed"),
        ("\\setenv PATH /x", r"\\setenv is not allowed"),
        ("\\copy t from program 'id'", r"\\copy takes rows only FROM a 'file' beside the schema"),
        ("\\copy t to 'x'", r"\\copy takes rows only FROM"),
        ("\\copy (select 1) to program 'id'", r"\\copy takes rows only FROM"),
        ("\\copy t from '/etc/passwd'", "/etc/passwd is not in .*shop, and no other file is read"),
        ("\\copy t from '../secret'", r"\.\./secret is not in"),
        ("\\copy t from 'link'", "link is not in"),
        ("\\copy t from 'missing.csv'", "there is no file missing.csv"),
        ("\\i /etc/passwd", "/etc/passwd is not in"),
        ("\\i missing.sql", "there is no file missing.sql"),
        ("\\i a\0b", "names no file"),
        ("\\i itself", "names no file|there is no file itself|is not in"),
        (f"\\i {'x' * 300}", "names no file"),
        ("\\c postgres", r"\\c is not allowed in a schema, because it leaves the database"),
        ("\\connect -reuse-previous=on \"dbname='x'\"", r"\\connect is not allowed"),
        ("DROP DATABASE IF EXISTS x;", "DROP DATABASE reaches beyond the database"),
        ("/* a */ create\n DATABASE x;", "CREATE DATABASE reaches beyond"),
        ("create/**/database x;", r"CREATE/\*\*/DATABASE reaches beyond"),
        ("create --x\n/*a*b*/database x;", "DATABASE reaches beyond"),
        ("ALTER SYSTEM SET work_mem = '1GB';", "ALTER SYSTEM reaches beyond"),
        ("create tablespace x location '/tmp';", "CREATE TABLESPACE reaches beyond"),
        ("\\foo", r"\\foo is not allowed in a schema, because this command"),
        ("\\if true", r"\\if is not allowed"),
        ("select 'a", "has been cut off"),
    ],
)
def test_what_a_schema_may_not_do_is_told_by_its_line(shop: Path, text: str, said: str) -> None:
    (shop.parent / "secret").write_text("1\n")
    (shop / "link").symlink_to(shop.parent / "secret")
    (shop / "itself").symlink_to(shop / "itself")
    (shop / "schema.sql").write_text(text + "\n")
    with pytest.raises(StudyError, match=said):
        read_workload(shop)


def test_an_included_file_is_told_by_its_own_name(shop: Path) -> None:
    (shop / "schema.sql").write_text("\\i parts/a.sql\n")
    (shop / "parts").mkdir()
    (shop / "parts" / "a.sql").write_text("SELECT 1;\n\\ir b.sql\n")
    (shop / "parts" / "b.sql").write_text("\n\n\\! id\n")
    with pytest.raises(StudyError, match=r"parts/b\.sql, line 3: \\! is not allowed"):
        read_workload(shop)
    (shop / "parts" / "b.sql").write_text("\\i parts/a.sql\n")
    with pytest.raises(StudyError, match=r"is included twice"):
        read_workload(shop)


def test_a_schema_that_cannot_be_read_is_told(shop: Path) -> None:
    (shop / "schema.sql").unlink()
    (shop / "schema.sql").symlink_to(shop / "schema.sql")
    with pytest.raises(StudyError, match=r"has no schema|cannot be read"):
        read_workload(shop)


@pytest.mark.parametrize("name", ["schema.sql", "settings.conf", "two.sql", "schema/toc.dat"])
def test_a_link_out_of_the_directory_is_not_followed(shop: Path, name: str) -> None:
    secret = shop.parent / "secret"
    secret.write_text("work_mem = '1MB'\n")
    (shop / name).unlink(missing_ok=True)
    (shop / name).parent.mkdir(exist_ok=True)
    (shop / name).symlink_to(secret)
    if "/" in name:
        (shop / "schema.sql").unlink()
    with pytest.raises(StudyError, match=r"leads out of .*shop: copy the file"):
        read_workload(shop)


@pytest.mark.parametrize(
    "text",
    [
        "\\shell id",
        "\\SHELL id",
        "\\setshell i id",
        "select 1; \\shell id",
        "select 1 \\shell id",
        "/* x */ \\shell id",
        "-- x\n\\\x0bshell id",
        "\\\x0cSetShell i id",
        "\\\u00a0shell id",
        "\\ \tshell id",
        "\\\\\n shell id",
        "select E'a'\n'\\' ' \\shell id '';",
        "select 'a' \\;\\shell id",
    ],
)
def test_a_script_runs_no_program(shop: Path, text: str) -> None:
    (shop / "one.sql").write_text(f"SELECT 1;\n{text}\n")
    with pytest.raises(StudyError, match="is not allowed in a script, because it runs a program"):
        read_workload(shop)


@pytest.mark.parametrize(
    "text", ["\\sleep 1 s", "select 1; \\SLEEP 1 s", "\\foo", "\\i x", "\\! id", "DROP DATABASE x;"]
)
def test_a_script_has_no_command_but_pgbenchs(shop: Path, text: str) -> None:
    (shop / "one.sql").write_text(f"SELECT 1;\n{text}\n")
    with pytest.raises(StudyError, match="is not allowed in a script"):
        read_workload(shop)


# What the role that loads and runs it can do

REACHES = [
    "COPY (SELECT 1) TO PROGRAM 'cat > {}'",
    "COPY (SELECT 1) TO '{}'",
    "SELECT lo_export(lo_creat(-1), '{}')",
    "SET ROLE postgres",
    "SET SESSION AUTHORIZATION postgres",
    "SELECT pg_read_file('/etc/passwd')",
    "CREATE FUNCTION f() RETURNS int LANGUAGE c AS '$libdir/tablefunc', 'x'",
    "LOAD '{}'",
    "CREATE ROLE mighty SUPERUSER LOGIN",
    "ALTER ROLE pgstudies_guest SUPERUSER",
    "CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE PROCEDURE f()",
    "ALTER DATABASE pgstudies SET search_path = evil",
    "DROP DATABASE template1",
    "UPDATE pg_authid SET rolsuper = true",
    "CREATE TABLESPACE x LOCATION '/tmp'",
]


@pytest.mark.parametrize("release", EVERYWHERE)
def test_a_role_without_rights_reaches_nothing_beyond_its_database(
    release: str, marked: Path
) -> None:
    require(release)
    with serve(release, settings={"fsync": "off"}, unprivileged=True) as server:
        assert isinstance(server, ManagedServer)
        assert not server.capabilities.has("superuser")
        assert server.environment()["PGUSER"] == GUEST
        with server.connect() as connection:
            for statement in REACHES:
                # 9.6 calls it an internal error to read a file as somebody else.
                with pytest.raises(psycopg.Error, match=r"ermission|must be|ccess to library"):
                    connection.execute(statement.format(marked).encode())
            row = connection.execute("SELECT current_user, session_user").fetchone()
            assert row == (GUEST, GUEST)
        for database in ("postgres", "template1"):
            with pytest.raises(StudyError, match="permission denied for database"):
                server.connect(dbname=database)
        assert not marked.exists()
        with server.as_superuser() as connection:
            connection.execute(REACHES[0].format(marked).encode())
    assert marked.exists()  # so the statement is one that could have done harm


EVIL = """
CREATE FUNCTION reach() RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        EXECUTE $q$COPY (SELECT 1) TO PROGRAM 'cat > {marked}'$q$;
    END IF;
    RETURN 1;
END $$;
CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM public.reach(); RETURN new; END';
CREATE FUNCTION calm(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
    'BEGIN RETURN public.reach(); END';
CREATE TABLE t (i int DEFAULT reach() CHECK (calm(i) > 0));
CREATE INDEX ON t (calm(i));
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE PROCEDURE evil();
INSERT INTO t DEFAULT VALUES;
"""

SCRIPT = """
SELECT reach();
INSERT INTO t VALUES (1);
SELECT * FROM t WHERE calm(i) = calm(1);
"""


def test_the_study_measures_without_rights() -> None:
    assert "unprivileged=True" in "".join(find_room("workload").code)


def test_the_same_would_do_harm_with_a_superusers_rights(marked: Path) -> None:
    with serve("embedded", settings={"fsync": "off"}) as server, server.connect() as connection:
        connection.execute(EVIL.replace("{marked}", str(marked)).encode())
    assert marked.exists()


@pytest.fixture
def evil(shop: Path, marked: Path) -> Path:
    """A workload that would write the marked file."""
    (shop / "schema.sql").write_text(EVIL.replace("{marked}", str(marked)))
    (shop / "one.sql").write_text(SCRIPT)
    return shop


def test_neither_loading_nor_trying_runs_anything(loaded: Loaded, evil: Path, marked: Path) -> None:
    workload = read_workload(evil)
    with loaded(Tables(workload.schema)) as trial:
        vacuum(trial)
        found = tried(trial, Tables(workload.schema), steps_of(workload), 0.01, options={})
        assert found["one"].transactions >= 1
        tell_loaded(trial)
        assert not marked.exists()


@pytest.mark.parametrize(
    "release", ["embedded", *(pytest.param(r, marks=pytest.mark.thorough) for r in EVERYWHERE[1:])]
)
def test_counting_runs_nothing_with_the_rights_of_a_lone_backend(
    release: str, evil: Path, marked: Path, run_base: Path
) -> None:
    if reason := reason_no_valgrind():
        skip_but_not_in_ci(reason)
    require(release)
    side = Side(release)
    request = Request(side, side, ("workload",), instructions=True)
    # Only the first: it calls the function that would write the file.
    units = list(statement_units("workload", release, {"directory": str(evil)}))[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pgapps.counting.counter.cache_dir", lambda: run_base / "counted")
        found = counted(request, units).units
    assert found["ratio"].null_count() == 0, found["reason"].to_list()
    assert found.height == 1
    assert not marked.exists()


@pytest.mark.parametrize(
    "text", ["RESET SESSION AUTHORIZATION", "SET ROLE postgres", "SELECT away()"]
)
def test_what_is_counted_cannot_take_rights(shop: Path, text: str) -> None:
    if reason := reason_no_valgrind():
        skip_but_not_in_ci(reason)
    (shop / "schema.sql").write_text(
        "CREATE FUNCTION away() RETURNS text LANGUAGE sql AS\n"
        "    $$ SELECT set_config('session_authorization', session_user, false) $$;\n"
    )
    unit = next(statement_units("workload", "embedded", {"directory": str(shop)}))
    create = unit.prepare[1].replace("SELECT 1", text)
    with Counter("embedded") as counter, pytest.raises(StudyError, match="within security-definer"):
        counter.count(replace(unit, prepare=(unit.prepare[0], create)), fresh=True)


# Nothing half loaded is taken for loaded


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CREATE TABLE u ();\nSELECT 1 / 0;\n", "line 2, fails on PostgreSQL .* division by zero"),
        ("CREATE TABLE u (i int);\nCOPY u FROM stdin;\nx\n\\.\n", "line 2, fails on .* invalid in"),
        ("BEGIN;\nCREATE TABLE u (i int);\n", "ends in a transaction"),
        ("COPY t TO PROGRAM 'id';\n", "fails on"),
        ("CREATE EXTENSION file_fdw;\n", "permission denied to create extension"),
        ("DO $$ BEGIN EXECUTE 'CREATE DATABASE x'; END $$;\n", "line 1, fails on"),
    ],
)
def test_what_is_not_loaded_whole_is_not_loaded(
    loaded: Loaded, shop: Path, text: str, said: str
) -> None:
    (shop / "schema.sql").write_text(text)
    with pytest.raises(StudyError, match=said):
        loaded(Tables(shop / "schema.sql")).__enter__()


def test_what_was_loaded_is_said(
    loaded: Loaded, shop: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (shop / "schema.sql").write_text(
        "CREATE TABLE t (i int);\nCOPY t FROM stdin;\n1\n2\n\\.\n"
        "CREATE TABLE u (i int, s text);\n\\copy u from 'rows.csv' csv\n\\ir more.sql\n"
    )
    (shop / "rows.csv").write_text('3,"a\n;b"\n4,\n5,x\n')
    (shop / "more.sql").write_text("INSERT INTO t VALUES (3);")
    with loaded(Tables(shop / "schema.sql")) as trial:
        vacuum(trial)
        tell_loaded(trial)
        assert "2 tables, 6 rows, " in capfd.readouterr().err
        assert {"tables", "rows", "size_bytes"} <= {value for row in trial.rows for value in row}
        assert trial.value("SELECT s FROM u WHERE i = 3") == "a\n;b"


def test_owners_roles_and_extensions_of_a_dump_are_made_or_passed_over(
    loaded: Loaded, shop: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (shop / "schema.sql").write_text(
        "CREATE SCHEMA ext;\nCREATE EXTENSION pg_trgm WITH SCHEMA ext;\n"
        "CREATE ROLE app SUPERUSER;\nCREATE TABLE t (i int, s text);\n"
        "ALTER TABLE public.t OWNER TO app;\nCREATE INDEX ON t USING gin (s ext.gin_trgm_ops);\n"
        "GRANT SELECT ON t TO web_app;\nALTER TABLE t OWNER TO postgres;\n"
        "COMMENT ON EXTENSION pg_trgm IS 'x';\nCREATE PUBLICATION p FOR ALL TABLES;\n"
        "ALTER DEFAULT PRIVILEGES FOR ROLE postgres GRANT SELECT ON TABLES TO web_app;\n"
    )
    with loaded(Tables(shop / "schema.sql")) as trial:
        said = capfd.readouterr().err
        assert "The role app is made, without rights." in said
        assert "The role web_app is made, without rights." in said
        assert "Passed over: ALTER TABLE t OWNER TO postgres" in said
        vacuum(trial)
        assert trial.value("SELECT count(*) FROM pg_roles WHERE rolsuper") == 1


def test_a_user_mapping_is_no_role(guarded: ManagedServer, loaded: Loaded, shop: Path) -> None:
    (shop / "schema.sql").write_text("CREATE USER app;\nCREATE USER MAPPING FOR app SERVER far;\n")
    with pytest.raises(StudyError, match=r'line 2, fails .*server "far" does not exist'):
        loaded(Tables(shop / "schema.sql")).__enter__()
    with guarded.as_superuser() as connection:
        made = connection.execute("SELECT FROM pg_roles WHERE rolname = 'mapping'")
        assert made.rowcount == 0


@pytest.mark.parametrize("kind", ["plain", "custom", "directory"])
def test_a_dump_is_loaded_whole(
    managed: ManagedServer, loaded: Loaded, shop: Path, kind: str
) -> None:
    with managed.connect() as connection:
        connection.execute(
            "DROP SCHEMA IF EXISTS kept CASCADE; CREATE SCHEMA kept;"
            "CREATE TABLE kept.t AS SELECT i, 'a;''\\' || i s FROM generate_series(1, 500) i;"
            "CREATE FUNCTION kept.f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END"
        )
    name = {"plain": "schema.sql", "custom": "schema.dump", "directory": "schema"}[kind]
    (shop / "schema.sql").unlink()
    pg_dump = managed.binaries.program("pg_dump")
    command = [str(pg_dump), f"--format={kind}", "--schema=kept", f"--file={shop / name}"]
    subprocess.run(command, check=True, env=managed.environment())
    with loaded(Tables(read_workload(shop).schema)) as trial:
        assert trial.value("SELECT count(*) FROM kept.t WHERE s = 'a;''\\' || i") == 500
        assert trial.value("SELECT kept.f()") == 2


def test_a_full_disk_is_told_as_such(
    loaded: Loaded, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise psycopg.errors.DiskFull("could not extend file: No space left on device")

    monkeypatch.setattr("pgapps.workload.loading._Loader._execute", full)
    with pytest.raises(SpaceError, match="No space left"):
        loaded(Tables(shop / "schema.sql")).__enter__()


# On a server of somebody else's


@pytest.mark.parametrize("role", [BUILDER, LESSER])
def test_a_workload_wants_a_role_that_can_make_one_for_it(
    stranger: ManagedServer, role: str
) -> None:
    why = rf"{role} may not make both on .*: connect as a role with CREATEROLE and CREATEDB"
    with pytest.raises(StudyError, match=why):
        serve(dsn_of(stranger, role), unprivileged=True)
    assert left_on(stranger) == []


def test_a_server_that_lets_no_new_role_in_is_told(stranger: ManagedServer) -> None:
    with stranger.connect() as connection:
        (path,) = connection.execute("SHOW hba_file").fetchone() or ("",)
        rules = Path(path).read_text()
        Path(path).write_text(rules.replace("local all all", f"local all {MAKER}"))
        try:
            connection.execute("SELECT pg_reload_conf()")
            with pytest.raises(StudyError, match=r"does not let in .*pg_hba\.conf"):
                serve(dsn_of(stranger, MAKER), unprivileged=True)
        finally:
            Path(path).write_text(rules)
            connection.execute("SELECT pg_reload_conf()")
    assert left_on(stranger) == []


def on_its_database(command: str) -> str:
    return f"DO $$ BEGIN EXECUTE format('{command}', current_database()); END $$;"


LEAVES_A_DATABASE = "create/**/database left_behind;"
KEEPS_ITS_DATABASE = on_its_database("ALTER DATABASE %I is_template true")
OPENS_ITS_DATABASE = on_its_database("GRANT CONNECT ON DATABASE %I TO PUBLIC")
NAMES_ITS_DATABASE = on_its_database("COMMENT ON DATABASE %I IS $x$x$x$")


def left_on(server: ManagedServer) -> list[str]:
    """The databases and roles that are not the fixture's."""
    with server.connect() as connection:
        found = connection.execute(
            "SELECT datname FROM pg_database WHERE datname ~ '^(pgstudies_|left)'"
            " UNION ALL SELECT rolname FROM pg_roles WHERE rolname ~ '^(pgstudies_|left)'"
        ).fetchall()
    return [name for (name,) in found]


def executed(server: Server, statement: str) -> None:
    with server.connect() as connection:
        connection.execute(statement.encode())


def killed(server: Server) -> None:
    """End the sessions of a run, as if it was killed."""
    assert isinstance(server, DsnServer)
    server.close_connections()
    server._keeper.close()


@pytest.mark.parametrize("role", ["postgres", MAKER])
def test_a_workload_on_an_address_owns_nothing_and_leaves_nothing(
    stranger: ManagedServer, role: str
) -> None:
    with stranger.connect() as connection:
        before = shared_objects(connection)
    refused = [
        LEAVES_A_DATABASE,
        KEEPS_ITS_DATABASE,
        NAMES_ITS_DATABASE,
        "CREATE ROLE left_role",
        f"SET ROLE {role}",
        f"GRANT pg_monitor TO {MAKER}",
        f"ALTER ROLE {role} SET work_mem = '1GB'",
        "COPY (SELECT 1) TO PROGRAM 'cat'",
        "CREATE TABLESPACE x LOCATION '/tmp'",
    ]
    with serve(dsn_of(stranger, role), unprivileged=True) as server:
        assert not server.capabilities.has("superuser")
        for statement in refused:
            with pytest.raises(psycopg.Error, match=r"ermission denied|must be owner"):
                executed(server, statement)
        # It is no error to grant what one may not grant.
        executed(server, OPENS_ITS_DATABASE)
        with server.connect() as connection:
            (mine,) = connection.execute("SELECT current_user").fetchone() or ("",)
            query = "SELECT datacl FROM pg_database WHERE datname = current_database()"
            (granted,) = connection.execute(query).fetchone() or ("",)
            assert mine == server.environment()["PGUSER"] != role
            assert "{=" not in granted
            assert ",=" not in granted
            owns = "SELECT FROM pg_database WHERE pg_has_role(datdba, 'USAGE')"
            assert connection.execute(owns).rowcount == 0
            rights = "SELECT FROM pg_roles WHERE rolname = current_user AND rolcreatedb"
            assert connection.execute(rights).rowcount == 0
            # What a schema needs of its own database, it has.
            connection.execute("CREATE TABLE public.t (i int); CREATE SCHEMA more")
            connection.execute("CREATE EXTENSION pg_trgm")
        executed(server, "ALTER ROLE CURRENT_USER SET work_mem = '1GB'")
    assert left_on(stranger) == []
    with stranger.connect() as connection:
        assert shared_objects(connection) == before


@pytest.mark.parametrize(
    "statement", [LEAVES_A_DATABASE, KEEPS_ITS_DATABASE, OPENS_ITS_DATABASE, NAMES_ITS_DATABASE]
)
def test_with_the_rights_of_the_addresss_role_it_would(
    stranger: ManagedServer, statement: str
) -> None:
    with serve(dsn_of(stranger, MAKER)) as server:
        executed(server, statement)
        with server.connect() as connection:
            found = connection.execute(
                "SELECT ',' || array_to_string(datacl, ','), shobj_description(oid, 'pg_database')"
                " FROM pg_database WHERE datname = current_database()"
            ).fetchone()
            assert found
            assert (",=c/" in found[0]) == (statement == OPENS_ITS_DATABASE)
            assert (found[1] == "x") == (statement == NAMES_ITS_DATABASE)
    left = left_on(stranger)
    assert bool(left) == (statement in {LEAVES_A_DATABASE, KEEPS_ITS_DATABASE})
    with stranger.connect() as connection:
        for name in left:
            connection.execute(f'ALTER DATABASE "{name}" is_template false'.encode())
            connection.execute(f'DROP DATABASE "{name}"'.encode())


def test_what_a_run_leaves_is_told_by_name(
    stranger: ManagedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with stranger.connect() as connection:
        try:
            with serve(dsn_of(stranger, MAKER), unprivileged=True):
                connection.execute("CREATE DATABASE left_here")
                connection.execute(f"ALTER ROLE {LESSER} CONNECTION LIMIT 7")
                connection.execute(f"GRANT {LESSER} TO {BUILDER}")
                connection.execute(f"ALTER ROLE {BUILDER} IN DATABASE pgstudies SET jit = off")
            said = capfd.readouterr().err
            for name in (
                "database left_here",
                f"role {LESSER}",
                f"membership of {BUILDER} in {LESSER}",
                f"settings of {BUILDER} in pgstudies",
            ):
                assert name in said
            with serve(dsn_of(stranger, MAKER), unprivileged=True):
                pass
            assert "has changed" not in capfd.readouterr().err
        finally:
            connection.execute("DROP DATABASE IF EXISTS left_here")
            connection.execute(f"ALTER ROLE {LESSER} CONNECTION LIMIT -1")
            connection.execute(f"REVOKE {LESSER} FROM {BUILDER}")
            connection.execute(f"ALTER ROLE {BUILDER} IN DATABASE pgstudies RESET ALL")


def test_what_a_killed_run_made_for_a_workload_is_dropped_by_the_next(
    stranger: ManagedServer,
) -> None:
    server = serve(dsn_of(stranger, MAKER), unprivileged=True)
    executed(server, "CREATE TABLE t (i int)")
    killed(server)
    assert len(left_on(stranger)) == 2
    with serve(dsn_of(stranger, MAKER), unprivileged=True):
        assert len(left_on(stranger)) == 2  # its own
    assert left_on(stranger) == []


def test_two_servers_of_a_run_share_a_role_and_their_states(
    stranger: ManagedServer, shop: Path
) -> None:
    def build() -> None:
        with Trial(server, Arm("plain"), block=0) as trial:
            load(trial, Tables(shop / "schema.sql"))

    with serve(dsn_of(stranger, MAKER), unprivileged=True) as server:
        server.restore("one", build)
        with server.another() as other:
            other.restore("one", build)
            executed(other, "INSERT INTO t VALUES (1)")
            assert other.environment()["PGUSER"] == server.environment()["PGUSER"]
            server.restore("two", build)
    assert left_on(stranger) == []


@pytest.mark.parametrize("dies", [False, True])
def test_a_prepared_transaction_keeps_no_database(dies: bool) -> None:
    with embedded({"fsync": "off", "max_prepared_transactions": "4"}) as server:
        executed(server, f"CREATE ROLE {MAKER} LOGIN CREATEDB CREATEROLE PASSWORD '{PASSWORD}'")
        with server.connect() as connection:
            (path,) = connection.execute("SHOW hba_file").fetchone() or ("",)
            Path(path).write_text(f"{Path(path).read_text()}local all all scram-sha-256\n")
            connection.execute("SELECT pg_reload_conf()")
        with serve(dsn_of(server, MAKER), unprivileged=True) as ours:
            executed(ours, "BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'p'")
            if dies:
                killed(ours)
                serve(dsn_of(server, MAKER), unprivileged=True).close()
        assert left_on(server) == []


def test_what_sessions_look_through_is_not_chosen_by_a_databases_owner(
    stranger: ManagedServer,
) -> None:
    with stranger.connect() as connection:
        connection.execute("ALTER DATABASE pgstudies SET search_path = evil, pg_catalog, public")
    try:
        with serve(dsn_of(stranger, BUILDER)) as server:
            for session in (server.connect(), server.connect(dbname="pgstudies")):
                with session:
                    assert session.execute("SHOW search_path").fetchone() == ("public",)
            keeper = getattr(server, "_keeper")  # noqa: B009
            assert keeper.execute("SHOW search_path").fetchone() == ("",)
    finally:
        with stranger.connect() as connection:
            connection.execute("ALTER DATABASE pgstudies RESET search_path")
