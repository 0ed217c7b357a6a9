"""Whether the marked scripts of a workload turned out as their author expected.

A mark (``-- control``, ``-- expect: < 0.7``) is read with the script, and kept in the record before
anything is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from ...workload.scripts import EXPECTATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .measured import Measured

_SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys(("study", "script", "expected"), pl.String()),
    "is_control": pl.Boolean(),
    **dict.fromkeys(("bound", "ratio", "low", "high"), pl.Float64()),
    "is_met": pl.Boolean(),
}


def expectations(measured: Iterable[Measured], effects: pl.DataFrame) -> pl.DataFrame:
    """Each marked script with its step's effect: one row per script, in the record's order.

    ``effects`` have guards and margins.  A script is as expected if its whole interval is: below
    the bound, above it, or within the margin around it, which is 1 for a control.  It is not as
    expected if the interval lies on the other side, or excludes the bound with an estimate beyond
    the margin.

    Columns: study, script, expected (the relation: <, > or =), is_control, bound, ratio, low, high
    (null if the step was not measured or a guard failed for it), is_met (null if undecided).
    """
    rows = [row for m in measured for row in _marked(m)]
    marked = pl.DataFrame(rows, schema={n: _SCHEMA[n] for n in list(_SCHEMA)[:5]}, orient="row")
    known = effects.filter(pl.col("failed").is_null()).select(
        "study",
        *("ratio", "low", "high", "margin"),
        script=pl.when(pl.col("case") == "").then("step").otherwise("case"),
    )
    ratio, low, high, bound = map(pl.col, ("ratio", "low", "high", "bound"))
    within, edge = pl.col("margin").log1p(), bound.log()
    is_beyond = ((low > bound) | (high < bound)) & ((ratio.log() - edge).abs() > within)
    is_inside = (low.log() >= edge - within) & (high.log() <= edge + within)
    is_equal = pl.when(is_inside).then(True).when(is_beyond).then(False)
    is_met = {
        "<": pl.when(high < bound).then(True).when(low >= bound).then(False),
        ">": pl.when(low > bound).then(True).when(high <= bound).then(False),
    }
    relation = pl.col("expected")
    return (
        marked.join(known, on=["study", "script"], how="left", maintain_order="left")
        .unique(["study", "script"], keep="first", maintain_order=True)
        .with_columns(
            is_met=pl.when(relation == "<")
            .then(is_met["<"])
            .when(relation == ">")
            .then(is_met[">"])
            .otherwise(is_equal)
        )
        .select(list(_SCHEMA))
    )


def _marked(m: Measured) -> Iterator[tuple[Any, ...]]:
    for info in m.infos[-1:]:
        for script, mark in info["parameters"].get("expected", {}).items():
            if mark == "control":
                yield m.study, script, "=", True, 1.0
            elif found := EXPECTATION.fullmatch(mark):
                yield m.study, script, found[1], False, float(found[2])


def in_words(expected: pl.DataFrame) -> str:
    """How many expectations are met, with the ratios, and whether controls moved; may be empty."""
    claims, controls = (expected.filter(pl.col("is_control") == is_one) for is_one in (False, True))
    parts = []
    if claims.height:
        met = claims.filter("is_met")
        ratios = ", ".join(f"{ratio:.3f}" for ratio in met["ratio"])
        parts.append(
            f"{met.height} of {claims.height} expectations met{': ' if ratios else ''}{ratios}"
        )
        parts += [
            f"{'not met' if row['is_met'] is False else 'open'}: {_found(row)}"
            for row in claims.filter(pl.col("is_met").not_().fill_null(value=True)).to_dicts()
        ]
    quiet = controls.filter("is_met")
    if quiet.height:
        furthest = quiet.select(pl.max_horizontal("high", 1 / pl.col("low")).max()).item()
        which = "control" if quiet.height == 1 else f"{quiet.height} controls"
        parts.append(f"{which} unchanged within {100 * (furthest - 1):.1f} %")
    parts += [
        f"control {'CHANGED' if row['is_met'] is False else 'open'}: {_found(row)}"
        for row in controls.filter(pl.col("is_met").not_().fill_null(value=True)).to_dicts()
    ]
    return "; ".join(parts)


def _found(row: dict[str, Any]) -> str:
    if row["ratio"] is None:
        return f"{row['script']}, not measured"
    what = f"{row['script']} {row['ratio']:.3f}"
    if row["low"] is not None:
        what += f" ({row['low']:.3f} to {row['high']:.3f})"
    return what if row["is_control"] else f"{what}, expected {row['expected']} {row['bound']:g}"
