"""What a comparison observes besides times: results, plans and waits."""

from __future__ import annotations

import hashlib
import random
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from pgstudies.measuring.trial import Trial

from ..workload.sent import statements_sent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

    from psycopg.abc import Params
    from psycopg.rows import TupleRow

    from pgservers.servers.serve import Server
    from pgstudies.measuring.arms import Arm
    from pgstudies.measuring.counters import Counts
    from pgstudies.measuring.trial import Query, Took

    Connection = psycopg.Connection[TupleRow]


_EXPLAINABLE = re.compile(
    r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE|MERGE|VALUES|TABLE)\b", re.IGNORECASE
)

_VARIABLE = re.compile(r"(?<![:\w]):(\w+)")

_PARAMETER = re.compile(r"\$(\d+)")

_SETS = re.compile(r"\s*(SET|RESET)\b", re.IGNORECASE)

_READS = re.compile(r"\s*(SELECT|WITH|VALUES|TABLE)\b", re.IGNORECASE)

_MOST_ROWS = 10_000

_ANALYZE = "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF)"

_LONGEST_ANALYZED_S = 5.0
"""Longer statements are not executed once more, as the first block tells what a block takes."""

MOST_SHOWN = 10
"""The number of rows that are shown if two results differ."""


class PlansAndResults:
    """The plans of an arm's statements and the results of its scripts, by place: step and case.

    ``plans`` has the text of EXPLAIN (COSTS OFF), the first of each statement; ``analyzed`` that of
    EXPLAIN (ANALYZE, BUFFERS) of a script's statements that only read, in the first block; ``rows``
    has the last result of such a statement, sorted, unless it is too long to keep.  ``scripts`` are
    the steps whose statements ``keep_statements`` got one by one.
    """

    def __init__(self) -> None:
        self.plans: dict[str, str] = {}
        self.analyzed: dict[str, str] = {}
        self.rows: dict[str, list[str]] = {}
        self.scripts: set[str] = set()

    def keep_plan(
        self, connection: Connection, place: str, query: Query, params: Params | None = None
    ) -> None:
        """Keep the plan of a statement that EXPLAIN takes, the first of this place."""
        if place in self.plans:
            return
        text = query.decode() if isinstance(query, bytes) else query
        composed = text if isinstance(text, sql.Composable) else sql.SQL(text)
        if not _EXPLAINABLE.match(composed.as_string(connection)):
            return
        try:
            with connection.transaction():
                rows = connection.execute(
                    sql.SQL("EXPLAIN (COSTS OFF) {}").format(composed), params
                ).fetchall()
        except psycopg.Error:
            return
        self.plans[place] = "\n".join(row[0] for row in rows)

    def keep_statements(
        self, connection: Connection, step: str, statements: Mapping[str, str]
    ) -> dict[str, int]:
        """Keep the plans of a transaction's statements, and the results of those that only read.

        ``statements`` are by case; a SET holds for the statements after it.  Returns the digests of
        the results, by case.  The transaction is read-only: a statement that cannot run in it has
        no result.
        """
        self.scripts.add(step)
        found: dict[str, int] = {}
        with connection.transaction(force_rollback=True):
            connection.execute("SET TRANSACTION READ ONLY")
            for case, text in statements.items():
                if _SETS.match(text):
                    with suppress(psycopg.Error), connection.transaction():
                        connection.execute(text)
                    continue
                place = _place(step, case)
                self.keep_plan(connection, place, text)
                if not _READS.match(text):
                    continue
                with suppress(psycopg.Error), connection.transaction(force_rollback=True):
                    began = time.perf_counter()
                    cursor = connection.execute(text)
                    took_s = time.perf_counter() - began
                    found[case] = digest(cursor)
                    self.rows.pop(place, None)
                    if cursor.rowcount <= _MOST_ROWS:
                        self.rows[place] = sorted(map(repr, cursor.fetchall()))
                    if place not in self.analyzed and took_s < _LONGEST_ANALYZED_S:
                        rows = connection.execute(f"{_ANALYZE} {text}".encode()).fetchall()
                        self.analyzed[place] = "\n".join(row[0] for row in rows)
        return found


def _place(step: str, case: str = "", **_: object) -> str:
    return f"{step}, {case}" if case else step


def different_rows(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, str]]:
    """The first few rows that only one of two results has, each with that result's index."""
    sides = (Counter(one) - Counter(other), Counter(other) - Counter(one))
    pairs = zip_longest(*(list(only.elements()) for only in sides))
    rows = [(side, row) for pair in pairs for side, row in enumerate(pair) if row is not None]
    return sorted(rows[:MOST_SHOWN])


def digest(cursor: psycopg.Cursor[TupleRow]) -> int:
    """A checksum of a result's rows in any order; without rows, the number of changed rows.

    The cursor is rewound afterwards.
    """
    if cursor.description is None:
        return cursor.rowcount
    rows = sorted(map(repr, cursor.fetchall()))
    if rows:
        cursor.scroll(0, mode="absolute")
    whole = hashlib.sha256("\n".join(rows).encode())
    return int.from_bytes(whole.digest()[:6], "big")  # exact as a float


INTERVAL_S = 0.05
"""The interval of sampling (s). A sample takes 0.1 ms, which is 0.2 % of the time on both sides."""

ENOUGH = 20
"""From this many samples of a step on, its duration is divided by their number."""

WAIT = "wait, "
"""Prefix of the metrics of sampled waits (s)."""

FIRST_VERSION = 90600
"""The first release that reports wait events."""

# By the name of its column, StatementCounters and the sample itself leave this statement out.
_SAMPLE = b"""
    SELECT coalesce(wait_event_type || ': ' || wait_event, 'CPU') AS not_shared_blks_dirtied
    FROM pg_stat_activity
    WHERE state = 'active' AND datname = current_database()
      AND query NOT LIKE '%not_shared_blks_dirtied%'
"""


class Waits:
    """Samples the wait events of our database's sessions, over a connection of its own.

    It samples only while it is entered: a server is not sampled during another's turn.  ``turn``
    ends a sample; ``take`` returns that sample, once.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._awake = threading.Event()
        self._asleep = threading.Event()
        self._ended = False
        self._lock = threading.Lock()
        self._now: Counter[str] = Counter()
        self._before: Counter[str] = Counter()
        self._rounds = [0, 0]  # before the last turn, and since
        self._turned = [0.0, 0.0]  # when the last two turns were
        self._thread = threading.Thread(target=self._sample, name="waits", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        self._asleep.clear()
        self._awake.set()
        return self

    def __exit__(self, *_: object) -> None:
        self._awake.clear()
        with self._lock:
            self._asleep.set()

    def turn(self) -> None:
        """End a sample, and begin another."""
        with self._lock:
            self._before, self._now = self._now, Counter()
            self._rounds = [self._rounds[1], 0]
            self._turned = [self._turned[1], time.perf_counter()]

    def take(self, duration_s: float) -> dict[str, float]:
        """Seconds per wait event, scaled to the step's duration, of all sessions together.

        Waits shorter than a few samples are right only on average.
        """
        with self._lock:
            taken, self._before = self._before, Counter()
            rounds, (began, ended) = self._rounds[0], self._turned
        each_s = duration_s / (rounds if rounds >= ENOUGH else (ended - began) / INTERVAL_S)
        return {event: count * each_s for event, count in taken.items()}

    def close(self) -> None:
        """End sampling and close the connection."""
        self._ended = True
        self._asleep.set()
        self._awake.set()
        self._thread.join()
        self._connection.close()

    def _sample(self) -> None:
        while True:
            self._awake.wait()
            # A random time in the first interval, so that shorter waits are met as often as due.
            delay_s = random.uniform(0, INTERVAL_S)  # noqa: S311  (no secret)
            while not self._asleep.wait(delay_s):
                delay_s = INTERVAL_S
                try:
                    rows = self._connection.execute(_SAMPLE, prepare=True).fetchall()
                except psycopg.Error:
                    return  # the server has ended, and the measuring reports it
                with self._lock:
                    if not self._asleep.is_set():  # else the turn has ended meanwhile
                        self._now.update(event for (event,) in rows)
                        self._rounds[1] += 1
            if self._ended:
                return


def waits_of(server: Server) -> Waits | None:
    """A sampler of this server's waits; None for an external server and for an old release."""
    if not server.capabilities.has("processes") or server.version < FIRST_VERSION:
        return None
    return Waits(server.connect())


class ObservedTrial(Trial):
    """A trial that also records results and waits, and keeps plans and rows in ``seen``."""

    for_claims = False

    def __init__(self, server: Server, arm: Arm, *, seen: PlansAndResults, **where: Any) -> None:
        self._seen = seen
        super().__init__(server, arm, **where)

    def open_sessions(self) -> None:
        """Open the sessions of ``Trial``, and one that samples waits."""
        super().open_sessions()
        self._waits = waits_of(self.server)

    def close_sessions(self) -> None:
        """Close all of them."""
        if self._waits is not None:
            self._waits.close()
        super().close_sessions()

    def timed(
        self, step: str, query: Query, params: Params | None = None, **where: Any
    ) -> psycopg.Cursor[TupleRow]:
        """Run a statement as ``Trial`` does, and keep its result's digest and its plan."""
        cursor = super().timed(step, query, params, **where)
        self.record(step, "result", digest(cursor), "digest", **where)
        self._seen.keep_plan(self.connection, _place(step, **where), query, params)
        return cursor

    def prepared(
        self, step: str, query: str, parameters: Sequence[Sequence[object]], **where: Any
    ) -> None:
        """Run a statement as ``Trial`` does, and keep its plan for the last parameters."""
        super().prepared(step, query, parameters, **where)
        values = [sql.Literal(str(value)).as_string(self.connection) for value in parameters[-1]]
        bound = _PARAMETER.sub(lambda found: values[int(found[1]) - 1], query)
        self._seen.keep_plan(self.connection, _place(step, **where), bound)

    def each(self, step: str, statements: Sequence[str], **how: Any) -> None:
        """Run statements as ``Trial`` does, and keep the plan of the first."""
        super().each(step, statements, **how)
        self._seen.keep_plan(self.connection, _place(step, **how), statements[0])

    @contextmanager
    def measuring(self, step: str, **how: Any) -> Iterator[Took]:
        """Measure as ``Trial`` does, and sample waits meanwhile."""
        with super().measuring(step, **how) as took, self._waits or nullcontext():
            yield took

    def counts(self, **how: Any) -> Counts:
        """The totals of ``Trial``; begins another sample of waits."""
        if self._waits is not None:
            self._waits.turn()
        return super().counts(**how)

    def keep(self, step: str, measured: Mapping[str, float], **where: Any) -> None:
        """Keep metrics as ``Trial`` does, and the sampled waits."""
        super().keep(step, measured, **where)
        if self._waits is not None and "duration_s" in measured:
            for event, seconds in self._waits.take(measured["duration_s"]).items():
                self.record(step, f"{WAIT}{event}", seconds, "s", **where)

    def look(self, step: str, script: str, *, seed: int, variables: Mapping[str, Any] = {}) -> None:
        """Run one transaction of a pgbench script, and keep its statements' plans and results.

        pgbench reports the statements that it sends, with the values of their variables.  Those
        that only read are run again in our own session, for their results.  The cases are the names
        of ``statements_sent``.
        """
        sent = statements_sent(self, script, seed=seed, variables=variables)
        for case, result in self._seen.keep_statements(self.connection, step, sent).items():
            self.record(step, "result", result, "digest", case=case)

    def ran(self, step: str, case: str, script: str, variables: Mapping[str, Any]) -> None:
        """Keep the plan of the script's first statement, with 1 for each random number.

        Nothing is kept if ``look`` has kept the plans of all its statements.
        """
        if {step, case} & self._seen.scripts:
            return
        lines = [line for line in script.splitlines() if not line.lstrip().startswith("\\")]
        first = "\n".join(lines).split(";")[0]
        bound = _VARIABLE.sub(lambda found: str(variables.get(found[1], 1)), first)
        self._seen.keep_plan(self.connection, _place(step, case), bound)
