"""Measuring a study: arms × blocks in random order, each trial from restored state."""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BlockMeasured, BlocksCompared, SpaceError, StudyError
from ..host import gate
from ..host.exclusive import only_one_here
from ..host.facts import git_revision, host_facts, packages
from ..paths import run_dir
from ..records.reading import Record, find_record, read_record
from ..records.writing import RecordWriter, fingerprint
from ..servers import serve
from ..servers.facts import identity, server_facts
from ..servers.leftovers import sweep
from ._arms import baseline_of, with_repeat
from ._run import Run
from .comparison import COMPARED, asked, blocks_compared, both_sides

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..host import Finding
    from ..servers import Server
    from ._arms import Arm
    from ._run import Procedure
    from .comparison import Comparison


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
    ``$PGSTUDIES_BLOCK`` is the number of the only block to measure, for a sweep over several hosts.
    In ``pgstudies compare`` every arm runs on both servers, and BlocksCompared is raised when all
    blocks are there.  While another measurement runs on this host, it is waited for.

    Raises ServerError, SpaceError, or StudyError when the baseline cannot run; an arm that cannot
    run is left out, with its reason in the record.  Raises BlockMeasured after the only block.
    """
    replay = os.environ.get("PGSTUDIES_REPLAY")
    if replay:
        return _announce(read_record(find_record(study, replay)))
    comparison = asked()
    pin = pin and (comparison is None or comparison.pin)
    core = max(os.sched_getaffinity(0)) if pin and hasattr(os, "sched_getaffinity") else None
    only = int(os.environ.get("PGSTUDIES_BLOCK") or 0)
    with ExitStack() as stack:
        stack.enter_context(only_one_here(f"the study {study}"))
        if run_dir().is_dir():
            for path in sweep(run_dir()):
                print(f"Removed what a run that died had left: {path}.", file=sys.stderr)
        findings = gate(run_dir())
        for finding in findings:
            print(f"Before measuring: {finding.sentence}", file=sys.stderr)
        own = serve(parameters["server"] or None, settings=settings, cpu=core)
        stack.enter_context(own)
        if comparison is not None:
            study, arms = f"{COMPARED}{study}", both_sides(comparison, arms)
        servers, arms = _servers_of(arms, own, settings, core, stack)
        if comparison is None:
            arms = with_repeat(arms)
        same: dict[str, Any] = {
            "study": study,
            "parameters": {k: v for k, v in parameters.items() if k not in {"blocks", "server"}},
            "arms": [_describe(arm, baseline_of(arms)) for arm in arms],
            "settings": dict(settings),
            "server": [[server.spec, server.version_text] for server in servers.values()],
            "packages": packages(),
            "kernel": os.uname().release,
            "code": [_source(prepare), _source(procedure)],
        }
        if comparison is not None:
            same["programs"] = [identity(server) for server in servers.values()]
            same["pinned"] = core is not None
        mark = fingerprint(same)
        blocks = [only] if only else range(1, parameters["blocks"] + 1)
        if comparison is not None:
            Path(comparison.told).write_text(mark, encoding="utf-8")
            blocks = blocks[blocks_compared(study, mark, comparison.since) :]
            if not blocks:
                raise BlocksCompared(f"All {parameters['blocks']} blocks are measured.")
        fresh = os.environ.get("PGSTUDIES_FRESH") or (comparison and comparison.since)
        writer = None if fresh else RecordWriter.resume(study, mark)
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
                "server": server_facts(own),
                "servers": {s: server_facts(server) for s, server in servers.items() if s},
                "host": host_facts(run_dir()),
                "packages": packages(),
                "git": git_revision(),
            }
            writer = RecordWriter.create(study, info | _of_comparison(comparison))
        else:
            print(
                f"Continuing {writer.path}: {len(writer.finished_blocks)} of its blocks are done.",
                file=sys.stderr,
            )
        seconds = comparison.seconds if comparison else 0.0
        run = Run(servers, writer, arms, prepare, procedure, core=core, seconds=seconds)
        record = _carried_out(run, blocks, parameters["seed"], findings)
    if comparison is not None:
        raise BlocksCompared(f"{record.blocks} blocks are measured.")
    if only:
        raise BlockMeasured(f"Block {only} is measured, the only one asked for.")
    return record


def _carried_out(run: Run, blocks: Sequence[int], seed: int, findings: Sequence[Finding]) -> Record:
    writer = run.writer
    try:
        run.carry_out(blocks, seed, findings)
        return _announce(writer.finish())
    except BaseException as error:
        if isinstance(error, StudyError) and not writer.finished_blocks:
            writer.discard()
        else:
            writer.interrupt(type(error).__name__)
        raise
    finally:
        writer.close()


def _of_comparison(comparison: Comparison | None) -> dict[str, Any]:
    """What record.json of a comparison has beside that of a study; ``Run`` adds facts and plans."""
    if comparison is None:
        return {}
    return {"comparison": asdict(comparison) | {"facts": {}}, "plans": {}}


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
            if arm.plays:
                raise  # the one thing to compare with
            reasons[spec] = str(error)
        else:
            stack.enter_context(server)
            servers[spec] = server
    return servers, [
        replace(arm, not_run=reasons[arm.server]) if arm.server in reasons else arm for arm in arms
    ]


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
    } | ({"plays": arm.plays, "side": arm.side} if arm.plays else {})


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
