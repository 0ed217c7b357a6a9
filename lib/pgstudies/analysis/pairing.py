"""Pairing: values per block and round, and the log-ratio of each block's two arms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from pgservers.errors import StudyError

from ..records.samples import UNDISTURBED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DECIMALS = 12
"""Log-ratios are kept to this many decimals: values that tie, tie in every unit they are counted
in, and a ratio on the margin stays on it."""

BY = ("case", "step", "metric")
"""The columns by which comparisons are separate, unless a study says otherwise."""

TIMES = ("cpu_s", "duration_s")
"""The metrics that are paired by rounds: what is counted is the same in each."""

TRIMMED = 0.2
"""The share of a block's rounds that is left out at either end, before their mean is taken."""

FEWEST_TURNS = 9
"""The fewest rounds of a block whose beginning and end are compared."""

_SIDES = ("baseline", "candidate")

_IS_NUMBER = pl.col("value").is_finite().fill_null(value=False)

Statistic = Literal["mean", "sum", "median", "min"]

_STATISTICS: dict[Statistic, pl.Expr] = {
    "mean": pl.col("value").mean(),
    "sum": pl.col("value").sum(),
    "median": pl.col("value").median(),
    "min": pl.col("value").min(),
}


def undisturbed(samples: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """The samples that count: of turns in parts the undisturbed one, unless ``by`` has the part."""
    if "part" in by or "part" not in samples.columns:
        return samples
    is_undisturbed = pl.col("part") == UNDISTURBED
    kinds = [name for name in BY if name in samples.columns]
    found = is_undisturbed.any()
    return samples.filter(is_undisturbed | ~(found.over(kinds) if kinds else found))


def wide(
    samples: pl.DataFrame,
    metrics: Sequence[str],
    by: Sequence[str],
    *,
    statistic: Statistic = "median",
) -> pl.DataFrame:
    """One row per combination of ``by``, with a column for each of the metrics.

    It holds the statistic of the metric's values; null where there is none.  Rows come in the order
    of ``samples``; those without any of the metrics are left out.
    """
    return (
        samples.filter(pl.col("metric").is_in(metrics))
        .group_by(*by, "metric", maintain_order=True)
        .agg(_STATISTICS[statistic])
        .pivot("metric", on_columns=metrics, index=by, values="value")
    )


def block_values(
    samples: pl.DataFrame, *, by: Sequence[str] = BY, statistic: Statistic = "mean"
) -> pl.DataFrame:
    """One value per block, arm and combination of ``by``: the numbers that are replicated.

    ``samples`` has the columns of a record. Block 0, the preparation, is left out: it is done
    once per state, not once per block. Of a step whose turns are in parts, the undisturbed one
    counts, unless ``by`` has the part. Columns: block, arm, the ``by`` columns, unit, position,
    copy_of, value. Raises StudyError for a value that is not a finite number and for mixed units.
    """
    keys = list(dict.fromkeys(["block", "arm", *by]))
    after = ["after"] if "round" in by and "after" in samples.columns else []
    values = (
        undisturbed(samples, by)
        .lazy()
        .filter(pl.col("block") > 0)
        .group_by(*keys, "unit", maintain_order=True)
        .agg(
            pl.col("position", "copy_of", *after).first(),
            _STATISTICS[statistic],
            _IS_NUMBER.all().alias("is_number"),
        )
        .collect()
    )
    _refuse(values.filter(~pl.col("is_number")), keys, "is not a finite number")
    _refuse(
        values.filter(pl.struct(keys).is_duplicated()),
        keys,
        "mixes units; add 'metric' to the columns it is grouped by",
    )
    return values.select(*keys, "unit", "position", "copy_of", *after, "value")


def round_values(samples: pl.DataFrame, *, by: Sequence[str] = BY) -> pl.DataFrame:
    """One value per round, arm and combination of ``by``: what stood side by side.

    A round holds the samples of one iteration that every arm took at the same turn of its own, in
    one group: they are moments apart, and what the machine did then is common to them. Columns:
    those of ``block_values``, round, and after, the arm whose turn was the one before, where
    ``samples`` have it. Errors as there.
    """
    where = list(
        dict.fromkeys(["block", "group", "arm", "case", "step", "iteration", "metric", *by])
    )
    # Records of before list a block's samples by position, which is drawn anew for every turn.
    in_order = undisturbed(samples, by).sort("turn", maintain_order=True)
    numbered = in_order.with_columns(leg=pl.col("value").cum_count().over(where))
    round_name = pl.format("{}.{}.{}", "group", "iteration", "leg")
    return block_values(numbered.with_columns(round=round_name), by=["round", *by]).select(
        "block", "round", pl.exclude("block", "round")
    )


def log_ratios(
    values: pl.DataFrame, *, baseline: str | int, key: str = "arm", by: Sequence[str] = BY
) -> pl.DataFrame:
    """Each block's ln(candidate / baseline), the quantity that every effect is made of.

    A second copy of the baseline, which has its name in the column copy_of, is baseline as well:
    the candidates are compared with the mean of the logarithms of both, the copy with the first
    alone. Where ``values`` has rounds, each has its ratio to either copy, and the block's is the
    mean over the copies of their means over rounds, with a fifth trimmed at either end; a round
    that lacks one of the two does not count.

    Columns: the ``by`` columns, candidate, block, unit, baseline_value, candidate_value,
    baseline_position, candidate_position, log_ratio, log_sums, the same for the sums over all
    rounds, and log_settling, by how much the last third of a block's rounds reads higher than the
    first: null without rounds, with fewer than 9, and where they are of several iterations. A
    block that lacks one of the two has nulls there, and log_ratio null; log_ratio is 0 if both
    values are 0, and NaN if no ratio exists because one of them is 0, or negative. ``values`` and
    errors as for ``paired_effects``.
    """
    if key in by:
        raise StudyError(f"'{key}' is what is compared, so it cannot be in by as well.")
    rounds = ["round"] if "round" in values.columns else []
    keys = ["block", key, *rounds, *by]
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
        others = listed(known) if known else "none"
        raise StudyError(f"No {key} '{baseline}' was measured; there is {others}.")
    pairs = _pairs(measured, baseline, key, [*rounds, *by])
    _refuse(
        pairs.filter(pl.col("unit") != pl.col("candidate_unit")),
        ["block", "candidate", *by],
        "has another unit than the baseline; compare one metric at a time",
    )
    pairs = pairs.with_columns(pl.coalesce("unit", "candidate_unit").alias("unit"))
    pairs = pairs.drop("candidate_unit").with_columns(
        _log_ratio("baseline").alias("log_ratio"), pl.lit(None, pl.Float64).alias("log_settling")
    )
    if rounds:
        pairs = _over_rounds(pairs, [*by, "candidate", "block"])
    return (
        pairs.drop("first_value", "again_value", strict=False)
        .with_columns(_log_ratio("baseline").alias("log_sums"))
        .sort(*by, "candidate", "block")
    )


def _over_rounds(pairs: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """One row per block for the rows per round; values are means over rounds that have both.

    The ratios to either copy are trimmed by themselves: what disturbs a turn meets two copies twice
    as often as one candidate, so the ratios to their mean are not symmetric about 0.
    """
    both = pl.col("log_ratio").is_not_null()
    means = [pl.col(f"{side}_value").filter(both).mean() for side in _SIDES]
    positions = [pl.col(f"{side}_position").first() for side in _SIDES]
    copies = [trimmed_mean(_log_ratio(copy)) for copy in ("first", "again")]
    leg = pl.col("round").cast(pl.String).str.extract(_LEG).cast(pl.Int64)
    return (
        pairs.sort(leg)
        .group_by(*keys, maintain_order=True)
        .agg(
            pl.col("unit").first(),
            *means,
            *positions,
            pl.mean_horizontal(*copies).round(DECIMALS).alias("log_ratio"),
            _settling().alias("log_settling"),
        )
    )


def _settling() -> pl.Expr:
    """The median over the last third of a block's rounds less that over the first third."""
    d = pl.col("log_ratio").drop_nulls()
    third = d.len() // 3
    is_one_sequence = pl.col("round").cast(pl.String).str.replace(_LEG, "").n_unique() == 1
    return (
        pl.when((d.len() >= FEWEST_TURNS) & is_one_sequence & ~d.is_nan().any())
        .then(d.tail(third).median() - d.head(third).median())
        .otherwise(None)
    )


_LEG = r"(\d+)$"


def trimmed_mean(d: pl.Expr) -> pl.Expr:
    """The mean without a fifth at either end; null of no values, NaN if one of them is NaN."""
    d = d.drop_nulls()
    cut = (d.len() * TRIMMED).floor().cast(pl.Int64)
    kept = d.sort().slice(cut, d.len().cast(pl.Int64) - 2 * cut).mean()
    return pl.when(d.is_nan().any()).then(math.nan).otherwise(kept)


def _log_ratio(reference: str) -> pl.Expr:
    before, after = pl.col(f"{reference}_value"), pl.col("candidate_value")
    return (
        pl.when(before.is_null() | after.is_null())
        .then(None)
        .when((before == 0) & (after == 0))
        .then(0.0)
        .when((before > 0) & (after > 0))
        .then((after.log() - before.log()).round(DECIMALS))
        .otherwise(math.nan)
    )


def _pairs(
    measured: pl.DataFrame, baseline: str | int, key: str, by: Sequence[str]
) -> pl.DataFrame:
    """One row per candidate and block that holds at least one of the two."""
    candidates = measured.filter(pl.col(key) != baseline).select(
        *by,
        pl.col(key).alias("candidate"),
        "block",
        pl.col("unit", "value", "position").name.prefix("candidate_"),
    )
    baselines = measured.filter(pl.col(key) == baseline).select(
        *by, "block", "unit", pl.col("value", "position").name.prefix("baseline_")
    )
    copies = copies_of(measured, baseline, key)
    expected = candidates.select(*by, "candidate").unique()
    how: Any = {"on": by, "nulls_equal": True} if by else {"how": "cross"}
    baselines = expected.join(baselines, **how)
    on = [*by, "candidate", "block"]
    pairs = baselines.join(candidates, on=on, how="full", coalesce=True, nulls_equal=True)
    again = measured.filter(pl.col(key).is_in(copies))
    pairs = _with_both_copies(pairs, again, [*by, "block"], pl.col("candidate").is_in(copies))
    sides = ("value", "position")
    return pairs.select(
        *on,
        *("unit", "candidate_unit", "first_value", "again_value"),
        *(f"{arm}_{s}" for s in sides for arm in _SIDES),
    )


def copies_of(values: pl.DataFrame, name: str | int, key: str) -> list[str | int]:
    """The values of ``key`` that are second copies of ``name``: none without a column copy_of."""
    if "copy_of" not in values.columns:
        return []
    return values.filter(pl.col("copy_of") == str(name))[key].unique().to_list()


def _with_both_copies(
    pairs: pl.DataFrame, again: pl.DataFrame, keys: Sequence[str], is_copy: pl.Expr
) -> pl.DataFrame:
    """The pairs, with the mean of the logarithms of both copies for the baseline's value."""
    second = again.select(*keys, pl.col("value").alias("again_value"))
    first, other = pl.col("first_value"), pl.col("again_value")
    both = (
        pl.when(other.is_null())
        .then(first)
        .when((first > 0) & (other > 0))
        .then((first.log() + other.log()).truediv(2).exp())
        .otherwise((first + other) / 2)
    )
    return (
        pairs.join(second, on=list(keys), how="left", nulls_equal=True, maintain_order="left")
        .rename({"baseline_value": "first_value"})
        .with_columns(pl.when(~is_copy & first.is_not_null()).then(other).alias("again_value"))
        .with_columns(pl.when(first.is_null()).then(None).otherwise(both).alias("baseline_value"))
    )


def _refuse(found: pl.DataFrame, columns: Sequence[str], what: str) -> None:
    if not found.is_empty():
        row = found.select(columns).sort(columns).row(0, named=True)
        place = ", ".join(f"{name} {value}" for name, value in row.items())
        raise StudyError(f"The measurement of {place} {what}.")


def listed(names: Iterable[object]) -> str:
    """The names in quotes, for an error that says what there is to choose from."""
    return ", ".join(f"'{name}'" for name in names)
