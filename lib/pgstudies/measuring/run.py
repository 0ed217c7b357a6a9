"""Carrying out a run: in every block a fresh start of every arm, and then turns."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import psycopg

from pgservers.errors import CannotRun, ServerDied, StudyError
from pgservers.host.exclusive import on_core
from pgservers.host.facts import boot_id
from pgservers.servers.base import ends_session, where_not_loaded
from pgservers.servers.facts import server_facts
from pgservers.terminal import Progress

from ..records.reading import AMONG_OTHERS
from .design import turn_order
from .trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pgservers.host.gate import Finding
    from pgservers.servers.serve import Server

    from ..records.info import LeftOut, ServerFacts, TimelineEntry
    from ..records.writing import RecordWriter
    from .arms import Arm
    from .design import Design
    from .instances import Instances

    Procedure = Callable[[Trial, Arm], Iterator[None] | None]


@dataclass
class Run:
    """The state of a run: its servers, its record, what cannot run, the ``core`` it is kept on."""

    design: Design
    instances: Instances
    writer: RecordWriter
    prepare: Callable[[Trial, Arm], None]
    procedure: Procedure
    seed: int
    core: int | None

    def __post_init__(self) -> None:
        self.arms = {arm.name: arm for arm in self.design.arms}
        self.not_run = {arm.name: arm.not_run for arm in self.design.arms if arm.not_run}

    def carry_out(self, blocks: Sequence[int], findings: Sequence[Finding]) -> None:
        """Prepare the states, then run those of ``blocks`` (numbers from 1) that are missing.

        ``findings`` are the gate's.  Raises ServerDied; StudyError if the baseline cannot run.
        """
        info, seconds = self.writer.info, self.design.seconds
        session = len(info["sessions"]) + 1
        info["sessions"].append({"started_at": _now(), "boot_id": boot_id()})
        info["gate"] += [
            {"name": f.name, "level": "warn", "sentence": f.sentence} for f in findings
        ]
        info["blocks"] = len(blocks)
        info["status"] = "running"
        done = self.writer.finished_blocks
        total = None if seconds else len(blocks) * len(self.arms)
        with Progress(info["study"], total, done=len(done) * len(self.arms)) as progress:
            self.progress = progress
            self._prepare_states(session)
            progress.prepared()
            missing = [number for number in blocks if number not in done]
            began = time.monotonic()
            for count, number in enumerate(missing):
                so_far = time.monotonic() - began
                if seconds and count and so_far / count * (count + 1) > seconds:
                    info["blocks"] = len(blocks) - len(missing) + count
                    progress.note(f"Time is up after {info['blocks']} blocks.")
                    break
                if seconds and count:
                    more = int(seconds * count / so_far) - count
                    progress.expect((len(done) + count + more) * len(self.arms))
                self._block(number)

    def _able(self) -> list[Arm]:
        return [arm for arm in self.arms.values() if arm.name not in self.not_run]

    def _prepare_states(self, session: int) -> None:
        """Build every state, and find out which arms cannot run, before anything is measured."""
        rows: list[tuple[Any, ...]] = []
        info = self.writer.info
        for arm in self._able():
            self.progress.show(f"preparing {arm.name}: {arm.state}")
            server = self.instances[arm.name]
            try:
                with self._pinned(arm), self._explained(arm, "while preparing"):
                    self.design.begin(info, 0, arm, server)  # what it takes of the disk, it has now
                    self.instances.make_room([arm])
                    rows += self.instances.kept_samples(arm)
                    self._restore(arm, rows, session)
            except CannotRun as reason:
                self._cannot_run(arm, reason)
            else:
                known = info["server"] if arm.server is None else info["servers"][arm.server]
                known.update(facts_of(server))
            self.instances.stop([arm])
        self.writer.write_block(f"0-{session}", rows)
        groups = self.instances.groups(self.design.units(self._able()))
        info["groups"] = [[arm.name for arm in group] for group in groups]
        if len(groups) > 1:
            self.progress.note(
                f"Memory or disk do not hold all {len(self._able())} servers at once: they run in "
                f"{len(groups)} groups, each with the baseline."
            )

    def _restore(self, arm: Arm, rows: list[tuple[Any, ...]], session: int) -> None:
        server = self.instances[arm.name]

        def build() -> None:
            with Trial(server, arm, block=0, own=self.design.own(arm)) as trial:
                trial.position = session
                self.prepare(trial, trial.arm)
                self.instances.prepared(arm, trial.rows)
                rows.extend(trial.rows)

        server.restore(arm.state, build, arm.settings)

    def _pinned(self, arm: Arm) -> AbstractContextManager[None]:
        """Be on the core of a managed server."""
        return on_core(
            self.core if self.instances[arm.name].capabilities.has("processes") else None
        )

    def _block(self, number: int) -> None:
        rows: list[tuple[Any, ...]] = []
        left = set(self.arms)
        for group, names in enumerate(self.writer.info["groups"], start=1):
            arms = [self.arms[name] for name in names if name not in self.not_run]
            rows += self._group(number, group, arms)
            self.progress.advance(len(left.intersection(names)))
            left -= set(names)
        self.progress.advance(len(left))
        self.writer.write_block(f"{number:04d}", rows)

    def _group(self, block: int, group: int, arms: Sequence[Arm]) -> list[tuple[Any, ...]]:
        """Start every arm anew, let them take turns until all have done, and stop them."""
        trials: dict[str, Trial] = {}
        began = _now()  # a block takes as long as its restoring, too
        with ExitStack() as stack:
            stack.callback(lambda: self.instances.stop(arms))
            self.instances.make_room(arms)
            with ExitStack() as sessions:
                for name in turn_order([arm.name for arm in arms], self.seed, block, 0):
                    arm, server, show = self.arms[name], self.instances[name], self.progress.show
                    show(f"block {block}, {name}: restoring")
                    try:
                        with self._pinned(arm), self._explained(arm, f"in block {block}"):
                            self.design.begin(self.writer.info, block, arm, server)
                            self._restore(arm, [], session=0)
                            where = {"block": block, "group": group, "show": show}
                            trial = self.design.trial(server, arm, **where)
                            trials[name] = sessions.enter_context(trial)
                    except CannotRun as reason:
                        self._cannot_run(arm, reason)
                self._take_turns(trials, block, began)
            self.design.note(self.writer.info, trials)
        for name, trial in trials.items():
            self._note_left_out(name, trial)
        return [row for name, trial in trials.items() if name not in self.not_run
                for row in trial.rows]  # fmt: skip

    def _take_turns(self, trials: dict[str, Trial], block: int, began_at: str) -> None:
        """Round by round, every arm does one turn, in random order."""
        turns = {name: self._turns(trial) for name, trial in trials.items()}
        times: dict[str, TimelineEntry] = {
            name: {"block": block, "position": position, "arm": name, "started_at": began_at,
                   "finished_at": began_at, "busy_s": 0.0}
            for position, name in enumerate(trials, start=1)
        }  # fmt: skip
        turn = 0
        while turns:
            turn += 1
            order = turn_order(list(turns), self.seed, block, turn)
            for position, name in enumerate(order, start=1):
                arm, trial = self.arms[name], trials[name]
                if name in self.not_run:  # with another of its unit
                    turns.pop(name, None)
                    continue
                trial.turn, trial.position, trial.part = turn, position, AMONG_OTHERS
                began = time.monotonic()
                try:
                    with self._pinned(arm), self._explained(arm, f"in block {block}"):
                        next(turns[name])
                except StopIteration:
                    del turns[name]
                except CannotRun as reason:
                    del turns[name]
                    self._cannot_run(arm, reason)
                times[name]["finished_at"] = _now()
                times[name]["busy_s"] += time.monotonic() - began
        self.writer.info["timeline"] += [t for name, t in times.items() if name not in self.not_run]

    def _turns(self, trial: Trial) -> Iterator[None]:
        """The turns of one arm; a procedure that does not yield is one turn."""
        turns = self.procedure(trial, trial.arm)
        if turns is not None:
            yield from turns

    @contextmanager
    def _explained(self, arm: Arm, when: str) -> Iterator[None]:
        """Say what a database's error means for the run."""
        try:
            yield
        except psycopg.Error as error:
            full = self.instances[arm.name].space_error(error)
            if full is not None:
                raise full from error
            if ends_session(error):
                raise ServerDied(
                    f"The server went away {when}, {arm.name} ({_first_line(error)}): the blocks "
                    f"before are kept; run the same command again to continue."
                ) from error
            where = self.design.fails_on(arm) or where_not_loaded(arm.extension, error)
            if where is None or not isinstance(error, psycopg.DatabaseError):
                raise
            raise CannotRun(f"it fails on {where}: {_first_line(error)}") from error

    def _note_left_out(self, name: str, trial: Trial) -> None:
        left_out = self.writer.info["left_out"]
        for step, case, why in trial.left_out:
            entry: LeftOut = {"arm": name, "step": step, "case": case, "reason": why}
            if entry not in left_out:
                left_out.append(entry)

    def _cannot_run(self, arm: Arm, reason: CannotRun) -> None:
        _, units = self.design.units(self.design.arms)
        for other in next((unit for unit in units if arm in unit), [arm]):
            self.not_run[other.name] = str(reason)
        if arm is self.design.needed:
            raise StudyError(f"The baseline, {arm.name}, cannot run here: {reason}") from reason
        if len(self.not_run) == len(self.arms):
            raise StudyError(f"No arm can run here: {reason}.") from reason
        self.progress.note(f"{arm.name}: not run: {reason}")
        for entry in self.writer.info["arms"]:
            if entry["name"] in self.not_run:
                entry["not_run"] = self.not_run[entry["name"]]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _now() -> str:
    return datetime.now(UTC).isoformat()


def facts_of(server: Server) -> ServerFacts:
    """What a record tells of a server."""
    return cast("ServerFacts", server_facts(server))
