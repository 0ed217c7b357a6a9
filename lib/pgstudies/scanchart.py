"""The picture of scans: where each of them is in its table, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from .chartparts import choosable, described, faded, require
from .chartstyle import BASELINE, CANDIDATES, PATCHED, WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence


def scan_chart(
    positions: pl.DataFrame,
    *,
    blocks: int,
    description: str,
    step: str | None = None,
    steps: Sequence[str] | None = None,
) -> alt.LayerChart:
    """One line per scan, block number against seconds; a scan that wraps goes on at block 0.

    Columns of ``positions``: scan (a number from 1), seconds, block, and where given ``step``, of
    which the reader chooses one value at a time, in the order of ``steps``.  ``blocks`` is the
    size of the table.  Where two lines lie on each other, the scans share what is read.  Raises
    StudyError when a column is missing, there are no rows or the description is empty.
    """
    keys = [step] if step else []
    require(positions, ["scan", "seconds", "block", *keys], "scan_chart")
    # A line must not run back through the whole table where its scan wraps.
    lap = (pl.col("block").diff().fill_null(0) < 0).cum_sum().over(*keys, "scan")
    data = positions.sort(*keys, "scan", "seconds").with_columns(lap=lap)
    if step and steps:
        data = data.sort(pl.col(step).cast(pl.Enum(steps)), "scan", "seconds")
    scans = sorted(data["scan"].unique())
    palette = [BASELINE, PATCHED, *CANDIDATES]
    picked = alt.selection_point(fields=["scan"], bind="legend")
    base = alt.Chart(data.select(*keys, "scan", "seconds", "block", "lap")).encode(
        x=alt.X("seconds:Q").title("seconds since the first scan began").scale(nice=False),
        y=alt.Y("block:Q").title("block of the table").scale(domain=[0, blocks], nice=False),
        color=alt.Color("scan:O")
        .scale(domain=scans, range=[palette[i % len(palette)] for i in range(len(scans))])
        .legend(title="scan", columns=12),
        detail="lap:N",
        opacity=faded(picked),
    )
    line = base.mark_line(strokeWidth=2)
    points = base.mark_point(size=60, opacity=0).encode(
        opacity=alt.value(0),
        tooltip=[
            alt.Tooltip("scan:O"),
            alt.Tooltip("seconds:Q").format(".3f"),
            alt.Tooltip("block:Q").format(",d"),
        ],
    )
    layers = choosable([line, points], data, step)
    chart = alt.LayerChart(layer=layers).properties(width=WIDTH, height=320).add_params(picked)
    return described(chart, description)
