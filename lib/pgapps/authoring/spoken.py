"""The headlines and sentences of a study's claims, with the published numbers filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from pgstudies.analysis.agreement import UPWARD
from pgstudies.analysis.claims import all_claims, meanings
from pgstudies.charts.claims import answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def spoken(study: str) -> Iterator[str]:
    """The headlines and the sentences for today, each after the outcome that it is for.

    Where a claim holds, ours is the published ratio, the threshold, or for a direction alone 1.25;
    where it is reversed, the inverse; where it is gone, 1, or 1.1 of what was alike.
    """
    known = all_claims().filter(study=study)
    for outcome in ("holds", "gone", "reversed"):
        rows = [row | _found(row, outcome) for row in known.iter_rows(named=True)]
        judged = pl.DataFrame(rows, infer_schema_length=None)
        headlines = [answer(study, judged)] if outcome == "holds" else []
        for sentence in filter(None, [*headlines, *meanings(study, judged)["sentence"]]):
            yield f"{outcome}: {sentence}"


def _found(row: Mapping[str, Any], outcome: str) -> dict[str, Any]:
    is_alike = row["kind"] == "alike"
    claimed = 1.0 if is_alike else row["published_ratio"] or row["threshold"] or 1.25
    # A post may have measured the other side of 1 than its claim's: it is not the claim that holds.
    if not is_alike and (claimed > 1) != (row["direction"] in UPWARD):
        claimed = 1 / claimed
    ratio = {"holds": claimed, "gone": 1.1 if is_alike else 1.0, "reversed": 1 / claimed}[outcome]
    sides = {side: row[side] or side for side in ("baseline", "candidate")}
    bounds = sorted((ratio**0.9, ratio**1.1))
    return sides | {"verdict": outcome, "ratio": ratio, "low": bounds[0], "high": bounds[1]}
