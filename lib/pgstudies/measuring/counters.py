"""Counted quantities of one timed statement: buffers, WAL, CPU time, instructions, device bytes."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from psycopg import sql

from pgservers.host.usage import scheduled
from pgservers.programs.versions import has

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

UNITS = {
    **dict.fromkeys(["duration_s", "cpu_s", "run_delay_s", "disk_s"], "s"),
    **dict.fromkeys(["buffers_hit", "buffers_read", "buffers_touched", "buffers_dirtied"], "pages"),
    **dict.fromkeys(["wal_bytes", "read_bytes"], "bytes"),
    "wal_fpi": "images",
    "instructions": "instructions",
}
"""The unit of every quantity that a timed statement yields by itself."""


@dataclass(frozen=True)
class Counts:
    """Running totals; a field is None if the server does not report it."""

    cpu_s: float | None = None
    run_delay_s: float | None = None
    buffers_hit: float | None = None
    buffers_read: float | None = None
    buffers_dirtied: float | None = None
    wal_bytes: float | None = None
    wal_fpi: float | None = None
    read_bytes: float | None = None
    instructions: float | None = None
    disk_s: float | None = None

    def since(self, earlier: Counts) -> dict[str, float]:
        """What was added since ``earlier``, by metric; ``buffers_touched`` is hits plus reads."""
        pairs = {f.name: (getattr(earlier, f.name), getattr(self, f.name)) for f in fields(self)}
        found = {
            name: after - before
            for name, (before, after) in pairs.items()
            if before is not None and after is not None
        }
        if {"buffers_hit", "buffers_read"} <= found.keys():
            found["buffers_touched"] = found["buffers_hit"] + found["buffers_read"]
        return found


# pg_stat_statements and not EXPLAIN, because it counts utility statements too and leaves the
# statement as it is; and not pg_stat_io, which does not know which statement dirtied a buffer.
_STATEMENTS = sql.SQL(
    """
    SELECT sum(shared_blks_hit), sum(shared_blks_read), sum(shared_blks_dirtied),
           {wal}
    FROM {view}
    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND userid = (SELECT oid FROM pg_roles WHERE rolname = current_user)
      AND query NOT LIKE '%shared_blks_dirtied%'
      {toplevel}
    """
)


class StatementCounters:
    """Reads the totals of our own statements; not ``available`` without pg_stat_statements."""

    def __init__(self, observer: psycopg.Connection[TupleRow]) -> None:
        self._observer = observer
        self._query = _find_view(observer)
        self._counts_wal = has(observer.info.server_version, "counts WAL")

    @property
    def available(self) -> bool:
        """Whether the server counts buffers and WAL per statement."""
        return self._query is not None

    def read(self) -> Counts:
        """The totals of buffers hit, read and dirtied, of WAL and of full-page images."""
        if self._query is None:
            return Counts()
        row = self._observer.execute(self._query, prepare=True).fetchone()
        hit, read, dirtied, wal, images = [float(value or 0) for value in row or [0.0] * 5]
        found = Counts(buffers_hit=hit, buffers_read=read, buffers_dirtied=dirtied)
        return replace(found, wal_bytes=wal, wal_fpi=images) if self._counts_wal else found


_TABLES = """
    SELECT coalesce(sum(heap_blks_hit + coalesce(idx_blks_hit, 0)), 0)::float,
           coalesce(sum(heap_blks_read + coalesce(idx_blks_read, 0)), 0)::float
    FROM pg_statio_user_tables
"""

_SENT_EVERY_S = 0.6  # a session sends what it did twice a second, and when it ends


def pages_of_tables(observer: psycopg.Connection[TupleRow]) -> Counts | None:
    """Pages hit and read in our tables and indexes by sessions that have ended.

    For servers before 9.1, which count nothing by statement; None for others.  Waits until two
    readings agree.
    """
    if has(observer.info.server_version, "extensions"):
        return None
    row = None
    while row != (row := observer.execute(_TABLES).fetchone()):
        time.sleep(_SENT_EVERY_S)
    hit, read = row or (0.0, 0.0)
    return Counts(buffers_hit=hit, buffers_read=read)


def _find_view(observer: psycopg.Connection[TupleRow]) -> sql.Composed | None:
    version = observer.info.server_version
    if not has(version, "extensions"):
        return None
    row = observer.execute(
        """
        SELECT n.nspname
        FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'pg_stat_statements'
          -- there only when the library is loaded, and visible to every role
          AND EXISTS (SELECT 1 FROM pg_settings WHERE name = 'pg_stat_statements.track')
        """
    ).fetchone()
    if row is None:
        return None
    return _STATEMENTS.format(
        view=sql.Identifier(row[0], "pg_stat_statements"),
        wal=sql.SQL("sum(wal_bytes), sum(wal_fpi)" if has(version, "counts WAL") else "NULL, NULL"),
        toplevel=sql.SQL("AND toplevel" if has(version, "marks toplevel") else ""),
    )


def cpu_seconds(*pids: int) -> float | None:
    """CPU time of processes so far (s), exact once they sleep; None if the system hides it."""
    return scheduled(*pids)[0]
