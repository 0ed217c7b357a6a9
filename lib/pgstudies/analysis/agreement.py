"""Agreement: what a published ratio becomes on this server, claim by claim."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from ..errors import StudyError
from .pairing import DECIMALS
from .verdicts import DIRECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


Agreement = Literal["holds", "holds, weaker", "gone", "reversed", "inconclusive"]


@dataclass(frozen=True)
class Claim:
    """A statement of the published study that one comparison of ours can judge."""

    id: str
    text: str
    """The claim in our words, as one sentence."""
    source: str
    """Where the post says so, or which of its numbers the ratio is made of."""
    published_ratio: float | None
    """candidate / baseline as published; None where the post gives no figure."""
    comparison: Mapping[str, object] = field(default_factory=dict)
    """The row of the effects that judges it: column names and the values they must have."""
    no_difference: bool = False
    """The post claims that the two are alike, whatever its figures are."""
    not_tested: str | None = None
    """Why this reproduction does not test the claim."""


def agreement(
    published_ratio: float,
    ratio: float | None,
    low: float | None,
    high: float | None,
    margin: float,
    *,
    no_effect: float = 1.0,
) -> Agreement:
    """Compare a published ratio with ours and its interval, on the log scale.

    A post is one run of unknown error on a machine long gone, so its ratio is taken for its
    direction and its order of magnitude; all the uncertainty that is known is ours. ``margin`` is
    that of the effect (0.02 reaches from 1 / 1.02 to 1.02), and ``no_effect`` the ratio that
    means no difference. The first that matches:

    - *inconclusive* without an interval (fewer than 6 blocks).
    - A published ratio of exactly ``no_effect`` claims that nothing changes. It *holds* when our
      interval lies inside the margin, and is *gone* when the whole interval lies outside of it, on
      either side.
    - *reversed*: the interval excludes ``no_effect`` on the other side, and the estimate is past
      the margin.
    - *gone*: the interval lies inside the margin, and the published ratio does not. (A published
      effect smaller than our margin cannot be told from none; it is never gone.)
    - *holds*: interval and estimate are past ``no_effect`` and the margin on the published side,
      and the effect is at least half the published one. Larger than published holds as well.
      Half on the log scale is a square root: 4 times published, at least 2 times found.
    - *holds, weaker*: the same with a smaller effect.
    - *inconclusive*: anything else.

    Raises ValueError for a ratio that is not above 0.
    """
    if published_ratio <= 0 or no_effect <= 0:
        raise ValueError("a ratio is above 0")
    if ratio is None or low is None or high is None:
        return "inconclusive"
    sign = math.copysign(1, _log(published_ratio / no_effect))
    published = abs(_log(published_ratio / no_effect))
    ours = sign * _log(ratio / no_effect)
    near, far = sorted(sign * _log(bound / no_effect) for bound in (low, high))
    edge = _log(1 + margin)
    is_alike = -edge <= near and far <= edge
    is_same_way = near > 0 and ours > edge
    is_other_way = far < 0 and ours < -edge
    if published == 0:
        is_outside = near > edge or far < -edge
        return "holds" if is_alike else "gone" if is_outside else "inconclusive"
    if is_other_way:
        return "reversed"
    if is_alike and published > edge:
        return "gone"
    if is_same_way:
        return "holds" if ours >= published / 2 else "holds, weaker"
    return "inconclusive"


def _log(ratio: float) -> float:
    return round(math.log(ratio), DECIMALS)


def judge(
    claims: Iterable[Claim], effects: pl.DataFrame, *, not_run: Mapping[str, str] | None = None
) -> pl.DataFrame:
    """The verdict on each claim, in the order given.

    ``effects`` is a table of ``paired_effects``; ``not_run`` gives the reason for each arm that did
    not run. Columns: claim, text, source, published_ratio, ratio, low, high, blocks, margin,
    verdict, blocks_needed, baseline, candidate; the last three and margin are those of the effect,
    and the verdict is one of ``agreement`` or "not tested: reason". It never says more than the
    effect's own verdict: what is inconclusive there, Holm's correction included, is so here.
    Raises StudyError for a claim that fits several rows.
    """
    schema: dict[str, pl.DataType] = {
        **dict.fromkeys(["claim", "text", "source"], pl.String()),
        **dict.fromkeys(["published_ratio", "ratio", "low", "high"], pl.Float64()),
        "blocks": pl.Int64(),
        "margin": pl.Float64(),
        "verdict": pl.String(),
        "blocks_needed": pl.Int64(),
        "baseline": pl.String(),
        "candidate": pl.String(),
    }
    rows = [_judged(claim, effects, not_run or {}) for claim in claims]
    return pl.DataFrame(rows, schema=schema)


def _judged(claim: Claim, effects: pl.DataFrame, not_run: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "claim": claim.id,
        "text": claim.text,
        "source": claim.source,
        "published_ratio": claim.published_ratio,
    }
    if claim.not_tested:
        return row | {"verdict": f"not tested: {claim.not_tested}"}
    fits = [pl.col(name) == value for name, value in claim.comparison.items()]
    found = effects.filter(*fits)
    if found.height > 1:
        raise StudyError(
            f"The claim '{claim.id}' fits {found.height} comparisons; "
            f"name more columns in its comparison."
        )
    if found.is_empty():
        arms = [claim.comparison.get(side) for side in ("baseline", "candidate")]
        reasons = [not_run[arm] for arm in arms if isinstance(arm, str) and arm in not_run]
        reason = reasons[0] if reasons else "this run has no such comparison"
        return row | {"verdict": f"not tested: {reason}"}
    effect = found.row(0, named=True)
    row |= {name: effect[name] for name in ("ratio", "low", "high", "blocks", "margin")}
    row |= {side: str(effect[side]) for side in ("baseline", "candidate") if side in effect}
    return row | {
        "blocks_needed": effect.get("blocks_needed"),
        "verdict": _verdict(claim, effect),
    }


def _verdict(claim: Claim, effect: Mapping[str, Any]) -> str:
    if effect["verdict"] == "not comparable":
        return "not tested: there is no ratio of these values"
    published = 1.0 if claim.no_difference else claim.published_ratio
    if published is None:
        return "not tested: the post gives no figure"
    if effect["verdict"] == "not valid":
        return "not tested: two copies of one arm differ in this step"
    if effect["verdict"] not in (*DIRECTIONS, "equivalent"):
        return "inconclusive"
    return agreement(published, effect["ratio"], effect["low"], effect["high"], effect["margin"])


HOLDS = ("holds", "holds, weaker")
"""The verdicts on a claim that count for "holds on 3 of 3 hosts"."""
