"""The chart of ``hash_index.ipynb``: which index is better, by kind of key and cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from pgstudies.analysis.verdicts import OPEN
from pgstudies.charts.style import (
    WIDTH,
    choosable,
    described,
    present,
    require,
)

if TYPE_CHECKING:
    from typing import Any

LESS, NONE, MORE = "#6db3e3", "#f4f4f2", "#eb9a6c"
"""Colours of a ratio below 1, of 1 and above; black text can be read on all of them."""
_INK = "#1a1a1a"
_LEAST_SPAN, _MOST_SPAN = 1.25, 4.0
_CELL_HEIGHT = 34


def effect_map(
    effects: pl.DataFrame,
    *,
    x: str,
    y: str,
    description: str,
    step: str | None = None,
    better: str = "faster",
    worse: str = "slower",
) -> alt.LayerChart:
    """The ratio of each effect in a cell, its colour saying which side is better.

    Columns of ``effects``: ``x`` and ``y``, names in the order to be drawn, ratio, low, high,
    verdict, and where given ``step``, of which the reader chooses one value at a time.  A ratio
    whose verdict is open stands in brackets.  ``better`` and ``worse`` say in the legend what
    ratios below and above 1 mean.  Raises StudyError when a column is missing, there are no rows or
    the description is empty.
    """
    needed = [
        x,
        y,
        "ratio",
        "low",
        "high",
        "verdict",
        *([step] if step else []),
    ]
    require(effects, needed, "effect_map")
    data = effects.select(*needed, *present(effects, "blocks")).filter(
        pl.col("ratio").is_not_null()
    )
    require(data, needed, "effect_map")
    text = [
        f"({row['ratio']:.2f})" if row["verdict"] in OPEN else f"{row['ratio']:.2f}"
        for row in data.iter_rows(named=True)
    ]
    data = data.with_columns(pl.Series("text", text))
    ratios = data["ratio"].to_numpy()
    span = float(min(max(ratios.max(), 1 / ratios.min(), _LEAST_SPAN), _MOST_SPAN))
    scale: Any = alt.Scale(
        type="log",
        domain=[1 / span, 1, span],
        range=[LESS, NONE, MORE],
        clamp=True,
        interpolate="rgb",
    )
    legend: Any = alt.Legend(
        title=f"{better} < 1 < {worse}", format="~r", gradientLength=220, titleFontSize=12,
        titleLimit=WIDTH,
        values=[round(1 / span, 2), 1, round(span, 2)],
    )  # fmt: skip
    rows = data[y].unique(maintain_order=True).to_list()
    columns = data[x].unique(maintain_order=True).to_list()
    base = alt.Chart(data).encode(
        x=alt.X(x, type="nominal")
        .sort(columns)
        .title(None)
        .axis(orient="top", labelAngle=0),
        y=alt.Y(y, type="nominal").sort(rows).title(None),
    )
    cells = base.mark_rect(stroke="white", strokeWidth=2).encode(
        color=alt.Color("ratio:Q").scale(scale).legend(legend),
        tooltip=[
            alt.Tooltip(y, type="nominal"),
            alt.Tooltip(x, type="nominal"),
            alt.Tooltip("ratio:Q").format(".3f"),
            alt.Tooltip("low:Q").format(".3f").title("95 % interval from"),
            alt.Tooltip("high:Q").format(".3f").title("95 % interval to"),
            alt.Tooltip("verdict:N"),
            *(alt.Tooltip(f"{c}:Q") for c in present(data, "blocks")),
        ],
    )
    words = base.mark_text(color=_INK, fontSize=12).encode(text="text:N")
    layers = choosable([cells, words], data, step)
    chart = alt.LayerChart(layer=layers).properties(
        width=WIDTH - 150, height=_CELL_HEIGHT * len(rows)
    )
    return described(chart, description, step=step)
