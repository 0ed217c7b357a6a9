"""Measuring a study: arms × blocks in random order, each trial from restored state."""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from .errors import CannotRun, ServerError, StudyError
from .gate import gate
from .host import host_facts
from .order import block_orders
from .paths import run_dir
from .progress import Progress
from .provenance import git_revision, packages
from .recording import RecordWriter, fingerprint
from .records import Record, find_record, read_record
from .servers import serve
from .trial import Arm, Trial, with_repeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .servers import Server

    Procedure = Callable[[Trial, Arm], None]


def measure(
    study: str,
    *,
    arms: Sequence[Arm],
    prepare: Procedure,
    procedure: Procedure,
    parameters: Mapping[str, Any],
    settings: Mapping[str, str],
    pin: bool = True,
) -> Record:
    """Run every arm in every block and return the record; a run cut short is continued.

    The first arm is the baseline; a second copy of it (the A/A pair) is added.  ``prepare`` builds
    the state an arm starts from, once per state; ``procedure`` is what is measured.  Of
    ``parameters``, all of which go into the record, ``server``, ``blocks`` and ``seed`` are used
    here.  ``settings`` hold for every arm.  With ``pin``, client and owned server share one core.

    ``$PGSTUDIES_REPLAY`` names a record, or a directory of them, to return instead of measuring;
    ``$PGSTUDIES_FRESH`` starts anew where an unfinished record could be continued.

    Raises ServerError, SpaceError, or StudyError when the baseline cannot run; an arm that cannot
    run is left out, with its reason in the record.
    """
    replay = os.environ.get("PGSTUDIES_REPLAY")
    if replay:
        return _announce(read_record(find_record(study, replay)))
    arms = with_repeat(arms)
    core = max(os.sched_getaffinity(0)) if pin and hasattr(os, "sched_getaffinity") else None
    findings = gate(run_dir())
    for finding in findings:
        print(f"Before measuring: {finding.sentence}", file=sys.stderr)
    with serve(parameters["server"] or None, settings=settings, cpu=core) as server:
        same = {
            "study": study,
            "parameters": {k: v for k, v in parameters.items() if k not in {"blocks", "server"}},
            "arms": [_describe(arm, arms[0]) for arm in arms],
            "settings": dict(settings),
            "server": [server.spec, server.version_text],
            "packages": packages(),
            "kernel": os.uname().release,
            "code": [_source(prepare), _source(procedure)],
        }
        mark = fingerprint(same)
        writer = None if os.environ.get("PGSTUDIES_FRESH") else RecordWriter.resume(study, mark)
        if writer is None:
            info = {
                "profile": os.environ.get("PGSTUDIES_PROFILE"),
                "fingerprint": mark,
                "parameters": dict(parameters) | {"server": server.spec},
                "arms": same["arms"],
                "settings": dict(settings),
                "blocks": parameters["blocks"],
                "seed": parameters["seed"],
                "order": [],
                "sessions": [],
                "gate": [],
                "pinned_to_core": core if server.owned else None,
                "server": _server_facts(server),
                "host": host_facts(run_dir()),
                "packages": packages(),
                "git": git_revision(),
            }
            writer = RecordWriter.create(study, info)
        else:
            print(
                f"Continuing {writer.path}: {len(writer.finished_blocks)} of its blocks are done.",
                file=sys.stderr,
            )
        try:
            with _pinned(core if server.owned else None):
                run = _Run(server, writer, arms, prepare, procedure)
                run.carry_out(parameters["blocks"], parameters["seed"], findings)
            return _announce(writer.finish())
        except BaseException as error:
            writer.interrupt(type(error).__name__)
            raise
        finally:
            writer.close()


class _Run:
    """The state of one run while it lasts."""

    def __init__(
        self,
        server: Server,
        writer: RecordWriter,
        arms: Sequence[Arm],
        prepare: Procedure,
        procedure: Procedure,
    ) -> None:
        self.server = server
        self.writer = writer
        self.arms = {arm.name: arm for arm in arms}
        self.not_run = {arm.name: arm.not_run for arm in arms if arm.not_run}
        self.prepare = prepare
        self.procedure = procedure

    def carry_out(self, blocks: int, seed: int, findings: Sequence[Any]) -> None:
        info = self.writer.info
        session = len(info["sessions"]) + 1
        info["sessions"].append({"started_at": _now(), "boot_id": _boot_id()})
        info["gate"] += [asdict(finding) for finding in findings]
        info["blocks"] = blocks
        # All arms are ordered, also those that cannot run: a resumed run keeps its order.
        orders = info["order"] = block_orders(list(self.arms), blocks, seed)
        info["status"] = "running"
        done = self.writer.finished_blocks
        total = sum(len(order) for order in orders)
        with Progress(info["study"], total, done=len(done) * len(self.arms)) as progress:
            self.progress = progress
            self._prepare_states(session)
            for number, order in enumerate(orders, start=1):
                if number not in done:
                    self._block(number, order)

    def _prepare_states(self, session: int) -> None:
        """Build every state, and find out which arms cannot run, before anything is measured."""
        rows: list[tuple[Any, ...]] = []
        for arm in self.arms.values():
            if arm.name in self.not_run:
                continue
            self.progress.show(f"preparing: {arm.state}")
            try:
                self._restore(arm, rows, session)
            except CannotRun as reason:
                self._cannot_run(arm, reason)
        self.writer.info["server"] |= _server_facts(self.server)
        self.writer.write_block(f"0-{session}", rows)

    def _restore(self, arm: Arm, rows: list[tuple[Any, ...]], session: int) -> None:
        def build() -> None:
            with Trial(self.server, arm, block=0, position=session) as trial:
                self.prepare(trial, arm)
                rows.extend(trial.rows)

        self.server.restore(arm.state, build, arm.settings)

    def _block(self, number: int, order: Sequence[str]) -> None:
        info = self.writer.info
        rows: list[tuple[Any, ...]] = []
        times = []
        for position, name in enumerate(order, start=1):
            if name not in self.not_run:
                started_at = _now()
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
        try:
            self._restore(arm, [], session=0)
            with Trial(
                self.server, arm, block=block, position=position, show=self.progress.show
            ) as trial:
                self.procedure(trial, arm)
        except CannotRun as reason:
            self._cannot_run(arm, reason)
            return []
        except psycopg.OperationalError as error:
            raise ServerError(
                f"The server went away in block {block}, {arm.name} "
                f"({str(error).strip().splitlines()[0]}): the blocks before are kept; "
                f"run the same command again to continue."
            ) from error
        for step, case, why in trial.left_out:
            entry = {"arm": arm.name, "step": step, "case": case, "reason": why}
            if entry not in self.writer.info["left_out"]:
                self.writer.info["left_out"].append(entry)
        return trial.rows

    def _cannot_run(self, arm: Arm, reason: CannotRun) -> None:
        baseline = next(iter(self.arms))
        if arm.name == baseline:
            raise StudyError(f"The baseline, {baseline}, cannot run here: {reason}") from reason
        self.not_run[arm.name] = str(reason)
        self.progress.note(f"{arm.name}: not run: {reason}")
        for entry in self.writer.info["arms"]:
            if entry["name"] == arm.name:
                entry["not_run"] = str(reason)


def _describe(arm: Arm, baseline: Arm) -> dict[str, Any]:
    return {
        "name": arm.name,
        "description": arm.description,
        "baseline": arm is baseline,
        "repeats": arm.repeats,
        "state": arm.state,
        "settings": dict(arm.settings),
        "options": dict(arm.options),
        "not_run": arm.not_run,
    }


def _server_facts(server: Server) -> dict[str, Any]:
    capabilities = server.capabilities
    return {
        "spec": server.spec,
        "version": server.version,
        "version_text": server.version_text,
        "owned": server.owned,
        "superuser": capabilities.superuser,
        "contrib": sorted(capabilities.contrib),
        "nondefault_settings": server.nondefault_settings().to_dicts(),
        "unmet_settings": {k: list(v) for k, v in server.unmet_settings.items()},
    }


def _source(function: Procedure) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # defined where no source is kept, such as a prompt
        return function.__code__.co_code.hex() + repr(function.__code__.co_consts)


@contextmanager
def _pinned(core: int | None) -> Iterator[None]:
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _announce(record: Record) -> Record:
    """Tell the program that ran the notebook, if one did, which record it rests on."""
    told = os.environ.get("PGSTUDIES_RECORD_FILE")
    if told:
        Path(told).write_text(f"{record.path}\n", encoding="utf-8")
    return record


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
