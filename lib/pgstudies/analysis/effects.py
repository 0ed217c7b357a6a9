"""Effects: the table of ratios, exact intervals and verdicts, one row per comparison."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import polars as pl
from statsmodels.stats.multitest import multipletests

from ..errors import StudyError
from .intervals import estimate_rows, smallest_detectable
from .pairing import BY, DECIMALS, listed, log_ratios
from .verdicts import with_verdicts

if TYPE_CHECKING:
    from collections.abc import Sequence


def paired_effects(
    values: pl.DataFrame,
    *,
    baseline: str | int,
    key: str = "arm",
    by: Sequence[str] = BY,
    aa: str | int | None = None,
    margin: float = 0.02,
    primary: pl.Expr | None = None,
    level: float = 0.95,
) -> pl.DataFrame:
    """The effect of every candidate against ``baseline``, one row per combination of ``by``.

    ``values`` holds one value per block: columns block, ``key``, the ``by`` columns, unit, value,
    as from ``block_values``. ``key`` is the column that tells baseline from candidate: the arm, or
    for instance the iteration, with the arm in ``by``. ``aa`` names the second copy of the
    baseline. ``primary`` selects the comparisons a study stands on, as an expression over the
    columns of the result; p_holm is corrected over those, all others are exploratory, and the A/A
    pair always is. Columns, after the ``by`` columns:

    - baseline, candidate, unit; baseline_median, candidate_median over the complete blocks
    - blocks: pairs used; dropped: blocks left out because one of the two is missing
    - ratio: candidate / baseline, Hodges–Lehmann; low, high: its exact interval at ``level``, null
      below 6 blocks
    - p_value of "no difference", null where there is no interval; primary; p_holm
    - noise: half-width of the A/A interval, as a fraction; declared: ``margin``, within which
      two arms are alike; margin: the same or three times the noise, if larger, past which they
      differ; 0.02 reaches from 1 / 1.02 to 1.02
    - verdict, detectable, blocks_needed: see ``verdicts``

    All of ratio, low, high and p_value are null where no ratio exists (a zero against something
    else). Raises StudyError for an unknown baseline or A/A copy, for two values in one block, for
    mixed units.
    """
    by = list(by)
    pairs = log_ratios(values, baseline=baseline, key=key, by=by)
    d = pl.col("log_ratio")
    complete = d.is_not_null()
    table = (
        pairs.group_by(*by, "candidate")
        .agg(
            pl.col("unit").first(),
            pl.col("baseline_value").filter(complete).median().alias("baseline_median"),
            pl.col("candidate_value").filter(complete).median().alias("candidate_median"),
            complete.sum().cast(pl.Int64).alias("blocks"),
            (~complete).sum().cast(pl.Int64).alias("dropped"),
            d.drop_nulls().sort(),
        )
        .sort(*by, "candidate", maintain_order=True)
    )
    candidates = table["candidate"].unique().sort().to_list()
    if aa is not None and aa not in candidates:
        raise StudyError(f"The A/A copy '{aa}' was not measured; there is {listed(candidates)}.")
    table = _with_estimates(table, level)
    is_aa = pl.lit(value=False) if aa is None else pl.col("candidate") == aa
    chosen = pl.lit(value=False) if primary is None else primary.fill_null(value=False)
    table = table.with_columns(
        pl.lit(baseline).cast(table.schema["candidate"]).alias("baseline"),
        pl.lit(level).alias("level"),
    ).with_columns((chosen & ~is_aa).alias("primary"))
    table = _with_margin(_with_holm(table), by, is_aa, margin)
    return with_verdicts(table).select(
        *by,
        *("baseline", "candidate", "unit", "baseline_median", "candidate_median"),
        *("blocks", "dropped", "ratio", "low", "high", "level", "p_value", "primary", "p_holm"),
        *("noise", "declared", "margin", "verdict", "detectable", "blocks_needed"),
    )


def _with_estimates(table: pl.DataFrame, level: float) -> pl.DataFrame:
    """Replace the lists of log-ratios by what they come to; null where no ratio exists."""
    d = pl.col("log_ratio")
    table = table.with_row_index("row").with_columns(d.list.std().round(DECIMALS).alias("sd"))
    is_comparable = (pl.col("blocks") > 0) & d.list.last().is_not_nan()  # NaN sorts last
    parts = [
        _estimates(part, level)
        for part in table.filter(is_comparable).partition_by("blocks", maintain_order=True)
    ]
    schema = {"row": pl.UInt32()} | dict.fromkeys(
        ["log_ratio", "log_low", "log_high", "p_value", "detectable"], pl.Float64()
    )
    estimates = pl.concat([pl.DataFrame(schema=schema), *parts])
    return table.drop("log_ratio").join(estimates, on="row", how="left", maintain_order="left")


def _estimates(table: pl.DataFrame, level: float) -> pl.DataFrame:
    """The estimates of comparisons that have the same number of blocks."""
    blocks = table["blocks"][0]
    d = table["log_ratio"].list.explode().to_numpy().reshape(table.height, blocks)
    found = estimate_rows(d, level)
    detectable = [smallest_detectable(sd, blocks, level=level) for sd in table["sd"]]
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


def _with_holm(table: pl.DataFrame) -> pl.DataFrame:
    # A primary comparison that could not be tested stays in the family: dropping it afterwards
    # would make the others look more certain than they were declared to be.
    family = table.filter("primary").select("row", pl.col("p_value").fill_null(1.0))
    corrected = multipletests(family["p_value"], method="holm")[1] if family.height else []
    p_holm = family.select("row", pl.Series("p_holm", corrected, dtype=pl.Float64))
    return table.join(p_holm, on="row", how="left", maintain_order="left").with_columns(
        pl.when(pl.col("p_value").is_not_null()).then("p_holm").alias("p_holm")
    )


def _with_margin(
    table: pl.DataFrame, by: Sequence[str], is_aa: pl.Expr, margin: float
) -> pl.DataFrame:
    half_width = ((pl.col("log_high") - pl.col("log_low")) / 2).alias("log_noise")
    noise = table.filter(is_aa).select(*by, half_width)
    if by:
        table = table.join(noise, on=list(by), how="left", nulls_equal=True, maintain_order="left")
    else:
        table = table.with_columns(
            pl.lit(noise["log_noise"].first(), pl.Float64).alias("log_noise")
        )
    declared = pl.lit(math.log1p(margin))
    return table.with_columns(
        declared.alias("log_declared"),
        pl.max_horizontal(declared, 3 * pl.col("log_noise")).alias("log_margin"),
    )
