"""How ``today.ipynb`` shows what the records mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from IPython.display import HTML

from pgapps.scorecard.advice import finding, question_of, to_try
from pgapps.scorecard.table import then_and_now
from pgservers.shown import environment

if TYPE_CHECKING:
    import polars as pl


def advice_cards(cards: pl.DataFrame) -> HTML:
    """Rows of ``advice`` for a page: by question, each with what it rests on."""
    groups = [
        (
            question_of(str(about)),
            [
                row | {"figures": then_and_now(row), "finding": finding(row)}
                for row in part.iter_rows(named=True)
            ],
            [*dict.fromkeys(map(to_try, part.iter_rows(named=True)))],
        )
        for (about,), part in cards.group_by("about", maintain_order=True)
    ]
    text = (
        environment(Path(__file__).parent)
        .get_template("cards.html")
        .render(groups=groups)
    )
    return HTML(text)  # type: ignore[no-untyped-call]


def sentences(found: dict[str, list[str]], remark: str, tried: str) -> HTML:
    """What changed, by heading and a line each, how far to trust it, and how to try it."""
    text = (
        environment(Path(__file__).parent)
        .get_template("sentences.html")
        .render(found=found, remark=remark, tried=tried)
    )
    return HTML(text)  # type: ignore[no-untyped-call]
