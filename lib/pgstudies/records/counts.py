"""Counts of instructions as a record holds them, and read back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl

from ..rooms import rooms
from .reading import fullest, list_records, readable_records

if TYPE_CHECKING:
    from .reading import Record

INSTRUCTIONS = "instructions"
"""The metric of a whole unit of work, once for each count; its case is ``open_case``."""


def open_case(transactions: int, nested: int = 0) -> str:
    """The case with so many open transactions: ``250 open``, ``250 open, 8 in each``, or empty."""
    within = f", {nested} in each" if nested else ""
    return f"{transactions} open{within}" if transactions else ""


def units_counted(record: Record) -> pl.DataFrame:
    """The instructions of one unit in each arm: arm, unit, open, nested, instructions, again.

    ``open`` is the number of open transactions, ``nested`` that of the subtransactions in each, and
    ``again`` the second count or null.
    """
    found = of_units(record, pl.col("metric") == INSTRUCTIONS)
    return found.group_by("arm", "unit", "open", "nested", maintain_order=True).agg(
        instructions=pl.col("value").filter(pl.col("iteration") == 1).first(),
        again=pl.col("value").filter(pl.col("iteration") == 2).first(),
    )


def fullest_counts() -> Record | None:
    """The complete record that counted most, the newest of several; None without one."""
    return fullest(counted_records())


def counted_since(record: Record) -> list[Record]:
    """The newer complete records of counts, newest first."""
    return [r for r in counted_records() if r.info["started_at"] > record.info["started_at"]]


def counted_records() -> list[Record]:
    """The complete records of counts, newest first."""
    known = pl.concat([list_records(None).clear(), *map(list_records, rooms("counts"))])
    complete = known.filter(pl.col("status") == "complete").sort("started_at", descending=True)
    return list(readable_records(complete["path"]))


def claims_counted() -> pl.DataFrame:
    """The ratios of claims in instructions: claim, by_commit, ratio, low, high, record.

    ``low`` and ``high`` are the smaller and the larger ratio if there are two counts.  Each ratio
    is of one record, the newest that has both sides: counts repeat, but two records may be of
    different programs.  ``by_commit`` says whether the arms are commits.  Claims without counts
    have no row.
    """
    wanted = [r for room in rooms().values() for r in room.read("units.toml").get("ratio", [])]
    found: dict[tuple[str, bool], dict[str, Any]] = {}
    for record in counted_records():
        counts = {
            (arm, unit, number): (first, again)
            for arm, unit, number, nested, first, again in units_counted(record).iter_rows()
            if not nested
        }
        for ratio in wanted:
            places = [*ratio["over"], *ratio["under"]]
            by_commit = all(arm.startswith("commit-") for arm, _, _ in places)
            if (ratio["id"], by_commit) in found or not {*map(tuple, places)} <= counts.keys():
                continue
            known = [r for n in (0, 1) if (r := _ratio(ratio, counts, n)) is not None]
            found[ratio["id"], by_commit] = {
                "ratio": known[0],
                "low": min(known),
                "high": max(known),
                "record": record.path.name,
            }
    rows = [{"claim": c, "by_commit": by, **row} for (c, by), row in found.items()]
    floats = dict.fromkeys(["ratio", "low", "high"], pl.Float64())
    schema = {"claim": pl.String(), "by_commit": pl.Boolean(), **floats, "record": pl.String()}
    return pl.DataFrame(rows, schema=schema)


def _ratio(wanted: dict[str, Any], counts: dict[Any, Any], which: int) -> float | None:
    over, under = ([counts[tuple(place)][which] for place in wanted[k]] for k in ("over", "under"))
    return None if None in [*over, *under] else math.prod(over) / math.prod(under)


def of_units(record: Record, which: pl.Expr) -> pl.DataFrame:
    """The samples of counts that are ``which``, with the columns unit, open and nested."""
    case = pl.col("case").str
    return record.measured.filter(which).with_columns(
        unit="step",
        open=case.extract(r"^(\d+) open").cast(pl.Int64).fill_null(0),
        nested=case.extract(r", (\d+) in each$").cast(pl.Int64).fill_null(0),
    )
