"""The extension cluster_order: where new rows go, and that a table stays sound."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import dict_row

from tests.servers_at_hand import extended, session_with_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer

    Connection = psycopg.Connection[Any]

TRIGGER = "CREATE TRIGGER beside BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION cluster_heap()"
BLOCK = "(t.ctid::text::point)[0]::int"
WAYS = pytest.mark.parametrize("way", ["trigger", "access method"])


@pytest.fixture(scope="module")
def server(run_base: Path) -> Iterator[ManagedServer]:
    with extended("cluster_heap", run_base) as server:
        with server.connect() as connection:
            connection.execute("CREATE EXTENSION amcheck")
        yield server


@pytest.fixture
def c(server: ManagedServer) -> Iterator[Connection]:
    with session_with_schema(server) as connection:
        yield connection


def clustered(
    c: Connection, way: str, key: str = "k", *, rows: int = 4000, options: str = "", more: str = ""
) -> None:
    """A table ``t``, 21 rows to a page, in the order of ``key``; ``way`` says how rows are put."""
    using = "USING cluster_heap" if way == "access method" else ""
    c.execute(
        f"CREATE TABLE t (k int, a int, b int, s text, d text NOT NULL DEFAULT repeat('x', 304)"
        f"{more}) {using} {options}"
    )
    c.execute(
        f"INSERT INTO t (k, a, b, s) SELECT k, nullif(k % 40, 0), nullif(k / 40 % 30, 3), "
        f"md5(k::text) FROM generate_series(1, {rows}) k"
    )
    c.execute(f"CREATE INDEX t_key ON t ({key})")
    c.execute("CLUSTER t USING t_key")
    if way == "trigger":
        c.execute(TRIGGER)


def make_holes(c: Connection, order: str) -> None:
    """Put three rows of every page aside, into ``aside``, and neither the first nor the last."""
    c.execute(
        f"CREATE TABLE aside AS SELECT k, a, b, s FROM (SELECT *, row_number() OVER "
        f"(PARTITION BY tableoid ORDER BY {order}) AS n FROM t) x WHERE n % 7 = 3"
    )
    c.execute("DELETE FROM t WHERE k IN (SELECT k FROM aside)")
    c.execute("VACUUM t")
    counts(c)


def put_back(c: Connection) -> None:
    """Insert the rows again, in an order that has nothing to do with theirs."""
    c.execute("INSERT INTO t (k, a, b, s) SELECT * FROM aside ORDER BY hashint4(k)")


def misplaced(c: Connection, order: str) -> Any:
    """How many of the rows put back are on neither of their neighbours' pages."""
    return value(
        c,
        f"SELECT count(*) FROM (SELECT k, {BLOCK} AS block, "
        f"lag({BLOCK}) OVER w AS before, lead({BLOCK}) OVER w AS after "
        f"FROM t WINDOW w AS (PARTITION BY tableoid ORDER BY {order})) x "
        f"WHERE k IN (SELECT k FROM aside) "
        f"AND block IS DISTINCT FROM before AND block IS DISTINCT FROM after",
    )


def value(c: Connection, query: str) -> Any:
    row = c.execute(query).fetchone()
    assert row is not None
    return row[0]


def counts(c: Connection) -> dict[str, int]:
    """What became of rows since this was last asked."""
    with c.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute("SELECT * FROM cluster_heap_rows(true)").fetchone()
    assert row is not None
    return row


def check(c: Connection, index: str = "t_key") -> None:
    """Let amcheck look for a row without its index entry, or an entry out of order."""
    c.execute("SELECT bt_index_check(%s, true)", [index])


@pytest.mark.parametrize("key", ["k", "k DESC", "a, b DESC, k", "a DESC NULLS LAST, b NULLS FIRST"])
@WAYS
def test_rows_go_to_their_neighbours_page(c: Connection, way: str, key: str) -> None:
    clustered(c, way, key)
    make_holes(c, key)
    put_back(c)
    assert misplaced(c, f"{key}, k") == 0
    counted = counts(c)
    assert counted["seen"] == counted["suggested"] == value(c, "SELECT count(*) FROM aside")
    assert counted["placed"] == (0 if way == "trigger" else counted["seen"])
    check(c)


def test_heap_itself_puts_them_elsewhere(c: Connection) -> None:
    clustered(c, "heap")
    make_holes(c, "k")
    put_back(c)
    assert misplaced(c, "k") > value(c, "SELECT count(*) FROM aside") * 0.8


@pytest.mark.parametrize("key", ["lower(s)", '(s || s) COLLATE "C"', "of_sql(s)", "of_plpgsql(s)"])
@WAYS
def test_keys_may_be_expressions(c: Connection, way: str, key: str) -> None:
    c.execute(
        "CREATE FUNCTION of_sql(text) RETURNS text IMMUTABLE LANGUAGE sql SET work_mem = '1MB' "
        "AS 'SELECT reverse($1) ORDER BY 1'"
    )
    c.execute(
        "CREATE FUNCTION of_plpgsql(text) RETURNS text IMMUTABLE LANGUAGE plpgsql "
        "AS 'BEGIN IF $1 = ''bad'' THEN RAISE ''bad key''; END IF; RETURN reverse($1); END'"
    )
    order = key.replace("of_sql", "reverse").replace("of_plpgsql", "reverse")
    clustered(c, way, key)
    make_holes(c, order)
    with c.transaction():
        if "plpgsql" in key:
            with pytest.raises(errors.RaiseException), c.transaction():
                c.execute("INSERT INTO t VALUES (0, 0, 0, 'bad')")
        c.execute("INSERT INTO t (k, a, b, s) SELECT * FROM aside WHERE k % 2 = 0")
    c.execute("INSERT INTO t (k, a, b, s) SELECT * FROM aside WHERE k % 2 = 1")
    assert misplaced(c, order) == 0
    check(c)


@WAYS
def test_other_kinds_of_index_are_refused(c: Connection, way: str) -> None:
    clustered(c, way, rows=100)
    c.execute("CREATE INDEX t_part ON t (k) WHERE k > 9")
    with pytest.raises(errors.FeatureNotSupported, match="cannot cluster on partial index"):
        c.execute("ALTER TABLE t CLUSTER ON t_part")
    c.execute("CREATE INDEX t_gist ON t USING gist (point(a, b))")
    c.execute("ALTER TABLE t CLUSTER ON t_gist")
    with pytest.raises(errors.FeatureNotSupported, match='index "t_gist" is not a btree'):
        c.execute("INSERT INTO t VALUES (1)")
    c.execute("ALTER TABLE t SET WITHOUT CLUSTER")
    counts(c)
    c.execute("INSERT INTO t VALUES (1)")
    assert counts(c)["alone"] == 1


def test_generated_keys_are_for_the_access_method(c: Connection) -> None:
    more = ", g int GENERATED ALWAYS AS (-k) STORED"
    clustered(c, "access method", "g", more=more)
    make_holes(c, "-k")
    put_back(c)
    assert misplaced(c, "-k") == 0
    c.execute("ALTER TABLE t SET ACCESS METHOD heap")
    c.execute(TRIGGER)
    with pytest.raises(errors.FeatureNotSupported, match='an index on generated column "g"'):
        c.execute("INSERT INTO t VALUES (1)")


@WAYS
def test_another_index_is_followed_from_then_on(c: Connection, way: str) -> None:
    clustered(c, way)
    make_holes(c, "s")
    c.execute("CREATE INDEX t_other ON t (s)")
    c.execute("INSERT INTO t (k) VALUES (1)")
    c.execute("ALTER TABLE t CLUSTER ON t_other")
    c.execute("ALTER TABLE t SET (autovacuum_enabled = off)")
    c.execute("CLUSTER t")
    put_back(c)
    c.execute("DROP INDEX t_key")
    counts(c)
    c.execute("INSERT INTO t (k) SELECT 1")
    assert counts(c)["suggested"] == 1
    c.execute("DROP INDEX t_other")
    c.execute("INSERT INTO t (k) SELECT 1")
    assert counts(c)["alone"] == 1


@WAYS
def test_each_partition_has_an_order_of_its_own(c: Connection, way: str) -> None:
    using = "USING cluster_heap" if way == "access method" else ""
    c.execute(f"CREATE TABLE t (k int, a int, b int, s text) PARTITION BY HASH (k) {using}")
    for part in range(2):
        c.execute(
            f"CREATE TABLE t{part} PARTITION OF t FOR VALUES WITH (modulus 2, remainder {part})"
        )
    c.execute("CREATE INDEX t_key ON t (k)")
    if way == "trigger":
        c.execute(TRIGGER)
    c.execute("INSERT INTO t SELECT k, k, k, repeat('x', 340) FROM generate_series(1, 4000) k")
    for part in range(2):
        c.execute(f"CLUSTER t{part} USING t{part}_k_idx")
    make_holes(c, "k")
    put_back(c)
    assert misplaced(c, "k") == 0
    check(c, "t0_k_idx")


def test_either_neighbour_can_be_chosen(c: Connection) -> None:
    clustered(c, "access method", options="WITH (fillfactor = 80)")
    c.execute("SET cluster_heap.use_reserve = on")
    edge = value(c, f"SELECT min(k) FROM t WHERE {BLOCK} = 5")
    for side, block in (("before", 4), ("after", 5)):
        c.execute(f"SET cluster_heap.neighbour = {side}")
        c.execute("INSERT INTO t (k, s) VALUES (%s, %s)", [edge - 1, side])
        assert value(c, f"SELECT {BLOCK} FROM t WHERE s = '{side}'") == block
    with pytest.raises(errors.InvalidParameterValue, match="Available values: before, after"):
        c.execute("SET cluster_heap.neighbour = nearest")
    with pytest.raises(errors.InvalidName):
        c.execute("SET cluster_heap.near = 1")


@WAYS
def test_full_pages_are_left_alone_where_room_is_looked_for(c: Connection, way: str) -> None:
    clustered(c, way)
    last = value(c, f"SELECT max({BLOCK}) FROM t")
    c.execute("SET cluster_heap.check_room = on")
    counts(c)
    c.execute("INSERT INTO t (k) SELECT generate_series(1, 100)")
    counted = counts(c)
    assert (counted["seen"], counted["refused"], counted["suggested"]) == (100, 100, 0)
    assert value(c, f"SELECT count(*) FROM t WHERE s IS NULL AND {BLOCK} < {last}") == 0


def test_the_reserve_of_fillfactor_is_for_placed_rows_alone(c: Connection) -> None:
    clustered(c, "access method", options="WITH (fillfactor = 80)")
    rows = "INSERT INTO t (k) SELECT n * 17 FROM generate_series(1, 200) n"
    counts(c)
    c.execute(rows)
    assert counts(c)["placed"] < 30  # those whose neighbour is on the last page
    c.execute("TRUNCATE t")
    c.execute("INSERT INTO t (k) SELECT generate_series(1, 4000)")
    c.execute("CLUSTER t")
    c.execute("SET cluster_heap.use_reserve = on")
    counts(c)
    c.execute(rows)
    assert counts(c)["placed"] == 200
    assert value(c, "SELECT reloptions[1] FROM pg_class WHERE relname = 't'") == "fillfactor=80"
    c.execute("SET cluster_heap.use_reserve = off")
    c.execute(rows)
    assert counts(c)["placed"] < 30
    c.execute("SET cluster_heap.use_reserve = on")
    c.execute("ALTER TABLE t SET ACCESS METHOD heap")
    c.execute(TRIGGER)
    with pytest.raises(errors.FeatureNotSupported, match="cannot let rows use what fillfactor"):
        c.execute("INSERT INTO t VALUES (1)")


@pytest.mark.parametrize(
    "when",
    ["AFTER INSERT ON t FOR EACH ROW", "BEFORE INSERT ON t", "BEFORE UPDATE ON t FOR EACH ROW"],
)
def test_the_trigger_fires_before_each_inserted_row_only(c: Connection, when: str) -> None:
    clustered(c, "heap", rows=10)
    c.execute(f"CREATE TRIGGER wrong {when} EXECUTE FUNCTION cluster_heap()")
    with pytest.raises(errors.TriggerProtocolViolated, match="BEFORE INSERT FOR EACH ROW"):
        c.execute("INSERT INTO t VALUES (1)" if "INSERT" in when else "UPDATE t SET a = 1")


def test_copy_serves_the_access_method(c: Connection) -> None:
    clustered(c, "access method")
    make_holes(c, "k")
    rows = c.execute("SELECT k, a, b, s FROM aside ORDER BY hashint4(k)").fetchall()
    with c.cursor().copy("COPY t (k, a, b, s) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    assert counts(c)["placed"] == len(rows)
    assert misplaced(c, "k") == 0
    check(c)


@WAYS
def test_upserts_insert_once(c: Connection, way: str) -> None:
    clustered(c, way)
    c.execute("CREATE UNIQUE INDEX t_unique ON t (k)")
    make_holes(c, "k")
    insert = "INSERT INTO t (k, a) SELECT generate_series(1, 4000), -1 ON CONFLICT (k)"
    c.execute(f"{insert} DO NOTHING")
    aside = value(c, "SELECT count(*) FROM aside")
    assert value(c, "SELECT count(*) FROM t WHERE a = -1") == aside
    assert misplaced(c, "k") == 0
    c.execute(f"{insert} DO UPDATE SET a = -2")
    assert value(c, "SELECT count(*) FROM t WHERE a = -2") == 4000
    check(c)


@WAYS
def test_long_values_come_back_whole(c: Connection, way: str) -> None:
    clustered(c, way)
    c.execute("ALTER TABLE t ALTER d SET STORAGE EXTERNAL")
    c.execute("ALTER TABLE t SET (fillfactor = 70)")
    if way == "access method":
        c.execute("SET cluster_heap.use_reserve = on")
    for length in (3000, 100_000):
        c.execute(
            "INSERT INTO t (k, a, d) SELECT n * 13, -n, repeat(chr(64 + n), %s) "
            "FROM generate_series(1, 30) n",
            [length],
        )
    wrong = "SELECT count(*) FROM t WHERE a < 0 AND d <> repeat(chr(64 - a), length(d))"
    assert value(c, wrong) == 0
    assert value(c, "SELECT sum(length(d)) FROM t WHERE a < 0") == 30 * 103_000
    toast = (
        "SELECT a.amname FROM pg_class r JOIN pg_class t ON t.oid = r.reltoastrelid JOIN pg_am a"
    )
    assert value(c, f"{toast} ON a.oid = t.relam WHERE r.relname = 't'") == "heap"
    check(c)


@WAYS
def test_maintenance_keeps_every_row_and_the_access_method(c: Connection, way: str) -> None:
    clustered(c, way)
    c.execute("ALTER TABLE t SET (parallel_workers = 2)")  # for building indexes, too
    rows = 4000
    for command in (
        "VACUUM FULL t",
        "REINDEX INDEX CONCURRENTLY t_key",
        "CREATE INDEX CONCURRENTLY t_a ON t (a)",
        "CREATE INDEX t_s ON t (lower(s))",
        "CLUSTER t",
        "REINDEX TABLE CONCURRENTLY t",
        "ALTER TABLE t ALTER k TYPE bigint",
        "VACUUM (FREEZE, ANALYZE) t",
    ):
        c.execute(command)
        c.execute("INSERT INTO t (k, a, b, s) SELECT k + 1, a, b, s FROM t LIMIT 100")
        rows += 100
        counted = [
            c.execute(f"SET enable_{scan} = off") and value(c, "SELECT count(*) FROM t WHERE k > 0")
            for scan in ("seqscan", "indexonlyscan", "indexscan", "bitmapscan")
        ]
        assert counted == [rows] * 4, command
        c.execute("RESET ALL")
        c.execute("SET search_path = mine, public")
        check(c)
    wanted = "heap" if way == "trigger" else "cluster_heap"
    query = "SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname = 't'"
    assert value(c, query) == wanted


def test_an_index_is_built_while_the_table_is_read_anew(c: Connection) -> None:
    clustered(c, "access method")
    make_holes(c, "k")
    c.execute(
        "CREATE FUNCTION change() RETURNS void LANGUAGE plpgsql AS "
        "'BEGIN ALTER INDEX t_key SET (fillfactor = 80); GRANT SELECT ON t TO PUBLIC; END'"
    )
    c.execute(
        "CREATE FUNCTION changing(int) RETURNS int IMMUTABLE LANGUAGE plpgsql SET search_path = "
        "mine AS 'BEGIN IF $1 IN (99, 3999) THEN PERFORM change(); END IF; RETURN $1; END'"
    )
    with c.transaction():
        c.execute("INSERT INTO t (k) VALUES (9)")
        c.execute("CREATE INDEX t_changing ON t (changing(k))")
        counts(c)
        c.execute("INSERT INTO t (k) VALUES (9)")  # by the access method again
        assert counts(c)["suggested"] == 1
    put_back(c)
    assert value(c, "SELECT count(*) FROM t WHERE changing(k) > 0") == 4002
    check(c, "t_changing")
    check(c)


@pytest.mark.parametrize("room", ["on", "off"])
@WAYS
def test_a_session_forgets_the_pages_of_an_emptied_table(
    c: Connection, way: str, room: str
) -> None:
    clustered(c, way)
    c.execute(f"SET cluster_heap.check_room = {room}")
    for _ in range(2):
        with c.transaction():
            c.execute("INSERT INTO t (k) SELECT generate_series(1, 500)")
            c.execute("TRUNCATE t")
            c.execute("INSERT INTO t (k) SELECT generate_series(1, 5)")
        with c.transaction():
            c.execute("SAVEPOINT s")
            c.execute("TRUNCATE t")
            c.execute("INSERT INTO t (k) SELECT generate_series(1, 500)")
            c.execute("ROLLBACK TO s")
            c.execute("INSERT INTO t (k) SELECT generate_series(1, 5)")
        assert value(c, "SELECT count(*) FROM t") == 10
        c.execute("DELETE FROM t")
        c.execute("VACUUM (TRUNCATE) t")
        assert value(c, "SELECT pg_relation_size('t')") == 0
        c.execute("INSERT INTO t (k) SELECT generate_series(1, 5)")
        c.execute("TRUNCATE t")
    check(c)


@pytest.mark.parametrize("kind", ["TEMP", "UNLOGGED"])
def test_tables_that_are_not_logged(c: Connection, kind: str) -> None:
    c.execute(f"CREATE {kind} TABLE u (k int PRIMARY KEY, d text) USING cluster_heap")
    c.execute("INSERT INTO u SELECT k, repeat('x', 350) FROM generate_series(1, 2000) k")
    c.execute("CLUSTER u USING u_pkey")
    c.execute("DELETE FROM u WHERE k % 7 = 3")
    c.execute("VACUUM u")
    counts(c)
    c.execute("INSERT INTO u SELECT k, repeat('x', 350) FROM generate_series(3, 2000, 7) k")
    assert counts(c)["placed"] == 286


def test_a_range_stays_on_few_pages(c: Connection) -> None:
    """The study in small: pages of a range after four rounds, by policy."""
    pages = {}
    for arm, (way, options, policy) in {
        "heap": ("heap", "", "off"),
        "trigger": ("trigger", "", "off"),
        "access method": ("access method", "", "off"),
        "reserve": ("access method", "WITH (fillfactor = 90)", "on"),
    }.items():
        clustered(c, way, rows=20_000, options=options)
        c.execute("SELECT setseed(0.5)")
        for _ in range(4):
            c.execute("DELETE FROM t WHERE random() < 0.02")
            c.execute("VACUUM (INDEX_CLEANUP ON) t")
            c.execute(f"SET cluster_heap.use_reserve = {policy}")
            c.execute("INSERT INTO t (k) SELECT random() * 20000 FROM generate_series(1, 400)")
            c.execute("RESET cluster_heap.use_reserve")
        query = f"SELECT count(DISTINCT {BLOCK}) FROM t WHERE k BETWEEN 9000 AND 10000"
        pages[arm] = value(c, query)
        c.execute("DROP TABLE t")
    assert pages["reserve"] < 65
    assert pages["reserve"] + 20 < pages["trigger"] == pages["access method"]
    assert pages["trigger"] + 5 < pages["heap"]


@WAYS
def test_concurrent_inserts_and_a_crash_leave_the_index_sound(
    server: ManagedServer, tmp_path: Path, way: str
) -> None:
    script = tmp_path / "script.sql"
    script.write_text(
        "\\set k random(1, 8000)\n"
        "INSERT INTO crash.t (k) SELECT :k + n FROM generate_series(1, 5) n;\n"
        "DELETE FROM crash.t WHERE k = :k;\n"
    )
    program = server.capabilities.pgbench
    assert program is not None
    with server.connect() as c:
        c.execute("CREATE SCHEMA crash")
        c.execute("SET search_path = crash, public")
        clustered(c, way, rows=8000, options="WITH (fillfactor = 90)")
        if way == "access method":
            c.execute("ALTER DATABASE pgstudies SET cluster_heap.use_reserve = on")
    try:
        command = [str(program), *["-n", "-c", "4", "-j", "2", "-t", "300", "-f"], str(script)]
        environment = os.environ | server.environment()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert "number of transactions actually processed: 1200/1200" in done.stdout
        with server.connect() as c:
            check(c, "crash.t_key")
            rows = value(c, "SELECT count(*) FROM crash.t")
            assert counts(c)["seen"] == 0
        server.stop("immediate")
        server.start()
        with server.connect() as c:
            check(c, "crash.t_key")
            assert value(c, "SELECT count(*) FROM crash.t") == rows
            c.execute("INSERT INTO crash.t (k) SELECT generate_series(1, 100)")
            check(c, "crash.t_key")
            assert counts(c)["seen"] == 100
    finally:
        with server.connect() as c:
            c.execute("ALTER DATABASE pgstudies RESET ALL")
            c.execute("DROP SCHEMA crash CASCADE")


def test_the_extension_does_not_go_before_its_tables(server: ManagedServer) -> None:
    with server.connect() as c:
        c.execute("CREATE TABLE t USING cluster_heap AS SELECT 1 AS k")
        c.execute("CREATE TABLE other (k int)")
        c.execute(TRIGGER.replace(" t ", " other "))
        with pytest.raises(errors.DependentObjectsStillExist, match="cluster_heap"):
            c.execute("DROP EXTENSION cluster_heap")
        c.execute("INSERT INTO t VALUES (2)")
        c.execute("DROP EXTENSION cluster_heap CASCADE")
        assert value(c, "SELECT to_regclass('t') IS NULL AND to_regclass('other') IS NOT NULL")
        c.execute("INSERT INTO other VALUES (1)")
        c.execute("DROP TABLE other")
        c.execute("CREATE EXTENSION cluster_heap")
