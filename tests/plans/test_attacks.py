"""What others put into a server must not gain any right by being planned, restored or asked."""

from __future__ import annotations

import socket
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest

from pgapps.doctor.doctor import examine
from pgapps.plans import empty_copy as copies
from pgapps.plans import explain as explaining
from pgapps.plans import source as sources
from pgapps.plans.empty_copy import empty_copy
from pgapps.plans.explain import _is_node, explain
from pgapps.plans.foresee import foresee
from pgapps.plans.queries import Query, top_queries
from pgapps.plans.source import opened
from pgapps.plans.text import as_text, tree, write_report
from pgservers.errors import ServerError, SpaceError, StudyError
from pgservers.servers.facts import examined, server_facts
from pgservers.servers.serve import serve
from pgstudies.measuring.counters import StatementCounters
from tests.plans.servers import add_reader, address_of
from tests.servers.test_managed import small_disk
from tests.servers_at_hand import PASSWORD, dsn_of, embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.servers.managed import ManagedServer

ATTACK = """
CREATE FUNCTION public.go() RETURNS int VOLATILE LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'COPY (SELECT 1) TO PROGRAM ''touch {mark}''';
    RETURN 1;
EXCEPTION WHEN OTHERS THEN
    RETURN 1;
END $$;
CREATE FUNCTION g(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
    'BEGIN RETURN $1 + public.go(); END';
CREATE DOMAIN small AS int DEFAULT g(1) CHECK (VALUE < g(1000000));
CREATE TABLE t (
    a int CHECK (a < g(1000000)), b small, c int DEFAULT g(1),
    d int GENERATED ALWAYS AS (a + g(1)) STORED
);
CREATE INDEX ON t ((a + g(1)));
CREATE INDEX ON t (a) WHERE a > g(1);
GRANT ALL ON t TO PUBLIC;
CREATE STATISTICS s ON (a + g(1)), (c + g(2)) FROM t;
CREATE VIEW v AS SELECT a + g(1) AS a FROM t WHERE a > g(1);
CREATE MATERIALIZED VIEW m AS SELECT g(1) AS a;
CREATE INDEX ON m ((a + g(1)));
CREATE TABLE p (a int) PARTITION BY RANGE ((a + g(1)));
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (100);
ALTER TABLE p1 ADD CHECK (a < g(1000));
CREATE RULE r AS ON UPDATE TO t WHERE old.a > g(1) DO ALSO SELECT g(2);
CREATE POLICY few ON t USING (a > g(1));
INSERT INTO t (a) SELECT i FROM generate_series(1, 1000) i;
"""

PLANNED = [
    "SELECT 1",
    "SELECT g(1)",
    "SELECT * FROM t WHERE a + g(1) = 5",
    "SELECT * FROM v",
    "SELECT * FROM m WHERE a + g(1) > 5",
    "SELECT * FROM p WHERE a + g(1) = 7",
    "SELECT 5::small",
    "INSERT INTO t (a) VALUES (1)",
    "UPDATE t SET a = 2",
]

AS_THEY_LIKE = "EXCEPTION WHEN OTHERS THEN RETURN 1; END"


@pytest.fixture(scope="module")
def server(run_base: Path) -> Iterator[ManagedServer]:
    """A database of a role that is no superuser, and one that may read its tables."""
    assert run_base.exists()
    with embedded({"fsync": "off", "autovacuum": "off"}) as server:
        with server.connect() as c:
            add_reader(c)
            c.execute(f"CREATE ROLE owner LOGIN PASSWORD '{PASSWORD}'")
            for what in ("SELECT ON TABLES", "USAGE ON SCHEMAS"):
                c.execute(f"ALTER DEFAULT PRIVILEGES FOR ROLE owner GRANT {what} TO reader")
            c.execute("ALTER DATABASE pgstudies OWNER TO owner")
        yield server


@pytest.fixture
def owner(server: ManagedServer) -> Iterator[psycopg.Connection[Any]]:
    """A session of the database's owner, whose objects go with it."""
    with psycopg.connect(dsn_of(server, "owner"), autocommit=True) as connection:
        yield connection
        connection.execute("ALTER DATABASE pgstudies RESET ALL")
    with server.connect() as c:
        c.execute("DROP SCHEMA public CASCADE; DROP SCHEMA IF EXISTS evil CASCADE")
        c.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
        c.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements SCHEMA public")
        c.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")


def is_superuser(server: ManagedServer, role: str) -> bool:
    """Asked in another database: in its own the role would be asked in our place."""
    with server.as_superuser() as c:
        row = c.execute("SELECT rolsuper FROM pg_roles WHERE rolname = %s", [role]).fetchone()
    return row == (True,)


def test_nothing_of_a_schema_or_a_query_runs_a_program(
    server: ManagedServer, owner: psycopg.Connection[Any], run_base: Path
) -> None:
    place = run_base / "marks"
    place.mkdir()
    place.chmod(0o777)
    mark = place / "it-ran"
    owner.execute(ATTACK.format(mark=mark))
    with serve("embedded") as other, other.connect() as superuser:
        superuser.execute(ATTACK.format(mark=mark))
    assert mark.exists(), "it is an attack"
    mark.unlink()
    with server.connect() as c:
        c.execute(
            "CREATE FUNCTION public.entered() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF current_database() = 'plans' THEN PERFORM public.go(); END IF; END $$"
        )
        c.execute("CREATE EVENT TRIGGER entering ON login EXECUTE FUNCTION public.entered()")
        try:
            with opened(dsn_of(server, "reader")) as source:
                asked = [Query(text, text) for text in PLANNED]
                found = foresee(source, asked, to="embedded", settings={"work_mem": "5MB"})
        finally:
            c.execute("DROP EVENT TRIGGER entering")
    assert not mark.exists()
    assert [q.reason for q in found.queries if q.reason] == []
    assert found.notes == []


def test_a_function_that_is_planned_can_neither_write_nor_leave_a_setting(
    server: ManagedServer, owner: psycopg.Connection[Any]
) -> None:
    owner.execute(
        f"""
        CREATE TABLE log (a int);
        GRANT ALL ON log TO reader;
        CREATE FUNCTION unlock() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
            PERFORM set_config('default_transaction_read_only', 'off', false),
                    set_config('statement_timeout', '0', false),
                    set_config('search_path', 'pg_temp', false),
                    set_config('client_encoding', 'LATIN1', false);
            PERFORM set_config('transaction_read_only', 'off', false);
            RETURN 1; {AS_THEY_LIKE} $$;
        CREATE FUNCTION write() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO log VALUES (1); RETURN 1; {AS_THEY_LIKE} $$;
        CREATE FUNCTION first(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
            PERFORM set_config('default_transaction_read_only', 'off', false),
                    set_config('statement_timeout', '0', false);
            RETURN unlock() + write(); END $$;
        CREATE FUNCTION second(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
            'BEGIN RETURN write(); END';
        """
    )
    names = ["default_transaction_read_only", "statement_timeout", "search_path", "client_encoding"]
    shown = "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)"
    with opened(dsn_of(server, "reader")) as source:
        before = source.connection.execute(shown, [names]).fetchall()
        assert len(before) == len(names)
        for text in ("SELECT first(1)", "SELECT second(1)"):
            assert explain(source.connection, Query("x", text), source.search_path).root
        assert source.connection.execute(shown, [names]).fetchall() == before
    assert owner.execute("SELECT count(*) FROM log").fetchone() == (0,)


def test_a_function_that_does_not_end_is_left(
    server: ManagedServer, owner: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "_LONGEST_S", 2)
    monkeypatch.setitem(sources._LIMITS, "statement_timeout", "200ms")
    owner.execute(
        """
        CREATE FUNCTION sleep(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_sleep(1000); RETURN 1; END';
        CREATE FUNCTION stay(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN LOOP
            BEGIN PERFORM pg_sleep(1000); EXCEPTION WHEN query_canceled THEN NULL; END;
        END LOOP; END $$;
        """
    )
    with opened(dsn_of(server, "reader")) as source:
        plan = explain(source.connection, Query("x", "SELECT sleep(1)"), "public")
        assert plan.reason == "canceling statement due to statement timeout"
        with pytest.raises(ServerError, match="Planning the query endless was given up after 2 s"):
            explain(source.connection, Query("endless", "SELECT stay(1)"), "public")
    own = "FROM pg_stat_activity WHERE application_name = 'pgstudies plans'"
    with server.connect() as c:
        while c.execute(f"SELECT 1 {own}").fetchone():
            c.execute("SELECT pg_sleep(0.2)")


def test_a_schema_that_does_not_end_is_given_up(
    server: ManagedServer, owner: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_LONGEST_S", 5)
    owner.execute(
        """
        CREATE FUNCTION stay(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN LOOP
            EXIT WHEN current_database() <> 'plans';
            BEGIN PERFORM pg_sleep(1000); EXCEPTION WHEN query_canceled THEN NULL; END;
        END LOOP; RETURN 1; END $$;
        CREATE TABLE t (a int);
        CREATE INDEX ON t ((a + stay(1)));
        """
    )
    with (
        pytest.raises(ServerError, match="pg_restore was given up after 5 s"),
        opened(dsn_of(server, "reader")) as source,
    ):
        foresee(source, [Query("x", "SELECT 1")], to="embedded")


@pytest.mark.root
@pytest.mark.parametrize("size_mb", [100, 160])
def test_a_schema_that_fills_the_disk_is_told_so(
    size_mb: int,
    server: ManagedServer,
    owner: psycopg.Connection[Any],
    run_base: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner.execute(
        """
        CREATE TABLE filled (a text);
        CREATE FUNCTION fill() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
            IF current_database() = 'plans' THEN
                INSERT INTO public.filled SELECT repeat('x', 1000) FROM generate_series(1, 1e6);
            END IF;
            RETURN 1; END $$;
        CREATE FUNCTION g(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
            'BEGIN RETURN public.fill(); END';
        CREATE TABLE t (a int);
        CREATE INDEX ON t ((a + g(1)));
        """
    )
    with (
        opened(dsn_of(server, "reader")) as source,
        small_disk(run_base / f"plans-{size_mb}", size_mb) as disk,
    ):
        monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(disk))
        with pytest.raises(SpaceError, match=r"No space left in .*: free some, or set PGSTUDIES"):
            foresee(source, [Query("x", "SELECT 1")], to="embedded")
        assert list(disk.glob("s-*")) == []


@pytest.mark.usefixtures("owner")
def test_rights_that_others_could_use_are_refused(server: ManagedServer) -> None:
    with (
        pytest.raises(StudyError, match="postgres, who is a superuser, and owner may have written"),
        opened(address_of(server)),
    ):
        pass
    for right in ("pg_read_server_files", "pg_read_all_data"):
        with server.connect() as c:
            c.execute(f"GRANT {right} TO reader")
            try:
                with (
                    pytest.raises(StudyError, match=f"is a member of {right}, and owner"),
                    opened(dsn_of(server, "reader")),
                ):
                    pass
            finally:
                c.execute(f"REVOKE {right} FROM reader")


# As whoever finds the database owner's functions first would be asked by them.
EVIL = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.rise() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
    EXECUTE 'ALTER ROLE owner SUPERUSER'; RETURN 1; EXCEPTION WHEN OTHERS THEN RETURN 1; END $$;
GRANT ALL ON SCHEMA evil TO PUBLIC;
"""

SHADOWS = """
DO $$ DECLARE statement text; BEGIN
    FOR statement IN SELECT format(
        'CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS '
        '$x$ DECLARE r %3$s; BEGIN PERFORM evil.rise(); RETURN r; END $x$',
        proname, pg_get_function_identity_arguments(p.oid), prorettype::regtype)
    FROM pg_proc p JOIN pg_type t ON t.oid = prorettype
    WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT proretset
      AND provariadic = 0 AND proargmodes IS NULL AND typtype = 'b'
    LOOP
        BEGIN EXECUTE statement; EXCEPTION WHEN OTHERS THEN NULL; END;
    END LOOP;
END $$
"""

COMPARISON = """
    CREATE FUNCTION evil.same({0}, {0}) RETURNS bool LANGUAGE plpgsql AS
        'BEGIN PERFORM evil.rise(); RETURN true; END';
"""

OPERATOR = "CREATE OPERATOR evil.{1} (LEFTARG = {0}, RIGHTARG = {0}, FUNCTION = evil.same)"


def test_a_databases_owner_does_not_rise_when_a_superuser_asks(
    server: ManagedServer, owner: psycopg.Connection[Any]
) -> None:
    owner.execute(EVIL)
    owner.execute(SHADOWS)
    for kind in ("name", "text", "oid", "int", '"char"'):
        owner.execute(COMPARISON.format(kind))
        for operator in ("=", "<>", "~~", "!~"):
            owner.execute(OPERATOR.format(kind, operator))
    for name, shown in (("pg_settings", "name, setting"), ("pg_database", "oid, datname")):
        owner.execute(
            f"CREATE VIEW evil.{name} AS SELECT {shown}, evil.rise() FROM pg_catalog.{name}"
        )
    owner.execute("GRANT ALL ON ALL TABLES IN SCHEMA evil TO PUBLIC")
    owner.execute("ALTER DATABASE pgstudies SET search_path = evil, pg_catalog, public")
    address = address_of(server)
    with pytest.raises(StudyError, match="who is a superuser"), opened(address):
        pass
    assert not is_superuser(server, "owner")
    assert [check.name for check in examine(address) if check.ok is False] == []
    assert not is_superuser(server, "owner")
    with serve(address, settings={"work_mem": "5MB"}) as external:
        for ask in (server_facts, examined):
            ask(external)
        external.nondefault_settings()
        external.restore("a", lambda: None)
        external.environment()
        with external.connect() as c:
            StatementCounters(c).read()
    assert not is_superuser(server, "owner")
    with psycopg.connect(address, autocommit=True) as superuser, suppress(psycopg.Error):
        superuser.execute("SELECT set_config('work_mem', '5MB', false)")
    assert is_superuser(server, "owner"), "it is an attack"
    with server.as_superuser() as c:
        c.execute("ALTER ROLE owner NOSUPERUSER")


@contextmanager
def cut_at(server: ManagedServer, word: bytes, place: Path) -> Iterator[str]:
    """An address whose line goes dead as soon as a client sends that word; reader's options."""
    inner, outer = f"{server.environment()['PGHOST']}/.s.PGSQL.5432", place / ".s.PGSQL.5432"
    lines: list[socket.socket] = []

    def pass_on(source: socket.socket, target: socket.socket, until: bytes) -> None:
        with suppress(OSError):
            while (data := source.recv(1 << 20)) and not (until and until in data):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve_lines(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                back = socket.socket(socket.AF_UNIX)
                back.connect(inner)
                lines.extend((client, back))
                for ends in ((client, back, word), (back, client, b"")):
                    threading.Thread(target=pass_on, args=ends, daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(outer))
        listener.listen()
        threading.Thread(target=serve_lines, args=[listener], daemon=True).start()
        yield f"postgresql://reader:{quote(PASSWORD, safe='')}@/pgstudies?host={place}"
        listener.shutdown(socket.SHUT_RDWR)
    for line in lines:
        line.close()


DROPPED_AT = [
    *("current_schemas", "search_path", "rolsuper", "pg_relation_size", "pg_stat_statements"),
    *("BEGIN", "PREPARE", "EXPLAIN", "ROLLBACK", "DEALLOCATE", "LOCK TABLE"),
]


@pytest.mark.parametrize("word", DROPPED_AT)
def test_a_line_that_goes_dead_ends_in_a_sentence(
    server: ManagedServer, owner: psycopg.Connection[Any], word: str
) -> None:
    owner.execute("CREATE TABLE t (a int)")

    def foreseen(address: str) -> None:
        with opened(address) as source:
            queries = [Query("x", "SELECT 1")]
            if word == "pg_stat_statements":
                queries = top_queries(source.connection)[0]
            foresee(source, queries, to="embedded")

    with (
        tempfile.TemporaryDirectory(dir="/tmp") as short,
        cut_at(server, word.encode(), Path(short)) as address,
        pytest.raises(ServerError, match=r"reader@.*(it has closed the connection|cannot be read)"),
    ):
        foreseen(address)


@pytest.mark.parametrize(
    ("encoding", "client"), [("LATIN1", "UTF8"), ("SQL_ASCII", "UTF8"), ("SQL_ASCII", "LATIN1")]
)
def test_names_are_found_in_every_encoding(
    server: ManagedServer, tmp_path: Path, encoding: str, client: str
) -> None:
    with server.connect() as c:
        c.execute("DROP DATABASE IF EXISTS other")
        c.execute(f"CREATE DATABASE other TEMPLATE template0 ENCODING {encoding} LOCALE 'C'")
    bare = encoding == "SQL_ASCII"  # it keeps the bytes of whatever a client writes

    def written(text: str) -> str:
        return text.encode(client).decode("latin1") if bare else text

    with server.connect(dbname="other", client_encoding="LATIN1") as c:
        c.execute("CREATE EXTENSION pg_stat_statements")
        for statement in (
            "CREATE SCHEMA ö; CREATE TABLE ö.straße (a int PRIMARY KEY, größe text)",
            "INSERT INTO ö.straße SELECT i, 'ü' || i FROM generate_series(1, 5000) i",
            "GRANT USAGE ON SCHEMA ö TO reader; GRANT SELECT ON ö.straße TO reader",
            "ANALYZE ö.straße; ALTER DATABASE other SET search_path = ö, public",
            "SELECT pg_stat_statements_reset()",
            "SELECT * FROM ö.straße WHERE größe = 'ü1'",
        ):
            c.execute(written(statement))
    with opened(dsn_of(server, "reader").replace("/pgstudies", "/other")) as source:
        queries, _ = top_queries(source.connection)
        (query,) = [q for q in queries if "WHERE gr" in q.text]
        schema = query.text.split()[3].partition(".")[0]
        asked = [query, Query("x", query.text.replace(f"{schema}.", ""))]
        asked += [Query("y", 'TABLE "nicht\nda"')]
        found = foresee(source, asked, to="embedded", settings={"work_mem": "5MB"})
        assert max(source.sizes.values()) > 100_000
    assert [q.verdict for q in found.queries] == ["same", "same", "not judged"]
    assert "(rows 5,000" not in "".join(tree(found.queries[0].after or {"Node Type": ""}))
    assert found.notes == []
    text = as_text(found)
    assert "server says: relation" in text
    assert "nicht\\nda" in text
    assert write_report(found, tmp_path / "plans.html").exists()


def test_sizes_that_no_server_has_are_cut_and_told(
    server: ManagedServer, owner: psycopg.Connection[Any]
) -> None:
    owner.execute("CREATE TABLE t (a int); CREATE TABLE u (a int); CREATE TABLE w (a int)")
    sizes = {"public.t": 10**30, "public.u": -5, "public.w": 5 << 30}
    sizes |= {"pg_catalog.pg_class": 1 << 40}
    sizes |= dict.fromkeys(["nothing.there", 'no"name', "", "x\ny"], 8192)
    with opened(dsn_of(server, "reader")) as source:
        strange = replace(source, sizes=sizes)
        with empty_copy(strange, "embedded", print) as copy, copy.connect() as c:
            found = c.execute(
                "SELECT relname, pg_relation_size(oid) FROM pg_class "
                "WHERE relname IN ('t', 'u', 'w') OR pg_relation_size(oid) > 2^40 ORDER BY 1"
            ).fetchall()
            assert found == [("t", 2**45), ("u", 0), ("w", 5 << 30)]
            assert [n for n in copy.notes if "1 of them are planned as shorter" in n]


@pytest.mark.usefixtures("owner")
def test_extensions_that_reach_out_are_left_out_and_told(server: ManagedServer) -> None:
    with server.connect() as c:
        c.execute(
            """
            CREATE SCHEMA "more; drop"; CREATE EXTENSION pg_trgm SCHEMA "more; drop";
            CREATE EXTENSION bloom SCHEMA public;
            CREATE EXTENSION postgres_fdw SCHEMA public;
            CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw;
            CREATE FOREIGN TABLE away (a int) SERVER far;
            CREATE TABLE public.t (a int, b text);
            GRANT SELECT ON away, public.t TO reader;
            CREATE INDEX ON public.t USING bloom (a);
            CREATE INDEX ON public.t USING gin (b "more; drop".gin_trgm_ops);
            """
        )
    asked = [Query("here", "SELECT * FROM t"), Query("far", "SELECT * FROM away")]
    try:
        with opened(dsn_of(server, "reader")) as source:
            found = foresee(source, asked, to="embedded", settings={"work_mem": "5MB"})
    finally:
        with server.connect() as c:
            c.execute('DROP EXTENSION postgres_fdw CASCADE; DROP SCHEMA "more; drop" CASCADE')
    assert [q.verdict for q in found.queries] == ["same", "not judged"]
    assert 'relation "away" does not exist' in found.queries[1].reason
    assert found.notes[0].startswith("Not copied: the extension postgres_fdw, and what needs it;")
    assert all("far" in n or "away" in n or "postgres_fdw" in n for n in found.notes), found.notes


def nested(depth: int) -> dict[str, object]:
    return {"Node Type": "Append", "Plans": [nested(depth - 1)] if depth else []}


@pytest.mark.parametrize(
    "answer",
    [
        *(None, 5, [], {}, {"Node Type": 5}, {"Node Type": True}, {"Node Type": {}}, nested(400)),
        {"Node Type": "Sort", "Plans": 5},
        *({"Node Type": "Sort", "Plans": [{}]}, {"Node Type": "Sort", "Total Cost": "a"}),
    ],
)
def test_an_answer_that_is_no_plan_is_none(answer: object) -> None:
    assert not _is_node(answer)
    assert _is_node({"Node Type": "Sort", "Plans": [{"Node Type": "Seq Scan", "Total Cost": 1.5}]})
