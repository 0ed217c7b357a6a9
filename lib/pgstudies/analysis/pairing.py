"""Pairing: one value per block and arm, and the log-ratio of each block's two values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import polars as pl

from ..errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


DECIMALS = 12
"""Log-ratios are kept to this many decimals: values that tie, tie in every unit they are counted
in, and a ratio on the margin stays on it."""


BY = ("case", "step", "metric")
"""What is compared separately, unless a study says otherwise."""


_SIDES = ("baseline", "candidate")


_IS_NUMBER = pl.col("value").is_finite().fill_null(value=False)


def block_values(
    samples: pl.DataFrame,
    *,
    by: Sequence[str] = BY,
    statistic: Literal["mean", "sum", "median", "min"] = "mean",
) -> pl.DataFrame:
    """One value per block, arm and combination of ``by``: the numbers that are replicated.

    ``samples`` has the columns of a record. Block 0, the preparation, is left out: it is done
    once per state, not once per block. Columns: block, arm, the ``by`` columns, unit, position,
    value. Raises StudyError for a value that is not a finite number and for mixed units.
    """
    keys = list(dict.fromkeys(["block", "arm", *by]))
    value = pl.col("value")
    aggregated = {
        "mean": value.mean(),
        "sum": value.sum(),
        "median": value.median(),
        "min": value.min(),
    }[statistic]
    values = (
        samples.lazy()
        .filter(pl.col("block") > 0)
        .group_by(*keys, "unit", maintain_order=True)
        .agg(pl.col("position").first(), aggregated, _IS_NUMBER.all().alias("is_number"))
        .collect()
    )
    _refuse(values.filter(~pl.col("is_number")), keys, "is not a finite number")
    _refuse(
        values.filter(pl.struct(keys).is_duplicated()),
        keys,
        "mixes units; add 'metric' to the columns it is grouped by",
    )
    return values.select(*keys, "unit", "position", "value")


def log_ratios(
    values: pl.DataFrame,
    *,
    baseline: str | int,
    key: str = "arm",
    by: Sequence[str] = BY,
) -> pl.DataFrame:
    """Each block's ln(candidate / baseline), the quantity that every effect is made of.

    Columns: the ``by`` columns, candidate, block, unit, baseline_value, candidate_value,
    baseline_position, candidate_position, log_ratio. A block that lacks one of the two has nulls
    there, and log_ratio null; log_ratio is 0 where both values are 0, and NaN where no ratio
    exists because one of them is 0, or negative. ``values`` and errors as for ``paired_effects``.
    """
    if key in by:
        raise StudyError(f"'{key}' cannot both be compared and be held the same; drop it from by.")
    keys = ["block", key, *by]
    measured = values.filter(pl.col("block") > 0)
    if "position" not in measured.columns:
        measured = measured.with_columns(pl.lit(None, pl.Int32).alias("position"))
    _refuse(measured.filter(~_IS_NUMBER), keys, "is not a finite number")
    _refuse(
        measured.filter(pl.struct(keys).is_duplicated()),
        keys,
        "has more than one value; make one with block_values(), grouped by the same columns",
    )
    known = measured[key].unique().sort().to_list()
    if baseline not in known:
        raise StudyError(f"No {key} '{baseline}' was measured; there is {listed(known)}.")
    pairs = _pairs(measured, baseline, key, list(by))
    _refuse(
        pairs.filter(pl.col("unit") != pl.col("candidate_unit")),
        ["block", "candidate", *by],
        "has another unit than the baseline; compare one metric at a time",
    )
    before, after = pl.col("baseline_value"), pl.col("candidate_value")
    return (
        pairs.with_columns(
            pl.coalesce("unit", "candidate_unit").alias("unit"),
            pl.when(before.is_null() | after.is_null())
            .then(None)
            .when((before == 0) & (after == 0))
            .then(0.0)
            .when((before > 0) & (after > 0))
            .then((after.log() - before.log()).round(DECIMALS))
            .otherwise(math.nan)
            .alias("log_ratio"),
        )
        .drop("candidate_unit")
        .sort(*by, "candidate", "block")
    )


def _pairs(
    measured: pl.DataFrame, baseline: str | int, key: str, by: Sequence[str]
) -> pl.DataFrame:
    """One row per candidate and block that holds at least one of the two."""
    candidates = measured.filter(pl.col(key) != baseline).select(
        *by,
        pl.col(key).alias("candidate"),
        "block",
        pl.col("unit").alias("candidate_unit"),
        pl.col("value").alias("candidate_value"),
        pl.col("position").alias("candidate_position"),
    )
    baselines = measured.filter(pl.col(key) == baseline).select(
        *by,
        "block",
        "unit",
        pl.col("value").alias("baseline_value"),
        pl.col("position").alias("baseline_position"),
    )
    expected = candidates.select(*by, "candidate").unique()
    if by:
        baselines = expected.join(baselines, on=by, nulls_equal=True)
    else:
        baselines = expected.join(baselines, how="cross")
    on = [*by, "candidate", "block"]
    pairs = baselines.join(candidates, on=on, how="full", coalesce=True, nulls_equal=True)
    sides = ("value", "position")
    return pairs.select(
        *on, "unit", "candidate_unit", *(f"{arm}_{s}" for s in sides for arm in _SIDES)
    )


def _refuse(found: pl.DataFrame, columns: Sequence[str], what: str) -> None:
    if not found.is_empty():
        row = found.select(columns).sort(columns).row(0, named=True)
        place = ", ".join(f"{name} {value}" for name, value in row.items())
        raise StudyError(f"The measurement of {place} {what}.")


def listed(names: Iterable[object]) -> str:
    """The names in quotes, for an error that says what there is to choose from."""
    return ", ".join(f"'{name}'" for name in names)
