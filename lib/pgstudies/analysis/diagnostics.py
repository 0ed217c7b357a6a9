"""Diagnostics: signs that the blocks of a run were not alike, and what that does to its effects."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.stats import kendalltau, mannwhitneyu, theilslopes, ttest_1samp

from .intervals import MINIMUM_BLOCKS, hodges_lehmann, holm, signed_rank_p_value
from .pairing import BY, copies_of, log_ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]


ALPHA = 0.05
"""How often, over all comparisons of a run, a check warns although nothing is wrong."""


def diagnose(
    values: pl.DataFrame,
    *,
    baseline: str | int,
    key: str = "arm",
    by: Sequence[str] = BY,
    margin: float = 0.02,
) -> pl.DataFrame:
    """The warnings about a run; no rows when nothing is amiss.

    Columns: the ``by`` columns, candidate, check, blocks, change (a fraction), p_holm, sentence.
    Each check is corrected by Holm over all the run's comparisons. The checks are

    - order: the log-ratio depends on whether the candidate ran after the baseline or before it
      (Mann–Whitney); change is how much slower the later one is.
    - drift: the log-ratio rises or falls from block to block (Kendall; Theil–Sen for the slope);
      change is that of the ratio over the whole run. A machine that drifts is no fault, that is
      what blocks are for: this is one arm drifting away from the other.
    - A/A: the two copies of the baseline differ (signed-rank); change is that difference.
    - settling: within a block, the log-ratio of the last third of all turns differs from that of
      the first (t) by more than ``margin``; change is that difference. Where one arm
      still warms up, or pays for what an earlier step left behind, more turns would give another
      ratio. It is seen in values of ``round_values`` only, from 9 turns on.

    Comparisons of fewer than 6 complete blocks are not checked. Give it the values a study stands
    on, not all of them: among hundreds of comparisons no ten blocks can stand out. Errors as for
    ``paired_effects``.
    """
    pairs = log_ratios(values, baseline=baseline, key=key, by=by)
    comparisons = (
        pairs.filter(pl.col("log_ratio").is_not_null())
        .with_columns(
            (pl.col("candidate_position") - pl.col("baseline_position")).sign().alias("after")
        )
        .group_by(*by, "candidate")
        .agg(
            *("log_ratio", "block", "after", "log_settling"),
            pl.len().cast(pl.Int64).alias("blocks"),
        )
        .filter(pl.col("blocks") >= MINIMUM_BLOCKS, ~pl.col("log_ratio").list.eval(_NAN).list.any())
        .sort(*by, "candidate")
    )
    copies = comparisons.filter(pl.col("candidate").is_in(copies_of(values, baseline, key)))
    in_turns = comparisons.filter(pl.col("log_settling").list.eval(_NONE).list.any().not_())
    settling = _checked(in_turns, "settling", "log_settling", _settling, _SETTLING)
    checked = [
        _checked(comparisons, "order", "after", order_effect, _ORDER),
        _checked(comparisons, "drift", "block", drift, _DRIFT),
        _checked(copies, "A/A", "block", _difference, _AA),
        settling.filter(pl.col("change").log1p().abs() > math.log1p(margin)),
    ]
    return pl.concat(checked).filter(pl.col("p_holm") <= ALPHA).sort("check", *by, "candidate")


def order_effect(d: Numbers, after: Numbers) -> tuple[float, float]:
    """How much the later of two arms reads higher, on the log scale, and its p-value.

    ``d`` are log-ratios, ``after`` is 1 where the candidate ran after the baseline and −1 where it
    ran before. (0, 1) when only one order occurs.
    """
    later, earlier = d[after > 0], d[after < 0]
    if not later.size or not earlier.size or np.ptp(d) == 0:
        return 0.0, 1.0
    # Both orders carry the position effect, with opposite signs.
    shift = float(np.median(np.subtract.outer(later, earlier))) / 2
    return shift, float(mannwhitneyu(later, earlier).pvalue)


def drift(d: Numbers, block: Numbers) -> tuple[float, float]:
    """The change of the log-ratio from the first block to the last, and its p-value."""
    if np.ptp(d) == 0:
        return 0.0, 1.0
    slope = float(theilslopes(d, block)[0])
    return slope * float(np.ptp(block)), float(kendalltau(block, d).pvalue)


def _difference(d: Numbers, _: Numbers) -> tuple[float, float]:
    return hodges_lehmann(d), signed_rank_p_value(d)


def _settling(_: Numbers, settling: Numbers) -> tuple[float, float]:
    # Medians over many turns are nearly normal; ranks of eight blocks could not stand out.
    if np.ptp(settling) == 0:
        return float(settling[0]), float(settling[0] == 0)
    return float(settling.mean()), float(ttest_1samp(settling, 0).pvalue)


def _checked(
    comparisons: pl.DataFrame,
    name: str,
    against: str,
    check: Callable[[Numbers, Numbers], tuple[float, float]],
    sentence: str,
) -> pl.DataFrame:
    found = [
        check(np.asarray(d, dtype=np.float64), np.asarray(x, dtype=np.float64))
        for d, x in comparisons.select("log_ratio", against).iter_rows()
    ]
    p_values = [p for _, p in found]
    changes = [math.expm1(change) for change, _ in found]
    sentences = [sentence.format(abs(100 * c), "higher" if c > 0 else "lower") for c in changes]
    return comparisons.drop("log_ratio", "block", "after", "log_settling").select(
        pl.exclude("blocks"),
        pl.lit(name).alias("check"),
        "blocks",
        pl.Series("change", changes, dtype=pl.Float64),
        pl.Series("p_holm", holm(p_values), dtype=pl.Float64),
        pl.Series("sentence", sentences, dtype=pl.String),
    )


_NAN = pl.element().is_nan()


_NONE = pl.element().is_null()


_ORDER = "the arm that runs later in a block reads {:.1f} % {}: one arm leaves something behind"


_DRIFT = "the ratio ends the run {:.1f} % {} than it began: the arms do not drift alike"


_SETTLING = (
    "the ratio of a block's last turns is {:.1f} % {} than that of its first: one arm still warms "
    "up, or pays for what came before"
)


_AA = "the second copy of the baseline reads {:.1f} % {}: trust no difference of that size here"
