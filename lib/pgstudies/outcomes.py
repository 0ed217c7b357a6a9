"""What can become of a published claim: for each outcome its words, its sign and its colour."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from .chartstyle import BASELINE, CANDIDATES, NEUTRAL, PATCHED


@dataclass(frozen=True)
class Outcome:
    """One outcome, and how it is shown; never by its colour alone.

    Attributes:
        word: As verdicts begin.
        several: How a sentence goes on after a number of claims.
        sign: One character, for tiles and tables.
        css: The class that book.css colours.
        colour: In charts, as in book.css.
        shape: In charts, as Vega calls it.
        meaning: One line for legends.

    """

    word: str
    several: str
    sign: str
    css: str
    colour: str
    shape: str
    meaning: str


OUTCOMES = {
    outcome.word: outcome
    for outcome in (
        Outcome("holds", "hold", "✓", "holds", CANDIDATES[0], "circle",
                "the same direction, at least half as large"),
        Outcome("holds, weaker", "weaker", "◐", "weaker", BASELINE, "triangle-down",
                "the same direction, but smaller"),
        Outcome("gone", "gone", "○", "gone", NEUTRAL, "square",
                "no difference here that matters, or one where the post has none"),
        Outcome("reversed", "reversed", "⇄", "reversed", PATCHED, "triangle-up",
                "the opposite"),
        Outcome("inconclusive", "inconclusive", "?", "inconclusive", CANDIDATES[2], "cross",
                "this run cannot tell"),
        Outcome("not tested", "not tested", "–", "untested", NEUTRAL, "stroke",
                "with the reason"),
    )
}  # fmt: skip
"""Best first, by the word a verdict begins with."""


def outcome_of(verdict: str) -> Outcome:
    """The outcome a verdict such as "inconclusive: 3 more blocks" begins with."""
    return OUTCOMES[verdict.partition(":")[0]]


def with_outcome(cards: pl.DataFrame) -> pl.DataFrame:
    """Add the column outcome, the word that the verdict begins with."""
    return cards.with_columns(outcome=pl.col("verdict").str.split(":").list.first())


def in_sum(cards: pl.DataFrame) -> str:
    """How many claims came to what, best first: "2 hold, 1 gone"; outcomes of none are left out."""
    counts = dict(with_outcome(cards)["outcome"].value_counts().iter_rows())
    return ", ".join(
        f"{counts[word]} {o.several}" for word, o in OUTCOMES.items() if word in counts
    )
