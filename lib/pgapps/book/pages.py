"""Pages made of executed notebooks: the answer first, and what only a run needs left out.

A notebook answers at its end, because it measures first; a reader wants the answer first.  Tags on
its cells say what goes where.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from docutils import nodes

from pgservers import paths
from pgservers.shown import markdown
from pgstudies.analysis.agreement import by_several
from pgstudies.charts.style import MIME
from pgstudies.records.format import INFO
from pgstudies.records.reading import read_info, where_of
from pgstudies.records.verdicts import reference_verdicts

from ..scorecard.checks import doubtful_machines, machine_of, read_checks
from .citing import record_of, with_more_downloads, write_beside

if TYPE_CHECKING:
    from sphinx.application import Sphinx

    from ..execution.executed import Document


TOP = ("answer", "finding")  # tags of the cells below a page's title
TABLE = "<!-- table -->"  # what divides an answer: its findings stand before its table

FOLDED = {
    "parameters": "remove-cell",  # a table of them, with what they mean, follows
    "injected-parameters": "remove-cell",
    "fold": "hide-output",
}
"""Tags of cells that only auditors of a run read, and MyST-NB's tag for each."""

TERMS = ("arm", "block", "turn", "A/A", "gate", "record", "margin", "joint sign flips")
"""Words of the glossary that a page links where it first uses them."""

CODE, DETAILS = "Show the code of this section", "Show the details"
"""Labels of the bars that unfold a section's hidden code, and a folded output."""

FOLD = '<details class="rest">'  # where the rest of a section begins; ``close_folds`` ends it
LONG = 20  # lines of code; more are folded away
MOST_WORDS = 2  # paragraphs that are open at the beginning of a section
LARGE = 200_000  # characters in base64; longer files are written beside a page, not into it

HEADING = re.compile(r"^## ", re.MULTILINE)
_NO_PROSE = re.compile(r"(`[^`]*`|\[[^\]]*\]\([^)]*\)|<[^>]*>|\{[^}]*\}`[^`]*`)")  # code and links
_INSIDE = re.compile(
    r'(download="([\w.-]+)" href=")data:application/octet-stream;base64,([A-Za-z0-9+/=]+)'
)


def page_of(document: Document) -> Document:
    """An executed notebook as its page shows it."""
    together = _with_code_together([_folded(cell) for cell in document["cells"]])
    cells = _linked([part for cell in together for part in _one_output_each(cell)])
    answers = [_divided(cell) for cell in cells if "answer" in _tags(cell)]
    top = [part for parts in answers for part in parts[:1]]
    top += [cell for cell in cells if "finding" in _tags(cell)]
    top += [part for parts in answers for part in parts[1:]]
    return document | {"cells": [*cells[:1], *top, *_with_rests_folded(cells[1:])]}


def _divided(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """The cell, in two where the table of its answer begins, if it has sentences before it."""
    shown = [output.get("data", {}).get("text/html", "") for output in cell.get("outputs", [])]
    html = "".join(map("".join, shown))
    sentences, _, rest = html.partition(TABLE)
    if not (sentences.strip() and rest):
        return [cell]
    first = cell["outputs"][0]
    return [
        cell
        | {"id": f"{cell.get('id', '')[:50]}-{number}"}
        | {"outputs": [first | {"data": {"text/html": part}}]}
        for number, part in enumerate((sentences, rest))
    ]


def _folded(cell: dict[str, Any]) -> dict[str, Any]:
    tags = _tags(cell)
    more = [FOLDED[tag] for tag in tags if tag in FOLDED]
    if cell["cell_type"] == "code" and _source(cell).count("\n") >= LONG:
        more.append("hide-input")
    if _is_top(cell):
        more.append("remove-input")
        tags = [tag for tag in tags if tag != "hide-input"]
    return cell | {"metadata": cell["metadata"] | {"tags": [*tags, *more]}} if more else cell


def _with_code_together(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells, with all hidden code of a section in one folded cell at its end."""
    done: list[dict[str, Any]] = []
    hidden: list[str] = []
    for cell in cells:
        if _is_heading(cell):
            done += _code_of(hidden)
            hidden = []
        tags = _tags(cell)
        if cell["cell_type"] == "code" and {"hide-input", *TOP} & set(tags):
            hidden.append(_source(cell).strip())
            tags = [tag for tag in tags if tag != "hide-input"] + ["remove-input"]
            prompt = {"mystnb": {"code_prompt_show": DETAILS}} if "hide-output" in tags else {}
            cell = cell | {"metadata": cell["metadata"] | {"tags": tags} | prompt}  # noqa: PLW2901
        done.append(cell)
    return done + _code_of(hidden)


def _code_of(sources: list[str]) -> list[dict[str, Any]]:
    """A folded cell with these sources, in a list; an empty list without sources."""
    if not sources:
        return []
    about = {"tags": ["hide-input"], "mystnb": {"code_prompt_show": CODE}}
    return [_made("code", "\n\n".join(sources), about) | {"outputs": [], "execution_count": None}]


def _one_output_each(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """The cell, divided after each chart or table but the last if its code is hidden."""
    if not _kinds_of_output(cell) or "remove-input" not in _tags(cell) or _is_top(cell):
        return [cell]
    parts: list[list[Any]] = [[]]
    for output in cell["outputs"]:
        if parts[-1] and _kinds_of_output(cell | {"outputs": parts[-1]}):
            parts.append([])
        parts[-1].append(output)
    return [
        cell | {"id": f"{cell.get('id', '')[:50]}-{number}", "outputs": outputs}
        for number, outputs in enumerate(parts)
    ]


def _with_rests_folded(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells with the beginning of each section open, and the rest of it folded.

    Cells of the page's top are left out.  Open are a section's text and its first chart or table,
    unless code or a heading comes before it.  Of several paragraphs only the first is open, except
    in the first section, which states the claims; where the answer was taken from the section, only
    text is open.
    """
    starts = [n for n, cell in enumerate(cells) if _is_heading(cell)]
    done = [cell for cell in cells[: starts[0] if starts else None] if not _is_top(cell)]
    for start, end in pairwise([*starts, len(cells)]):
        words, more = _split(cells[start]) if start != starts[0] else (cells[start], [])
        body = cells[start + 1 : end]
        section = [words, *more, *(cell for cell in body if not _is_top(cell))]
        only_text = bool(more) or any("answer" in _tags(cell) for cell in body)
        open_ = 1
        while not only_text and open_ < len(section) and not _kinds_of_output(section[open_ - 1]):
            following = section[open_]
            begins_part = following["cell_type"] == "markdown" and _source(following)[:4] == "### "
            if begins_part or (_is_code(following) and not _kinds_of_output(following)):
                break
            open_ += 1
        inside = _named(section[open_:])
        fold = [_text(f"{FOLD}<summary>{inside}</summary>")] if inside else []
        done += [*section[:open_], *fold, *section[open_:]]
    return done


def _is_top(cell: dict[str, Any]) -> bool:
    return bool(set(TOP) & set(_tags(cell)))


def _is_heading(cell: dict[str, Any]) -> bool:
    return cell["cell_type"] == "markdown" and bool(HEADING.search(_source(cell)))


def _split(cell: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The beginning of a section's words, and the rest of them as a cell, if it is long."""
    heading, *blocks = _source(cell).split("\n\n")
    part = next((n for n, block in enumerate(blocks) if block.startswith("### ")), len(blocks))
    is_listed = any(re.match(r"[\s|:`-]|\d+\.", block) for block in blocks)
    most = part if is_listed else min(MOST_WORDS, part)
    if len(blocks) <= most:
        return cell, []
    first = "\n\n".join([heading, *blocks[:most]])
    return cell | {"source": first}, [_text("\n\n".join(blocks[most:]))]


def _is_code(cell: dict[str, Any]) -> bool:
    """Whether the page shows the cell's code, or a bar that unfolds it."""
    return cell["cell_type"] == "code" and not {"remove-input", "remove-cell"} & set(_tags(cell))


def _kinds_of_output(cell: dict[str, Any]) -> list[str]:
    """The kind, "chart" or "table", of each output of a cell that is one and is shown."""
    if {"hide-output", "remove-cell"} & set(_tags(cell)):
        return []
    data = [output.get("data", {}) for output in cell.get("outputs", [])]
    return [
        "chart" if MIME in output else "table"
        for output in data
        if MIME in output or "<table" in "".join(output.get("text/html", ""))
    ]


def _named(cells: list[dict[str, Any]]) -> str:
    """The contents of these cells in words; empty if there is too little to fold."""
    kinds = [what for cell in cells for what in _kinds_of_output(cell)]
    words = sum(cell["cell_type"] == "markdown" for cell in cells)
    code = sum(map(_is_code, cells))
    if not kinds and words + code < 2:
        return ""
    counts = [
        (kinds.count("chart"), "chart", "charts"),
        (kinds.count("table"), "table", "tables"),
        (code, "piece of code", "pieces of code"),
    ]
    named = [f"{count} {one if count == 1 else more}" for count, one, more in counts if count]
    return f"More: {', '.join(named) or 'words'}"


def _text(text: str) -> dict[str, Any]:
    return _made("markdown", f"{text}\n", {})


def _made(kind: str, source: str, metadata: dict[str, Any]) -> dict[str, Any]:
    mark = f"{kind}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    return {"cell_type": kind, "id": mark, "source": source, "metadata": metadata}


def _linked(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells, with the first use of each of ``TERMS`` linked to the glossary."""
    left = {term: re.compile(rf"(?<![\w/*-]){term}s?(?![\w/*-])") for term in TERMS}
    linked = []
    for cell in cells:
        if cell["cell_type"] == "markdown":
            lines = [
                line if line.startswith(("#", "|", "```", "    ")) else _link(line, left)
                for line in _source(cell).split("\n")
            ]
            cell = cell | {"source": "\n".join(lines)}  # noqa: PLW2901
        linked.append(cell)
    return linked


def _link(line: str, left: dict[str, re.Pattern[str]]) -> str:
    """The line with terms linked; linked terms are removed from ``left``."""
    for term, pattern in list(left.items()):
        parts = _NO_PROSE.split(line)  # every second one is code or a link
        for place in range(0, len(parts), 2):
            link = rf"{{term}}`\g<0> <{term}>`"
            parts[place], count = pattern.subn(link, parts[place], count=1)
            if count:
                line, _ = "".join(parts), left.pop(term)
                break
    return line


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def _tags(cell: dict[str, Any]) -> list[str]:
    return list(cell["metadata"].get("tags", []))


def close_folds(_: Sphinx, page: nodes.document) -> None:
    """End each fold with the section in which it begins (a handler of Sphinx's doctree-read).

    A cell cannot end it, as a section of a lower level may lie between.
    """
    for opening in list(page.findall(nodes.raw)):
        if opening.astext().startswith(FOLD) and opening.parent is not None:
            opening.parent += nodes.raw("", "</details>", format="html")


def answer_first(app: Sphinx, page: str, source: list[str]) -> None:
    """Turn the source of a study's page into that page (a handler of Sphinx's source-read)."""
    if page.startswith("book/studies/"):
        document = with_whose_charts(page_of(marked(json.loads(source[0]))))
        moved = _large_files_beside(document, Path(app.outdir))
        source[0] = json.dumps(moved, ensure_ascii=False)


def _record_here(document: Document) -> Path | None:
    """The record that an executed notebook rests on; None if it is not on this machine."""
    record = record_of(document)
    return record if record and (record / INFO).exists() else None


def marked(document: Document) -> Document:
    """The notebook, with a warning below its title if a check failed on its machine."""
    record, checks = _record_here(document), read_checks()
    failed = checks.filter(pl.col("passed").not_())
    if record is None or failed.is_empty() or record.parent.name in checks["study"]:
        return document
    if machine_of(read_info(record)["host"]) not in doubtful_machines(checks):
        return document
    names = ", ".join(failed["check"].unique(maintain_order=True))
    page = f"{failed['study'][0]}.html#the-checks"
    warning = (
        f'⚠ This machine failed a <a href="{escape(page)}">check of the measuring</a> '
        f"({markdown(names)}): times of its run may be off, counts and reference records are not."
    )
    first, *rest = document["cells"]
    text = f"{''.join(first['source']).rstrip()}\n\n{warning}\n"
    return document | {"cells": [first | {"source": text}, *rest]}


def with_whose_charts(document: Document) -> Document:
    """The page, with a sentence below its answer if the rest of it is from another run."""
    record, cells = _record_here(document), document["cells"]
    reference = reference_verdicts(record.parent.name) if record else None
    answer = next((n for n, cell in enumerate(cells) if "answer" in _tags(cell)), None)
    if record is None or reference is None or answer is None:
        return document
    where = f"this machine's run ({markdown(where_of(read_info(record)))})"
    if record.is_relative_to(paths.REFERENCE_RECORDS):
        if record.name == reference.record.name and not by_several(reference.verdicts):
            return document
        where = "this page's record alone"
    text = (
        f"*Now*, in the chart and the table of its claims and in what they mean today, is of the "
        f"reference records. All other charts and tables of this page are of {where}."
    )
    return document | {"cells": [*cells[: answer + 1], _text(text), *cells[answer + 1 :]]}


def _large_files_beside(document: Document, outdir: Path) -> Document:
    """The page with links to its large files, which are written below ``outdir``."""

    def moved(found: re.Match[str]) -> str:
        head, name, text = found.groups()
        if len(text) < LARGE:
            return found[0]
        return f"{head}{write_beside(outdir, name, base64.b64decode(text))}"

    record = _record_here(document)
    for cell in document["cells"]:
        for output in cell.get("outputs", []):
            html = output.get("data", {}).get("text/html")
            if html is not None:
                text = "".join(html)
                if record is not None:
                    text = with_more_downloads(text, record, outdir)
                output["data"]["text/html"] = _INSIDE.sub(moved, text)
    return document
