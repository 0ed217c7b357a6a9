"""How often an estimate was right: shares of comparisons whose truth is known, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from statsmodels.stats.proportion import proportion_confint

from .intervals import MINIMUM_BLOCKS
from .pairing import log_ratios

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


BY = ("step", "metric", "experiment", "iteration")
"""What tells one comparison from another: an experiment is a number of blocks of its own, and its
iterations share these blocks."""


def deviations(values: pl.DataFrame, truths: pl.DataFrame, *, baseline: str) -> pl.DataFrame:
    """How far each block's log-ratio is off the truth.

    ``values`` holds one value per block, arm and ``BY``, as from ``block_values``; ``truths`` has
    step, metric, candidate and truth, a ratio; what it does not name is left out.  Columns: ``BY``,
    candidate, block and deviation, on the log scale.
    """
    deviation = pl.col("log_ratio") - pl.col("truth").log()
    return (
        log_ratios(values, baseline=baseline, by=BY)
        .join(truths, on=["step", "metric", "candidate"])
        .select(*BY, "candidate", "block", deviation=deviation)
        .filter(pl.col("deviation").is_finite())
    )


def effective_number(found: pl.DataFrame) -> float:
    """As how many independent comparisons those of ``deviations`` count, as to hits and misses.

    Comparisons that share blocks share these blocks' luck.  Whether a two-sided interval misses is
    an even function of the estimate, so two misses correlate at most like the square of the
    estimates' correlation (Mehler's expansion, for normal estimates).  That is taken from the
    blocks, less what it comes to by chance.  At least one for each experiment, at most all.
    """
    if found.is_empty():
        return 0.0
    comparison = pl.struct("step", "metric", "candidate", "iteration").rank("dense")
    wide = found.select("block", comparison.alias("comparison"), "deviation").pivot(
        "comparison", index="block", values="deviation"
    )
    d = wide.drop("block").drop_nulls().to_numpy()
    blocks, comparisons = d.shape
    related = _mean_squared_correlation(d) if blocks >= MINIMUM_BLOCKS else 1.0
    worth = comparisons / (1 + (comparisons - 1) * related)
    return float(worth * found["experiment"].n_unique())


def _mean_squared_correlation(d: NDArray[np.float64]) -> float:
    """Of all pairs of columns, adjusted so that it is 0 in the mean for unrelated ones."""
    blocks, comparisons = d.shape
    if comparisons == 1:
        return 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.asarray(np.corrcoef(d, rowvar=False))
    r = np.nan_to_num(r, nan=1.0)  # columns without any spread
    squared = r[np.triu_indices(comparisons, 1)] ** 2
    adjusted = float(np.mean(squared - (1 - squared) / (blocks - 2)))
    return min(max(adjusted, 0.0), 1.0)


def share_table(
    effects: pl.DataFrame, found: pl.DataFrame, hit: pl.Expr, *, by: Sequence[str] = ()
) -> pl.DataFrame:
    """How often ``hit`` is true of the comparisons that have an interval.

    ``effects`` are rows of ``paired_effects`` by ``BY``, ``found`` their ``deviations``.  Columns:
    ``by``, comparisons, hits, share, effective (see ``effective_number``), and low, high: the 95 %
    interval of Clopper and Pearson for that effective number (Korn and Graubard, Survey Methodology
    24, 1998).  One row without ``by``, also where there is no comparison: share is null then.
    """
    known = effects.filter(pl.col("low").is_not_null())
    keys = known.select(by).unique(maintain_order=True).rows(named=True) if by else [{}]
    rows = []
    for key in keys:
        same = [pl.col(name) == value for name, value in key.items()]
        rows.append(key | _share(known.filter(*same), found.filter(*same), hit))
    kinds = {name: effects.schema[name] for name in by}
    return pl.DataFrame(rows, schema=kinds | _SHARE)


def _share(effects: pl.DataFrame, found: pl.DataFrame, hit: pl.Expr) -> dict[str, float | None]:
    comparisons, hits = effects.height, effects.filter(hit).height
    if not comparisons:
        return {"comparisons": 0, "hits": 0, "effective": 0.0}
    effective = min(effective_number(found), comparisons)
    count = hits / comparisons * effective  # neither number need be whole
    low, high = proportion_confint(count, effective, alpha=0.05, method="beta")
    return {
        "comparisons": comparisons,
        "hits": hits,
        "share": hits / comparisons,
        "effective": effective,
        "low": float(low),
        "high": float(high),
    }


_SHARE: dict[str, pl.DataType] = {
    "comparisons": pl.Int64(),
    "hits": pl.Int64(),
    "share": pl.Float64(),
    "effective": pl.Float64(),
    "low": pl.Float64(),
    "high": pl.Float64(),
}
