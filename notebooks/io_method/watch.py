"""How ``io_method.ipynb`` looks closer: what a scan does, and what waking a process takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, LiteralString

import psutil
import psycopg
from psycopg.rows import TupleRow

from pgservers.errors import CannotRun
from pgservers.host.wakeups import wake_up_seconds
from pgstudies.measuring.concurrent import concurrently

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgstudies.measuring.trial import Trial

Work = Callable[[psycopg.Connection[TupleRow], int], object]
"""What a session does, by its number."""


def watched_scan(trial: Trial, count: int, work: Work, reads: LiteralString) -> None:
    """Record what so many sessions take and do at a time, each on average.

    ``reads`` asks how many reads the session asked for, and of how many kB in all, from 18 on.
    """
    found: list[dict[str, tuple[float, str]]] = []

    def watched(session: psycopg.Connection[TupleRow], number: int) -> None:
        backend = None
        if trial.server.capabilities.has("processes"):
            backend = psutil.Process(session.info.backend_pid)
        before = backend.num_ctx_switches().voluntary if backend else 0
        begin = time.perf_counter()
        work(session, number)
        seen = {"scan_s": (time.perf_counter() - begin, "s")}
        if backend:
            slept = backend.num_ctx_switches().voluntary - before
            seen["sleeps"] = slept, "sleeps"
        if trial.server.version >= 180000:
            session.execute("SELECT pg_stat_force_next_flush()")
            ((asked, kilobytes),) = session.execute(reads).fetchall()
            seen["reads"] = float(asked), "reads"
            seen["read_kb"] = float(kilobytes), "kB"
        found.append(seen)

    step, delays = "watched scan", [0.0] * count
    concurrently(trial, step, watched, delays=delays, iteration=count, case="cached")
    for metric, (_, unit) in found[0].items():
        mean = sum(seen[metric][0] for seen in found) / count
        trial.record(step, metric, mean, unit, iteration=count, case="cached")


def wake_up(trial: Trial) -> None:
    """Record what it takes to wake a process on the same core and on another one."""
    for metric, same in (("same_core_s", True), ("other_core_s", False)):
        try:
            took = wake_up_seconds(same_core=same)
        except CannotRun as reason:
            trial.leave_out("wake-up", metric, str(reason))
        else:
            trial.record("wake-up", metric, took, "s")


def see_in_flight(trial: Trial, work: Work, query: LiteralString) -> None:
    """Record how many reads are under way, by ``query``, while one session works; from 18 on."""
    right = "SELECT has_function_privilege('pg_get_aios()', 'EXECUTE')"
    if trial.server.version < 180000 or not trial.value(right):
        return
    seen: list[int] = []
    done = threading.Event()

    def work_or_look(session: psycopg.Connection[TupleRow], number: int) -> None:
        try:
            while number and not done.is_set():
                seen.extend(row[0] for row in session.execute(query))
            if not number:
                work(session, number)
        finally:
            done.set()

    concurrently(trial, "seen scan", work_or_look, delays=[0.0] * 2)
    for metric, value in in_flight(seen).items():
        trial.record("seen scan", metric, value, "reads")


def in_flight(seen: Sequence[int]) -> dict[str, float]:
    """How many reads were under way: the mean and the most of what was seen."""
    if not seen:
        return {}
    return {"in_flight_mean": sum(seen) / len(seen), "in_flight_most": float(max(seen))}
