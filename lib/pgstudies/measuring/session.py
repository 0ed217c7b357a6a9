"""A session that measures: prepared once, it measures a block at every request and keeps it."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from pgservers.errors import CannotRun, ServerDied, StudyError
from pgservers.host.exclusive import on_core
from pgservers.host.facts import boot_id
from pgservers.paths import records_dir
from pgservers.programs.extensions import source_digests
from pgservers.servers.base import ends_session, where_not_loaded
from pgservers.servers.serve import serve
from pgservers.terminal import Progress, notice

from ..records.code import code_digests
from ..records.reading import infos_below, is_of_this_host
from ..records.samples import AMONG_OTHERS
from ..records.writing import RecordWriter, fingerprint
from ..rooms import rooms
from .design import turn_order
from .instances import Instances, PreparedStates, lacking, roots_of
from .setting_up import conditions, facts_of, intention, setup_of
from .trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pgservers.host.gate import Finding
    from pgservers.servers.base import Limits
    from pgservers.servers.serve import Server

    from ..records.info import Info, LeftOut, TimelineEntry
    from ..run_options import RunOptions
    from .arms import Arm
    from .design import Design

    Procedure = Callable[[Trial, Arm], Iterator[None] | None]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a notebook asks to be measured, and how.

    Attributes:
        study: The name of the study.
        arms: Each is one way of doing it; the first that can run is the baseline.
        prepare: Builds the state that an arm starts from, once per server and state.
        procedure: What is measured; each ``yield`` of a generator ends a turn.
        parameters: All of them, for the record; ``server``, ``blocks`` and ``seed`` are used.
        settings: The server settings of every arm.
        as_then: Settings of a plain run that make today's servers work as the post's did.
        pin: Whether client and managed servers share one core.
        limits: How ``limited`` limits servers.
        not_compared: The steps, or "step, case", that say nothing of a server, such as a warm-up.
        unprivileged: Whether a role without rights does the work, which may come from others.

    """

    study: str
    arms: Sequence[Arm]
    prepare: Callable[[Trial, Arm], None]
    procedure: Procedure
    parameters: Mapping[str, Any]
    settings: Mapping[str, str]
    as_then: Mapping[str, str] = field(default_factory=dict)
    pin: bool = True
    limits: Limits | None = None
    not_compared: Sequence[str] = ()
    unprivileged: bool = False


@contextmanager
def session(
    what: Measurement,
    design: Design,
    options: RunOptions,
    *,
    findings: Sequence[Finding] = (),
    progress: Progress | None = None,
) -> Iterator[Session]:
    """Start the servers for ``what``, by a design of its arms; complete the record at the end.

    Nothing is measured, prepared or written before it is asked for.  An unfinished record of the
    same measurement is continued.  ``findings`` are the gate's; ``progress`` counts the arms of
    blocks, by default in a bar of its own.  The caller has locked this host: see
    ``measure.measuring_here``.

    Raises ServerError, SpaceError, or StudyError if nothing can be measured; an arm that cannot run
    is left out, with its reason in the record.
    """
    settings = design.in_force(what.settings, what.as_then)
    is_pinned = what.pin and design.pin and hasattr(os, "sched_getaffinity")
    core = max(os.sched_getaffinity(0)) if is_pinned else None
    with ExitStack() as stack:
        start = partial(
            serve, settings=settings, cpu=core, limits=what.limits, unprivileged=what.unprivileged
        )
        own = start(options.server_for(what.parameters["server"]))
        stack.enter_context(own)
        roots, errors = roots_of(design.arms, own, start, stack)
        design = design.served(errors, lacking(design.arms, roots))
        measured = Session(
            what, design, options, roots, settings, core, findings, stack, bar=progress
        )
        try:
            yield measured
            measured.finish()
        except BaseException as error:
            measured.interrupt(error)
            raise


@dataclass(eq=False)
class Session:
    """A measurement: the request, its servers, its record and its prepared states.

    Attributes:
        design: The arms, with a second copy of the baseline.
        not_run: By the name of an arm, why it cannot run.
        mark: A digest of all that must be alike for a record to be continued.
        earlier: Complete records that this one adds blocks to, oldest first.

    """

    what: Measurement
    design: Design
    options: RunOptions
    roots: Mapping[str | None, Server]
    settings: Mapping[str, str]
    core: int | None
    findings: Sequence[Finding]
    stack: ExitStack
    bar: Progress | None

    def __post_init__(self) -> None:
        self.arms = {arm.name: arm for arm in self.design.arms}
        self.not_run = {arm.name: arm.not_run for arm in self.design.arms if arm.not_run}
        what, design = self.what, self.design
        self._seed = what.parameters["seed"]
        self.room = rooms().get(what.study)
        self._same = conditions(self)
        self.code = code_digests(
            {"prepare": what.prepare, "procedure": what.procedure},
            self.room.directory if self.room else None,
            what.parameters,
            [type(design).__module__],
        )
        self.code |= source_digests(arm.extension for arm in design.arms)
        self.mark = f"{fingerprint(self._same)}-{fingerprint(self.code)}"
        self.earlier = {
            path: info
            for path, info in infos_below(records_dir(), design.study)
            if info.get("fingerprint") == self.mark
            and info["status"] == "complete"
            and is_of_this_host(info)
            and design.continues(info)
        }
        self._writer = None if design.fresh else RecordWriter.resume(design.study, self.mark)
        if self._writer is not None:
            self.stack.callback(self._writer.close)
        self._begun = False

    @property
    def finished(self) -> list[int]:
        """The numbers of finished blocks, earlier records included."""
        infos = [*self.earlier.values(), *([self._writer.info] if self._writer else [])]
        return sorted({entry["block"] for info in infos for entry in info["timeline"]})

    @property
    def records(self) -> list[Path]:
        """The records that hold these blocks, oldest first."""
        return [*self.earlier, *([self._writer.path] if self._writer else [])]

    @property
    def info(self) -> Info:
        """The record's contents so far; before ``begin`` those of the last earlier record."""
        return self._writer.info if self._writer else [*self.earlier.values()][-1]

    def begin(self, blocks: int = 0) -> None:
        """Make or reopen the record and prepare every state; ``blocks`` are wanted, 0 any number.

        Raises StudyError if the baseline cannot run.
        """
        if self._begun:
            return
        self._begun = True
        writer = self._writer
        if writer is None:
            setup = setup_of(self, blocks)
            writer = RecordWriter.create(self.design.study, self.design.completed(setup))
            self._writer = writer
            self.stack.callback(writer.close)
            if self.bar is None:
                notice(intention(setup, writer.path))
        else:
            done = len(writer.finished_blocks)
            notice(f"Continuing {writer.path}: {done} of its blocks are done.")
        info = writer.info
        number = len(info["sessions"]) + 1
        info["sessions"].append({"started_at": _now(), "boot_id": boot_id()})
        info["gate"] += [
            {"name": f.name, "level": "warn", "sentence": f.sentence} for f in self.findings
        ]
        info["status"] = "running"
        info["blocks"] = blocks
        kept = None
        if self.options.states:
            mark = fingerprint({**self._same, "arms": [], "code": self.code})
            kept = PreparedStates(Path(self.options.states), mark)
        # What runs is closed before the servers are, which were entered before.
        self._instances = self.stack.enter_context(Instances(self.roots, self.design.arms, kept))
        if self.bar is None:
            done = len(writer.finished_blocks) * len(self.arms)
            total = blocks * len(self.arms)
            self.bar = self.stack.enter_context(Progress(self.design.study, total, done))
        self.progress = self.bar
        self._prepare_states(number)
        self.progress.prepared()

    def block(self, number: int) -> None:
        """Measure a block: a fresh start of every arm, and then turns; it is kept when it ends.

        Raises ServerDied; StudyError if the baseline cannot run.
        """
        self.begin()
        rows: list[tuple[Any, ...]] = []
        left = set(self.arms)
        for group, names in enumerate(self.info["groups"], start=1):
            arms = [self.arms[name] for name in names if name not in self.not_run]
            rows += self._group(number, group, arms)
            self.progress.advance(len(left.intersection(names)))
            left -= set(names)
        self.progress.advance(len(left))
        self.writer.write_block(f"{number:04d}", rows)
        self.info["blocks"] = max(self.info["blocks"], len(self.writer.finished_blocks))

    def leave_out(self, names: Collection[str], reason: str) -> None:
        """Measure no further block of these arms."""
        for name in names:
            self.not_run[name] = reason
        self._note_not_run()

    def finish(self, *, to_be_read: bool = False) -> None:
        """Complete the record, if it was begun: see ``RecordWriter.finish``."""
        if self._begun and self.info["status"] != "complete":
            self.writer.finish(to_be_read=to_be_read)

    def interrupt(self, error: BaseException) -> None:
        """Keep finished blocks for the next session; remove the record if the request was wrong."""
        if not self._begun or self.info["status"] == "complete":
            return
        if isinstance(error, StudyError) and not self.writer.finished_blocks:
            self.writer.discard()
        else:
            self.writer.interrupt(type(error).__name__)

    @property
    def writer(self) -> RecordWriter:
        """The record being made, from ``begin`` on."""
        assert self._writer is not None
        return self._writer

    def _able(self) -> list[Arm]:
        return [arm for arm in self.arms.values() if arm.name not in self.not_run]

    def _prepare_states(self, session: int) -> None:
        """Build every state, and find the arms that cannot run, before anything is measured."""
        if not self._able():
            raise StudyError(f"No arm can run here: {next(iter(self.not_run.values()))}.")
        rows: list[tuple[Any, ...]] = []
        info = self.info
        for arm in self._able():
            self.progress.show(f"preparing {arm.name}: {arm.state}")
            server = self._instances[arm.name]
            try:
                with self._pinned(arm), self._explained(arm, "while preparing"):
                    self.design.begin(info, 0, arm, server)  # what it takes of the disk, it has now
                    self._instances.make_room([arm])
                    rows += self._instances.kept_samples(arm)
                    self._restore(arm, rows, session)
            except CannotRun as reason:
                self._cannot_run(arm, reason)
            else:
                known = info["server"] if arm.server is None else info["servers"][arm.server]
                known.update(facts_of(server))
            self._instances.stop([arm])
        self.writer.write_block(f"0-{session}", rows)
        groups = self._instances.groups(self.design.units(self._able()))
        info["groups"] = [[arm.name for arm in group] for group in groups]
        if len(groups) > 1:
            self.progress.note(
                f"Memory or disk do not hold all {len(self._able())} servers at once: they run in "
                f"{len(groups)} groups, each with the baseline."
            )

    def _restore(self, arm: Arm, rows: list[tuple[Any, ...]], session: int) -> None:
        """Give the arm's server its state, prepared if need be; add those samples to ``rows``."""
        server = self._instances[arm.name]

        def build() -> None:
            with Trial(server, arm, block=0, own=self.design.own(arm)) as trial:
                trial.position = session
                self.what.prepare(trial, trial.arm)
                self._instances.prepared(arm, trial.rows)
                rows.extend(trial.rows)

        server.restore(arm.state, build, arm.settings)

    def _pinned(self, arm: Arm) -> AbstractContextManager[None]:
        """Pin this process to the core of a managed server."""
        is_managed = self._instances[arm.name].capabilities.has("processes")
        return on_core(self.core if is_managed else None)

    def _group(self, block: int, group: int, arms: Sequence[Arm]) -> list[tuple[Any, ...]]:
        """Start every arm afresh, let the arms take turns until all are done, and stop them."""
        trials: dict[str, Trial] = {}
        began = _now()  # a block takes as long as its restoring, too
        with ExitStack() as stack:
            stack.callback(lambda: self._instances.stop(arms))
            self._instances.make_room(arms)
            self._instances.draw_places(arms)
            with ExitStack() as sessions:
                for name in turn_order([arm.name for arm in arms], self._seed, block, 0):
                    arm, server, show = self.arms[name], self._instances[name], self.progress.show
                    show(f"block {block}, {name}: restoring")
                    try:
                        with self._pinned(arm), self._explained(arm, f"in block {block}"):
                            self.design.begin(self.info, block, arm, server)
                            self._restore(arm, [], session=0)
                            where = {"block": block, "group": group, "show": show}
                            trial = self.design.trial(server, arm, **where)
                            trials[name] = sessions.enter_context(trial)
                    except CannotRun as reason:
                        self._cannot_run(arm, reason)
                self._take_turns(trials, block, began)
            self.design.note(self.info, trials)
        left_out = self.info["left_out"]
        for name, trial in trials.items():
            for step, case, why in trial.left_out:
                entry: LeftOut = {"arm": name, "step": step, "case": case, "reason": why}
                if entry not in left_out:
                    left_out.append(entry)
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
            order = turn_order(list(turns), self._seed, block, turn)
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
        self.info["timeline"] += [t for name, t in times.items() if name not in self.not_run]

    def _turns(self, trial: Trial) -> Iterator[None]:
        """The turns of one arm; a procedure that does not yield is one turn."""
        turns = self.what.procedure(trial, trial.arm)
        if turns is not None:
            yield from turns

    @contextmanager
    def _explained(self, arm: Arm, when: str) -> Iterator[None]:
        """Translate a database's error into one about the run."""
        try:
            yield
        except ServerDied as error:
            error.arm = arm.name
            raise
        except psycopg.Error as error:
            first = str(error).strip().splitlines()[0]
            full = self._instances[arm.name].space_error(error)
            if full is not None:
                raise full from error
            if ends_session(error):
                crash = self._instances[arm.name].crash()
                died = ServerDied(
                    f"The server went away {when}, {arm.name} ({crash or first}): the blocks "
                    f"before are kept; run the same command again to continue."
                )
                died.arm, died.crashed = arm.name, crash is not None
                raise died from error
            where = self.design.fails_on(arm) or where_not_loaded(arm.extension, error)
            if where is None or not isinstance(error, psycopg.DatabaseError):
                raise
            raise CannotRun(f"it fails on {where}: {first}") from error

    def _cannot_run(self, arm: Arm, reason: CannotRun) -> None:
        for other in self.design.fall_with(arm):
            self.not_run[other.name] = str(reason)
        if arm is self.design.needed:
            raise StudyError(f"The baseline, {arm.name}, cannot run here: {reason}") from reason
        if len(self.not_run) == len(self.arms):
            raise StudyError(f"No arm can run here: {reason}.") from reason
        self.progress.note(f"{arm.name}: not run: {reason}")
        self._note_not_run()

    def _note_not_run(self) -> None:
        for entry in self.info["arms"]:
            if entry["name"] in self.not_run:
                entry["not_run"] = self.not_run[entry["name"]]


def _now() -> str:
    return datetime.now(UTC).isoformat()
