"""How ``today.ipynb`` shows what the records mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from IPython.display import HTML

from pgapps.scorecard.table import then_and_now
from pgstudies.templates import environment

if TYPE_CHECKING:
    import polars as pl


def advice_cards(cards: pl.DataFrame) -> HTML:
    """Rows of ``advice`` for a page: by what they are about, each with what it rests on."""
    groups = [
        (
            about,
            [
                row | {"figures": then_and_now(row)}
                for row in part.iter_rows(named=True)
            ],
        )
        for (about,), part in cards.group_by("about", maintain_order=True)
    ]
    text = (
        environment(Path(__file__).parent)
        .get_template("cards.html")
        .render(groups=groups)
    )
    return HTML(text)  # type: ignore[no-untyped-call]


def sentences(found: dict[str, list[str]], remark: str) -> HTML:
    """What changed, by heading and a line each, and how much that can be trusted."""
    text = (
        environment(Path(__file__).parent)
        .get_template("sentences.html")
        .render(found=found, remark=remark)
    )
    return HTML(text)  # type: ignore[no-untyped-call]
