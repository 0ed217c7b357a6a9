"""What the front page opens with: a tile for every claim, and the state of the instrument."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from IPython.display import HTML

from .claimfile import origins
from .instrumentpage import doubtful_hosts, executed, instrument_markup, read_checks
from .outcomes import OUTCOMES, outcome_of, with_outcome
from .scoretable import row_id
from .scoretext import holding

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

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


def _html(text: str) -> HTML:
    return HTML(text)  # type: ignore[no-untyped-call]
