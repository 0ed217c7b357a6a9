"""Measuring a study: arms × blocks in random order, each trial from restored state."""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from .errors import CannotRun, ServerError, SpaceError, StudyError
from .gate import gate
from .host import host_facts
from .order import block_orders
from .paths import run_dir
from .progress import Progress
from .provenance import git_revision, packages
from .recording import RecordWriter, fingerprint
from .records import Record, find_record, read_record
from .servers import serve
from .trial import Arm, Trial, baseline_of, with_repeat

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

    The first arm that can run is the baseline; a second copy of it (the A/A pair) is added.
    ``prepare`` builds the state an arm starts from, once per server and state; ``procedure`` is
    what is measured.  Of ``parameters``, all of which go into the record, ``server``, ``blocks``
    and ``seed`` are used here.  ``settings`` hold for every arm.  With ``pin``, client and owned
    server share one core.  Of several owned servers, one runs at a time.

    ``$PGSTUDIES_REPLAY`` names a record, or a directory of them, to return instead of measuring;
    ``$PGSTUDIES_FRESH`` starts anew where an unfinished record could be continued.

    Raises ServerError, SpaceError, or StudyError when the baseline cannot run; an arm that cannot
    run is left out, with its reason in the record.
    """
    replay = os.environ.get("PGSTUDIES_REPLAY")
    if replay:
        return _announce(read_record(find_record(study, replay)))
    core = max(os.sched_getaffinity(0)) if pin and hasattr(os, "sched_getaffinity") else None
    findings = gate(run_dir())
    for finding in findings:
        print(f"Before measuring: {finding.sentence}", file=sys.stderr)
    with ExitStack() as stack:
        own = serve(parameters["server"] or None, settings=settings, cpu=core)
        stack.enter_context(own)
        servers, arms = _servers_of(arms, own, settings, core, stack)
        arms = with_repeat(arms)
        same = {
            "study": study,
            "parameters": {k: v for k, v in parameters.items() if k not in {"blocks", "server"}},
            "arms": [_describe(arm, baseline_of(arms)) for arm in arms],
            "settings": dict(settings),
            "server": [[server.spec, server.version_text] for server in servers.values()],
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
                "parameters": dict(parameters) | {"server": own.spec},
                "arms": same["arms"],
                "settings": dict(settings),
                "blocks": parameters["blocks"],
                "seed": parameters["seed"],
                "order": [],
                "sessions": [],
                "gate": [],
                "pinned_to_core": core if any(s.owned for s in servers.values()) else None,
                "server": _server_facts(own),
                "servers": {s: _server_facts(server) for s, server in servers.items() if s},
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
            run = _Run(servers, writer, arms, prepare, procedure, core=core)
            run.carry_out(parameters["blocks"], parameters["seed"], findings)
            return _announce(writer.finish())
        except BaseException as error:
            writer.interrupt(type(error).__name__)
            raise
        finally:
            writer.close()


def _servers_of(
    arms: Sequence[Arm],
    own: Server,
    settings: Mapping[str, str],
    core: int | None,
    stack: ExitStack,
) -> tuple[dict[str | None, Server], list[Arm]]:
    """The servers by the words that arms use for them, and the arms with what cannot be served."""
    servers: dict[str | None, Server] = {None: own}
    reasons: dict[str | None, str] = {}
    for arm in arms:
        spec = arm.server
        if arm.not_run or spec in servers or spec in reasons:
            continue
        try:
            server = serve(spec, settings=settings, cpu=core)
        except SpaceError:
            raise
        except StudyError as error:
            reasons[spec] = str(error)
        else:
            stack.enter_context(server)
            servers[spec] = server
    return servers, [
        replace(arm, not_run=reasons[arm.server]) if arm.server in reasons else arm for arm in arms
    ]


class _Run:
    """The state of one run while it lasts."""

    def __init__(
        self,
        servers: Mapping[str | None, Server],
        writer: RecordWriter,
        arms: Sequence[Arm],
        prepare: Procedure,
        procedure: Procedure,
        *,
        core: int | None,
    ) -> None:
        self.servers = servers
        self.writer = writer
        self.arms = {arm.name: arm for arm in arms}
        self.baseline = baseline_of(arms).name
        self.not_run = {arm.name: arm.not_run for arm in arms if arm.not_run}
        self.prepare = prepare
        self.procedure = procedure
        self.core = core

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
        info = self.writer.info
        for arm in self.arms.values():
            if arm.name in self.not_run:
                continue
            self.progress.show(f"preparing {arm.name}: {arm.state}")
            try:
                with self._pinned(arm):
                    self._restore(arm, rows, session)
            except CannotRun as reason:
                self._cannot_run(arm, reason)
                continue
            facts = _server_facts(self.servers[arm.server])
            (info["server"] if arm.server is None else info["servers"][arm.server]).update(facts)
        self.writer.write_block(f"0-{session}", rows)

    def _restore(self, arm: Arm, rows: list[tuple[Any, ...]], session: int) -> None:
        server = self.servers[arm.server]

        def build() -> None:
            with Trial(server, arm, block=0, position=session) as trial:
                self.prepare(trial, arm)
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
            with Trial(
                server,
                arm,
                block=block,
                position=position,
                show=self.progress.show,
                restore=lambda: self._restore(arm, [], session=0),
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
        if arm.name == self.baseline:
            raise StudyError(f"The baseline, {arm.name}, cannot run here: {reason}") from reason
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
        "server": arm.server,
        "not_run": arm.not_run,
    }


def _server_facts(server: Server) -> dict[str, Any]:
    capabilities = server.capabilities
    with server.connect() as connection:
        build = connection.execute("SELECT version()").fetchone()
    return {
        "spec": server.spec,
        "version": server.version,
        "version_text": server.version_text,
        "build": build[0] if build else None,
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
