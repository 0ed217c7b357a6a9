"""What can become of a claim, and how each outcome looks: a sign, a word, a colour, a shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..analysis.agreement import HOLDS, NOT_JUDGED, NOT_TESTED
from .style import BASELINE, CANDIDATES, NEUTRAL, PATCHED

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl


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
        Outcome("holds, much stronger", "hold, much stronger", "»", "stronger", CANDIDATES[0],
                "triangle-right", "the same direction, and by the whole interval twice as large"),
        Outcome("holds, perhaps weaker", "hold, perhaps weaker", "◒", "half", CANDIDATES[0],
                "diamond", "the same direction, at least half as large by the estimate alone"),
        Outcome("holds, weaker", "hold, weaker", "◐", "weaker", BASELINE, "triangle-down",
                "the same direction, but smaller"),
        Outcome("gone", "gone", "○", "gone", NEUTRAL, "square",
                "no difference here that matters, or one where the post has none"),
        Outcome("reversed", "reversed", "⇄", "reversed", PATCHED, "triangle-up",
                "the opposite"),
        Outcome("inconclusive", "inconclusive", "?", "inconclusive", CANDIDATES[2], "cross",
                "this run cannot tell"),
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


def runs_text(runs: int | None, usual: int | None = None) -> str:
    """How many runs a claim has, "one run" or "6 runs"; empty if as usual or unknown."""
    if runs is None or runs == usual:
        return ""
    number = ("no", "one", "two", "three", "four", "five")[runs] if runs < 6 else runs
    return f"{number} {'run' if runs == 1 else 'runs'}"


def usual_runs(judged: pl.DataFrame) -> int | None:
    """The number of runs that most claims with runs have; None if no claim has any."""
    found: list[int] = judged["runs"].drop_nulls().mode().sort().to_list()
    return found[-1] if found else None


_OPEN = {"inconclusive", NOT_JUDGED, NOT_TESTED}

_SAME = set(HOLDS[:3])


def agreement_with(reference: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """How a run's row of ``judge`` compares with the reference's, or its own word if one is open.

    They agree if both intervals allow the same ratio, within the margin.
    """
    known, said = (outcome_of(row["verdict"]).word for row in (reference, own))
    if said in _OPEN or (known in _OPEN and known != said):
        return said
    if known != said and not {known, said} <= _SAME:
        return f"differs: {said}"
    (low, high), bounds = ((row["low"], row["high"]) for row in (reference, own))
    room = 1 + 2 * (own.get("margin") or 0)
    if said not in HOLDS or low is None or max(low, bounds[0]) <= room * min(high, bounds[1]):
        return "agrees"
    is_weaker = abs(math.log(own["ratio"])) < abs(math.log(reference["ratio"]))
    return f"same direction, {'weaker' if is_weaker else 'stronger'}"
