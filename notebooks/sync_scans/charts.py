"""The chart of ``sync_scans.ipynb``: where each scan is in its table, over time."""

from __future__ import annotations

import altair as alt
import polars as pl

from pgstudies.charts.style import (
    BASELINE,
    CANDIDATES,
    PATCHED,
    WIDTH,
    choosable,
    described,
    faded,
    require,
    unless_empty,
)

MOST_PLACES = 4000
"""That are drawn; of more, every other one, or every third: Altair refuses more than 5,000."""


@unless_empty
def scan_chart(
    positions: pl.DataFrame,
    *,
    pages: int,
    description: str,
    step: str | None = None,
    until: float | None = None,
) -> alt.LayerChart:
    """One line per scan, page number against seconds; a scan that wraps goes on at page 0.

    Columns of ``positions``: scan (a number from 1), seconds, page, and where given ``step``, of
    which the reader chooses one value at a time.  ``pages`` is the size of the table, ``until``
    the end of the time axis (s), so that two charts can be compared; else that of the data.  Where
    two lines lie on each other, the later one thinner, the scans share what is read.  Without
    rows it is a sentence.  Raises StudyError if a column or the description is missing.
    """
    keys = [step] if step else []
    require(positions, ["scan", "seconds", "page", *keys], "scan_chart")
    data = positions.sort("scan", "seconds")
    # A line must not run back through the whole table where its scan wraps.
    lap = (pl.col("page").diff().fill_null(0) < 0).cum_sum().over(*keys, "scan")
    place = pl.int_range(pl.len()).over(*keys, "scan")
    data = data.with_columns(lap=lap).filter(
        place % (1 + data.height // MOST_PLACES) == 0
    )
    # Given, since a choice may lack a scan, and its layer would have no extent.
    end = data.select(pl.col("seconds").max()).item() if until is None else until
    seconds = alt.Scale(domain=[0, end], nice=False)
    scans = sorted(data["scan"].unique())
    palette = [BASELINE, PATCHED, *CANDIDATES]
    picked = alt.selection_point(fields=["scan"], bind="legend")
    base = alt.Chart(data.select(*keys, "scan", "seconds", "page", "lap")).encode(
        x=alt.X("seconds:Q").title("seconds since the first scan began").scale(seconds),
        y=alt.Y("page:Q")
        .title("page of the table")
        .scale(domain=[0, pages], nice=False),
        color=alt.Color("scan:O")
        .scale(
            domain=scans, range=[palette[i % len(palette)] for i in range(len(scans))]
        )
        .legend(title="scan", columns=12),
        detail="lap:N",
        opacity=faded(picked),
    )
    # Scans that share lie on each other: the first is the widest, so that all can be seen.
    lines = [
        base.transform_filter(alt.datum["scan"] == scan).mark_line(
            strokeWidth=2 + 2 * behind
        )
        for behind, scan in zip(reversed(range(len(scans))), scans, strict=True)
    ]
    points = base.mark_point(size=60).encode(
        opacity=alt.value(0),
        tooltip=[
            alt.Tooltip("scan:O"),
            alt.Tooltip("seconds:Q").format(".3f"),
            alt.Tooltip("page:Q").format(",d"),
        ],
    )
    layers = choosable([*lines, points], positions, step)
    chart = (
        alt.LayerChart(layer=layers)
        .properties(width=WIDTH, height=320)
        .add_params(picked)
    )
    return described(chart, description)
