"""Two runs of one study, side by side."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.stats import t

from .pairing import BY

if TYPE_CHECKING:
    from collections.abc import Sequence

_OF_ONE = ("ratio", "low", "high", "blocks")


def runs_apart(
    first: pl.DataFrame,
    other: pl.DataFrame,
    *,
    by: Sequence[str] = BY,
    luck: float = 0.0,
    level: float = 0.95,
) -> pl.DataFrame:
    """The comparisons that two tables of ``paired_effects`` share, and how far they are apart.

    ``luck`` is the standard deviation of a log-ratio between two runs of equal servers, which no
    run sees in its own blocks.  Columns: the ``by`` columns, candidate; ratio, low, high, blocks of
    the first, and other_ratio and so on; apart, the other ratio / the first, with apart_low and
    apart_high at ``level`` (Welch's interval of the blocks' log-ratios, with luck); p_value, Holm's
    among all rows; outcome: *differs* (p ≤ 1 − level, and past the margin), *alike* (the interval
    is within the margin), else *open*.  All of these are null below 2 blocks.
    """
    keys = [*by, "candidate"]
    columns = [*keys, *_OF_ONE, "margin", "log_ratios"]
    both = first.select(columns).join(
        other.select(columns).rename({name: f"other_{name}" for name in columns[len(keys) :]}),
        on=keys,
        nulls_equal=True,
        maintain_order="left",
    )
    found = [
        _apart(one, two, luck, level)
        for one, two in both.select("log_ratios", "other_log_ratios").iter_rows()
    ]
    schema = dict.fromkeys(["apart", "apart_low", "apart_high", "p_value"], pl.Float64())
    apart = pl.DataFrame(found, schema=schema, orient="row")
    p, edge = pl.col("p_value"), pl.col("margin").log1p()
    holm = (p * (p.count() + 1 - p.rank("ordinal"))).clip(upper_bound=1)
    return (
        both.hstack(apart)
        .with_columns(holm.cum_max().over(pl.lit(1), order_by="p_value"))
        .with_columns(
            outcome=pl.when(pl.col("p_value").is_null())
            .then(None)
            .when(pl.col("p_value") <= 1 - level, pl.col("apart").log().abs() > edge)
            .then(pl.lit("differs"))
            .when(pl.col("apart_low").log() >= -edge, pl.col("apart_high").log() <= edge)
            .then(pl.lit("alike"))
            .otherwise(pl.lit("open"))
        )
        .select(*keys, *_OF_ONE, *(f"other_{n}" for n in _OF_ONE), *schema, "outcome")
    )


def _apart(
    one: Sequence[float | None], two: Sequence[float | None], luck: float, level: float
) -> tuple[float | None, ...]:
    samples = [np.array([d for d in side if d is not None]) for side in (one, two)]
    if min(side.size for side in samples) < 2 or np.isnan(np.concatenate(samples)).any():
        return (None,) * 4
    errors = np.array([side.var(ddof=1) / side.size for side in samples])
    centre = float(samples[1].mean() - samples[0].mean())
    error = math.sqrt(float(errors.sum()) + 2 * luck**2)
    if error == 0:
        return math.exp(centre), math.exp(centre), math.exp(centre), float(centre == 0)
    free = sum(e**2 / (side.size - 1) for e, side in zip(errors, samples, strict=True))
    degrees = float(errors.sum() ** 2 / free) if free else min(s.size for s in samples) - 1.0
    half = float(t.ppf((1 + level) / 2, degrees)) * error
    p_value = 2 * float(t.sf(abs(centre) / error, degrees))
    return math.exp(centre), math.exp(centre - half), math.exp(centre + half), p_value
