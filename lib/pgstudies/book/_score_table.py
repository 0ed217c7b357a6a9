"""The scorecard as HTML: tiles, table, history."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any

from IPython.display import HTML

from ..analysis import origins
from ._instrument_page import doubtful_hosts, executed, instrument_markup, read_checks
from ._scorecard import OUTCOMES, outcome_of, with_outcome
from .score_text import holding, interval_text, ratio_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl


_COLUMNS = {
    "claim": "text",
    "verdict": "text",
    "here, 95 %": "number",
    "published": "number",
    "server": "text",
}


def score_table(cards: pl.DataFrame) -> HTML:
    """The current rows of a ``scorecard``, a group for each study.

    A claim's row has the id of ``row_id``, its words link to the place on the study's page, and
    its title is what would count as holding.
    """
    body = []
    for (study,), part in cards.filter("current").group_by("study", maintain_order=True):
        body.append(_group(str(study), part))
        body += map(_row, part.iter_rows(named=True))
    head = "".join(f'<th scope="col" class="{css}">{name}</th>' for name, css in _COLUMNS.items())
    return _html(_boxed(f"<tr>{head}</tr>", body))


def history_table(cards: pl.DataFrame) -> HTML:
    """The claims of one or more studies that have several records, a column for each record."""
    tables = []
    for (study,), part in cards.group_by("study", maintain_order=True):
        records = part.drop_nulls("record").unique("record", maintain_order=True)
        if records.height < 2:
            continue
        heads = [f'<th scope="col" class="text">{escape(origins()[str(study)].title)}</th>']
        for row in records.iter_rows(named=True):
            about = f"{row['host']}, {row['server']}, {row['profile'] or '?'}"
            heads.append(
                f'<th scope="col" class="text" title="{escape(row["record"])}">'
                f"{escape(row['date'])}<br><small>{escape(about)}</small></th>"
            )
        body = [
            _side_by_side(claim, records["record"].to_list())
            for _, claim in part.group_by("claim", maintain_order=True)
        ]
        tables.append(_boxed(f"<tr>{''.join(heads)}</tr>", body))
    return _html("\n".join(tables) or "<p>There is one record of each study so far.</p>")


def row_id(row: Mapping[str, Any]) -> str:
    """The id of a claim's row in ``score_table``."""
    return re.sub(r"[^a-z0-9]+", "-", f"{row['study']} {row['claim']}".lower())


def verdict_html(verdict: str) -> str:
    """A verdict with its sign, in the class that the style sheet colours."""
    found = outcome_of(verdict)
    return f'<span class="verdict {found.css}">{found.sign} {escape(verdict)}</span>'


def _group(study: str, part: pl.DataFrame) -> str:
    origin, first = origins()[study], part.row(0, named=True)
    about = origin.post
    if first["record"] is not None:
        size = f"{first['profile']} size" if first["profile"] else "size unknown"
        about += f"; here on {first['host']}, {first['date']} UTC, {size}"
    link = f'<a href="{escape(study)}.html">{escape(origin.title)}</a>'
    return (
        f'<tr class="group"><th scope="rowgroup" class="text" colspan="{len(_COLUMNS)}">{link} '
        f"<small>{escape(about)}</small></th></tr>"
    )


def _row(row: Mapping[str, Any]) -> str:
    cells = [
        f'<a href="{escape(row["link"])}" title="Holds when: {escape(row["holds_when"])}">'
        f"{escape(row['text'])}</a>",
        verdict_html(row["verdict"]),
        _figures(row),
        ratio_text(row["published_ratio"]),
        escape(row["server"] or "–")
        + ("" if row["blocks"] is None else f" <small>{row['blocks']} blocks</small>"),
    ]
    told = "".join(
        f'<td class="{css}">{cell}</td>' for cell, css in zip(cells, _COLUMNS.values(), strict=True)
    )
    return f'<tr id="{row_id(row)}">{told}</tr>'


def _figures(row: Mapping[str, Any]) -> str:
    """Our ratio, and below it the interval; a dash where there is none."""
    if row["ratio"] is None:
        return "–"
    ratio, _, interval = interval_text(row).partition(" ")
    return f"{ratio} <small>{interval}</small>"


def _side_by_side(claim: pl.DataFrame, records: list[str]) -> str:
    by_record = {row["record"]: row for row in claim.iter_rows(named=True)}
    first = claim.row(0, named=True)
    cells = [f'<td class="text"><a href="{escape(first["link"])}">{escape(first["text"])}</a></td>']
    for record in records:
        row = by_record.get(record)
        told = "–" if row is None else f"{_figures(row)}{verdict_html(row['verdict'])}"
        cells.append(f'<td class="text">{told}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _boxed(head: str, body: list[str]) -> str:
    return (
        f'<div class="table-box score" tabindex="0"><table class="dataframe">\n'
        f"<thead>\n{head}\n</thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody>\n</table></div>"
    )


def _html(text: str) -> HTML:
    return HTML(text)  # type: ignore[no-untyped-call]


_STUDIES = "studies/"  # from the front page


def score_tiles(cards: pl.DataFrame) -> HTML:
    """The current rows of a ``scorecard``: a row of tiles for each study, and how many hold.

    A tile bears the sign and the name of a claim, its title the claim's words and verdict; it links
    to the claim's row in the scorecard.  The last line says what the signs mean.
    """
    doubtful = doubtful_hosts(read_checks())
    rows = [
        _study(str(study), part, doubtful)
        for (study,), part in cards.filter("current").group_by("study", maintain_order=True)
    ]
    legend = _legend(cards.filter("current"))
    return _html(f'<div class="score-front">\n{"".join(rows)}{legend}</div>')


def instrument_line() -> HTML:
    """Whether this machine's measuring passed its checks, with those that failed in a red box."""
    link = (
        f'<a href="{_STUDIES}instrument.html">How it was tested.</a>' if executed().exists() else ""
    )
    return _html(f"{instrument_markup(read_checks())}{link}")


def _study(study: str, part: pl.DataFrame, doubtful: set[str]) -> str:
    tiles = "".join(map(_tile, part.iter_rows(named=True)))
    origin = origins()[study]
    mark = (
        ' <small class="doubtful">⚠ measured where the instrument FAILED a check</small>'
        if doubtful & set(part["host"])
        else ""
    )
    return (
        f'<section class="score-study"><p><a href="{_STUDIES}{escape(study)}.html">'
        f"{escape(origin.title)}</a> <small>{escape(origin.post)}</small>"
        f"{mark}<strong>{holding(part)}</strong></p>\n<ul>{tiles}</ul></section>\n"
    )


def _tile(row: Mapping[str, Any]) -> str:
    found = outcome_of(row["verdict"])
    told = escape(f"{row['text']} {row['verdict'].capitalize()}.")
    link = f"{_STUDIES}scorecard.html#{row_id(row)}"
    return (
        f'<li><a class="verdict {found.css}" href="{link}" title="{told}" aria-label="{told}">'
        f'<span aria-hidden="true">{found.sign}</span> {escape(row["claim"])}</a></li>'
    )


def _legend(cards: pl.DataFrame) -> str:
    counts = dict(with_outcome(cards)["outcome"].value_counts().iter_rows())
    items = "".join(
        f'<li title="{escape(o.meaning)}"><span class="verdict {o.css}">{o.sign} {o.word}</span> '
        f"{counts.get(word, 0)}</li>"
        for word, o in OUTCOMES.items()
    )
    return f'<ul class="score-legend" aria-label="Verdicts">{items}</ul>\n'
