"""The index access method hash_2008: right against a sequential scan, for both stores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import dict_row

from pgservers.programs.locales import reason_no_locale
from tests.servers_at_hand import extended, session_with_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.servers.managed import ManagedServer

    Connection = psycopg.Connection[Any]

STORES = pytest.mark.parametrize("store", ["value", "code"])
LOCALE = "en_US.UTF-8"
BY_INDEX = ("enable_seqscan = off", "enable_hashjoin = off", "enable_mergejoin = off")
BY_SCAN = ("enable_seqscan = on", "enable_indexscan = off", "enable_bitmapscan = off")
PARTNER = "CASE WHEN i <= {half} THEN i ELSE (1::bigint << 32) | ((i - {half}) # 1) END"
"""Two halves of bigints; each in the second has the hash code of one in the first."""

KEYS = {
    "bigint": "(random() * 9000)::bigint",
    "int": "(random() * 3000)::int - 1500",
    "float8": "(ARRAY['NaN', '-0', '0', 'Infinity', random() * 500])[1 + (i % 5)]::float8",
    "text": "repeat(chr(97 + i::int % 26), i::int % 90) || (random() * 300)::int",
}


@pytest.fixture(scope="module", autouse=True)
def no_locale(run_base: Path) -> str | None:
    """Why servers started from now on do not know the other locale, or None."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGSTUDIES_CACHE", str(run_base / "cache"))
        return reason_no_locale(LOCALE)


@pytest.fixture(scope="module")
def server(run_base: Path) -> Iterator[ManagedServer]:
    with extended("hash_2008", run_base) as server:
        yield server


@pytest.fixture
def c(server: ManagedServer) -> Iterator[Connection]:
    with session_with_schema(server) as connection:
        connection.execute("SELECT setseed(0.2008)")
        yield connection


def make(c: Connection, kind: str, value: str, rows: int = 6000) -> None:
    """A table ``t`` of keys ``k``, one in eleven of them NULL."""
    c.execute(f"CREATE UNLOGGED TABLE t (n int, k {kind})")
    add(c, value, rows)
    c.execute("ANALYZE t")


def add(c: Connection, value: str, rows: int) -> None:
    c.execute(
        f"INSERT INTO t SELECT i, CASE WHEN i % 11 > 0 THEN {value} END "
        f"FROM generate_series(1::bigint, {rows}) i"
    )


def index(c: Connection, store: str, **options: Any) -> None:
    listed = "".join(f", {name} = {value}" for name, value in options.items())
    c.execute(f"CREATE INDEX t_k ON t USING hash_2008 (k) WITH (store = {store}{listed})")


def check(c: Connection) -> dict[str, Any]:
    """What is on the pages of the index, each of them checked, and each row looked up."""
    assert rows_by(c, BY_INDEX) == rows_by(c, BY_SCAN)
    with c.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute("SELECT * FROM hash_2008_check('t_k')").fetchone()
    assert found is not None
    not_null = c.execute("SELECT count(k) FROM t").fetchone()
    assert (found["entries"],) == not_null
    return found


def rows_by(c: Connection, settings: tuple[str, ...]) -> list[Any]:
    """For every key, and for one that is not there, how many rows have it, and which."""
    query = (
        "SELECT w.k::text, count(t.n), sum(t.n) FROM (SELECT DISTINCT k FROM t) w "
        "LEFT JOIN t ON t.k = w.k GROUP BY w.k ORDER BY w.k"
    )
    with c.transaction(force_rollback=True):
        for setting in settings:
            c.execute(f"SET LOCAL {setting}")
        plan = "\n".join(line for (line,) in c.execute("EXPLAIN " + query).fetchall())
        assert ("t_k" in plan) == (settings is BY_INDEX)
        return c.execute(query).fetchall()


@pytest.mark.parametrize("presort", ["on", "off"])
@pytest.mark.parametrize("kind", KEYS)
@STORES
def test_every_key_finds_its_rows(c: Connection, store: str, kind: str, presort: str) -> None:
    make(c, kind, KEYS[kind])
    index(c, store, presort=presort)
    found = check(c)
    assert (found["store"], found["presorted"]) == (store, presort == "on")
    assert found["buckets"] > 8


@STORES
def test_every_key_finds_its_rows_in_another_locale(
    c: Connection, no_locale: str | None, store: str
) -> None:
    if no_locale:
        pytest.skip(no_locale)
    c.execute(f"CREATE COLLATION english (locale = '{LOCALE}')")
    make(c, "text COLLATE english", KEYS["text"])
    index(c, store)
    check(c)


@STORES
def test_rows_that_come_later_split_buckets(c: Connection, store: str) -> None:
    make(c, "bigint", KEYS["bigint"], rows=10)
    index(c, store)
    assert check(c)["buckets"] == 2
    add(c, "i", 40_000)
    c.execute("ANALYZE t")
    found = check(c)
    assert found["bucket_fill"] == 307
    entries, buckets = found["entries"], found["buckets"]
    assert entries / 307 <= buckets < entries / 307 + 1
    assert c.execute("SELECT pg_relation_size('t_k') / 8192").fetchone() == (
        1 + 128 + found["overflow_pages"] + found["free_pages"],
    )


@STORES
def test_vacuum_removes_what_is_gone_and_nothing_else(c: Connection, store: str) -> None:
    make(c, "text", "repeat('x', 80) || i", rows=8000)
    index(c, store, fillfactor=100)
    before = check(c)
    c.execute("DELETE FROM t WHERE n % 3 > 0")
    c.execute("VACUUM t")
    after = check(c)
    assert 0 < after["entries"] < before["entries"] / 2
    assert after["overflow_pages"] <= before["overflow_pages"]
    freed = before["overflow_pages"] - after["overflow_pages"]
    assert after["free_pages"] == before["free_pages"] + freed
    add(c, "repeat('y', 80) || i", 4000)
    c.execute("DELETE FROM t WHERE k LIKE 'x%'")
    c.execute("VACUUM t")
    check(c)
    c.execute("DELETE FROM t")
    c.execute("VACUUM t")
    assert check(c)["entries"] == 0


@STORES
def test_one_key_of_many_rows_takes_a_chain(c: Connection, store: str) -> None:
    make(c, "int", "7", rows=3000)
    index(c, store)
    found = check(c)
    assert found["longest_chain"] == -(-found["entries"] // 407)


def test_colliding_keys_are_told_apart_by_the_row(c: Connection) -> None:
    make(c, "bigint", PARTNER.format(half=3000), rows=6000)
    for store, removed in (("value", []), ("code", ["Rows Removed by Index Recheck: 1"])):
        c.execute("DROP INDEX IF EXISTS t_k")
        index(c, store)
        check(c)
        with c.transaction():
            c.execute("SET LOCAL enable_seqscan = off")
            c.execute("SET LOCAL enable_bitmapscan = off")
            plan = c.execute("EXPLAIN (ANALYZE) SELECT FROM t WHERE k = 4::bigint").fetchall()
        assert [line.strip() for (line,) in plan if "Recheck" in line] == removed


@pytest.mark.parametrize(
    ("store", "kind", "value", "bytes_of_entry"),
    [
        ("value", "bigint", "7", 16),
        ("code", "bigint", "7", 16),
        ("value", "text", "repeat('x', 100)", 112),
        ("code", "text", "repeat('x', 100)", 16),
    ],
)
def test_entries_are_as_wide_as_in_the_post(
    c: Connection, store: str, kind: str, value: str, bytes_of_entry: int
) -> None:
    on_page = 8152 // (bytes_of_entry + 4)
    c.execute(f"CREATE UNLOGGED TABLE t (n int, k {kind})")
    index(c, store)
    for rows, pages in ((3 * on_page, 3), (1, 4)):
        c.execute(f"INSERT INTO t SELECT i, {value} FROM generate_series(1, {rows}) i")
        found = c.execute("SELECT (hash_2008_check('t_k')).longest_chain").fetchone()
        assert found == (pages,)


@pytest.mark.parametrize(
    ("store", "kind", "fill"),
    [("value", "text", 139), ("value", "bigint", 307), ("code", "text", 307)],
)
def test_buckets_follow_a_guess_at_the_width(
    c: Connection, store: str, kind: str, fill: int
) -> None:
    make(c, kind, "i", rows=11_000)
    index(c, store)
    found = check(c)
    assert found["bucket_fill"] == fill
    wanted = 11_000 / fill
    assert wanted <= found["buckets"] < 2 * wanted
    assert found["buckets"].bit_count() == 1


def test_a_build_sorts_if_the_index_is_not_to_be_cached(c: Connection) -> None:
    make(c, "text", "repeat('x', 93) || i", rows=11_000)
    c.execute("SET effective_cache_size = 100")
    sorted_first = {}
    for store in ("value", "code"):
        c.execute("DROP INDEX IF EXISTS t_k")
        index(c, store)
        sorted_first[store] = check(c)["presorted"]
    assert sorted_first == {"value": True, "code": False}


def test_it_says_for_which_tables_constraints_and_indexes_it_is_not(c: Connection) -> None:
    c.execute("CREATE UNLOGGED TABLE x (k int, EXCLUDE USING hash_2008 (k WITH =))")
    with pytest.raises(errors.FeatureNotSupported, match="cannot be used for constraints"):
        c.execute("INSERT INTO x VALUES (1)")
    for kind in ("", "TEMP"):
        c.execute(f"CREATE {kind} TABLE p (k int)")
        with pytest.raises(errors.FeatureNotSupported, match="must be on an unlogged table"):
            c.execute("CREATE INDEX ON p USING hash_2008 (k)")
        c.execute("DROP TABLE p")
    make(c, "int", "i")
    index(c, "code")
    with pytest.raises(errors.FeatureNotSupported, match="must be on an unlogged table"):
        c.execute("ALTER TABLE t SET LOGGED")
    check(c)
    c.execute("CREATE INDEX other ON t (k)")
    with pytest.raises(errors.WrongObjectType, match='"other" is not a hash_2008 index'):
        c.execute("SELECT hash_2008_check('other')")


def test_a_value_must_fit_on_a_page(c: Connection) -> None:
    make(c, "text", "'x'")
    c.execute("ALTER TABLE t ALTER k SET STORAGE EXTERNAL")
    index(c, "value")
    c.execute("INSERT INTO t VALUES (0, repeat('x', 8132))")
    with pytest.raises(errors.ProgramLimitExceeded, match="8152 exceeds hash_2008 maximum 8144"):
        c.execute("INSERT INTO t VALUES (0, repeat('x', 8133))")
    c.execute("DELETE FROM t WHERE n = 0")
    c.execute("VACUUM t")
    check(c)


@STORES
def test_a_session_reads_and_writes_in_one_query(c: Connection, store: str) -> None:
    make(c, "bigint", "i", rows=2000)
    index(c, store)
    with c.transaction():
        for setting in BY_INDEX:
            c.execute(f"SET LOCAL {setting}")
        c.execute("INSERT INTO t SELECT a.n, a.k + 5000 FROM t a JOIN t b ON b.k = a.k")
    assert check(c)["entries"] == 2 * (2000 - 2000 // 11)


@STORES
def test_it_begins_empty_after_a_crash(run_base: Path, store: str) -> None:
    with extended("hash_2008", run_base) as server:
        with server.connect() as c:
            make(c, "int", "i")
            index(c, store)
        server.stop("immediate")
        server.start()
        with server.connect() as c:
            assert check(c)["entries"] == 0
            add(c, "i", 3000)
            assert check(c)["entries"] == 3000 - 3000 // 11


def write(c: Connection, block: int, offset: int, content: bytes) -> None:
    """Change a page of the index behind the server's back."""
    c.execute("CHECKPOINT")
    (path,) = c.execute(
        "SELECT current_setting('data_directory') || '/' || pg_relation_filepath('t_k')"
    ).fetchone() or ("",)
    c.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
    c.execute("SELECT pg_buffercache_evict_relation('t_k')")
    c.execute("SET ignore_checksum_failure = on")
    with Path(path).open("r+b") as file:
        file.seek(8192 * block + offset)
        file.write(content)


@pytest.mark.parametrize(
    ("block", "offset", "content", "detail"),
    [
        (1, 8176, b"\x01", "A link leads to page"),
        (1, 8180, b"\x05", "Page 1 should be of kind 1 and of bucket 0"),
        (2, 8192 - 16 - 8, b"\xff\xff\xff\x7f", "does not belong to bucket 1"),
        (0, 24 + 16, b"\x01", "It has .* entries, and counted"),
    ],
)
def test_the_check_finds_what_is_broken(
    c: Connection, block: int, offset: int, content: bytes, detail: str
) -> None:
    make(c, "int", "i")
    index(c, "code")
    check(c)
    write(c, block, offset, content)
    with pytest.raises(errors.IndexCorrupted) as raised:
        c.execute("SELECT hash_2008_check('t_k')")
    assert re.search(detail, str(raised.value.diag.message_detail))
