"""What can become of a claim, and how each outcome looks: a sign, a word, a colour, a shape."""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.agreement import DEPENDS_ON_SIZE, NOT_JUDGED, NOT_REPLICATED, NOT_TESTED
from .style import BASELINE, CANDIDATES, NEUTRAL, PATCHED


@dataclass(frozen=True)
class Outcome:
    """One outcome, and how it is shown; never by its colour alone."""

    word: str  # as verdicts begin
    several: str  # how a sentence goes on after a number of claims
    sign: str  # one character, for tiles and tables
    css: str  # the class that book.css colours
    colour: str  # in charts, as in book.css
    shape: str  # in charts, as Vega calls it
    meaning: str  # one line for legends


OUTCOMES = {
    outcome.word: outcome
    for outcome in (
        Outcome("holds", "hold", "✓", "holds", CANDIDATES[0], "circle",
                "the same direction, at least half as large, by the whole interval"),
        Outcome("holds, perhaps weaker", "hold, perhaps weaker", "◒", "half", CANDIDATES[0],
                "diamond", "the same direction, at least half as large by the estimate alone"),
        Outcome("holds, weaker", "weaker", "◐", "weaker", BASELINE, "triangle-down",
                "the same direction, but smaller"),
        Outcome("gone", "gone", "○", "gone", NEUTRAL, "square",
                "no difference here that matters, or one where the post has none"),
        Outcome("reversed", "reversed", "⇄", "reversed", PATCHED, "triangle-up",
                "the opposite"),
        Outcome("inconclusive", "inconclusive", "?", "inconclusive", CANDIDATES[2], "cross",
                "this run cannot tell"),
        Outcome(NOT_REPLICATED, "not replicated", "≠", "unreplicated", PATCHED, "arrow",
                "two reference records of this size say the opposite"),
        Outcome(DEPENDS_ON_SIZE, "depend on size", "↕", "unreplicated", PATCHED,
                "triangle-left", "reference records of other sizes say the opposite"),
        Outcome(NOT_JUDGED, "not judged", "⊘", "unjudged", NEUTRAL, "wedge",
                "measured where the claim's own condition was not met"),
        Outcome(NOT_TESTED, "not tested", "–", "untested", NEUTRAL, "stroke",
                "with the reason"),
    )
}  # fmt: skip
"""Best first, by the word a verdict begins with."""


def outcome_of(verdict: str) -> Outcome:
    """The outcome a verdict such as "inconclusive: 3 more blocks" begins with."""
    return OUTCOMES[verdict.partition(":")[0]]


_OPEN = {"inconclusive", NOT_REPLICATED, NOT_JUDGED, NOT_TESTED}

_SAME = {"holds", "holds, perhaps weaker"}


def agreement_with(reference: str, verdict: str) -> str:
    """How a run's verdict compares: "agrees", "differs: gone", or its own word if one is open."""
    known, own = outcome_of(reference).word, outcome_of(verdict).word
    if own in _OPEN or (known in _OPEN and known != own):
        return own
    if known == own or {known, own} <= _SAME:
        return "agrees"
    return f"differs: {own}"


def ratio_text(value: float | None) -> str:
    """A ratio to three digits; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.3g}".rstrip(".")
