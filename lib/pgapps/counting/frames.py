"""Counts as polars frames: per unit of work, and how exact they are."""

from __future__ import annotations

import math

import polars as pl
import polars.selectors as cs

WHOLE = ""
"""The name of all functions together, in the column ``function``."""

EXACT = 0.001
"""The largest relative difference of two counts of a unit; beyond it the page says so."""


def per_unit(small: pl.DataFrame, large: pl.DataFrame, units: int) -> pl.DataFrame:
    """The cost of one unit: the difference between two counts, divided by ``units``."""
    both = small.join(large, on="function", how="full", coalesce=True, suffix=" of more")
    return both.select(
        "function",
        *(
            ((pl.col(f"{name} of more").fill_null(0) - pl.col(name).fill_null(0)) / units).alias(
                name
            )
            for name in small.columns
            if name != "function"
        ),
    )


def counted(first: pl.DataFrame, second: pl.DataFrame | None = None) -> pl.DataFrame:
    """The counts of one unit as one table: the whole first, then each function's own count.

    Columns: ``function``, ``inclusive``, ``own``, ``share`` (``own`` as a part of the whole),
    ``again`` (``inclusive`` of the second count, or null), and the simulated events.
    """
    whole = first.filter(pl.col("function") == WHOLE)["inclusive"].item()
    if second is None:
        both = first.with_columns(again=pl.lit(None, pl.Float64()))
    else:
        again = second.select("function", again="inclusive")
        both = first.join(again, on="function", how="left").with_columns(
            pl.col("again").fill_null(0)
        )
    return (
        both.filter((pl.col("inclusive") != 0) | (pl.col("own") != 0))
        .select(
            "function",
            "inclusive",
            "own",
            "again",
            cs.exclude("function", "inclusive", "own", "again"),
            share=pl.col("own") / whole,
        )
        .sort(pl.col("function") != WHOLE, -pl.col("own"), "function")
    )


def deviation(counts: pl.DataFrame) -> float:
    """The relative difference of a unit's second count from its first; nan without a second."""
    whole = counts.filter(pl.col("function") == WHOLE).row(0, named=True)
    return math.nan if whole["again"] is None else abs(whole["again"] / whole["inclusive"] - 1)
