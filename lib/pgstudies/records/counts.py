"""Counts of instructions as a record holds them, and read back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl

from ..rooms import rooms
from .reading import fullest, list_records, readable_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .reading import Record

INSTRUCTIONS = "instructions"
"""The metric of a whole unit of work, once for each count; its case is ``open_case``."""

OWN, INCLUSIVE = "own: ", "inclusive: "
"""A function's metrics begin so, and go on with its name: without and with what it calls."""

LEAST_SHARE = 0.002
"""What executes less than this part of a unit is not kept function by function."""


def open_case(transactions: int, nested: int = 0) -> str:
    """The case with so many open transactions: ``250 open``, ``250 open, 8 in each``, or empty."""
    within = f", {nested} in each" if nested else ""
    return f"{transactions} open{within}" if transactions else ""


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


def units_counted(record: Record) -> pl.DataFrame:
    """What each arm executes for one unit: arm, unit, open, nested, instructions, again.

    ``open`` is the number of open transactions, ``nested`` that of the subtransactions of each,
    ``again`` the second count, null without one.
    """
    found = _of_units(record, pl.col("metric") == INSTRUCTIONS)
    return found.group_by("arm", "unit", "open", "nested", maintain_order=True).agg(
        instructions=pl.col("value").filter(pl.col("iteration") == 1).first(),
        again=pl.col("value").filter(pl.col("iteration") == 2).first(),
    )


def functions_counted(record: Record) -> pl.DataFrame:
    """Arm, unit, open, nested, function, inclusive, own; from ``LEAST_SHARE`` of the unit on."""
    metric = pl.col("metric").str
    found = _of_units(record, metric.starts_with(OWN) | metric.starts_with(INCLUSIVE)).with_columns(
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
        .with_columns(pl.col("before", "after").fill_null(0))
        .with_columns(change=pl.col("after") - pl.col("before"))
        .sort(pl.col("change").abs(), descending=True)
        .head(top)
    )


def fullest_counts() -> Record | None:
    """The complete record that counted most, of several the newest; None where there is none."""
    return fullest(_newest_first())


def counted_since(record: Record) -> list[Record]:
    """The newer complete records of counts, newest first."""
    return [r for r in _newest_first() if r.info["started_at"] > record.info["started_at"]]


def _newest_first() -> list[Record]:
    known = pl.concat([list_records(None).clear(), *map(list_records, rooms("counts"))])
    complete = known.filter(pl.col("status") == "complete").sort("started_at", descending=True)
    return list(readable_records(complete["path"]))


def claims_counted() -> tuple[dict[str, float], str]:
    """By a claim's id, its ratio in instructions; and the names of the records that counted them.

    A ratio is of one record, the newest that has both sides of it: a count is the same in each, but
    two records need not have the same programs.  A claim that no record counted is not there.
    """
    wanted = [r for room in rooms().values() for r in room.read("units.toml").get("ratio", [])]
    found: dict[str, float] = {}
    names = []
    for record in _newest_first():
        counts = {
            (arm, unit, number): count
            for arm, unit, number, nested, count, _ in units_counted(record).iter_rows()
            if not nested
        }
        ratios = {r["id"]: _ratio(r, counts) for r in wanted if r["id"] not in found}
        new = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        if new:
            found |= new
            names.append(record.path.name)
    return found, ", ".join(names)


def _ratio(wanted: dict[str, Any], counts: dict[Any, float]) -> float | None:
    over, under = ([counts.get(tuple(place)) for place in wanted[k]] for k in ("over", "under"))
    if None in over or None in under:
        return None
    return math.prod(over) / math.prod(under)  # type: ignore[arg-type]


def _of_units(record: Record, which: pl.Expr) -> pl.DataFrame:
    holders = {"open": r"^(\d+) open", "nested": r", (\d+) in each$"}
    return record.measured.filter(which).with_columns(
        pl.col("step").alias("unit"),
        *(
            pl.col("case").str.extract(pattern).cast(pl.Int64).fill_null(0).alias(name)
            for name, pattern in holders.items()
        ),
    )
