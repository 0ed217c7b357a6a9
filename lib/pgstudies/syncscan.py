"""Scans in step: whether a table is scanned so at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import StudyError

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

_BLOCKS_PER_MB = 128


def reason_not_in_step(connection: psycopg.Connection[TupleRow], table: str) -> str | None:
    """Why several sequential scans of ``table`` would not be kept in step, or None if they would.

    The rule is that of ``initscan`` in PostgreSQL's heapam.c, the same since 8.3: a table that is
    no temporary one, of more than a quarter of shared buffers, in a session that has
    ``synchronize_seqscans``.  Raises StudyError when there is no such table.
    """
    row = connection.execute(
        """
        SELECT c.relkind, c.relpersistence,
               pg_relation_size(c.oid) / current_setting('block_size')::int,
               (SELECT setting::bigint FROM pg_settings WHERE name = 'shared_buffers'),
               current_setting('synchronize_seqscans')::bool
        FROM pg_class c WHERE c.oid = to_regclass(%s)
        """,
        [table],
    ).fetchone()
    if row is None:
        raise StudyError(f"There is no table {table}.")
    kind, persistence, blocks, buffers, wanted = row
    quarter = buffers // 4
    if kind not in ("r", "m"):
        return f"{table} is no table, and only tables are scanned in step"
    if persistence == "t":
        return f"{table} is a temporary table, which only one session can scan"
    if blocks <= quarter:
        return (
            f"{table} has {blocks} blocks, and tables are scanned in step from {quarter + 1} on, "
            f"more than a quarter of the {buffers} shared buffers: it takes a table of "
            f"{quarter // _BLOCKS_PER_MB + 1} MB"
        )
    if not wanted:
        return "synchronize_seqscans is off"
    return None


def block_of(ctid: str) -> int:
    """The block in the text of a ctid, such as 7 in "(7,1)"."""
    return int(ctid.strip("()").partition(",")[0])
