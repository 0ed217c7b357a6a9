"""Values by arm: series, blocks, dots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from .labels import end_labels, label_layers, plot_width_beside
from .style import (
    LABELLED_ONLY,
    NEUTRAL,
    WIDTH,
    arm_channels,
    choosable,
    described,
    faded,
    number,
    present,
    require,
    zoom,
)

if TYPE_CHECKING:
    from .style import Arms

MOST_TICKS = 12
"""An axis of so many different numbers is marked at each of them."""

MOST_ASLANT = 15
"""More names than these below an axis stand upright."""


def series_chart(
    frame: pl.DataFrame,
    *,
    y: str,
    y_title: str,
    description: str,
    x: str = "iteration",
    color: str = "arm",
    arms: Arms | None = None,
    step: str | None = None,
    low: str | None = None,
    high: str | None = None,
    log: bool = False,
    expectation: pl.DataFrame | None = None,
) -> alt.LayerChart | pl.DataFrame:
    """Points joined by lines, one line per value of ``color``; of one place ``x``, a table.

    ``x`` holds numbers, or names in the order to be drawn.  ``y_title`` names the unit: it stands
    at the axis and in the tooltip.  ``arms`` are all of the study's, ``record.arms``, so that
    colours stay the same from chart to chart.  ``step`` names a column
    of which the reader chooses one value at a time.  ``low`` and ``high`` name the columns of an
    interval, drawn as a band.  ``expectation`` has the columns ``x`` and ``y`` (and may have
    ``step``): a dashed line.  Up to six lines are named at their ends.  Raises StudyError when a
    column is missing, there are no rows or the description is empty.
    """
    band = [low, high] if low and high else []
    steps = [step] if step else []
    require(frame, [x, y, color, *band, *steps], "series_chart")
    if frame[x].n_unique() == 1:
        return frame.select(*steps, color, x, y, *band).rename({y: y_title})
    drawn = frame[color].unique(maintain_order=True).to_list()
    value = _value(y, y_title, log=log)
    labels = end_labels(frame, x=x, y=y, color=color, step=step, band=band, log=log)
    picked, channels = _names(color, arms, drawn, labels)
    width = plot_width_beside(labels, color)
    if frame.schema[x].is_numeric():
        axis = {"format": "d", "labelOverlap": "greedy", **_ticks(frame[x])}
        where = alt.X(x, type="quantitative").axis(**axis).scale(nice=False, padding=10)
    else:
        where = alt.X(x, type="ordinal").sort(None).axis(**_names_of_places(frame[x], width))
    if expectation is not None:
        where = where.title([x, "dashed: expected"])
    colour, shape = channels
    base = alt.Chart(frame.select(x, y, color, *band, *steps)).encode(x=where, color=colour)
    layers: list[alt.Chart] = []
    if band:
        shade = alt.when(picked).then(alt.value(0.18)).otherwise(alt.value(0.03))
        ends = {"y": _value(band[0], y_title, log=log), "y2": alt.Y2(band[1])}
        layers.append(base.mark_area().encode(**ends, opacity=shade))
    tooltip = _tooltip([color, *steps, x], frame, [y, *band], y_title)
    lines = base.encode(y=value, opacity=faded(picked))
    layers += [lines.mark_line(), lines.mark_point().encode(shape=shape, tooltip=tooltip)]
    if expectation is not None:
        require(expectation, [x, y], "the expectation")
        layers.append(_dashed(expectation, where, value, y_title, step))
    if labels is not None:
        layers += label_layers(
            labels, x=where, y=value, color=color, channels=channels, picked=picked
        )
    return _drawn(layers, frame, description, picked, step, width=width, height=260)


def _drawn(
    layers: list[alt.Chart],
    frame: pl.DataFrame,
    description: str,
    picked: alt.Parameter,
    step: str | None,
    *,
    width: int = WIDTH,
    height: int = 240,
) -> alt.LayerChart:
    chart = alt.LayerChart(layer=choosable(layers, frame, step))
    chart = chart.properties(width=width, height=height).add_params(picked, zoom("y"))
    return described(chart, description, step=step)


def _names(
    color: str, arms: Arms | None, drawn: list[str], labels: pl.DataFrame | None
) -> tuple[alt.Parameter, tuple[alt.Color, alt.Shape]]:
    """What picks a line, and colour and shape: by a legend where the lines have no labels."""
    colour, shape = arm_channels(color, arms, drawn)
    if labels is None:
        return alt.selection_point(fields=[color], bind="legend"), (colour, shape)
    return alt.selection_point(fields=[color]), (colour.legend(None), shape.legend(None))


def _ticks(values: pl.Series) -> dict[str, Any]:
    """Marks at the values themselves, such as the post's sizes, unless they are many."""
    known = values.unique().sort().to_list()
    return {"values": known} if len(known) <= MOST_TICKS else {"tickMinStep": 1, "tickCount": 10}


def _names_of_places(names: pl.Series, width: int) -> dict[str, Any]:
    """Names below the axis: a word to a line where they fit, else aslant, and very many upright."""
    words = [word for name in names.unique() for word in str(name).split()]
    # 6.5 px is the mean width of a letter.
    if 6.5 * max(map(len, words)) + 6 <= width / names.n_unique():
        return {"labelAngle": 0, "labelExpr": "split(datum.label, ' ')"}
    if names.n_unique() > MOST_ASLANT:
        return {"labelAngle": -90, "labelOverlap": "greedy"}
    return {"labelAngle": -45}


def block_chart(
    values: pl.DataFrame,
    *,
    y_title: str,
    description: str,
    y: str = "value",
    arms: Arms | None = None,
    step: str | None = None,
) -> alt.LayerChart:
    """One value per arm and block, in the order of blocks: a machine that drifts shows here.

    Columns of ``values``: block, arm, ``y`` and, where given, ``step``, of which the reader
    chooses one at a time; position (place within the block) is shown where it is there.
    Raises StudyError when a column is missing, there are no rows or the description is empty.
    """
    steps = [step] if step else []
    columns = ["block", "arm", y, *steps, *present(values, "position")]
    require(values, columns, "block_chart")
    drawn = values["arm"].unique(maintain_order=True).to_list()
    labels = end_labels(values, x="block", y=y, color="arm", step=step, zero=False)
    picked, channels = _names("arm", arms, drawn, labels)
    where = alt.X("block:Q").axis(format="d", tickMinStep=1).scale(nice=False, padding=10)
    value = alt.Y(y, type="quantitative").scale(zero=False).title(y_title)
    colour, shape = channels
    base = alt.Chart(values.select(columns)).encode(x=where, y=value, color=colour)
    faint = alt.when(picked).then(alt.value(0.4)).otherwise(alt.value(0.05))
    places = [alt.Tooltip(f"{c}:Q").title("place in block") for c in present(values, "position")]
    *before, last = _tooltip(["arm", *steps, "block"], values, [y], y_title)
    layers = [
        base.mark_line(strokeWidth=1).encode(opacity=faint),
        base.mark_point().encode(
            shape=shape, opacity=faded(picked), tooltip=[*before, *places, last]
        ),
    ]
    if labels is not None:
        layers += label_layers(
            labels, x=where, y=value, color="arm", channels=channels, picked=picked
        )
    width = plot_width_beside(labels, "arm")
    return _drawn(layers, values, description, picked, step, width=width)


def _dashed(
    expectation: pl.DataFrame, x: alt.X, y: alt.Y, y_title: str, step: str | None
) -> alt.Chart:
    steps = present(expectation, step) if step else []
    columns = [str(x.shorthand), str(y.shorthand)]
    dashed: alt.Chart = (
        alt.Chart(expectation.select(*columns, *steps))
        .mark_line(color=NEUTRAL, strokeDash=[6, 4], strokeWidth=2)
        .encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip(columns[0], type="quantitative"),
                number(columns[1], f"expected (dashed): {y_title}"),
            ],
        )
    )
    return dashed


def _value(y: str, title: str, *, log: bool) -> alt.Y:
    # Rounded, it would reach from decade to decade.
    scale = alt.Scale(type="log", nice=False, padding=10) if log else alt.Scale(zero=True)
    value = alt.Y(y, type="quantitative").title(title).scale(scale)
    return value.axis(gridOpacity=LABELLED_ONLY) if log else value


def _tooltip(
    places: list[str], frame: pl.DataFrame, values: list[str], title: str
) -> list[alt.Tooltip]:
    """A line for each place, then the value and the ends of its interval in its unit."""
    y, *band = values
    kinds = {place: frame.schema[place].is_numeric() for place in places}
    return [
        *(alt.Tooltip(p, type="quantitative" if kinds[p] else "nominal") for p in places),
        number(y, title),
        *(number(end, f"{end}, {title}") for end in band),
    ]


def dot_chart(
    frame: pl.DataFrame,
    *,
    x: str,
    y: str,
    y_title: str,
    description: str,
    color: str = "arm",
    arms: Arms | None = None,
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
    drawn = frame[color].unique(maintain_order=True).to_list()
    groups = frame[x].unique(maintain_order=True).to_list()
    value = _value(y, y_title, log=log)
    colour, shape = arm_channels(color, arms, drawn)
    picked = alt.selection_point(fields=[color], bind="legend")
    base = alt.Chart(frame.select(x, y, color, *band, *steps)).encode(
        x=alt.X(x, type="nominal").sort(groups).title(None).axis(labelAngle=0, labelLimit=110),
        color=colour,
        opacity=faded(picked),
    )
    # A dot that is alone in its group stands above the group's name.
    if frame.select(pl.struct(x, *steps).is_duplicated().any()).item():
        base = base.encode(xOffset=alt.XOffset(color, type="nominal").sort(drawn))
    layers = []
    if band:
        ends = {"y": _value(band[0], y_title, log=log), "y2": alt.Y2(band[1])}
        layers.append(base.mark_rule(strokeWidth=2).encode(**ends))
    tooltip = _tooltip([color, *steps, x], frame, [y, *band], y_title)
    layers.append(base.mark_point().encode(y=value, shape=shape, tooltip=tooltip))
    return _drawn(layers, frame, description, picked, step)
