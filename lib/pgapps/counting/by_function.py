"""Counts function by function, as a record holds them, and what moved between two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from pgstudies.records.counts import INSTRUCTIONS, of_units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgstudies.records.reading import Record

OWN, INCLUSIVE = "own: ", "inclusive: "
"""Prefixes of a function's metrics, before its name: its own count, and with what it calls."""

LEAST_SHARE = 0.002
"""Functions with a smaller part of a unit's count are not kept one by one."""


def count_samples(counts: pl.DataFrame) -> Iterator[tuple[str, int, float]]:
    """The values of one unit for a record: metric, iteration (from 1), instructions.

    ``counts`` is the table of ``instructions``, its first row the whole.
    """
    whole, *functions = counts.iter_rows(named=True)
    yield INSTRUCTIONS, 1, whole["inclusive"]
    if whole["again"] is not None:
        yield INSTRUCTIONS, 2, whole["again"]
    for row in functions:
        if abs(row["share"]) >= LEAST_SHARE:
            yield f"{OWN}{row['function']}", 1, row["own"]
            yield f"{INCLUSIVE}{row['function']}", 1, row["inclusive"]


def functions_counted(record: Record) -> pl.DataFrame:
    """Arm, unit, open, nested, function, inclusive, own; from ``LEAST_SHARE`` of the unit on."""
    metric = pl.col("metric").str
    found = of_units(record, metric.starts_with(OWN) | metric.starts_with(INCLUSIVE)).with_columns(
        function=pl.col("metric").str.replace("^[a-z]+: ", ""),
        kind=pl.col("metric").str.extract("^([a-z]+): "),
    )
    return found.group_by("arm", "unit", "open", "nested", "function", maintain_order=True).agg(
        pl.col("value").filter(pl.col("kind") == kind).first().alias(kind)
        for kind in ("inclusive", "own")
    )


def moved(before: pl.DataFrame, after: pl.DataFrame, top: int = 10) -> pl.DataFrame:
    """The functions whose own counts differ most between two tables of functions.

    Columns: function, before, after, change (instructions of one unit, by what each executes
    itself).  A function that one side lacks counts 0 there.
    """
    return (
        before.select("function", before="own")
        .join(after.select("function", after="own"), on="function", how="full", coalesce=True)
        .with_columns(pl.col("before", "after").fill_null(0).clip(0))  # a difference of two runs
        .with_columns(change=pl.col("after") - pl.col("before"))
        .sort(pl.col("change").abs(), descending=True)
        .head(top)
    )


NO_NAME = "(no name)"
"""The name for code without a symbol."""


def hint_of_names(functions: pl.DataFrame) -> str | None:
    """What to install if code without symbols moved most, by a table of ``moved``."""
    if functions.is_empty():
        return None
    first = functions.sort(pl.col("change").abs(), descending=True)["function"][0]
    if not first.startswith(NO_NAME):
        return None
    return "What moved most has no name: install the server's symbols, such as postgresql-N-dbgsym."
