"""Counts as polars frames: per unit of work, and how exact they are."""

from __future__ import annotations

import math

import polars as pl

WHOLE = ""
"""The name of all functions together, in the column ``function``."""

EXACT = 0.001
"""Two counts of the same unit differ by no more than this (relative)."""


def per_unit(small: pl.DataFrame, large: pl.DataFrame, units: int) -> pl.DataFrame:
    """The cost of one unit: the difference between two counts, divided by ``units``."""
    both = small.join(large, on="function", how="full", coalesce=True, suffix=" of more")
    return both.fill_null(0).select(
        "function",
        inclusive=(pl.col("inclusive of more") - pl.col("inclusive")) / units,
        own=(pl.col("own of more") - pl.col("own")) / units,
    )


def counted(first: pl.DataFrame, second: pl.DataFrame | None = None) -> pl.DataFrame:
    """The counts of one unit as one table: the whole first, then each function's own count.

    Columns: ``function``, ``inclusive``, ``own``, ``again`` (``inclusive`` of the second count, or
    null), ``share`` (``own`` as a part of the whole).
    """
    both = first.with_columns(again=pl.lit(None, pl.Float64()))
    if second is not None:
        again = second.select("function", again="inclusive")
        both = first.join(again, on="function", how="left").with_columns(
            pl.col("again").fill_null(0)
        )
    whole = first.filter(function=WHOLE)["inclusive"].item()
    return (
        both.filter((pl.col("inclusive") != 0) | (pl.col("own") != 0))
        .with_columns(share=pl.col("own") / whole)
        .sort(pl.col("function") != WHOLE, -pl.col("own"), "function")
    )


def deviation(counts: pl.DataFrame) -> float:
    """The relative difference of a unit's second count from its first; nan without a second."""
    whole = counts.filter(function=WHOLE).row(0, named=True)
    return math.nan if whole["again"] is None else abs(whole["again"] / whole["inclusive"] - 1)
