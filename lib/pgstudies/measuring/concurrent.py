"""Several sessions with the same statement, in step or not."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgservers.errors import require
from pgservers.sessions import end_sessions, reason_no_room

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import psycopg
    from psycopg.rows import TupleRow

    from .trial import Trial


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
    what the server counts over all of it, including the bytes read by sessions that have ended.
    Raises CannotRun if the server has no room for so many sessions; an error in a session is raised
    when all have ended.
    """
    require(reason_no_room(trial.server, len(delays)))
    where: dict[str, Any] = {"iteration": iteration, "case": case}
    with trial.measuring(step, other_sessions=True, **where) as took:
        spans = _spans(trial, work, delays, settings)
        took.duration_s = sum(span.duration_s for span in spans) / len(spans)
    makespan = max(span.ended_s for span in spans) - min(span.began_s for span in spans)
    trial.record(step, "longest_s", max(span.duration_s for span in spans), "s", **where)
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
