"""Measuring a study: what its notebook asks first, its design, its servers, and its record.

Here, where a notebook enters, the environment is read; everything below takes arguments.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgservers.errors import Interrupted, StudyError
from pgservers.files import sweep_temporary
from pgservers.host.exclusive import only_one_here
from pgservers.host.facts import allowed_cores, git_revision, host_facts, packages
from pgservers.host.gate import gate
from pgservers.paths import records_dir, run_dir
from pgservers.programs.extensions import source_digests
from pgservers.servers.facts import identity
from pgservers.servers.leftovers import sweep
from pgservers.servers.serve import serve
from pgservers.terminal import notice, printable, rough_duration

from ..analysis.claims import claim_marks, rules
from ..records.changes import what_changed
from ..records.reached import FREE, Reached
from ..records.reading import alike_before, find_record, infos_below, is_of_this_host, read_record
from ..records.writing import RecordWriter, fingerprint, mark_read, unread
from ..rooms import rooms
from ..run_options import RunOptions
from .design import planned
from .instances import Instances, PreparedStates, lacking, roots_of
from .requirements import unmet_requirements
from .run import Run, facts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pgservers.host.gate import Finding
    from pgservers.servers.base import Limits
    from pgservers.servers.serve import Server

    from ..records.info import Info, Setup
    from ..records.reading import Record
    from ..rooms import Room
    from ..run_options import Replies
    from .arms import Arm
    from .design import Design
    from .run import Procedure
    from .trial import Trial


def measure(
    study: str,
    *,
    arms: Sequence[Arm],
    prepare: Callable[[Trial, Arm], None],
    procedure: Procedure,
    parameters: Mapping[str, Any],
    settings: Mapping[str, str],
    as_then: Mapping[str, str] = {},
    pin: bool = True,
    limits: Limits | None = None,
    not_compared: Sequence[str] = (),
    unprivileged: bool = False,
) -> Record:
    """Run every arm in every block and return the record; a run cut short is continued.

    The first arm that can run is the baseline; a second copy of it (the A/A pair) is added.
    ``prepare`` builds the state an arm starts from in the database, once per server and state, and
    not at all where an earlier block of a sweep left it here.  ``procedure`` is what is measured:
    in every block all arms are started anew, each on an instance of its own, and take turns in
    random order.  Each ``yield`` of a generator ends a turn; any other function is a single turn.
    The record has all ``parameters``; ``server``, ``blocks`` and ``seed`` are used here.
    ``settings`` hold for every arm; in a plain run so do those of ``as_then``, with which today's
    servers work as the post's did.  With ``pin``, client and managed servers share one core.
    ``limits`` is how ``limited`` limits servers.  ``not_compared`` are the steps, or "step, case",
    that say nothing of a server, such as a warm-up.  An ``unprivileged`` study, whose work may come
    from others, runs by a role that can do no harm beyond its own database.

    What to do instead of a plain run (analyse a record, measure one block, measure by another
    design) is in the environment: see ``run_options``.  Waits for another measurement that runs on
    this host.

    Raises ServerError, SpaceError, or StudyError when the baseline cannot run, and Interrupted; an
    arm that cannot run is left out, with its reason in the record.
    """
    options = RunOptions.given()
    replies = options.reply()
    if options.replay:
        return _reported(read_record(find_record(study, options.replay)), replies)
    design = planned(study, arms, parameters["blocks"], options)
    settings = design.in_force(settings, as_then)
    pin = pin and design.pin
    core = max(os.sched_getaffinity(0)) if pin and hasattr(os, "sched_getaffinity") else None
    with _interruptible(), ExitStack() as stack:
        stack.enter_context(only_one_here(f"the study {study}"))
        findings = _look_around()
        start = partial(
            serve, settings=settings, cpu=core, limits=limits, unprivileged=unprivileged
        )
        own = start(options.server_for(parameters["server"]))
        stack.enter_context(own)
        roots, errors = roots_of(design.arms, own, start, stack)
        design = design.served(errors, lacking(design.arms, roots))
        room = rooms().get(study)
        same = _same(
            design, roots, parameters=parameters, settings=settings, core=core, limits=limits
        )
        functions = {"prepare": prepare, "procedure": procedure}
        code = Reached(functions, room.modules if room else (), parameters)
        code.digests |= source_digests(arm.extension for arm in design.arms)
        stack.callback(code.settle)
        mark = f"{fingerprint(same)}-{fingerprint(code.digests)}"
        earlier = _earlier(design, mark)
        blocks = design.blocks[_last_block(earlier.values()) :]
        if not blocks:
            if replies is not None:
                replies.tell_records([*earlier])
            return _reported(read_record([*earlier][-1]), replies)
        if whole := _whole(design, mark, replies):
            return whole
        writer = None if design.fresh else RecordWriter.resume(design.study, mark)
        if writer is None:
            setup: Setup = {
                "profile": options.profile,
                "fingerprint": mark,
                "code": code.digests,
                "parameters": dict(parameters) | {"server": own.spec},
                "arms": [design.describe(arm) for arm in design.arms],
                "settings": dict(settings),
                "not_compared": list(not_compared),
                "blocks": len(blocks),
                "seed": parameters["seed"],
                "sessions": [],
                "gate": [],
                "limits": limits,
                "pinned_to_core": core if _can_pin(roots.values()) else None,
                "server": facts_of(own),
                "unmet": unmet_requirements(room.name, own, settings) if room else {},
                "claims": claim_marks(room.name) if room else {},
                "rules": rules(room.name) if room else [],
                "study_mark": room.mark if room else None,
                "servers": {s: facts_of(server) for s, server in roots.items() if s},
                "host": host_facts(run_dir()),
                "packages": packages(),
                "git": git_revision(),
            }
            if not design.fresh:
                _tell_of_changes(design, setup, room)
            setup["seen"] = alike_before(design.study, setup)
            writer = RecordWriter.create(design.study, design.completed(setup))
            if not (options.block or options.design):
                notice(_intention(setup, writer.path))
        else:
            notice(
                f"Continuing {writer.path}: {len(writer.finished_blocks)} of its blocks are done."
            )
        if replies is not None:
            replies.tell_records([*dict.fromkeys([*earlier, writer.path])])
        kept = None
        if options.states is not None:
            of_states = fingerprint(_alike_when_prepared(same, code, room))
            kept = PreparedStates(
                Path(options.states["directory"]), f"{of_states} {options.states['code']}"
            )
        instances = stack.enter_context(Instances(roots, design.arms, kept))
        seed = parameters["seed"]
        run = Run(design, instances, writer, prepare, procedure, seed=seed, core=core)
        return _reported(
            _carried_out(run, blocks, findings, to_be_read=replies is not None), replies
        )


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None


def _look_around() -> list[Finding]:
    """Remove what dead runs have left, and say what would disturb this one."""
    sweep_temporary()
    if run_dir().is_dir():
        for path in sweep(run_dir()):
            notice(f"Removed what a run that died had left: {path}.")
    findings = gate(run_dir())
    for finding in findings:
        notice(f"Before measuring: {finding.sentence}")
    return findings


def _same(
    design: Design,
    roots: Mapping[str | None, Server],
    *,
    parameters: Mapping[str, Any],
    settings: Mapping[str, str],
    core: int | None,
    limits: Limits | None,
) -> dict[str, Any]:
    """Everything but the code that must be alike for two runs to be one."""
    return {
        "study": design.study,
        "parameters": {k: v for k, v in parameters.items() if k not in FREE},
        "arms": [[design.describe(arm), arm.own_programs] for arm in design.arms],
        "settings": dict(settings),
        "server": [[server.spec, server.version_text] for server in roots.values()],
        "programs": [identity(server) for server in roots.values()],
        "extensions": [server.extensions for server in roots.values()],
        "pinned": core is not None,
        "cores": len(allowed_cores() or ()),
        "limits": limits,
        "packages": packages(),
        "kernel": os.uname().release,
    }


def _earlier(design: Design, mark: str) -> dict[Path, Info]:
    """The records of this host with this fingerprint, oldest first, that a run goes on from."""
    return {
        path: info
        for path, info in infos_below(records_dir(), design.study)
        if info.get("fingerprint") == mark and is_of_this_host(info) and design.continues(info)
    }


def _last_block(infos: Iterable[Info]) -> int:
    """The last block of complete records; the next run begins after it."""
    done = (e["block"] for i in infos if i["status"] == "complete" for e in i["timeline"])
    return max(done, default=0)


def _whole(design: Design, mark: str, replies: Replies | None) -> Record | None:
    """The record of a run that was ended after its last block and before it wrote its page."""
    whole = None if design.fresh else unread(design.study, mark, design.blocks)
    if whole is None:
        return None
    notice(f"Continuing {whole}: all of its blocks are done.")
    if replies is None:
        mark_read(whole)
    return _reported(read_record(whole), replies)


def _intention(setup: Setup, path: Path) -> str:
    """What a run is going to do, and for how long, by the last one like it on this machine."""
    seen = [path.parent / name for name in setup["seen"] if (path.parent / name).is_dir()]
    block_s = read_record(seen[-1]).block_s if seen else None
    took = f", {rough_duration(setup['blocks'] * block_s)} as in {seen[-1].name}" if block_s else ""
    able = sum(arm["not_run"] is None for arm in setup["arms"])
    return (
        f"Blocks to measure: {setup['blocks']}; arms that start anew and take turns in each: {able}"
        f"{took}. Each block is kept at {path}; interrupted, the next run goes on from there."
    )


def _tell_of_changes(design: Design, setup: Setup, room: Room | None) -> None:
    """Say what changed in the notebook since the record that this run would else have gone on with.

    It has these parameters.  Nothing is said again once a record was made of what is there now.
    """
    size = {name: v for name, v in setup["parameters"].items() if name != "blocks"}
    found = [
        (path, info)
        for path, info in infos_below(records_dir(), design.study)
        if is_of_this_host(info) and size.items() <= info["parameters"].items()
    ]
    if any(info.get("fingerprint") == setup["fingerprint"] for _, info in found):
        return
    for path, info in [each for each in found if design.continues(each[1])][-1:]:
        if changed := what_changed(info, setup, room.headings if room else {}):
            notice(printable(f"Not continuing {path}: since then {changed} changed."))


def _alike_when_prepared(
    same: Mapping[str, Any], code: Reached, room: Room | None
) -> dict[str, Any]:
    """What of ``same`` runs that share prepared states share: neither other arms nor repeats."""
    repeats = room.about.get("repeats", {}) if room else {}
    parameters = {name: value for name, value in same["parameters"].items() if name not in repeats}
    return {**same, "arms": [], "parameters": parameters, "code": code.digests}


def _can_pin(servers: Iterable[Server]) -> bool:
    return any(server.capabilities.has("processes") for server in servers)


def _carried_out(
    run: Run, blocks: Sequence[int], findings: Sequence[Finding], *, to_be_read: bool
) -> Record:
    writer = run.writer
    try:
        run.carry_out(blocks, findings)
        return writer.finish(to_be_read=to_be_read)
    except BaseException as error:
        if isinstance(error, StudyError) and not writer.finished_blocks:
            writer.discard()
        else:
            writer.interrupt(type(error).__name__)
        raise
    finally:
        writer.close()


def _reported(record: Record, replies: Replies | None) -> Record:
    """Tell the program that runs the notebook, if one does, which record it rests on."""
    if replies is not None:
        replies.tell_record(record.path)
    return record
