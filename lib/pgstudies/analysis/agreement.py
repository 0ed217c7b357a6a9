"""Agreement: each published ratio compared with the ratio on this server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import polars as pl
import polars.selectors as cs

from pgservers.errors import StudyError

from ..records.counts import INSTRUCTIONS
from .families import blocks_in_family, flipped
from .intervals import MINIMUM_BLOCKS
from .pairing import DECIMALS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RULES_VERSION = 4
"""Raise it with a change of analysis, or of the reading of records, that can change a verdict: the
verdicts kept are then judged anew.  ``tests/analysis/test_rules.py`` says when that is needed."""

Holding = Literal["holds", "holds, much stronger", "holds, perhaps weaker", "holds, weaker"]
Agreement = Literal[Holding, "gone", "reversed", "inconclusive"]

Kind = Literal["direction", "threshold", "alike", "count"]

Direction = Literal["slower", "faster", "fewer", "more", "alike"]

UPWARD = ("slower", "more")
"""The directions of claims whose ratio is above 1."""

FAMILY = ("direction", "threshold")
"""The kinds of claims judged by a test of a difference: those of a run are one family."""

NOT_TESTED = "not tested"
"""Begins the verdict on a claim for which the run has no comparison, or the post no figure."""

NOT_JUDGED = "not judged"
"""Begins the verdict on a claim that was measured where it could not be judged."""

COPIES_DIFFER = "two copies of one arm differ"
"""Begins the reason of a claim that is not judged because of it."""

NOT_AMONG_ALL = "inconclusive: evident on its own, not among all claims"
"""The verdict on a claim that would hold, or be reversed, if it were the only one."""

RUNS = MINIMUM_BLOCKS
"""The fewest runs that judge a claim together, each from its own boot."""

MUCH_STRONGER: Holding = "holds, much stronger"
HOLDS = get_args(Holding)
"""The verdicts on a claim that count for "holds on 3 of 3 hosts"."""


@dataclass(frozen=True)
class Claim:
    """A statement of the published study that one comparison can judge.

    Attributes:
        id: A short name, unique in its study.
        text: The claim in our words, as one sentence.
        source: Where the post says so, or which of its numbers the ratio is made of.
        direction: What the candidate is, compared with the baseline.
        published_ratio: candidate / baseline as published; None where the post gives no figure at
            the size of the run.
        judged_by: The metric; a run without ``cpu_s`` is judged by ``duration_s`` in its place.
        comparison: The row of the effects: column names and the values they must have.
        kind: How it is judged. ``direction``: by which way, and how far, the ratio is off 1.
            ``threshold``: by where the interval lies to ``threshold``. ``alike``: by the margin.
            ``count``: as one of the first two, by a count that the same work repeats exactly.
        threshold: The ratio that the claim names, or None.
        is_side: Whether it names a direction alone, and the post has no figure at any size.
        not_tested: Why this reproduction does not test the claim, or None.
        requires: What the server must give; see ``measuring.requirements``.
        size: The smallest size of a run that tests it; None: every size does.
        commit: The commit whose servers are compared, or None.
        by_commit: The claim as it is judged where the run has the commit's servers.

    """

    id: str
    text: str
    source: str
    direction: Direction
    published_ratio: float | None
    judged_by: str
    comparison: Mapping[str, object] = field(default_factory=dict)
    kind: Kind = "direction"
    threshold: float | None = None
    is_side: bool = False
    not_tested: str | None = None
    requires: tuple[str, ...] = ()
    size: str | None = None
    commit: str | None = None
    by_commit: Claim | None = None


def agreement(
    claimed: float,
    ratio: float | None,
    low: float | None,
    high: float | None,
    margin: float,
    *,
    is_threshold: bool = False,
    is_side: bool = False,
    published: float | None = None,
) -> Agreement:
    """Compare a claimed ratio with ours and its interval, on the log scale.

    A post is one run of unknown error, so its ratio counts for direction and order of magnitude.
    ``margin`` is that of the effect: 0.02 reaches from 1 / 1.02 to 1.02. ``published`` is the
    post's own ratio, if ``claimed`` is what its words name. The first that matches:

    - *inconclusive* without an interval (fewer than 6 blocks).
    - A ratio of exactly 1 claims that nothing changes. It *holds* when our interval lies inside the
      margin, to which ``published`` adds its own distance, and is *gone* when all of it is outside.
    - *reversed*: the interval excludes 1 on the other side, and the estimate is past the margin.
    - *gone*: the interval lies inside the margin, and the claimed ratio does not.
    - *holds*: the estimate is past 1 and the margin on the claimed side, and the whole interval is
      at least half the claimed effect (its square root), or past a ratio that ``is_threshold``.
      Of a claim that ``is_side`` the interval need only exclude 1.
    - *holds, much stronger*: also, the whole interval is more than twice the published effect.
    - *holds, perhaps weaker*: the estimate is at least half the claimed effect, the interval past 1
      but not past half.
    - *holds, weaker*: the estimate is less than half; the whole interval is short of a threshold.
    - *inconclusive*: anything else.

    Raises ValueError for a ratio that is not above 0.
    """
    if claimed <= 0:
        raise ValueError("a ratio is above 0")
    if ratio is None or low is None or high is None:
        return "inconclusive"
    sign = math.copysign(1, _log(claimed))
    wanted = abs(_log(claimed))
    ours = sign * _log(ratio)
    near, far = sorted(sign * _log(bound) for bound in (low, high))
    edge = _log(1 + margin)
    if wanted == 0:
        edge = round(edge + abs(_log(published or 1)), DECIMALS)
    is_alike = -edge <= near and far <= edge
    is_same_way = near > 0 and ours > edge
    is_other_way = far < 0 and ours < -edge
    if wanted == 0:
        is_outside = near > edge or far < -edge
        return "holds" if is_alike else "gone" if is_outside else "inconclusive"
    if is_other_way or (is_alike and (is_side or wanted > edge)):
        return "reversed" if is_other_way else "gone"
    is_straddling = is_threshold and near < wanted <= far
    if is_straddling or not is_same_way:
        return "inconclusive"
    is_enough = is_side or near >= (wanted if is_threshold else wanted / 2)
    is_small = is_threshold or ours < wanted / 2
    most = 2 * sign * _log(published or (1 if is_threshold or is_side else claimed))
    if is_enough:
        return MUCH_STRONGER if 0 < most < near else "holds"
    return "holds, weaker" if is_small else "holds, perhaps weaker"


def by_several(judged: pl.DataFrame) -> bool:
    """Whether a table of verdicts by all runs has a claim of enough runs to be judged by them."""
    return bool((judged["runs"] >= RUNS).any())


def ratio_text(value: float | None) -> str:
    """A ratio to three digits; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.3g}".rstrip(".")


def _log(ratio: float) -> float:
    return round(math.log(ratio), DECIMALS)


MEASURES = {
    "cpu_s": "CPU time",
    "duration_s": "wall time",
    "buffers_read": "pages read",
    "read_bytes": "bytes read",
    "disk_s": "time of the modelled disk",
    "used_bytes": "memory used",
    "allocated_bytes": "memory allocated",
    "index_bytes": "size of the index",
    "instructions": "instructions",
}
"""What claims are judged by, in words."""


def judge(
    claims: Iterable[Claim],
    effects: pl.DataFrame,
    *,
    not_run: Mapping[str, str] = {},
    conditions: Mapping[str, str | None] = {},
) -> pl.DataFrame:
    """The verdict on each claim, in the order given.

    ``effects`` is a table of ``paired_effects`` with the column metric; ``not_run`` has the reason
    for each arm or claim that did not run and requirement not met; ``conditions`` has, by id,
    why this run does not meet the claim's own condition, or None. Columns:

    - claim, text, source, kind, published_ratio
    - metric: what it is judged by; ratio, low, high, blocks, margin: of the effect
    - beside: the ratio by wall time where CPU time judged, by CPU time where wall time or
      instructions did; null where the run has no such effect, or another metric judged
    - p_family: the p-value of "no difference" among the claims of ``FAMILY`` that this run tests,
      by ``families.flipped``; null for all others, and with too few blocks
    - verdict: one of ``agreement``, which after "inconclusive" may say why, "not tested: reason" or
      "not judged: reason", as where the copies of an arm differ by so much that another verdict
      may be due. Without p_family ≤ 1 − level no claim of the family holds or is reversed
    - blocks_needed, baseline, candidate
    - aa, aa_low, aa_high: how far two copies of one arm differ in its step, null where unknown
    - commit: the commit by whose servers it is judged, null where it is not; then stood_in,
      stood_in_low, stood_in_high and stood_in_verdict are what its stand-in alone says

    Raises StudyError for a claim that fits several rows, for effects without the column metric and
    for a condition of an unknown claim.
    """
    without = {claim.id: claim for claim in claims}
    claims = [_by_commit(claim, effects, not_run) for claim in without.values()]
    rows = _judged(claims, effects, not_run, conditions)
    for row in rows:
        if row["commit"]:
            claim = without[row["claim"]]
            of = _found(claim, effects, not_run)
            of |= _verdict(claim, of, conditions.get(claim.id))
            row |= {f"stood_in{end}": of.get(name) for end, name in _STOOD_IN.items()}
    return pl.DataFrame(rows, schema=_SCHEMA)


def counted_effects(claims: Iterable[Claim], counted: pl.DataFrame) -> pl.DataFrame:
    """The effects for the claims that are judged by instructions.

    ``counted`` is the table of ``claims_counted``; as counts repeat, its rows serve every run.
    Columns: those of the claims' comparisons, metric, ratio, low, high, margin, verdict.
    """
    forms = [(c, form) for c in claims for form in (c, c.by_commit) if form is not None]
    rows = [
        {**form.comparison, **row, "metric": INSTRUCTIONS, "margin": 0.02, "verdict": "counted"}
        for claim, form in forms
        if form.judged_by == INSTRUCTIONS
        for row in counted.filter(
            pl.col("claim") == claim.id, pl.col("by_commit") == (form.commit is not None)
        )
        .select("ratio", "low", "high")
        .iter_rows(named=True)
    ]
    return pl.DataFrame(rows)


def _by_commit(claim: Claim, effects: pl.DataFrame, not_run: Mapping[str, str]) -> Claim:
    """The claim in the form that is judged by the commit, where the run has it."""
    other = claim.by_commit
    has_it = other is not None and "ratio" in _found(other, effects, not_run)
    return other if other is not None and has_it else claim


def _judged(
    claims: Sequence[Claim],
    effects: pl.DataFrame,
    not_run: Mapping[str, str],
    conditions: Mapping[str, str | None],
) -> list[dict[str, Any]]:
    """The rows of ``judge``."""
    unmet = dict(conditions)
    if unknown := unmet.keys() - {claim.id for claim in claims}:
        raise StudyError(
            f"There is a condition for {min(unknown)!r}, which is no claim; the claims are: "
            f"{', '.join(claim.id for claim in claims)}."
        )
    if claims and "metric" not in effects.columns:
        raise StudyError("The effects do not say their metric: group the values by it as well.")
    found = [_found(claim, effects, not_run) for claim in claims]
    for claim in claims:
        lacking = next((not_run[name] for name in claim.requires if name in not_run), None)
        unmet[claim.id] = lacking or unmet.get(claim.id)
    rows = [
        row | _verdict(claim, row, unmet[claim.id])
        for claim, row in zip(claims, found, strict=True)
    ]
    family = [row for row in rows if row["kind"] in FAMILY and row["verdict"] in _TESTED]
    p_values = flipped([row["log_ratios"] for row in family]).p_value
    for row, p_family in zip(family, p_values.tolist(), strict=True):
        row.update(_among(row, p_family))
    return rows


_SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys(["claim", "text", "source", "kind"], pl.String()),
    "published_ratio": pl.Float64(),
    "metric": pl.String(),
    **dict.fromkeys(["ratio", "low", "high", "beside"], pl.Float64()),
    "blocks": pl.Int64(),
    **dict.fromkeys(["margin", "p_family"], pl.Float64()),
    "verdict": pl.String(),
    "blocks_needed": pl.Int64(),
    **dict.fromkeys(["baseline", "candidate"], pl.String()),
    **dict.fromkeys(["aa", "aa_low", "aa_high"], pl.Float64()),
    "commit": pl.String(),
    **dict.fromkeys(["stood_in", "stood_in_low", "stood_in_high"], pl.Float64()),
    "stood_in_verdict": pl.String(),
}

NO_SUCH = "this run has no such comparison"
"""The reason for a claim that fits no row of the effects."""

NOT_COUNTED = "its instructions were not counted"
"""The reason for a claim about instructions, which ``pgstudies run releases`` counts."""

_STOOD_IN = {"": "ratio", "_low": "low", "_high": "high", "_verdict": "verdict"}

_TESTED = get_args(Agreement)

_OTHER = {"cpu_s": "duration_s", "duration_s": "cpu_s", "instructions": "cpu_s"}

_OF_EFFECT = (
    *("metric", "ratio", "low", "high", "blocks", "margin"),
    *("p_value", "level", "blocks_needed", "log_ratios", "aa", "aa_low", "aa_high"),
)


def _found(claim: Claim, effects: pl.DataFrame, not_run: Mapping[str, str]) -> dict[str, Any]:
    """A claim joined with the effect that judges it; ``effect`` is that effect's own verdict."""
    names = ("text", "source", "kind", "published_ratio", "commit")
    row = {"claim": claim.id} | {name: getattr(claim, name) for name in names}
    if claim.not_tested:
        return row | {"verdict": f"{NOT_TESTED}: {claim.not_tested}"}
    unknown = claim.comparison.keys() - set(effects.columns)
    if unknown:
        raise StudyError(
            f"The claim '{claim.id}' compares by {min(unknown)}, which is no column of the "
            f"effects: {', '.join(effects.columns)}."
        )
    fits = effects.filter(*(pl.col(name) == value for name, value in claim.comparison.items()))
    by_metric = {name: part for (name,), part in fits.group_by("metric")}
    # An external server shows no CPU time.
    metrics = ["cpu_s", "duration_s"] if claim.judged_by == "cpu_s" else [claim.judged_by]
    metric = next((name for name in metrics if name in by_metric), None)
    if metric is None:
        arms = [claim.comparison.get(side) for side in ("baseline", "candidate")]
        wanted = [claim.id, *claim.requires, *(arm for arm in arms if isinstance(arm, str))]
        none = NOT_COUNTED if claim.judged_by == INSTRUCTIONS else NO_SUCH
        reason = next((not_run[name] for name in wanted if name in not_run), none)
        return row | {"verdict": f"{NOT_TESTED}: {reason}"}
    if by_metric[metric].height > 1:
        found = [*_OF_EFFECT, "dropped", "verdict"]
        many = by_metric[metric].select(cs.string() | cs.integer()).drop(found, strict=False)
        differ = ", ".join(name for name in many.columns if many[name].n_unique() > 1)
        raise StudyError(
            f"The claim '{claim.id}' fits {many.height} comparisons, which differ in {differ}: "
            f"its comparison must say which."
        )
    effect = by_metric[metric].row(0, named=True)
    beside = by_metric.get(_OTHER.get(metric))
    return (
        row
        | {name: effect.get(name) for name in _OF_EFFECT}
        | {side: str(effect[side]) for side in ("baseline", "candidate")}
        | {"beside": beside["ratio"].item() if beside is not None and beside.height == 1 else None}
        | {"effect": effect["verdict"]}
    )


def _verdict(claim: Claim, row: Mapping[str, Any], unmet: str | None) -> dict[str, str]:
    """The verdict as if the claim were the only one."""
    if "verdict" in row:
        return {}
    published = claim.published_ratio
    reason = None
    if row["effect"] == "not comparable":
        reason = f"{NOT_TESTED}: there is no ratio of these values"
    elif claim.kind != "alike" and claim.threshold is None and not claim.is_side:
        if published is None:
            reason = f"{NOT_TESTED}: the post gives no figure"
        elif (published > 1) != (claim.direction in UPWARD) or published == 1:
            reason = f"{NOT_TESTED}: at this size the post has no such difference"
    if reason is None and unmet:
        reason = f"{NOT_JUDGED}: {unmet}"
    if reason is None and row["effect"] == "not valid":
        reason = f"{NOT_JUDGED}: {COPIES_DIFFER} in this step"
    return {"verdict": reason or gated(claim.direction, claim.threshold, row)}


def gated(direction: str, threshold: float | None, row: Mapping[str, Any]) -> str:
    """``agreement`` on a row of effects; not judged if it depends on how far copies differ."""
    apart = _copies_apart(row)
    published = row.get("published_ratio")
    is_side = threshold is None and published is None
    how: Any = {"is_threshold": threshold is not None, "is_side": is_side, "published": published}
    # Of a direction alone any ratio on its side is as good.
    claimed = threshold or published or (2.0 if direction in UPWARD else 0.5)
    claimed = 1.0 if row["kind"] == "alike" else claimed

    def moved(factor: float) -> str:
        ratio, low, high = (row[n] and factor * row[n] for n in ("ratio", "low", "high"))
        return agreement(claimed, ratio, low, high, row["margin"], **how)

    verdict = moved(1)
    if side(verdict) in {None, side(moved(apart))} & {None, side(moved(1 / apart))}:
        return verdict
    reason = f"{COPIES_DIFFER} by {100 * (apart - 1):.2g} % in this step"
    return f"{NOT_JUDGED}: {reason}, and the verdict hangs on it"


def _copies_apart(row: Mapping[str, Any]) -> float:
    """The factor by which two copies of one arm differ, less their noise; 1 within the margin."""
    if not row["aa_low"] or row["aa"] == 1:
        return 1
    apart, noise = abs(_log(row["aa"])), (_log(row["aa_high"]) - _log(row["aa_low"])) / (2 * 1.96)
    apart -= noise**2 / apart  # James and Stein's estimate
    return math.exp(apart) if apart > _log(1 + row["margin"]) else 1


def side(verdict: str) -> str | None:
    """What a verdict comes down to: holds, gone or reversed; None where it decides nothing."""
    if verdict in HOLDS:
        return "holds"
    return verdict if verdict in {"gone", "reversed"} else None


def _among(row: Mapping[str, Any], p_family: float) -> dict[str, Any]:
    """What remains of a claim's verdict among all that the run judges."""
    if row["p_value"] is None:
        return {}
    if row["verdict"] not in (*HOLDS, "reversed") or p_family <= 1 - row["level"]:
        return {"p_family": p_family}
    needed = blocks_in_family(row["blocks"], p_family, level=row["level"])
    return {"p_family": p_family, "verdict": NOT_AMONG_ALL, "blocks_needed": needed}
