"""Effects: the table of ratios, exact intervals and verdicts, one row per comparison."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from .intervals import estimate_rows, hodges_lehmann, signed_rank_interval, smallest_detectable
from .pairing import BY, DECIMALS, copies_of, log_ratios
from .verdicts import with_verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .intervals import Estimates

    Intervals = Callable[[pl.DataFrame, float], Estimates]


_FOUR_IN_FIVE = 0.8416
"""The normal quantile of a power of 80 %."""


def paired_effects(
    values: pl.DataFrame,
    *,
    baseline: str | int,
    key: str = "arm",
    by: Sequence[str] = BY,
    margin: float = 0.02,
    level: float = 0.95,
    intervals: Intervals | None = None,
    gated: bool = True,
) -> pl.DataFrame:
    """The effect of every candidate against ``baseline``, one row per combination of ``by``.

    ``values`` holds one value per block, or per block and round: columns block, round, ``key``, the
    ``by`` columns, unit, value, as from ``round_values`` for times and from ``block_values`` for
    counts. ``key`` is the column that tells baseline from candidate: the arm, or for instance the
    iteration, with the arm in ``by``. Rows whose copy_of names the baseline are of its second copy:
    the baseline is the mean of both. If ``gated``, what the two copies of any arm show is a gate on
    all comparisons of the same ``by``. Every effect is judged by itself; ``judge`` corrects the
    effects that a claim rests on. Columns, after the ``by`` columns:

    - baseline, candidate, unit; baseline_median, candidate_median over the complete blocks
    - blocks: pairs used; dropped: blocks left out because one of the two is missing
    - ratio: candidate / baseline, Hodges–Lehmann; low, high: its exact interval at ``level``, null
      below 6 blocks; or by ``intervals``, in place of ``estimate_rows``, called with such rows,
      of as many blocks each (``by``, candidate, and their log-ratios as log_ratio), and ``level``
    - ratio_of_sums: the same of the sums over a block's rounds; see ``dearer_turns``
    - p_value of "no difference", null where there is no interval
    - noise: half-width of the A/A interval of this step, as a fraction; aa, aa_low, aa_high: its
      ratio and bounds
    - margin: ``margin``, within which two arms are alike and past which they differ; 0.02 reaches
      from 1 / 1.02 to 1.02
    - verdict, detectable, blocks_needed: see ``verdicts``
    - log_ratios: an entry for each block of ``values``, null where it lacks one of the two

    All of ratio, low, high and p_value are null where no ratio exists (a zero against something
    else). Raises StudyError for an unknown baseline, for two values in one block, for mixed units.
    """
    by = list(by)
    pairs = log_ratios(values, baseline=baseline, key=key, by=by)
    table = _with_estimates(_comparisons(pairs, [*by, "candidate"]), level, margin, intervals)
    table = table.with_columns(
        pl.lit(baseline).cast(table.schema["candidate"]).alias("baseline"),
        pl.lit(level).alias("level"),
    )
    table = _with_gate(table, _gates(values, key, by, level), by, margin)
    return with_verdicts(table, gated=gated).select(
        *by,
        *("baseline", "candidate", "unit", "baseline_median", "candidate_median"),
        *("blocks", "dropped", "ratio", "low", "high", "ratio_of_sums", "level", "p_value"),
        *("noise", "aa", "aa_low", "aa_high"),
        *("margin", "verdict", "detectable", "blocks_needed", "log_ratios"),
    )


def _comparisons(pairs: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """One row per comparison of ``log_ratios``, with lists of what its blocks have."""
    blocks = pairs.select(pl.col("block").unique().sort())
    every = pairs.select(keys).unique().join(blocks, how="cross", maintain_order="left_right")
    d, is_measured = pl.col("log_ratio"), pl.col("unit").is_not_null()
    complete = d.is_not_null()
    return (
        every.join(pairs, on=[*keys, "block"], how="left", nulls_equal=True, maintain_order="left")
        .group_by(keys)
        .agg(
            pl.col("unit").drop_nulls().first(),
            pl.col("baseline_value").filter(complete).median().alias("baseline_median"),
            pl.col("candidate_value").filter(complete).median().alias("candidate_median"),
            complete.sum().cast(pl.Int64).alias("blocks"),
            (is_measured & ~complete).sum().cast(pl.Int64).alias("dropped"),
            d.drop_nulls(),
            pl.col("log_sums").drop_nulls().sort(),
            d.alias("log_ratios"),
        )
        .sort(keys, maintain_order=True)
    )


def estimate(log_ratios: pl.Series) -> pl.DataFrame:
    """The ratio of the blocks, which each have a log-ratio, and its exact 95 % interval.

    One row: blocks, ratio (Hodges–Lehmann), low, high; null without blocks, and low and high below
    6 blocks.  Nulls in ``log_ratios`` are left out.
    """
    d = log_ratios.drop_nulls().to_numpy()
    interval = signed_rank_interval(d) if d.size else None
    found = [hodges_lehmann(d) if d.size else None, *(interval or (None, None))]
    ratios = dict(zip(("ratio", "low", "high"), found, strict=True))
    frame = pl.DataFrame(ratios, schema=dict.fromkeys(ratios, pl.Float64()), orient="col")
    return frame.select(pl.lit(d.size).alias("blocks"), pl.all().exp())


def gated_by(effects: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """The effects with another step's gate, where no two copies of an arm did the step itself.

    ``copies`` are effects of second copies against the first.  For each metric the pair furthest
    from alike is the gate: noise, aa, aa_low and aa_high are its own, and verdict becomes *not
    valid* if they say so.  Without an interval in ``copies`` the gate stays.
    """
    low, high = pl.col("aa_low").log(), pl.col("aa_high").log()
    gates = (
        copies.filter(pl.col("low").is_not_null())
        .select("metric", aa="ratio", aa_low="low", aa_high="high")
        .with_columns(noise=((high - low) / 2).exp() - 1)
        .sort(pl.max_horizontal(low, -high), descending=True)
        .unique("metric", keep="first")
    )
    edge = pl.col("margin").log1p().round(DECIMALS)
    is_judged = ~pl.col("verdict").is_in(["not comparable", "too few blocks"])
    is_shut = (is_judged & ((low > edge) | (high < -edge))).fill_null(value=False)
    return effects.update(gates, on="metric").with_columns(
        verdict=pl.when(is_shut).then(pl.lit("not valid")).otherwise("verdict")
    )


def _with_estimates(
    table: pl.DataFrame, level: float, margin: float, intervals: Intervals | None
) -> pl.DataFrame:
    """Replace the lists of log-ratios by their estimates; null where no ratio exists."""
    d = pl.col("log_ratio")
    table = table.with_row_index("row").with_columns(d.list.std().round(DECIMALS).alias("sd"))
    is_comparable = (pl.col("blocks") > 0) & d.list.sort().list.last().is_not_nan()  # it sorts last
    parts = [
        _estimates(part, level, margin, intervals)
        for part in table.filter(is_comparable).partition_by("blocks", maintain_order=True)
    ]
    schema = {"row": pl.UInt32()} | dict.fromkeys(
        ["log_ratio", "log_low", "log_high", "p_value", "detectable"], pl.Float64()
    )
    estimates = pl.concat([pl.DataFrame(schema=schema), *parts])
    sums = [
        None if len(d) == 0 or math.isnan(d[-1]) else hodges_lehmann(d) for d in table["log_sums"]
    ]
    table = table.with_columns(pl.Series("log_sums", sums, dtype=pl.Float64))
    return table.drop("log_ratio").join(estimates, on="row", how="left", maintain_order="left")


def _estimates(
    table: pl.DataFrame, level: float, margin: float, intervals: Intervals | None
) -> pl.DataFrame:
    """The estimates of comparisons that have the same number of blocks."""
    blocks = table["blocks"][0]
    d = table["log_ratio"].to_list()
    found = intervals(table, level) if intervals else estimate_rows(d, level)
    # An estimate must come to lie past the margin, too: four times in five, 0.84 of its deviation.
    past = [math.log1p(margin) + _FOUR_IN_FIVE * (sd or 0.0) / blocks**0.5 for sd in table["sd"]]
    if intervals:
        seen: list[float | None] = np.expm1((found.high - found.low) / 2).tolist()
    else:
        seen = [smallest_detectable(sd, blocks, level=level) for sd in table["sd"]]
    detectable = [
        None if change is None else max(change, math.expm1(least))
        for change, least in zip(seen, past, strict=True)
    ]
    return pl.DataFrame(
        {
            "row": table["row"],
            "log_ratio": found.centre,
            "log_low": found.low,
            "log_high": found.high,
            "p_value": found.p_value,
            "detectable": pl.Series(detectable, dtype=pl.Float64),
        }
    ).fill_nan(None)


def _gates(values: pl.DataFrame, key: str, by: Sequence[str], level: float) -> pl.DataFrame:
    """How far the copies of each arm are apart: by, copied, log_aa, log_aa_low, log_aa_high."""
    names = values[key].unique().sort().to_list()
    pairs = [(name, copy) for name in names for copy in copies_of(values, name, key)]
    schema = {name: values.schema[name] for name in by} | {"copied": values.schema[key]}
    schema |= dict.fromkeys(["log_aa", "log_aa_low", "log_aa_high"], pl.Float64())
    found = [pl.DataFrame(schema=schema)]
    for arm, copy in pairs:
        both = log_ratios(
            values.filter(pl.col(key).is_in([arm, copy])), baseline=arm, key=key, by=by
        )
        complete = both.filter(pl.col("log_ratio").is_not_null() & ~pl.col("log_ratio").is_nan())
        for place, part in complete.group_by(*by) if by else [((), complete)]:
            d = part["log_ratio"].to_numpy()
            interval = signed_rank_interval(d, level) if d.size else None
            if interval is not None:
                row = [*place, arm, hodges_lehmann(d), *interval]
                found.append(pl.DataFrame([row], schema=schema, orient="row"))
    return pl.concat(found)


def _with_gate(
    table: pl.DataFrame, gates: pl.DataFrame, by: Sequence[str], margin: float
) -> pl.DataFrame:
    """Each comparison with the gate of its arms' copies, the one furthest from alike of two."""
    table = table.with_row_index("row_of")
    sides = [table.select("row_of", *by, copied=side) for side in ("baseline", "candidate")]
    excess = pl.max_horizontal(pl.col("log_aa_low"), -pl.col("log_aa_high"))
    found = (
        pl.concat(sides)
        .join(gates, on=[*by, "copied"], nulls_equal=True, maintain_order="left")
        .sort(excess, descending=True, maintain_order=True)
        .unique("row_of", keep="first", maintain_order=True)
        .drop(*by, "copied")
    )
    found = table.join(found, on="row_of", how="left", maintain_order="left").drop("row_of")
    return found.with_columns(pl.lit(math.log1p(margin)).alias("log_margin"))
