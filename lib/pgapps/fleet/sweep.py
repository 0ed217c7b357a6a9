"""A running sweep: Dask hands blocks to their hosts and repeats those that are lost."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed import KilledWorker

from pgservers.errors import ServerError, SpaceError

from .ledger import Ledger, SweepBlock
from .workers import (
    MEASURING,
    TOPIC,
    abort_running,
    forget_states,
    measure_block,
    of_host,
    refuse_other_versions,
    versions_here,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from distributed import Client, Future

    from pgservers.terminal import Progress

    from .plan import Sweep


TRIES = 3
"""How often a block is tried if its worker, its process or its server is lost."""

LOST_S = 120.0
"""How long a host may be without a worker when all others are done (s)."""

ABORT_S = 6.0
"""How long a sweep waits for the blocks that it aborts (s)."""

_POLL_S = 0.5

_ANSWER_S = 3.0

_INTERRUPTED = 130

_GONE = (
    "The scheduler is gone: the blocks that are done are kept; start it and its workers again, "
    "and the same command continues."
)


def measure_missing(
    sweep: Sweep,
    client: Client,
    progress: Progress,
    *,
    blocks: list[SweepBlock] | None = None,
    lost_s: float = LOST_S,
) -> dict[SweepBlock, str]:
    """Measure the blocks that the ledger lacks; returns those that failed, with the reason.

    ``blocks`` are the missing ones, if the caller has listed the ledger already.

    An error of the study ends its cell on that host, and a full disk ends the host: its other
    blocks are given up without an entry of their own.  Only lost blocks are tried again.

    Ctrl-C lets running blocks finish, and a second one or SIGTERM aborts them; both end in
    KeyboardInterrupt.  Raises StudyError if a worker has other versions of the libraries,
    ServerError if the scheduler is gone.
    """
    lacking = missing(sweep) if blocks is None else blocks
    return _Submitted(sweep, client, progress, lost_s).until_done(lacking)


def missing(sweep: Sweep) -> list[SweepBlock]:
    """The blocks that the ledger lacks, in the order of measuring."""
    done = Ledger(sweep.ledger).done()
    return [block for block in sweep.blocks() if block not in done]


class _Submitted:
    """The blocks that were submitted and have not ended."""

    def __init__(self, sweep: Sweep, client: Client, progress: Progress, lost_s: float) -> None:
        self.sweep = sweep
        self.client = client
        self.progress = progress
        self.lost_s = lost_s
        self.cells = {cell.id: cell for cell in sweep.cells}
        self.versions = versions_here()
        self.pending: dict[Future[Any], SweepBlock] = {}
        self.running: dict[str, str] = {}  # by host, the path of its block
        self.begun: Counter[str] = Counter()  # how often, by path
        self.seen = dict.fromkeys(sweep.hosts, time.monotonic())
        self.absent: list[str] = []
        self.failures: dict[SweepBlock, str] = {}
        self.signals = 0
        self.heeded = 0
        self.aborted_at = float("inf")

    def until_done(self, blocks: list[SweepBlock]) -> dict[SweepBlock, str]:
        try:
            for address, theirs in self.client.run(versions_here, on_error="ignore").items():
                refuse_other_versions(theirs.get("host", address), theirs, self.versions)
            self.client.subscribe_topic(TOPIC, self._hear)
            with self._interruptible():
                for block in blocks:
                    self._submit(block)
                while self.pending and time.monotonic() < self.aborted_at + ABORT_S:
                    signals = self.signals
                    self._look_at_hosts()
                    self.progress.show(self._what_runs())
                    time.sleep(_POLL_S)
                    self._take_note()
                    self._heed(signals)  # what began before them is in self.running by now
        except (OSError, RuntimeError):
            if self.client.status == "running":
                raise
            raise ServerError(_GONE) from None
        finally:
            self._tell_workers(forget_states, wait_s=_ANSWER_S)
        if self.signals:
            raise KeyboardInterrupt
        return self.failures

    def _submit(self, block: SweepBlock) -> None:
        cell = self.cells[block.cell]
        request = {
            "block": asdict(block),
            "profile": cell.profile,
            "server": cell.server,
            "parameters": cell.parameters,
            "ledger": self.sweep.ledger,
            "versions": self.versions,
        }
        future = self.client.submit(
            measure_block,
            request,
            key=f"{block.path}-{time.monotonic_ns()}",
            resources={MEASURING: 1, of_host(block.host): 1},
            priority=-block.number,
            retries=TRIES - 1,
            pure=False,
        )
        self.pending[future] = block

    def _take_note(self) -> None:
        """Handle the blocks that have ended."""
        for future in [future for future in self.pending if future.done()]:
            if self.client.status != "running" or future.cancelled():
                break
            if future in self.pending:  # not given up with an earlier one
                self._end(self.pending.pop(future), future)
        else:
            if self.client.status == "running":
                return
        raise ServerError(_GONE)

    def _end(self, block: SweepBlock, future: Future[Any]) -> None:
        try:
            code, message = future.result(timeout=10)
        except KilledWorker:
            # Dask blames also the blocks that only waited for the worker.
            if self.begun[block.path] < TRIES:
                self._submit(block)
                return
            code, message = 1, f"its worker was lost, {TRIES} times"
        except Exception as error:  # a block that was lost too often, or whatever Dask raises
            reason, *_ = str(error).split("\n")
            code, message = 1, f"{reason}, {TRIES} times"
        if code == 0:
            self.progress.advance()
        elif not (code == _INTERRUPTED and self.signals):
            self._fail(block, message, whole_host=code == SpaceError.exit_code)

    def _fail(self, block: SweepBlock, reason: str, *, whole_host: bool) -> None:
        """Give up a block with the others of its host, or of its cell on that host."""
        self.failures[block] = reason
        self.progress.note(f"{block}: not done: {reason}")
        host, cell = block.host, block.cell
        self._cancel(lambda other: other.host == host and (whole_host or other.cell == cell))

    def _cancel(self, given_up: Callable[[SweepBlock], bool]) -> None:
        futures = [future for future, block in self.pending.items() if given_up(block)]
        for future in futures:
            del self.pending[future]
        self.client.cancel(futures)

    def _look_at_hosts(self) -> None:
        """Give up a host that has been without a worker, once the others are done."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        there = {name for worker in workers for name in worker["resources"]}
        waiting = dict.fromkeys(block.host for block in self.pending.values())
        now = time.monotonic()
        self.absent = [host for host in waiting if of_host(host) not in there]
        for host in waiting:
            if host not in self.absent:
                self.seen[host] = now
        if len(self.absent) < len(waiting):
            return
        for host in self.absent:
            if now - self.seen[host] > self.lost_s:
                first = next(block for block in self.pending.values() if block.host == host)
                reason = f"no worker has its name for {self.lost_s:.0f} s"
                self._fail(first, reason, whole_host=True)

    def _what_runs(self) -> str:
        paths = {block.path: block for block in self.pending.values()}
        blocks = [paths[path] for path in self.running.values() if path in paths]
        words = [f"{block.host}: {block.study} {block.number}" for block in blocks]
        return ", ".join(words + [f"{host}: no worker" for host in self.absent])

    def _hear(self, event: tuple[float, Any]) -> None:
        host, path = event[1]["host"], event[1].get("begins")
        if path is None:
            self.progress.note(f"{host}: {event[1]['says']}")
            return
        self.running[host] = path
        self.begun[path] += 1
        if self.begun[path] > 1:
            self.progress.note(f"{host}: {path.removesuffix('.zip')} was lost, and begins again.")

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [signal.SIGINT, signal.SIGTERM]
        before = {number: signal.signal(number, self._interrupt) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        # Write nothing: this may interrupt a write.  SIGTERM counts twice: it is not to wait.
        self.signals += 2 if number == signal.SIGTERM and not self.signals else 1
        if self.signals > 2:
            raise KeyboardInterrupt

    def _heed(self, signals: int) -> None:
        if signals and not self.heeded:
            running = [*self.running.values()]
            self._cancel(lambda block: block.path not in running)
        if signals == 1 and not self.heeded and self.pending:
            self.progress.note("The blocks that run will finish.  Ctrl-C again aborts them.")
        if signals >= 2 and self.heeded < 2 and self.pending:
            self.progress.note("Aborting the blocks that run.")
            self.aborted_at = time.monotonic()
            self._tell_workers(abort_running, self.sweep.ledger)
        self.heeded = signals

    def _tell_workers(
        self, what: Callable[..., None], *arguments: str, wait_s: float = 0.0
    ) -> None:
        """Call ``what`` on every worker, in a thread: a disconnected worker never answers."""
        if self.client.status == "running":
            run = partial(self.client.run, what, *arguments, on_error="ignore")
            telling = threading.Thread(target=run, daemon=True)
            telling.start()
            telling.join(wait_s)
