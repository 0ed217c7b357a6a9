"""Two runs of one study, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from scipy.special import ndtr, ndtri

from .families import holm
from .pairing import BY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records.info import Info

_OF_ONE = ("ratio", "low", "high", "blocks")
_ALWAYS_OTHER = {"booted_at", "boot_id", "load_average", "cpu_mhz"}


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


def environments_apart(first: Info, other: Info) -> pl.DataFrame:
    """What differs between the servers, hosts, parameters and packages of two runs.

    Columns: what (as record.json and PostgreSQL name it), here and there (text; null where a run
    has none).  What no two runs share, such as the load, is left out.
    """
    here, there = _facts(first), _facts(other)
    rows = [(name, here.get(name), there.get(name)) for name in dict.fromkeys([*here, *there])]
    differ = [row for row in rows if row[1] != row[2]]
    return pl.DataFrame(
        differ, schema=dict.fromkeys(["what", "here", "there"], pl.String), orient="row"
    )


def _facts(info: Info) -> dict[str, str]:
    server = info["server"]
    settings = server.get("nondefault_settings") or ()
    found: dict[str, object] = {
        "server": server.get("version_text"),
        **{name: server.get(name) for name in ("build", "cflags")},
        **{str(s["name"]): f"{s['value']}{s['unit'] or ''}" for s in settings},
        **{name: fact for name, fact in info["host"].items() if name not in _ALWAYS_OTHER},
        "profile": info.get("profile"),
        **info["parameters"],
        "revision": (info.get("git") or {}).get("revision"),
        **info.get("packages", {}),
    }
    return {name: str(fact) for name, fact in found.items() if fact is not None}


def environments_in_text(apart: pl.DataFrame) -> str:
    """``environments_apart`` as a table of at most 80 columns."""
    if apart.is_empty():
        return "Both runs have the same environment, parameters and packages."
    with pl.Config(
        tbl_formatting="NOTHING",
        tbl_hide_column_data_types=True,
        tbl_hide_dataframe_shape=True,
        tbl_rows=-1,
        fmt_str_lengths=200,
        tbl_width_chars=80,
    ):
        return str(apart)
