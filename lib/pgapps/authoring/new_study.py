"""Create a study that runs at once on a toy measurement, and check what a study lacks."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers import paths
from pgservers.errors import StudyError
from pgservers.files import cannot_write, copy_tree, write_file
from pgstudies.analysis.agreement import NO_SUCH, NOT_TESTED
from pgstudies.analysis.claims import claims, origins, rules
from pgstudies.analysis.intervals import MINIMUM_BLOCKS
from pgstudies.analysis.published import published
from pgstudies.parameters import declared
from pgstudies.records import verdicts
from pgstudies.rooms import TEMPLATE, find_room, rooms

from .referee import of_units, refused, unjudged, unmeasured, unsaid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pgstudies.parameters import Parameter


LONGEST = 40
"""The longest name of a study, as it is part of file names and database names."""


def new_study(name: str) -> list[Path]:
    """Write a study called ``name`` that runs, is judged and has a page; returns its files.

    It is a copy of the room ``_template``, in the user's own directory of studies if there is one.
    Raises StudyError, and writes nothing, for an invalid name, one that is taken, and a directory
    that cannot be written to.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or len(name) > LONGEST:
        raise StudyError(
            f"{name[: LONGEST + 1]!r} cannot be a study's name: use lower-case words with _ "
            f"between them, at most {LONGEST} letters, such as btree_deduplication."
        )
    if paths.INSTALLED and paths.OWN is None:
        raise StudyError("Set PGSTUDIES_NOTEBOOKS to the directory of your own studies.")
    home = paths.NOTEBOOKS[0]
    if name in rooms() or (home / name).exists():
        raise StudyError(f"There is a study {name} already: use another name.")
    title = name.replace("_", " ").capitalize()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=".new-") as aside:
            room = Path(aside) / name
            copy_tree(find_room(TEMPLATE).directory, room, "__pycache__")
            (room / f"{TEMPLATE}.ipynb").rename(room / f"{name}.ipynb")
            for file in room.iterdir():
                text = file.read_text(encoding="utf-8")
                text = text.replace(TEMPLATE, name).replace("Title of the study", title)
                file.write_text(text, encoding="utf-8")
            made = room.rename(home / name)
    except OSError as error:
        raise cannot_write(error, home, "PGSTUDIES_NOTEBOOKS") from error
    return sorted(made.iterdir())


def _of_parameters(parameters: Mapping[str, Parameter]) -> Iterator[str]:
    """What the parameters lack."""
    for name in ("server", "blocks", "seed"):
        if name not in parameters:
            yield f"The parameter {name}, which every study has, is missing."
    for parameter in parameters.values():
        if not parameter.help:
            yield f"The parameter {parameter.name} has no comment that says what it is."
        if parameter.type.removeprefix("list[")[:3] in ("int", "flo") and not parameter.limits:
            yield f"The parameter {parameter.name} has no limits: write them in brackets, as [1..]."


def problems(study: str) -> Iterator[str]:
    """What a study lacks, a sentence each; raises StudyError for an unknown or unreadable study."""
    room = find_room(study)
    text = room.notebook.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    parameters = {p.name: p for p in declared(room.notebook)}
    yield from _of_parameters(parameters)
    yield from refused(room, cells)
    if "study.judge(" in text:
        if study not in origins():
            yield f"It judges claims, and {room.directory} has no claims.toml."
        else:
            claims(study, places=origins()[study].places)
            for claim in _never_matched(study):
                yield f"No run has a row that the claim {claim!r} compares: look at its comparison."
            yield from unjudged(study, cells)
    for name, table in room.read("published.toml").get("tables", {}).items():
        published(study, name)
        digest = hashlib.sha256((room.directory / table["file"]).read_bytes()).hexdigest()
        if digest != table.get("sha256"):
            yield (
                f"{table['file']} is not the file whose sha256 published.toml has. If its numbers "
                f'are right, write sha256 = "{digest}" there.'
            )
    yield from of_units(room)
    yield from _unwritten(cells)
    yield from _of_cells(cells)
    if room.kind == "study":
        blocks = parameters.get("blocks")
        if blocks is not None and blocks.default < MINIMUM_BLOCKS:
            fewer = f"fewer than {MINIMUM_BLOCKS} give no interval"
            yield f"By default it has {blocks.default} blocks, and {fewer}."
        yield from unsaid(room, cells)
        yield from unmeasured(study, text)


def keep_checked(study: str) -> Path:
    """Store in the notebook what its checked cells printed in the last run; returns the notebook.

    Raises StudyError where the study has not been run.
    """
    notebook, page = find_room(study).notebook, paths.STUDIES / f"{study}.ipynb"
    if not page.exists():
        raise StudyError(f"{study} has no page yet: `pgstudies run {study}` makes it.")
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    printed = {cell["id"]: cell["outputs"] for cell in cells if _CHECKED in _tags(cell)}
    document = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in document["cells"]:
        if cell["id"] in printed:
            cell["outputs"] = printed[cell["id"]]
    text = json.dumps(document, indent=1, ensure_ascii=False)
    write_file(notebook, f"{text}\n")
    return notebook


_CHECKED = "nbval-check-output"


def _never_matched(study: str) -> list[str]:
    """The claims that match no row of any judged record: probably misspelled."""
    kept = sorted((paths.JUDGED / study).glob("*.json"), key=lambda f: f.stat().st_mtime)
    files = [*verdicts.verdict_files(study), *kept[-1:]]
    found = [verdicts.read_verdicts(file).select("claim", "verdict") for file in files]
    if not found:
        return []
    is_missing = (pl.col("verdict") == f"{NOT_TESTED}: {NO_SUCH}").all()
    missing = pl.concat(found).group_by("claim").agg(is_missing).filter("verdict")["claim"]
    return [rule["id"] for rule in rules(study) if rule["id"] in missing]


def _unwritten(cells: list[dict[str, Any]]) -> Iterator[str]:
    """Sentences that are still the template's, and sections without a text."""
    template = json.loads(find_room(TEMPLATE).notebook.read_text(encoding="utf-8"))["cells"]
    theirs = {line for cell in template for line in _prose(cell) if not line.startswith("#")}
    for cell in cells:
        if same := [line for line in _prose(cell) if line in theirs]:
            yield f"A sentence is still the template's: {same[0]!r}."
    for cell, after in zip(cells, [*cells[1:], {"cell_type": "markdown"}], strict=True):
        lines = _prose(cell)
        if lines and lines[-1].startswith("#") and after["cell_type"] == "markdown":
            yield f"The section {lines[-1].lstrip('# ')!r} is empty."
    if not any(line.startswith("## Limits") for cell in cells for line in _prose(cell)):
        yield "It has no section on its limits: what differs from the post, and what was not run."


def _prose(cell: dict[str, Any]) -> list[str]:
    if cell["cell_type"] != "markdown":
        return []
    return [line.strip() for line in "".join(cell["source"]).splitlines() if line.strip()]


def _of_cells(cells: list[dict[str, Any]]) -> Iterator[str]:
    checked = [c for c in cells if _CHECKED in _tags(c)]
    if not checked:
        yield (
            "No cell is tagged nbval-check-output: let one print answers that rest on counts, "
            "which a rerun is compared with."
        )
    elif not any(cell["outputs"] for cell in checked):
        yield (
            "The cell tagged nbval-check-output has no output to compare a rerun with: run it, and "
            "keep what it prints."
        )
    for cell in cells:
        source = "".join(cell["source"])
        lines = source.splitlines() if cell["cell_type"] == "markdown" else []
        if any(line.lstrip().startswith("%") for line in lines):
            yield (
                f"A line begins with %, which makes it a comment that the book leaves out, in the "
                f"cell that begins with {lines[0]!r}: break the line elsewhere."
            )
        is_left = cell["cell_type"] == "code" and "keep_output" not in _tags(cell)
        if is_left and (cell["outputs"] or cell["execution_count"] is not None):
            yield (
                f"The cell that begins with {source.partition(chr(10))[0]!r} has outputs that "
                "belong to a run: `pgstudies check STUDY --strip` takes them out."
            )


def _tags(cell: dict[str, Any]) -> list[str]:
    return list(cell["metadata"].get("tags", []))
