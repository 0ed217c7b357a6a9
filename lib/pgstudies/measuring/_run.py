"""Carrying out a run: every block, every arm from its state, on its server, what it took kept."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from ..errors import CannotRun, ServerError, StudyError
from ..servers.facts import examined, server_facts
from ..terminal import Progress
from ._arms import Arm, baseline_of, block_orders
from ._trial import Trial
from ._witness import Witness
from .comparison import played

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ..records.writing import RecordWriter
    from ..servers import Server

    Procedure = Callable[[Trial, Arm], None]


class Run:
    """The state of one run while it lasts: its servers, its record, what cannot run.

    ``servers`` are those of the arms, by the words that these use; ``core`` is the one to keep
    client and owned servers on, or None.  No block but the first begins that would probably end
    more than ``seconds`` after the first began; 0 is no limit.
    """

    def __init__(
        self,
        servers: Mapping[str | None, Server],
        writer: RecordWriter,
        arms: Sequence[Arm],
        prepare: Procedure,
        procedure: Procedure,
        *,
        core: int | None,
        seconds: float = 0.0,
    ) -> None:
        self.servers = servers
        self.writer = writer
        self.arms = {arm.name: arm for arm in arms}
        self.baseline = baseline_of(arms).name
        self.not_run = {arm.name: arm.not_run for arm in arms if arm.not_run}
        self.prepare = prepare
        self.procedure = procedure
        self.core = core
        self.seconds = seconds
        # In a comparison every arm has a witness; elsewhere nobody pays for one.
        self.witnesses = {arm.name: Witness() for arm in arms if arm.plays}

    def carry_out(self, blocks: Sequence[int], seed: int, findings: Sequence[Any]) -> None:
        """Prepare the states, then run those of ``blocks`` that are missing.

        ``blocks`` are numbers, from 1; ``findings`` are the gate's.

        Raises ServerError when a server goes away, StudyError when the baseline cannot run.
        """
        info = self.writer.info
        session = len(info["sessions"]) + 1
        info["sessions"].append({"started_at": _now(), "boot_id": _boot_id()})
        info["gate"] += [asdict(finding) for finding in findings]
        info["blocks"] = len(blocks)
        # All arms are ordered, also those that cannot run: a resumed run keeps its order.
        orders = info["order"] = block_orders(list(self.arms), max(blocks), seed)
        info["status"] = "running"
        done = self.writer.finished_blocks
        total = None if self.seconds else len(blocks) * len(self.arms)
        with Progress(info["study"], total, done=len(done) * len(self.arms)) as progress:
            self.progress = progress
            self._prepare_states(session)
            missing = [number for number in blocks if number not in done]
            began = time.monotonic()
            for count, number in enumerate(missing):
                so_far = time.monotonic() - began
                if self.seconds and count and so_far / count * (count + 1) > self.seconds:
                    info["blocks"] = len(blocks) - len(missing) + count
                    progress.note(f"Time is up after {info['blocks']} blocks.")
                    break
                if self.seconds and count:
                    more = int(self.seconds * count / so_far) - count
                    progress.expect((len(done) + count + more) * len(self.arms))
                self._block(number, orders[number - 1])

    def _prepare_states(self, session: int) -> None:
        """Build every state, and find out which arms cannot run, before anything is measured."""
        rows: list[tuple[Any, ...]] = []
        info = self.writer.info
        for arm in self.arms.values():
            if arm.name in self.not_run:
                continue
            self.progress.show(f"preparing {arm.name}: {arm.state}")
            try:
                with self._pinned(arm), _compared(arm):
                    self._restore(arm, rows, session)
            except CannotRun as reason:
                self._cannot_run(arm, reason)
                continue
            facts = server_facts(self.servers[arm.server])
            (info["server"] if arm.server is None else info["servers"][arm.server]).update(facts)
            if arm.plays and arm.side:
                found = info["comparison"]["facts"].setdefault(arm.plays, {})
                found[arm.side] = examined(self.servers[arm.server])
        self.writer.write_block(f"0-{session}", rows)

    def _restore(self, arm: Arm, rows: list[tuple[Any, ...]], session: int) -> None:
        server = self.servers[arm.server]

        def build() -> None:
            with Trial(server, arm, block=0, position=session) as trial:
                self.prepare(trial, played(arm))
                rows.extend(trial.rows)

        for other in self.servers.values():
            if other is not server and other.owned:
                other.stop("immediate")  # nothing of it is kept
        server.restore(arm.state, build, arm.settings)

    @contextmanager
    def _pinned(self, arm: Arm) -> Iterator[None]:
        """Be on the server's core; a server that is not ours has none."""
        if self.core is None or not self.servers[arm.server].owned:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.core})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def _block(self, number: int, order: Sequence[str]) -> None:
        info = self.writer.info
        rows: list[tuple[Any, ...]] = []
        times = []
        for position, name in enumerate(order, start=1):
            if name not in self.not_run:
                started_at = _now()
                with self._pinned(self.arms[name]):
                    rows += self._trial(self.arms[name], number, position)
                times.append(
                    {
                        "block": number,
                        "position": position,
                        "arm": name,
                        "started_at": started_at,
                        "finished_at": _now(),
                    }
                )
            self.progress.advance()
        info["timeline"] += times
        self.writer.write_block(f"{number:04d}", rows)

    def _trial(self, arm: Arm, block: int, position: int) -> list[tuple[Any, ...]]:
        self.progress.show(f"block {block}, {arm.name}: restoring")
        server = self.servers[arm.server]
        try:
            self._restore(arm, [], session=0)
            with (
                Trial(
                    server,
                    arm,
                    block=block,
                    position=position,
                    show=self.progress.show,
                    restore=lambda: self._restore(arm, [], session=0),
                    witness=self.witnesses.get(arm.name),
                ) as trial,
                _compared(arm),
            ):
                self.procedure(trial, played(arm))
        except CannotRun as reason:
            self._cannot_run(arm, reason)
            return []
        except psycopg.OperationalError as error:
            raise ServerError(
                f"The server went away in block {block}, {arm.name} "
                f"({str(error).strip().splitlines()[0]}): the blocks before are kept; "
                f"run the same command again to continue."
            ) from error
        if arm.plays:
            self.writer.info["plans"][arm.name] = self.witnesses[arm.name].plans
        for step, case, why in trial.left_out:
            entry = {"arm": arm.name, "step": step, "case": case, "reason": why}
            if entry not in self.writer.info["left_out"]:
                self.writer.info["left_out"].append(entry)
        return trial.rows

    def _cannot_run(self, arm: Arm, reason: CannotRun) -> None:
        # What cannot run on one side cannot be compared.
        alike = [a.name for a in self.arms.values() if arm.plays and a.plays == arm.plays]
        for name in alike or [arm.name]:
            self.not_run[name] = str(reason)
        if arm.name == self.baseline and not arm.plays:
            raise StudyError(f"The baseline, {arm.name}, cannot run here: {reason}") from reason
        if len(self.not_run) == len(self.arms):
            raise StudyError(f"No arm can be compared: {reason}.") from reason
        self.progress.note(f"{arm.name}: not run: {reason}")
        for entry in self.writer.info["arms"]:
            if entry["name"] in self.not_run:
                entry["not_run"] = self.not_run[entry["name"]]


@contextmanager
def _compared(arm: Arm) -> Iterator[None]:
    """Take a statement that fails on one side for a reason not to compare the arm."""
    try:
        yield
    except psycopg.OperationalError:
        raise
    except psycopg.DatabaseError as error:
        if arm.plays is None:
            raise
        said = str(error).strip().splitlines()[0]
        raise CannotRun(f"it fails on the {arm.side}: {said}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
