"""One arm in one block: runs statements, times them and keeps what they cost."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
from psycopg import pq

from pgservers.errors import CannotRun, StudyError, require
from pgservers.host.hardware import InstructionCounter
from pgservers.host.usage import device_bytes, scheduled
from pgservers.servers.managed import ManagedServer

from ..records.samples import AMONG_OTHERS, UNDISTURBED
from .cold import can_evict, drop_from_page_cache, evict, reason_not_cold
from .counters import UNITS, Counts, StatementCounters, pages_of_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from psycopg import sql
    from psycopg.abc import Params
    from psycopg.pq.abc import PGresult
    from psycopg.rows import TupleRow

    from pgservers.servers.serve import Server

    from .arms import Arm

    Query = str | bytes | sql.SQL | sql.Composed


@dataclass
class Took:
    """How long a body took (s), set by the body; and the totals, if taken before its end."""

    duration_s: float = 0.0
    counts: Counts | None = None


class Trial:
    """Where an arm of a block is run: ``timed`` for what is measured, ``execute`` for the rest.

    Attributes:
        arm: The arm as the study's procedure knows it (``own``, where it stands for another).
        block: Number of the block, from 1; 0 while a state is being prepared.
        group: Number of the group of arms that are up together, from 1.
        turn: Number of the arm's turn in the block, from 1.
        position: Place of the arm among those that take this turn, from 1.
        part: The part of the turn that is under way; see ``parts``.
        rows: The samples so far, in the order of ``SAMPLES_SCHEMA``.
        left_out: What could not be run, as (step, case, reason).
        for_claims: Whether the study's claims are judged by it; else what only they need may be
            left out.

    """

    for_claims: ClassVar[bool] = True

    def __init__(
        self,
        server: Server,
        arm: Arm,
        *,
        block: int,
        group: int = 1,
        own: Arm | None = None,
        show: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.server = server
        self.arm = own or arm
        self._arm = arm
        self.block = block
        self.group = group
        self.turn = 0
        self.position = 0
        self.part = AMONG_OTHERS
        self.rows: list[tuple[Any, ...]] = []
        self._sees_processes = server.capabilities.has("processes")
        self.left_out: list[tuple[str, str, str]] = []
        self._show = show
        self.open_sessions()

    def open_sessions(self) -> None:
        """Open the sessions of this trial, when it begins and after a restart of its server."""
        self.connection: psycopg.Connection[TupleRow] = self.server.connect()
        self._prepared: dict[str, bytes] = {}
        # A second session reads the counters, so that reading them is not counted as the arm's.
        self._observer: psycopg.Connection[TupleRow] = self.server.connect()
        self._counters = StatementCounters(self._observer)
        self._backend = self.connection.info.backend_pid
        # Once: looking for a server's processes reads all of /proc, and that alone, just before it,
        # made a statement of a millisecond take a tenth longer.
        self._processes = self.server.pids()
        self._instructions: InstructionCounter | None = None
        if self._sees_processes:
            with suppress(CannotRun):
                self._instructions = InstructionCounter(self._backend)

    def close_sessions(self) -> None:
        """Close them, before a restart and at the end."""
        if self._instructions is not None:
            self._instructions.close()
            self._instructions = None
        self.connection.close()
        self._observer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_sessions()

    def show(self, what: str) -> None:
        """Show in the progress bar what is being done."""
        self._show(f"block {self.block}, {self._arm.name}: {what}")

    def parts(self, among_others: int) -> Iterator[int]:
        """Do a turn's work several times among other arms' turns, and then once undisturbed.

        The first passes find other arms' data in the caches and are recorded as *among others*; the
        last, by which effects are judged, as *undisturbed*.  With 0 there is one pass, among
        others.  Yields the number of the pass, from 0.
        """
        for number in range(among_others + 1):
            self.part = UNDISTURBED if 0 < number == among_others else AMONG_OTHERS
            yield number
        self.part = AMONG_OTHERS

    def execute(self, query: Query, params: Params | None = None) -> psycopg.Cursor[TupleRow]:
        """Run a statement that is not measured."""
        return self.connection.execute(query, params)

    def value(self, query: Query, params: Params | None = None) -> Any:
        """Run a statement that is not measured and return the one value of its first row."""
        row = self.connection.execute(query, params).fetchone()
        return None if row is None else row[0]

    def timed(
        self,
        step: str,
        query: Query,
        params: Params | None = None,
        *,
        iteration: int = 0,
        case: str = "",
    ) -> psycopg.Cursor[TupleRow]:
        """Run a statement once and record what it took; returns its cursor, rows fetched.

        Records ``duration_s`` (wall time of psycopg's execute: sent, answered, all rows received),
        and, where they can be seen, ``cpu_s``, ``run_delay_s`` (without a core) and, in user mode,
        ``instructions`` of the backend, the server's buffers, WAL, ``read_bytes`` and ``disk_s``.
        """
        execute = self.connection.execute
        with self.measuring(step, iteration=iteration, case=case) as took:
            start = time.perf_counter_ns()
            cursor = execute(query, params)
            took.duration_s = (time.perf_counter_ns() - start) / 1e9
        return cursor

    def repeated(
        self, step: str, query: str, times: int, *, iteration: int = 0, case: str = ""
    ) -> None:
        """Run a short statement many times, prepared: ``prepared`` without parameters."""
        self.prepared(step, query, [()] * times, iteration=iteration, case=case)

    def prepared(
        self,
        step: str,
        query: str,
        parameters: Sequence[Sequence[object]],
        *,
        iteration: int = 0,
        case: str = "",
    ) -> None:
        """Run a short statement once for each row of ``parameters``, and record the mean of one.

        Parameters are $1, $2, … in the query, which is prepared once on a connection.  Runs through
        psycopg's libpq layer: for a statement of a few microseconds a cursor costs as much as the
        statement.  Rows are received and thrown away.  Raises psycopg.Error, and StudyError if
        there is no row of parameters.
        """
        if not parameters:
            raise StudyError(f"There is nothing to run for {step}.")
        pgconn = self.connection.pgconn
        if query not in self._prepared:
            self._prepared[query] = b"pgstudies_%d" % len(self._prepared)
            _check(pgconn.prepare(self._prepared[query], query.encode()))
        name = self._prepared[query]
        rows = [[str(value).encode() for value in row] for row in parameters]
        where: dict[str, Any] = {"iteration": iteration, "case": case}
        with self.measuring(step, of=len(rows), **where) as took:
            start = time.perf_counter_ns()
            for row in rows:
                result = pgconn.exec_prepared(name, row)
                if result.status != pq.ExecStatus.TUPLES_OK:
                    _check(result)
            took.duration_s = (time.perf_counter_ns() - start) / 1e9

    def each(
        self,
        step: str,
        statements: Sequence[str],
        *,
        iteration: int = 0,
        case: str = "",
        between: Callable[[], object] | None = None,
    ) -> None:
        """Run statements one after the other and record what one of them took in the mean.

        Records ``duration_s`` (wall time from sending to answer), and ``cpu_s`` and
        ``instructions`` of the backend where they can be seen.  ``between`` is called after every
        statement; its time does not count.  Rows are thrown away, as in ``prepared``.  Raises
        psycopg.Error, and StudyError if there is no statement.
        """
        if not statements:
            raise StudyError(f"There is no statement to run for {step}.")
        execute, now = self.connection.pgconn.exec_, time.perf_counter_ns
        encoded = [statement.encode() for statement in statements]
        where: dict[str, Any] = {"iteration": iteration, "case": case}
        # Its statements would crowd what the server counts by statement, so that is not read.
        with self.measuring(step, of=len(encoded), counters=False, **where) as took:
            duration_ns = 0
            for statement in encoded:
                start = now()
                result = execute(statement)
                duration_ns += now() - start
                _check(result)
                if between is not None:
                    between()
            took.duration_s = duration_ns / 1e9

    @contextmanager
    def measuring(
        self,
        step: str,
        *,
        of: int = 1,
        iteration: int = 0,
        case: str = "",
        counters: bool = True,
        other_sessions: bool = False,
        sessions: Sequence[int] = (),
    ) -> Iterator[Took]:
        """Record the duration set in the body, and the server's counters, divided by ``of``.

        Without ``counters`` it records only the CPU time and the instructions of the trial's own
        backend; with ``other_sessions`` all but those, as that has slept.  With the process numbers
        of ``sessions`` the CPU time is theirs.
        """
        times = f"{step} × {of}" if of > 1 else step
        self.show(f"{times} {iteration or ''}")
        before, at = self.counts(everything=counters, sessions=sessions), datetime.now(UTC)
        took = Took()
        yield took
        measured = {"duration_s": took.duration_s}
        measured |= (took.counts or self.counts(everything=counters)).since(before)
        if other_sessions:
            for of_backend in ("cpu_s", "run_delay_s", "instructions"):
                measured.pop(of_backend, None)
        each = {metric: value / of for metric, value in measured.items()}
        self.keep(step, each, iteration=iteration, case=case, at=at)

    def record(
        self,
        step: str,
        metric: str,
        value: float,
        unit: str,
        *,
        iteration: int = 0,
        case: str = "",
        at: datetime | None = None,
    ) -> None:
        """Record one value that the procedure measured itself."""
        when = (self.block, self.group, self.turn, self.position, self.part)
        what = (self._arm.name, case, step, iteration, metric, float(value), unit)
        self.rows.append((*when, *what, at or datetime.now(UTC)))

    def keep(self, step: str, measured: Mapping[str, float], **where: Any) -> None:
        """Record several metrics of one measurement, each with its usual unit."""
        for metric, value in measured.items():
            self.record(step, metric, value, UNITS[metric], **where)

    def observe(self, query: Query, params: Params | None = None) -> list[TupleRow]:
        """The rows of a statement on the session that reads the counters; it is not counted."""
        cursor = self._observer.execute(query, params)
        return cursor.fetchall() if cursor.description else []

    def pages_of_tables(self) -> Counts | None:
        """``counters.pages_of_tables``, for what sessions did that have ended."""
        return pages_of_tables(self._observer)

    def counts(self, *, everything: bool = True, sessions: Sequence[int] = ()) -> Counts:
        """The server's running totals, to be read before and after what is measured.

        Without ``everything`` only those of the trial's own backend.  With the process numbers of
        ``sessions``, their CPU time in place of its own, and what they read as well.
        """
        shared = self._counters.read() if everything else Counts()
        if not self._sees_processes:
            return shared
        cpu, delay = scheduled(*(sessions or [self._backend]))
        found = replace(shared, cpu_s=cpu, run_delay_s=delay)
        if self._instructions is not None and not sessions:
            found = replace(found, instructions=self._instructions.read())
        if not everything:
            return found
        if (disk := self.server.slow_disk) is not None and disk.limited:  # it is modelled
            return replace(found, read_bytes=float(disk.bytes_read), disk_s=disk.busy_s)
        return replace(found, read_bytes=device_bytes([*self._processes, *sessions]))

    def look(self, step: str, script: str, *, seed: int, variables: Mapping[str, Any] = {}) -> None:
        """Run one transaction of a pgbench script, if statements are observed; here nothing.

        Raises StudyError when pgbench does not take the script.
        """

    def ran(self, step: str, case: str, script: str, variables: Mapping[str, Any]) -> None:
        """Note the script that ``pgbench`` has run."""

    def checkpoint(self) -> None:
        """CHECKPOINT now, so that none falls into a measured statement; noted if forbidden."""
        reason = self.server.capabilities.reason("checkpoint")
        if reason is None:
            self.execute("CHECKPOINT")
        else:
            self.leave_out("checkpoint", "", reason)

    def disable_checksums(self) -> None:
        """Turn data checksums off in the state being prepared, and reconnect.  Raises CannotRun."""
        require(self.server.capabilities.reason("restart"))
        assert isinstance(self.server, ManagedServer)
        self.close_sessions()
        self.server.disable_checksums()
        self.open_sessions()

    def make_cold(
        self, *tables: str, step: str, case: str = "cold", page_cache: bool = True
    ) -> bool:
        """Take tables, with indexes and TOAST, out of shared buffers and the ``page_cache``.

        Returns false, and notes that ``step`` was left out in ``case``, where that cannot be done.
        ``cold.cache_state`` says afterwards, by the bytes really read, what was achieved.
        Before PostgreSQL 17 the server is restarted, and ``connection`` is a new one.
        """
        reason = reason_not_cold(self.server)
        if reason is not None:
            self.leave_out(step, case, reason)
            return False
        assert isinstance(self.server, ManagedServer)
        names = list(tables)
        if can_evict(self.server):
            evict(self._observer, names)
        else:
            self.close_sessions()
            self.server.restart(self._arm.settings)
            self.open_sessions()
        if page_cache:
            drop_from_page_cache(self._observer, names, self.server.data_directory)
        return True

    def leave_out(self, step: str, case: str, reason: str) -> None:
        """Note, once, that a step cannot be run on this server."""
        entry = (step, case, reason)
        if entry not in self.left_out:
            self.left_out.append(entry)


def _check(result: PGresult) -> None:
    if result.status not in {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}:
        raise psycopg.errors.error_from_result(result)
