"""Verdicts: what an effect's ratio, interval and margin say together, and the sentence for it.

The first that matches:

- *not comparable*: no block has both values, or in some block a zero stands against something
  else. Two zeros are alike: ratio 1.
- *too few blocks*: fewer than 6, or too few for the level asked for.
- *not valid*: two copies of one arm differ in this step, their interval excludes 1 by more than
  the margin. What else differs there may be as little of an effect. The pair is a gate, and never
  widens the margin: the candidate's own interval holds that noise already.
- *equivalent*: the whole interval lies inside the margin (two one-sided tests, each at 2.5 % for a
  95 % interval). It may exclude 1 all the same: small but real.
- *faster* or *slower* for seconds, *fewer* or *more* for everything else: the interval excludes 1
  and the estimate is past the margin.
- *inconclusive*: anything else.

``detectable`` is the change that this number of blocks shows four times in five by the rule above,
as a fraction; ``blocks_needed`` the blocks in all that would probably end an open verdict if
estimate and spread stayed as they are, null when the verdict is settled or when no reasonable
number would.

Each effect is judged on its own: its interval knows nothing of other effects, and can exclude 1
without that being enough among them. ``agreement.judge`` and comparisons judge families.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl

from .intervals import MORE_BLOCKS, blocks_to_detect, fewest_blocks
from .pairing import DECIMALS

if TYPE_CHECKING:
    from collections.abc import Mapping

OPEN = ("inconclusive", "too few blocks")

_RATIOS = ("ratio", "low", "high", "aa", "aa_low", "aa_high")

DIRECTIONS = ("faster", "slower", "fewer", "more")


def with_verdicts(table: pl.DataFrame, *, gated: bool = True) -> pl.DataFrame:
    """Add ratio, low, high, ratio_of_sums, aa with its bounds, margin, verdict and blocks_needed.

    ``table`` has log_ratio, log_low, log_high, log_sums, log_margin, log_aa, log_aa_low,
    log_aa_high, sd, blocks, level, unit and row, a number for each.  Without ``gated`` two copies
    that differ are no reason not to judge.
    """
    estimate, low, high = pl.col("log_ratio"), pl.col("log_low"), pl.col("log_high")
    margin = pl.col("log_margin").round(DECIMALS)
    is_gated = (pl.col("log_aa_low") > margin) | (pl.col("log_aa_high") < -margin)
    is_gated = is_gated & pl.lit(gated)
    is_time = pl.when(pl.col("unit") == "s")
    verdict = (
        pl.when(estimate.is_null())
        .then(pl.lit("not comparable"))
        .when(low.is_null())
        .then(pl.lit("too few blocks"))
        .when(is_gated.fill_null(value=False))
        .then(pl.lit("not valid"))
        .when((low >= -margin) & (high <= margin))
        .then(pl.lit("equivalent"))
        .when((high < 0) & (estimate < -margin))
        .then(is_time.then(pl.lit("faster")).otherwise(pl.lit("fewer")))
        .when((low > 0) & (estimate > margin))
        .then(is_time.then(pl.lit("slower")).otherwise(pl.lit("more")))
        .otherwise(pl.lit("inconclusive"))
    )
    table = table.with_columns(
        *(pl.col(f"log_{name}").exp().alias(name) for name in _RATIOS),
        pl.col("log_sums").exp().alias("ratio_of_sums"),
        (((pl.col("log_aa_high") - pl.col("log_aa_low")) / 2).exp() - 1).alias("noise"),
        (margin.exp() - 1).alias("margin"),
        verdict.alias("verdict"),
    )
    unsettled = table.filter(pl.col("verdict").is_in(OPEN))
    needed = [_blocks_needed(row) for row in unsettled.iter_rows(named=True)]
    return table.join(
        unsettled.select("row", pl.Series("blocks_needed", needed, dtype=pl.Int64)),
        on="row",
        how="left",
        maintain_order="left",
    )


def _blocks_needed(row: Mapping[str, Any]) -> int | None:
    """Blocks in all that would probably settle one open comparison; None beyond MOST_BLOCKS."""
    if row["sd"] is None:
        return fewest_blocks(row["level"])
    planned = blocks_to_detect(row["margin"], row["sd"], level=row["level"])
    if planned is None or planned > row["blocks"] + MORE_BLOCKS:
        return None
    if row["log_low"] is None:
        return planned
    estimate, margin = abs(row["log_ratio"]), row["log_margin"]
    half_width = (row["log_high"] - row["log_low"]) / 2
    # The interval shrinks as 1/√blocks, until it fits between the estimate and what it must miss:
    # the margin's edge for an estimate inside, 1 for one outside.
    gap = margin - estimate if estimate <= margin else estimate
    growth = (half_width / gap) ** 2 if gap > 0 else math.inf
    blocks: int = row["blocks"]
    extrapolated = blocks * growth
    if extrapolated > blocks + MORE_BLOCKS:
        return None
    return max(math.ceil(extrapolated), planned, blocks + 1)


def describe(row: Mapping[str, Any]) -> str:  # noqa: PLR0911  (one for each verdict)
    """One plain sentence for one row of ``paired_effects``, without a full stop at its end."""
    verdict, blocks = row["verdict"], _counted(row["blocks"])
    if row["dropped"]:
        blocks += f", {row['dropped']} incomplete"
    if verdict == "not comparable":
        if not row["blocks"]:
            return "not comparable: no block holds both"
        medians = f"{row['baseline_median']:g} against {row['candidate_median']:g}"
        return f"not comparable: a ratio needs two values above 0 (medians {medians}, {blocks})"
    if verdict == "too few blocks":
        return f"too few blocks: {blocks}, and an interval needs {fewest_blocks(row['level'])}"
    if row["low"] == row["high"]:
        interval = f"the same in all {blocks}"
    else:
        interval = f"{100 * row['level']:g} % interval {_interval(row)}, {blocks}"
    dearer = f"; {more}" if (more := dearer_turns(row)) else ""
    if verdict in DIRECTIONS:
        return f"{_change(row)} ({interval}){dearer}"
    if verdict == "not valid":
        return f"not valid: two copies of one arm differ by {_signed(row['aa'])} in this step"
    if verdict == "equivalent":
        real = ", small but real" if _excludes_one(row) else ""
        within = f"equivalent within {_percent(row['margin'])} %{real}"
        return f"{within}: {_signed(row['ratio'])} ({interval}){dearer}"
    return f"inconclusive: {_signed(row['ratio'])} ({interval}); {_prospect(row)}{dearer}"


def dearer_turns(row: Mapping[str, Any]) -> str | None:
    """A sentence on sums over all turns that differ from the ratio (rare stalls); or None."""
    if row["ratio"] is None or row["ratio_of_sums"] is None:
        return None
    apart = round(abs(math.log(row["ratio_of_sums"] / row["ratio"])), DECIMALS)
    if apart <= round(math.log1p(row["margin"]), DECIMALS):
        return None
    return (
        f"by the sums over all turns {_signed(row['ratio_of_sums'])}: some turns were much dearer"
    )


def _prospect(row: Mapping[str, Any]) -> str:
    """Why it is open, and what would settle it."""
    if _excludes_one(row):
        why = f"a difference, but not clearly one of more than {_percent(row['margin'])} %"
    else:
        why = f"this run could have seen {_percent(row['detectable'])} %"
    if row["blocks_needed"] is None:
        return f"{why}, and this design cannot settle it"
    more = row["blocks_needed"] - row["blocks"]
    return f"{why}, and about {_counted(more, 'more ')} would settle it"


def _excludes_one(row: Mapping[str, Any]) -> bool:
    return bool(row["low"] > 1 or row["high"] < 1)


def _change(row: Mapping[str, Any]) -> str:
    if _is_manifold(row):
        return f"{row['verdict']}: {row['ratio']:.3g} times the baseline"
    return f"{_percent(abs(row['ratio'] - 1))} % {row['verdict']}"


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row["low"], row["high"]
    if _is_manifold(row):
        return f"{low:.3g} to {high:.3g} times"
    if row["verdict"] not in DIRECTIONS:
        return f"{_signed(low)} to {_signed(high)}"
    near, far = sorted((abs(low - 1), abs(high - 1)))
    return f"{_percent(near)} to {_percent(far)} %"


def _is_manifold(row: Mapping[str, Any]) -> bool:
    """Whether percentages would be harder to read than multiples."""
    return row["verdict"] in DIRECTIONS and not 0.5 < row["ratio"] < 2


def _signed(ratio: float) -> str:
    sign = "+" if ratio > 1 else "−" if ratio < 1 else ""
    return f"{sign}{_percent(abs(ratio - 1))} %"


def _percent(fraction: float) -> str:
    """Per cent to one decimal, or to the first digit that is not 0."""
    percent = 100 * fraction
    return f"{percent:.1f}" if percent >= 0.05 or percent == 0 else f"{percent:.1g}"


def _counted(blocks: int, which: str = "") -> str:
    return f"{blocks} {which}block{'s' if blocks != 1 else ''}"
