"""What a referee would miss in a study: a sentence for each."""

from __future__ import annotations

import ast
import itertools
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers.errors import StudyError
from pgservers.paths import records_dir
from pgstudies.analysis.claims import claims, claims_changed, origins
from pgstudies.parameters import declared
from pgstudies.records.reading import infos_below, list_records, readable_records
from pgstudies.rooms import TEMPLATE, find_room

from ..counting.units import units
from ..execution.plan import plan, profiles_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgstudies.rooms import Room


_CLAIMED = r"^## What was claimed[^\n]*\n(.*?)(?=^## |\Z)"

QUIET = {
    "autovacuum": "it works on the tables while arms are timed",
    "jit": "some arms may be compiled and others not",
    "max_parallel_workers_per_gather": "other processes take part, and are not pinned",
}
"""Settings that a study sets, unless it is about them, and what happens if it does not."""


def unsaid(room: Room, cells: list[dict[str, Any]]) -> Iterator[str]:
    """What the page and its files do not say: source, link, claims and sizes."""
    template = find_room(TEMPLATE)
    published, theirs = (each.read("published.toml") for each in (room, template))
    same = [k for k in ("title", "author", "url", "note") if published.get(k) == theirs[k]]
    if published and same:
        named = ", ".join(same)
        yield f"published.toml still has the {named} of the template: say whose numbers these are."
    if not published:
        yield "There is no published.toml: without published numbers nothing is set beside yours."
    section = re.search(_CLAIMED, _prose_of(cells), re.DOTALL | re.MULTILINE)
    has_link = section is not None and "http" in section[1]
    if not has_link and not (published.get("note") and "url" not in published):
        yield "'What was claimed' has no link to the post: readers want to check the quotation."
    known = {entry["text"] for entry in template.read("claims.toml")["claim"]}
    for entry in room.read("claims.toml").get("claim", []):
        if entry.get("text") in known:
            yield f"The claim {entry['id']!r} is the template's."
    if room.about.get("post") == template.about["post"]:
        yield "sizes.toml still has the template's post: name the author and the year."
    if "standard" not in room.about and "published" not in room.about:
        yield "sizes.toml has no larger size: [published] is the one with the post's own numbers."


def unjudged(study: str, cells: list[dict[str, Any]]) -> Iterator[str]:
    """What keeps claims from being judged: places without a value, the anchor, later changes."""
    yield from _misplaced(study, cells)
    anchor = origins()[study].anchor
    heads = re.findall(r"^#+ (.*)$", _prose_of(cells), re.MULTILINE)
    if anchor not in {re.sub(r"[^a-z0-9]+", "-", head.lower()).strip("-") for head in heads}:
        yield f"claims.toml has the anchor {anchor!r}, which is no heading of the notebook."
    info = next((i for _, i in reversed([*infos_below(records_dir(), study)])), None)
    changed = claims_changed(study, info.get("claims")) if info else None
    if info and changed:
        names = ", ".join(arm["name"] for arm in info["arms"] if not arm["copy_of"])
        yield (
            f"Changed since the newest run, so not judged by it: {', '.join(changed)}. Run the "
            f"study again; that run had the arms {names}."
        )


def refused(room: Room, cells: list[dict[str, Any]]) -> Iterator[str]:
    """What `run` and `book` would refuse: sizes, code that cannot be compiled, headings."""
    for profile in profiles_of(room):
        try:
            plan(room.name, profile=profile)
        except StudyError as error:
            yield f"{profile}: {error}"
    for module in room.modules:
        try:
            compile(module.read_text(encoding="utf-8"), module.name, "exec")
        except (SyntaxError, ValueError) as error:
            yield f"{module.name} is no Python: {error}."
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not source.lstrip().startswith(("%", "!")):
            try:
                ast.parse(source)
            except (SyntaxError, ValueError) as error:
                yield f"The cell that begins with {source[:40]!r} is no Python: {error}."
    yield from _asked_for(room, cells)
    levels = [len(marks) for marks in re.findall(r"^(#+) ", _prose_of(cells), re.MULTILINE)]
    if levels[:1] != [1]:
        yield "It does not begin with a title, a heading of one #: the book needs one."
    if any(lower > upper + 1 for upper, lower in itertools.pairwise(levels)):
        yield "A heading leaves out a level, which the book refuses: let ### follow ##."


def _asked_for(room: Room, cells: list[dict[str, Any]]) -> Iterator[str]:
    """Arguments of ``arms`` in arms.py that are neither parameters nor given by the notebook."""
    known = {parameter.name for parameter in declared(room.notebook)}
    known |= {k.arg or "**" for call in _calls(cells, "study.arms") for k in call.keywords}
    file = room.directory / "arms.py"
    if "**" in known or not file.exists():
        return
    with suppress(SyntaxError, ValueError):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == "arms":
                given = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                plain = [*node.args.posonlyargs, *node.args.args]
                asked = plain[: len(plain) - len(node.args.defaults)]
                asked += [argument for argument, default in given if default is None]
                for name in [a.arg for a in asked if a.arg not in known]:
                    yield f"arms.py asks for {name}, which is no parameter of the notebook."


def _calls(cells: list[dict[str, Any]], function: str) -> Iterator[ast.Call]:
    """The calls of a function, such as study.judge, in the code of a notebook."""
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and f"{function}(" in source:
            with suppress(SyntaxError, ValueError):
                calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
                yield from (call for call in calls if ast.unparse(call.func) == function)


def _misplaced(study: str, cells: list[dict[str, Any]]) -> Iterator[str]:
    """Placeholders of claims.toml for which the notebook's call of claims has no value.

    Calls with computed names are left out: they are known only when the notebook runs.
    """
    for call in _calls(cells, "study.claims"):
        given = next((k.value for k in call.keywords if k.arg == "places"), ast.Dict([], []))
        keys = given.keys if isinstance(given, ast.Dict) else [None]  # None: by **
        names = [key.value for key in keys if isinstance(key, ast.Constant)]
        if len(names) == len(keys) and all(k.arg for k in call.keywords):
            try:
                claims(study, places=dict.fromkeys(map(str, names), 1))
            except StudyError as error:
                yield str(error)


def of_units(room: Room) -> Iterator[str]:
    """Units copied from the template, and ratios of units that do not exist."""
    found = room.read("units.toml")
    names = {unit.name for unit in units(room.name)}
    theirs = {table["name"] for table in find_room(TEMPLATE).read("units.toml")["unit"]}
    if room.name != TEMPLATE and theirs & {table["name"] for table in found.get("unit", [])}:
        yield "units.toml still has the template's unit: count your own, or delete the file."
    for ratio in found.get("ratio", []):
        for _, unit, _ in [*ratio["over"], *ratio["under"]]:
            if unit not in names:
                yield f"The ratio {ratio['id']!r} of units.toml has no unit {unit!r} to count."


def unmeasured(study: str, text: str) -> Iterator[str]:
    """What neither the newest complete record of the study nor its notebook's ``text`` settles."""
    known = list_records(study).filter(status="complete")
    record = next(readable_records(known["path"].reverse()), None)
    if record is None:
        yield f"It was never run to its end: `pgstudies run {study}` does."
        return
    settings, arms = record.info.get("settings") or {}, record.arms
    for name, why in QUIET.items():
        varied = any(name in (arm.get("settings") or {}) for arm in record.info["arms"])
        if name not in settings and not varied and name not in text:
            yield f"{name} is as the server has it: {why}. Set it, or say on the page why not."
    if arms.filter(pl.col("copy_of").is_null() & pl.col("not_run").is_null()).height < 2:
        yield "Only one arm ran, so there is nothing to compare."


def _prose_of(cells: list[dict[str, Any]]) -> str:
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
