"""What sessions wait for while a step is measured, sampled from pg_stat_activity."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

    from .servers import Server

INTERVAL_S = 0.05
"""A sample takes a tenth of a millisecond: a fifth of a per cent of the time, on both sides."""

ENOUGH = 20
"""Samples of a step from which on its own length is divided among them."""

WAIT = "wait, "
"""How the metrics begin: seconds of a step spent so, as far as the samples tell."""

FIRST_VERSION = 90600
"""From here on a server tells wait events."""

# The name of the column keeps the statement out of what StatementCounters counts.
_SAMPLE = b"""
    SELECT coalesce(wait_event_type || ': ' || wait_event, 'CPU') AS not_shared_blks_dirtied
    FROM pg_stat_activity
    WHERE state = 'active' AND datname = current_database() AND pid <> pg_backend_pid()
"""


class Waits:
    """Samples the sessions of our database until it is closed, over a connection of its own.

    ``turn`` ends what was sampled so far; ``take`` tells it, once.
    """

    def __init__(self, connection: psycopg.Connection[TupleRow]) -> None:
        self._connection = connection
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._now: Counter[str] = Counter()
        self._before: Counter[str] = Counter()
        self._rounds = [0, 0]  # before the last turn, and since
        self._turned = [0.0, 0.0]  # when the last two turns were
        self._thread = threading.Thread(target=self._sample, name="waits", daemon=True)
        self._thread.start()

    def turn(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self._before, self._now = self._now, Counter()
            self._rounds = [self._rounds[1], 0]
            self._turned = [self._turned[1], time.perf_counter()]

    def take(self, duration_s: float) -> dict[str, float]:
        """Seconds by event of what took ``duration_s``, or ran so long in the mean, between turns.

        All sessions together; what is shorter than a few samples is right in the mean only.
        """
        with self._lock:
            taken, self._before = self._before, Counter()
            rounds, (began, ended) = self._rounds[0], self._turned
        each_s = duration_s / (rounds if rounds >= ENOUGH else (ended - began) / INTERVAL_S)
        return {event: count * each_s for event, count in taken.items()}

    def close(self) -> None:
        """End sampling and close the connection."""
        self._ended.set()
        self._thread.join()
        self._connection.close()

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            try:
                rows = self._connection.execute(_SAMPLE, prepare=True).fetchall()
            except psycopg.Error:
                return  # the server has ended, and whoever measures will say so
            with self._lock:
                self._now.update(row[0] for row in rows)
                self._rounds[1] += 1


def waits_of(server: Server) -> Waits | None:
    """A sampler of this server's waits; None where it tells none, or is not ours."""
    if not server.owned or server.version < FIRST_VERSION:
        return None
    return Waits(server.connect())
