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
    from pgstudies.measuring.trial import Took

    Query = str | bytes | sql.SQL | sql.Composed


_EXPLAINABLE = re.compile(
    r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE|MERGE|VALUES|TABLE)\b", re.IGNORECASE
)

_VARIABLE = re.compile(r"(?<![:\w]):(\w+)")

_PARAMETER = re.compile(r"\$(\d+)")

_SETS = re.compile(r"\s*(SET|RESET)\b", re.IGNORECASE)

_READS = re.compile(r"\s*(SELECT|WITH|VALUES|TABLE)\b", re.IGNORECASE)

_MOST_ROWS = 10_000

MOST_SHOWN = 10
"""The number of rows that are printed where two results differ."""


class PlansAndResults:
    """The plans of an arm's statements and the results of its scripts, by step and case.

    ``plans`` has the text of EXPLAIN (COSTS OFF), the first of each statement; ``rows`` the last
    result of a script's statement, in order, unless it is too long to keep.
    """

    def __init__(self) -> None:
        self.plans: dict[str, str] = {}
        self.rows: dict[str, list[str]] = {}
        self._scripts: set[str] = set()

    def keep_plan(
        self,
        connection: psycopg.Connection[TupleRow],
        step: str,
        case: str,
        query: Query,
        params: Params | None = None,
    ) -> None:
        """Keep the plan of a statement, unless there is one for this step or none can be had."""
        place = f"{step}, {case}" if case else step
        if place in self.plans:
            return
        composed = query if isinstance(query, sql.Composable) else sql.SQL(_text(query))
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

    def keep_plan_of_script(
        self,
        connection: psycopg.Connection[TupleRow],
        step: str,
        case: str,
        script: str,
        variables: Mapping[str, Any],
    ) -> None:
        """Keep the plan of a pgbench script's first statement, with 1 for its random numbers.

        Nothing is added once the plans of all its statements are kept.
        """
        if {step, case} & self._scripts:
            return
        lines = [line for line in script.splitlines() if not line.lstrip().startswith("\\")]
        first = "\n".join(lines).split(";")[0]
        self.keep_plan(
            connection,
            step,
            case,
            _VARIABLE.sub(lambda found: str(variables.get(found[1], 1)), first),
        )

    def keep_statements(
        self, connection: psycopg.Connection[TupleRow], step: str, statements: Mapping[str, str]
    ) -> dict[str, int]:
        """Keep the plans of a transaction's statements, and the results of those that only read.

        ``statements`` are by case; their settings hold for those that follow.  Returns the digests
        of the results, by case.  The transaction is read-only: a statement that cannot run in it
        has no result.
        """
        self._scripts.add(step)
        found: dict[str, int] = {}
        with connection.transaction(force_rollback=True):
            connection.execute("SET TRANSACTION READ ONLY")
            for case, text in statements.items():
                if _SETS.match(text):
                    with suppress(psycopg.Error), connection.transaction():
                        connection.execute(_text(text))
                    continue
                self.keep_plan(connection, step, case, text)
                if not _READS.match(text):
                    continue
                with suppress(psycopg.Error), connection.transaction(force_rollback=True):
                    cursor = connection.execute(_text(text))
                    found[case] = digest(cursor)
                    self._keep_rows(f"{step}, {case}" if case else step, cursor)
        return found

    def _keep_rows(self, place: str, cursor: psycopg.Cursor[TupleRow]) -> None:
        self.rows.pop(place, None)
        if cursor.rowcount <= _MOST_ROWS:
            self.rows[place] = sorted(map(repr, cursor.fetchall()))

    def keep_plan_of_prepared(
        self,
        connection: psycopg.Connection[TupleRow],
        step: str,
        case: str,
        query: str,
        parameters: Sequence[object],
    ) -> None:
        """Keep the plan of a prepared statement for these values of its parameters."""
        self.keep_plan(
            connection,
            step,
            case,
            _PARAMETER.sub(
                lambda found: sql.Literal(str(parameters[int(found[1]) - 1])).as_string(connection),
                query,
            ),
        )


def different_rows(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, str]]:
    """A few rows that only one of two results has, each with 0 or 1 for which."""
    sides = (Counter(one) - Counter(other), Counter(other) - Counter(one))
    pairs = zip_longest(*(list(only.elements()) for only in sides))
    rows = [(side, row) for pair in pairs for side, row in enumerate(pair) if row is not None]
    return sorted(rows[:MOST_SHOWN])


def digest(cursor: psycopg.Cursor[TupleRow]) -> int:
    """A checksum of a result's rows in any order, or of the number of changed rows.

    The cursor is rewound afterwards.
    """
    if cursor.description is None:
        return cursor.rowcount
    rows = sorted(map(repr, cursor.fetchall()))
    if rows:
        cursor.scroll(0, mode="absolute")
    whole = hashlib.sha256("\n".join(rows).encode())
    return int.from_bytes(whole.digest()[:6], "big")  # exact as a float


def _text(query: str | bytes) -> Any:
    return query.decode() if isinstance(query, bytes) else query


INTERVAL_S = 0.05
"""The interval of sampling (s). A sample takes 0.1 ms, which is 0.2 % of the time on both sides."""

ENOUGH = 20
"""From this many samples of a step on, its own length is divided among them."""

WAIT = "wait, "
"""The prefix of the metrics of sampled waits, in seconds of a step."""

FIRST_VERSION = 90600
"""The first release that reports wait events."""

# The name of the column keeps the statement out of what StatementCounters counts, and of itself.
_SAMPLE = b"""
    SELECT coalesce(wait_event_type || ': ' || wait_event, 'CPU') AS not_shared_blks_dirtied
    FROM pg_stat_activity
    WHERE state = 'active' AND datname = current_database()
      AND query NOT LIKE '%not_shared_blks_dirtied%'
"""


class Waits:
    """Samples the wait events of our database's sessions, over a connection of its own.

    It samples only while entered: a server that waits for its turn must not be sampled during
    another's.  ``turn`` ends a sample; ``take`` returns it, once.
    """

    def __init__(self, connection: psycopg.Connection[TupleRow]) -> None:
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
        """Begin to count anew."""
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
            # At random in the first interval, so that what is shorter is met as often as it should.
            delay_s = random.uniform(0, INTERVAL_S)  # noqa: S311  (no secret)
            while not self._asleep.wait(delay_s):
                delay_s = INTERVAL_S
                try:
                    rows = self._connection.execute(_SAMPLE, prepare=True).fetchall()
                except psycopg.Error:
                    return  # the server has ended, and the measuring reports it
                with self._lock:
                    if not self._asleep.is_set():  # else the turn has ended meanwhile
                        self._now.update(row[0] for row in rows)
                        self._rounds[1] += 1
            if self._ended:
                return


def waits_of(server: Server) -> Waits | None:
    """A sampler of this server's waits; None for an external server, or one without them."""
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
        """Open another session, which samples waits."""
        super().open_sessions()
        self._waits = waits_of(self.server)

    def close_sessions(self) -> None:
        """Close it, and the others."""
        if self._waits is not None:
            self._waits.close()
        super().close_sessions()

    def timed(
        self, step: str, query: Query, params: Params | None = None, **where: Any
    ) -> psycopg.Cursor[TupleRow]:
        """Run a statement as ``Trial`` does; its result and its plan are kept."""
        cursor = super().timed(step, query, params, **where)
        self.record(step, "result", digest(cursor), "digest", **where)
        self._seen.keep_plan(self.connection, step, where.get("case", ""), query, params)
        return cursor

    def prepared(
        self, step: str, query: str, parameters: Sequence[Sequence[object]], **where: Any
    ) -> None:
        """Run a statement as ``Trial`` does; its plan is kept."""
        super().prepared(step, query, parameters, **where)
        case, last = where.get("case", ""), parameters[-1]
        self._seen.keep_plan_of_prepared(self.connection, step, case, query, last)

    def each(self, step: str, statements: Sequence[str], **how: Any) -> None:
        """Run statements as ``Trial`` does; the plan of the first is kept."""
        super().each(step, statements, **how)
        self._seen.keep_plan(self.connection, step, how.get("case", ""), statements[0])

    @contextmanager
    def measuring(self, step: str, **how: Any) -> Iterator[Took]:
        """Measure as ``Trial`` does, and sample waits meanwhile."""
        with super().measuring(step, **how) as took, self._waits or nullcontext():
            yield took

    def counts(self, **how: Any) -> Counts:
        """The totals of ``Trial``; also starts a new sample of waits."""
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

        pgbench reports the statements that it sends, with the values of their variables.  Results
        are kept of statements that only read, from our own session afterwards.  Of several
        statements, the names in ``statement_times`` are the cases.
        """
        sent = statements_sent(self, script, seed=seed, variables=variables)
        for case, result in self._seen.keep_statements(self.connection, step, sent).items():
            self.record(step, "result", result, "digest", case=case)

    def ran(self, step: str, case: str, script: str, variables: Mapping[str, Any]) -> None:
        """Keep the plan of the script."""
        self._seen.keep_plan_of_script(self.connection, step, case, script, variables)
