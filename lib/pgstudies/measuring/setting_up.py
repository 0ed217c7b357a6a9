"""The facts in a record before its first block: what is measured, where, by which code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from pgservers.host.facts import allowed_cores, git_revision, host_facts, packages
from pgservers.paths import records_dir, run_dir
from pgservers.servers.facts import identity, server_facts
from pgservers.terminal import notice, printable, rough_duration

from ..analysis.claims import claim_marks, rules
from ..records.changes import what_changed
from ..records.code import FREE
from ..records.reading import alike_before, infos_below, is_of_this_host, read_record
from .requirements import unmet_requirements

if TYPE_CHECKING:
    from pathlib import Path

    from pgservers.servers.serve import Server

    from ..records.info import ServerFacts, Setup
    from ..rooms import Room
    from .design import Design
    from .session import Session


def conditions(session: Session) -> dict[str, Any]:
    """Everything except code that must be equal for a run to continue another."""
    what, design, servers = session.what, session.design, session.roots.values()
    free = FREE | set(session.room.about.get("free", ()) if session.room else ())
    return {
        "study": design.study,
        "parameters": {k: v for k, v in what.parameters.items() if k not in free},
        "arms": [[design.describe(arm), arm.own_programs] for arm in design.arms],
        "settings": dict(session.settings),
        "server": [[server.spec, server.version_text] for server in servers],
        "programs": [identity(server) for server in servers],
        "extensions": [server.extensions for server in servers],
        "pinned": session.core is not None,
        "cores": len(allowed_cores() or ()),
        "limits": what.limits,
        "packages": packages(),
        "kernel": os.uname().release,
    }


def setup_of(session: Session, blocks: int) -> Setup:
    """The facts that are known before the first block."""
    what, room, own = session.what, session.room, session.roots[None]
    setup: Setup = {
        "profile": session.options.profile,
        "fingerprint": session.mark,
        "code": session.code,
        "parameters": dict(what.parameters) | {"server": own.spec},
        "arms": [session.design.describe(arm) for arm in session.design.arms],
        "settings": dict(session.settings),
        "not_compared": list(what.not_compared),
        "blocks": blocks,
        "seed": what.parameters["seed"],
        "sessions": [],
        "gate": [],
        "limits": what.limits,
        "pinned_to_core": session.core
        if any(s.capabilities.has("processes") for s in session.roots.values())
        else None,
        "server": facts_of(own),
        "unmet": unmet_requirements(room.name, own, session.settings) if room else {},
        "claims": claim_marks(room.name) if room else {},
        "rules": rules(room.name) if room else [],
        "study_mark": room.mark if room else None,
        "servers": {s: facts_of(server) for s, server in session.roots.items() if s},
        "host": host_facts(run_dir()),
        "packages": packages(),
        "git": git_revision(),
    }
    if not session.design.fresh:
        tell_of_changes(session.design, setup, room)
    setup["seen"] = alike_before(session.design.study, setup)
    return setup


def intention(setup: Setup, path: Path) -> str:
    """A sentence on what the run will do, and how long the last run like it took here."""
    seen = [path.parent / name for name in setup["seen"] if (path.parent / name).is_dir()]
    block_s = read_record(seen[-1]).block_s if seen else None
    took = f", {rough_duration(setup['blocks'] * block_s)} as in {seen[-1].name}" if block_s else ""
    able = sum(arm["not_run"] is None for arm in setup["arms"])
    return (
        f"Blocks to measure: {setup['blocks']}; arms that start anew and take turns in each: {able}"
        f"{took}. Each block is kept at {path}; interrupted, the next run goes on from there."
    )


def tell_of_changes(design: Design, setup: Setup, room: Room | None) -> None:
    """Say what changed in the notebook since the record that this run would have continued.

    That record has the same parameters.  Once a record of today's code exists, nothing is said.
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


def facts_of(server: Server) -> ServerFacts:
    """What a record says about a server."""
    return cast("ServerFacts", server_facts(server))
