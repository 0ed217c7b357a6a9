"""The chart of values by named group: one dot for each arm, side by side, nothing joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from .chartparts import (
    LABELLED_ONLY,
    arm_channels,
    choosable,
    described,
    faded,
    number,
    require,
)
from .chartstyle import WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence


def dot_chart(
    frame: pl.DataFrame,
    *,
    x: str,
    y: str,
    y_title: str,
    description: str,
    color: str = "arm",
    arms: Sequence[str] | None = None,
    step: str | None = None,
    low: str | None = None,
    high: str | None = None,
    log: bool = False,
) -> alt.LayerChart:
    """A dot for every value of ``color`` in every group ``x``, the groups in the order given.

    ``y_title`` names the unit.  ``arms``, ``step``, ``low``, ``high`` and ``log`` are those of
    ``series_chart``; the interval is a line through the dot.  Raises StudyError when a column is
    missing, there are no rows or the description is empty.
    """
    band = [low, high] if low and high else []
    steps = [step] if step else []
    require(frame, [x, y, color, *band, *steps], "dot_chart")
    shown = frame[color].unique(maintain_order=True).to_list()
    groups = frame[x].unique(maintain_order=True).to_list()
    scale = alt.Scale(type="log") if log else alt.Scale(zero=True)
    value = alt.Y(y, type="quantitative").title(y_title).scale(scale)
    if log:
        value = value.axis(gridOpacity=LABELLED_ONLY)
    colour, shape = arm_channels(color, arms, shown)
    picked = alt.selection_point(fields=[color], bind="legend")
    base = alt.Chart(frame.select(x, y, color, *band, *steps)).encode(
        x=alt.X(x, type="nominal").sort(groups).title(None).axis(labelAngle=0, labelLimit=110),
        color=colour,
        opacity=faded(picked),
    )
    # A dot that is alone in its group stands above the group's name.
    if frame.select(pl.struct(x, *steps).is_duplicated().any()).item():
        base = base.encode(xOffset=alt.XOffset(color, type="nominal").sort(shown))
    layers = []
    if band:
        edge = alt.Y(band[0], type="quantitative").title(y_title).scale(scale)
        layers.append(base.mark_rule(strokeWidth=2).encode(y=edge, y2=alt.Y2(band[1])))
    layers.append(
        base.mark_point().encode(
            y=value,
            shape=shape,
            tooltip=[
                alt.Tooltip(color, type="nominal"),
                *(alt.Tooltip(s, type="nominal") for s in [*steps, x]),
                number(y, y_title),
                *(number(c, f"{c}, {y_title}") for c in band),
            ],
        )
    )
    layers = choosable(layers, frame, step)
    chart = alt.LayerChart(layer=layers).properties(width=WIDTH, height=240).add_params(picked)
    return described(chart, description)
