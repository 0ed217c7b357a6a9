"""Whether the C extensions do on a server what they are for, in a moment and by counting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from .errors import CannotRun

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]


def self_test(name: str, connection: Connection) -> str:
    """Try an extension that has been created; returns what was seen.

    What it makes goes with the session.  Raises CannotRun, saying what was seen instead, and
    psycopg.Error.
    """
    return _TESTS[name](connection)


def _cluster_order(connection: Connection) -> str:
    """Delete one row of every page, and insert them again from the last to the first."""
    table = sql.Identifier("cluster_order_self_test")
    for statement in (
        "CREATE TEMP TABLE {} (k int, d text) USING cluster_heap",
        "INSERT INTO {} SELECT k, repeat('x', 350) FROM generate_series(1, 420) k",
        "CREATE INDEX ON {} (k)",
        "ALTER TABLE {} CLUSTER ON cluster_order_self_test_k_idx",
        "DELETE FROM {} WHERE k % 21 = 10",
        "VACUUM {}",
        "INSERT INTO {} SELECT k, repeat('x', 350) FROM generate_series(399 + 10, 1, -21) k",
    ):
        connection.execute(sql.SQL(statement).format(table))
    query = """
        SELECT count(*)
        FROM {0} a JOIN {0} b ON b.k = a.k - 1
        WHERE a.k % 21 = 10 AND (a.ctid::text::point)[0] = (b.ctid::text::point)[0]
    """
    row = connection.execute(sql.SQL(query).format(table)).fetchone()
    beside = row[0] if row else 0
    if beside != 20:
        raise CannotRun(f"cluster_order put {beside} of 20 rows beside their neighbours")
    return "20 of 20 rows were put beside their neighbours"


def _tidbench(connection: Connection) -> str:
    """Have every structure look a small table up; the extension checks how much is found."""
    connection.execute("SELECT tidbench_prepare(1000, 10, 5, 10, 30)")
    rows = connection.execute("SELECT unnest(tidbench_structures())").fetchall()
    for (structure,) in rows:
        connection.execute("SELECT tidbench_run(%s)", [structure])
    connection.execute("SELECT tidbench_release()")
    return f"{len(rows) - 1} structures found every dead row and no other"


_TESTS = {"cluster_order": _cluster_order, "tidbench": _tidbench}

NAMES = tuple(_TESTS)
"""The extensions there are."""
