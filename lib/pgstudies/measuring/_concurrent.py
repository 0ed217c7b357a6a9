"""Several sessions with the same statement, in step or not."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import StudyError, require
from ._sessions import end_sessions, reason_no_room

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import psycopg
    from psycopg.rows import TupleRow

    from ._trial import Trial


@dataclass(frozen=True)
class Span:
    """When one session worked, in seconds since the first of them began."""

    began_s: float
    ended_s: float

    @property
    def duration_s(self) -> float:
        """How long it took (s)."""
        return self.ended_s - self.began_s


def concurrently(
    trial: Trial,
    step: str,
    work: Callable[[psycopg.Connection[TupleRow], int], object],
    *,
    delays: Sequence[float],
    settings: Mapping[str, str] = {},
    iteration: int = 0,
    case: str = "",
) -> list[Span]:
    """Call ``work(connection, number)`` in one session per delay, each after its delay (s).

    Numbers count from 0; every session has these ``settings``.  Records ``duration_s`` (the mean
    over the sessions), ``longest_s``, ``makespan_s`` (from the first beginning to the last end) and
    what the server counts over all of it, the bytes read by sessions that have ended included.
    Raises CannotRun when the server has no room for so many sessions; an error in one is raised
    when all have ended.
    """
    require(reason_no_room(trial.server, len(delays)))
    where: dict[str, Any] = {"iteration": iteration, "case": case}
    with trial.measuring(step, other_sessions=True, **where) as took:
        spans = _spans(trial, work, delays, settings)
        took.duration_s = sum(span.duration_s for span in spans) / len(spans)
    longest = max(span.duration_s for span in spans)
    makespan = max(span.ended_s for span in spans) - min(span.began_s for span in spans)
    trial.record(step, "longest_s", longest, "s", **where)
    trial.record(step, "makespan_s", makespan, "s", **where)
    return spans


def _spans(
    trial: Trial,
    work: Callable[[psycopg.Connection[TupleRow], int], object],
    delays: Sequence[float],
    settings: Mapping[str, str],
) -> list[Span]:
    with ExitStack() as stack:
        sessions: list[psycopg.Connection[TupleRow]] = []
        stack.callback(end_sessions, trial.server, sessions)
        for _ in delays:
            sessions.append(trial.server.connect())
            for name, value in settings.items():
                sessions[-1].execute("SELECT set_config(%s, %s, false)", [name, value])
        begin = time.perf_counter()

        def run(number: int) -> Span:
            time.sleep(max(0.0, begin + delays[number] - time.perf_counter()))
            began = time.perf_counter()
            work(sessions[number], number)
            return Span(began - begin, time.perf_counter() - begin)

        with ThreadPoolExecutor(len(delays)) as pool:
            return list(pool.map(run, range(len(delays))))


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
    kind, persistence, pages, buffers, wanted = row
    quarter = buffers // 4
    if kind not in ("r", "m"):
        return f"{table} is no table, and only tables are scanned in step"
    if persistence == "t":
        return f"{table} is a temporary table, which only one session can scan"
    if pages <= quarter:
        return (
            f"{table} has {pages} pages, and tables are scanned in step from {quarter + 1} on, "
            f"more than a quarter of the {buffers} shared buffers: it takes a table of "
            f"{quarter // _BLOCKS_PER_MB + 1} MB"
        )
    if not wanted:
        return "synchronize_seqscans is off"
    return None


def page_of(ctid: str) -> int:
    """The page in the text of a ctid, such as 7 in "(7,1)"."""
    return int(ctid.strip("()").partition(",")[0])
