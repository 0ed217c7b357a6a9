"""A new study: everything that it needs, runnable at once on a toy measurement."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from .. import paths
from ..errors import StudyError
from ._plan import SUMMARIES, studies

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


TEMPLATE = "_template"


_CSV = "arm,pages\nfillfactor 100,1\nfillfactor 50,2\n"


_SOURCE = """
[{name}]
title = "The post's title"
author = "Its author"
date = "2026"
url = "https://example.org/post"
licence = "The figures are quoted as facts, with their source; the text is its author's."
note = "Made up, for the template's toy."

[{name}.tables.pages]
file = "{name}.csv"
sha256 = "{digest}"
description = "Pages of a table, in units of one that is full."
columns = [
  {{ name = "arm", type = "text", unit = "", meaning = "how full its pages are kept" }},
  {{ name = "pages", type = "integer", unit = "pages", meaning = "how many it has" }},
]
"""


_CLAIMS = """
# {title}

[study.{name}]
title = "{title}"
post = "Its author, 2026"
anchor = "the-post-s-claims"
places = {{}}

[[claim]]
study = "{name}"
id = "size"
name = "half-full pages: twice as many"
text = "A scan at fillfactor 50 touches twice the pages."
source = "2 pages instead of 1"
kind = "count"
direction = "more"
published_ratio = 2.0
judged_by = "buffers"
comparison = {{ step = "scan", candidate = "fillfactor 50" }}
"""


_IN_TOC = "      - file: book/studies/releases\n"


def new_study(name: str) -> list[Path]:
    """Write a study called ``name`` that runs, is judged and has a page; give the files.

    Made are its notebook and the post's numbers; added to are the sources, the claims and the table
    of contents.  Raises StudyError for a name that cannot be one, or is taken: nothing changes.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise StudyError(
            f"{name!r} cannot be a study's name: take lower-case words with _ between them, "
            f"such as btree_deduplication."
        )
    if name in (*studies(), *SUMMARIES) or (paths.PUBLISHED / f"{name}.csv").exists():
        raise StudyError(f"There is a study {name} already: take another name.")
    told = {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "digest": hashlib.sha256(_CSV.encode()).hexdigest(),
    }
    sources = paths.PUBLISHED / "sources.toml"
    claims = paths.CLAIMS.read_text(encoding="utf-8")
    toc = paths.ROOT / "_toc.yml"
    written = {
        paths.NOTEBOOKS / f"{name}.ipynb": _notebook(name),
        paths.PUBLISHED / f"{name}.csv": _CSV,
        sources: sources.read_text(encoding="utf-8") + _SOURCE.format(**told),
        paths.CLAIMS: claims + _CLAIMS.format(**told),
        toc: toc.read_text(encoding="utf-8").replace(
            _IN_TOC, f"      - file: book/studies/{name}\n{_IN_TOC}", 1
        ),
    }
    for file, text in written.items():
        file.write_text(text, encoding="utf-8")
    return list(written)


def _notebook(name: str) -> str:
    """The template under another name, with its claims and numbers from the files."""
    text = (paths.NOTEBOOKS / f"{TEMPLATE}.ipynb").read_text(encoding="utf-8")
    notebook = json.loads(text.replace(TEMPLATE, name))
    for cell in notebook["cells"]:
        if cell["id"] == "imports":
            cell["source"] = (
                "".join(cell["source"]).partition("from pgstudies.analysis")[0].rstrip()
            )
        if cell["id"] == "published":
            cell["source"] = f'claims = pg.claims("{name}")\npg.published("{name}")'
        if isinstance(cell["source"], str):
            cell["source"] = cell["source"].splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def problems(study: str) -> Iterator[str]:
    """What a study lacks, a sentence each; nothing where it is whole.

    Raises StudyError for an unknown study, and for claims, parameters or published numbers that
    cannot be read.
    """
    from ..analysis import claims as claims_of  # noqa: PLC0415  (as below: they import polars)
    from ..analysis import origins, published  # noqa: PLC0415
    from .parameters import declared  # noqa: PLC0415

    if study not in studies():
        raise StudyError(f"There is no study {study}; the studies are: {', '.join(studies())}.")
    notebook = paths.NOTEBOOKS / f"{study}.ipynb"
    text = notebook.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    parameters = {p.name: p for p in declared(notebook)}
    for name in ("server", "blocks", "seed"):
        if name not in parameters:
            yield f"The parameter {name}, which every study has, is missing."
    for parameter in parameters.values():
        if not parameter.help:
            yield f"The parameter {parameter.name} has no comment that says what it is."
        if parameter.type.removeprefix("list[")[:3] in ("int", "flo") and not parameter.limits:
            yield f"The parameter {parameter.name} has no limits: write them in brackets, as [1..]."
    toc = (paths.ROOT / "_toc.yml").read_text(encoding="utf-8")
    if f"book/studies/{study}\n" not in toc:
        yield f"_toc.yml does not have it: add `- file: book/studies/{study}`."
    if "pg.judge(" in text:
        if study not in origins():
            yield "It judges claims, and data/claims.toml has no [study] for it."
        else:
            claims_of(study, places=dict(origins()[study].places))
    if f'pg.published("{study}"' in text or f'pg.published(\\"{study}\\"' in text:
        published(study)
    yield from _of_cells(cells)


def _of_cells(cells: list[dict[str, Any]]) -> Iterator[str]:
    checked = [c for c in cells if "nbval-check-output" in _tags(c)]
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
    for number, cell in enumerate(cells, start=1):
        lines = "".join(cell["source"]).splitlines() if cell["cell_type"] == "markdown" else []
        if any(line.lstrip().startswith("%") for line in lines):
            yield (
                f"A line of cell {number} begins with %, which makes it a comment that the book "
                "leaves out: break the line elsewhere."
            )
        is_left = cell["cell_type"] == "code" and "keep_output" not in _tags(cell)
        if is_left and (cell["outputs"] or cell["execution_count"] is not None):
            yield f"Cell {number} has outputs that belong to a run: `make strip` takes them out."


def _tags(cell: dict[str, Any]) -> list[str]:
    return list(cell["metadata"].get("tags", []))
