"""Two runs of one study, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from scipy.special import ndtr, ndtri

from .families import holm
from .pairing import BY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records.reading import Record

_OF_ONE = ("ratio", "low", "high", "blocks")


def runs_apart(
    first: pl.DataFrame,
    other: pl.DataFrame,
    *,
    by: Sequence[str] = BY,
    level: float = 0.95,
) -> pl.DataFrame:
    """The comparisons that two tables of ``paired_effects`` share, and how far they are apart.

    Variation from run to run that no block sees is not in the intervals.  Columns: the ``by``
    columns, candidate; ratio, low, high, blocks of the first, and other_ratio and so on; apart, the
    other ratio / the first, with apart_low and apart_high at ``level``; p_value, Holm's among all
    rows; outcome: *differs* (p ≤ 1 − level, and past the margin), *alike* (the interval is within
    the margin), else *open*.  Null if one of the two has no interval.  The squared distances of
    both intervals' bounds add up (Zou and Donner, Statistics in Medicine 27, 2008).
    """
    keys = [*by, "candidate"]
    columns = [*keys, *_OF_ONE]
    both = first.select(*columns, "margin").join(
        other.select(columns).rename({name: f"other_{name}" for name in _OF_ONE}),
        on=keys,
        nulls_equal=True,
        maintain_order="left",
    )
    z = float(ndtri((1 + level) / 2))
    log = {n: pl.col(n).log() for n in both.columns if n.removeprefix("other_") in _OF_ONE[:3]}
    centre = log["other_ratio"] - log["ratio"]
    down = (log["other_ratio"] - log["other_low"]) ** 2 + (log["high"] - log["ratio"]) ** 2
    up = (log["other_high"] - log["other_ratio"]) ** 2 + (log["ratio"] - log["low"]) ** 2
    found = both.with_columns(
        apart=centre.exp(),
        apart_low=(centre - down.sqrt()).exp(),
        apart_high=(centre + up.sqrt()).exp(),
        off=z * centre.abs() / pl.when(centre > 0).then(down).otherwise(up).sqrt(),
    )
    p_value = holm(2 * ndtr(-found["off"].fill_nan(0).to_numpy()))
    p, edge = pl.col("p_value"), pl.col("margin").log1p()
    is_alike = (pl.col("apart_low").log() >= -edge) & (pl.col("apart_high").log() <= edge)
    differs = (p <= 1 - level) & (centre.abs() > edge)
    outcome = pl.when(differs).then(pl.lit("differs")).when(is_alike).then(pl.lit("alike"))
    found = found.with_columns(pl.Series("p_value", p_value).fill_nan(None)).with_columns(
        outcome=pl.when(p.is_not_null()).then(outcome.otherwise(pl.lit("open")))
    )
    others = [f"other_{name}" for name in _OF_ONE]
    return found.select(*keys, *_OF_ONE, *others, "^apart.*$", "p_value", "outcome")


def environments_apart(first: Record, other: Record) -> str:
    """The facts, settings and parameters of two runs that differ, in lines of 80 columns."""
    here, there = (
        pl.DataFrame(
            [(name, str(fact)) for name, fact in {**_facts(record), **record.parameters}.items()],
            schema={"what": pl.String(), side: pl.String()},
            orient="row",
        )
        for record, side in ((first, "here"), (other, "there"))
    )
    both = here.join(there, on="what", how="full", coalesce=True, maintain_order="left_right")
    look: Any = {"tbl_hide_column_data_types": True, "tbl_hide_dataframe_shape": True}
    with pl.Config(
        **look, tbl_formatting="NOTHING", tbl_rows=-1, fmt_str_lengths=200, tbl_width_chars=80
    ):
        return str(both.filter(pl.col("here").ne_missing(pl.col("there"))))


def _facts(record: Record) -> dict[str, object]:
    host, settings = record.info["host"], record.info["server"].get("nondefault_settings") or ()
    own = {name: host.get(name) for name in ("memory_bytes", "allowed_cores", "os", "kernel")}
    set_to = {str(s["name"]): f"{s['value']}{s['unit'] or ''}" for s in settings}
    return {**dict(record.facts.iter_rows()), **own, **set_to}
