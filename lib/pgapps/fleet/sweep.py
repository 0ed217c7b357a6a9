"""A sweep under way: blocks handed to hosts one at a time by Dask, what is done in a ledger."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections import Counter, deque
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pgservers.errors import ServerError, SpaceError, StudyError

from .ledger import Ledger, SweepBlock
from .workers import SLOT, TOPIC, abort_running, forget_states, measure_block, versions_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from distributed import Client, Future

    from pgservers.terminal import Progress

    from .plan import Cell, Sweep


TRIES = 3
"""How often a block is handed out when its worker, its process or its server is lost."""

LOST_S = 120.0
"""How long a host may be without a worker when all others are done."""

_POLL_S = 0.5

_FORGET_S = 10.0

_INTERRUPTED = 130

_GONE = (
    "The scheduler is gone: the blocks that are done are kept; start it and its workers again, "
    "and the same command continues."
)


@dataclass(frozen=True)
class Failure:
    """A block that is not done, and why."""

    block: SweepBlock
    reason: str


def measure_missing(
    sweep: Sweep,
    client: Client,
    progress: Progress,
    *,
    blocks: list[SweepBlock] | None = None,
    lost_s: float = LOST_S,
) -> list[Failure]:
    """Measure the blocks that the ledger lacks; returns the failures, one entry per reason.

    ``blocks`` are these, where the caller has listed the ledger already.

    An error of the study ends its cell on that host; a full disk ends the host; only lost blocks
    are tried again.  After Ctrl-C no more blocks are handed out and running ones finish; a second
    one and SIGTERM abort them; each ends in KeyboardInterrupt.  Raises StudyError when a worker has
    other versions of the libraries, ServerError when the scheduler is gone.
    """
    lacking = missing(sweep) if blocks is None else blocks
    return _HandingOut(sweep, lacking, client, progress, lost_s).until_done()


def missing(sweep: Sweep) -> list[SweepBlock]:
    """The blocks that the ledger lacks, in the order in which they are handed out."""
    done = Ledger(sweep.ledger).done()
    return [block for block in sweep.blocks() if block not in done]


class _HandingOut:
    """The state of one run of a sweep while it lasts."""

    def __init__(
        self,
        sweep: Sweep,
        lacking: list[SweepBlock],
        client: Client,
        progress: Progress,
        lost_s: float,
    ) -> None:
        self.sweep = sweep
        self.client = client
        self.progress = progress
        self.lost_s = lost_s
        self.cells: dict[str, Cell] = {cell.id: cell for cell in sweep.cells}
        self.waiting = {host: deque(u for u in lacking if u.host == host) for host in sweep.hosts}
        self.running: dict[Any, tuple[SweepBlock, str, Future[Any]]] = {}
        self.addresses: dict[str, str] = {}
        self.known: dict[str, dict[str, str]] = {}
        self.ours = versions_here()
        self.seen = dict.fromkeys(sweep.hosts, time.monotonic())
        self.tries: Counter[SweepBlock] = Counter()
        self.failures: list[Failure] = []
        self.ended: queue.Queue[Future[Any]] = queue.Queue()
        self.signals = 0
        self.heeded = 0

    def until_done(self) -> list[Failure]:
        self.client.subscribe_topic(TOPIC, self._hear)
        try:
            with self._interruptible():
                while self._goes_on():
                    self._heed_signals()
                    self._look_at_workers()
                    for host in self.sweep.hosts:
                        self._hand_out(host)
                    self.progress.show(self._what_runs())
                    with suppress(queue.Empty):
                        self._end(self.ended.get(timeout=_POLL_S))
        except (OSError, TimeoutError, RuntimeError):
            if self.client.status == "running":
                raise
            raise ServerError(_GONE) from None
        finally:
            self._forget()
        if self.signals:
            raise KeyboardInterrupt
        return self.failures

    def _goes_on(self) -> bool:
        if self.client.status != "running":
            raise ServerError(_GONE)
        if self.running:
            return True
        if self.signals or not any(self.waiting.values()):
            return False
        now = time.monotonic()
        for host, blocks in self.waiting.items():
            if blocks and now - self.seen[host] > self.lost_s:
                self._stop(host, blocks[0], f"no worker has its name for {self.lost_s:.0f} s")
        return any(self.waiting.values())

    def _look_at_workers(self) -> None:
        """Learn where the hosts' workers are now, and take back what was lost with one."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        for address in workers.keys() - self.known.keys():
            answers = self.client.run(versions_here, workers=[address], on_error="ignore")
            if address in answers:
                self.known[address] = answers[address]
        names = {self.known[a]["host"]: a for a in workers if a in self.known}
        names |= {str(w["name"]): a for a, w in workers.items() if a in self.known}
        self.addresses = {host: names[host] for host in self.sweep.hosts if host in names}
        for host, address in self.addresses.items():
            self.seen[host] = time.monotonic()
            _refuse_other_versions(host, self.known[address], self.ours)
        for key, (block, address, future) in list(self.running.items()):
            if address not in workers:
                del self.running[key]
                future.cancel()
                self._lost(block, "its worker was lost")

    def _hand_out(self, host: str) -> None:
        busy = any(block.host == host for block, _, _ in self.running.values())
        if self.signals or busy or not self.waiting[host] or host not in self.addresses:
            return
        block = self.waiting[host].popleft()
        cell = self.cells[block.cell]
        self.tries[block] += 1
        request = {
            "block": asdict(block),
            "profile": cell.profile,
            "server": cell.server,
            "parameters": cell.parameters,
            "ledger": self.sweep.ledger,
        }
        address = self.addresses[host]
        future = self.client.submit(
            measure_block,
            request,
            key=f"{block.path}-{time.monotonic_ns()}",
            workers=[address],
            resources=SLOT,
            pure=False,
        )
        self.running[future.key] = (block, address, future)
        future.add_done_callback(self.ended.put)

    def _end(self, future: Future[Any]) -> None:
        """Take note of a block that ended, however it did."""
        if future.key not in self.running:
            return  # lost, and handed out again
        block, _, _ = self.running.pop(future.key)
        try:
            code, message = future.result(timeout=10)
        except Exception as error:  # whatever Dask raises for a task that it lost
            self._lost(block, f"{type(error).__name__}: {error}".splitlines()[0])
            return
        if code == 0:
            self.progress.advance()
        elif code == _INTERRUPTED and self.signals:
            self.waiting[block.host].appendleft(block)
        elif code == SpaceError.exit_code:
            self._stop(block.host, block, message)
        elif code < 0 or code in {ServerError.exit_code, _INTERRUPTED}:
            self._lost(block, message or f"it was ended by signal {-code}")
        else:
            self._fail(block, message)
            rest = (u for u in self.waiting[block.host] if u.cell != block.cell)
            self.waiting[block.host] = deque(rest)

    def _lost(self, block: SweepBlock, reason: str) -> None:
        if self.tries[block] < TRIES:
            self.progress.note(f"{block}: {reason}; it will be measured again.")
            self.waiting[block.host].appendleft(block)
        else:
            self._fail(block, f"{reason}, {TRIES} times")

    def _stop(self, host: str, block: SweepBlock, reason: str) -> None:
        """Hand out nothing more to a host."""
        self._fail(block, reason)
        self.waiting[host].clear()

    def _fail(self, block: SweepBlock, reason: str) -> None:
        self.failures.append(Failure(block, reason))
        self.progress.note(f"{block}: not done: {reason}")

    def _what_runs(self) -> str:
        blocks = [block for block, _, _ in self.running.values()]
        missing = [host for host in self.sweep.hosts if host not in self.addresses]
        words = [f"{block.host}: {block.study} {block.number}" for block in blocks]
        return ", ".join(words + [f"{host}: no worker" for host in missing if self.waiting[host]])

    def _hear(self, event: tuple[float, Any]) -> None:
        message = event[1]
        self.progress.note(f"{message['host']}: {message['says']}")

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
        # Nothing is written: this may interrupt a write.  SIGTERM comes from who will not wait.
        self.signals += 2 if number == signal.SIGTERM and not self.signals else 1
        if self.signals > 2:
            raise KeyboardInterrupt

    def _heed_signals(self) -> None:
        if self.signals == 1 and not self.heeded and self.running:
            self.progress.note(
                "Nothing more is handed out; the blocks that run will finish.  "
                "Ctrl-C again aborts them."
            )
        if self.signals >= 2 and self.heeded < 2:
            self.progress.note("Aborting the blocks that run.")
            addresses = [address for _, address, _ in self.running.values()]
            self.client.run(abort_running, workers=addresses, on_error="ignore")
        self.heeded = self.signals

    def _forget(self) -> None:
        """Have every host remove its prepared states; one that does not answer does it later."""
        addresses = list(self.addresses.values())
        if self.client.status != "running" or not addresses:
            return
        ask = partial(self.client.run, forget_states, workers=addresses, on_error="ignore")
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_FORGET_S)


def _refuse_other_versions(host: str, theirs: dict[str, str], ours: dict[str, str]) -> None:
    for name in sorted((ours.keys() | theirs.keys()) - {"host"}):
        if ours.get(name) != theirs.get(name):
            raise StudyError(
                f"{host} has {name} {theirs.get(name, 'not at all')}, and here it is "
                f"{ours.get(name, 'not there')}: check out the same revision on all hosts and run "
                f"`make install` there."
            )
