"""Values by arm: series, blocks, dots."""

from __future__ import annotations

import json
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from . import style
from .labels import LAYER, MOST, end_labels, panels, plot_width_beside

if TYPE_CHECKING:
    from .style import Arms

MOST_TICKS = 12
"""The most different numbers of an axis that are all marked."""

FEW = 3
"""Over so few places an interval is a line through its point: a band would say what is between."""

MOST_ASLANT = 15
"""More names than these below an axis stand upright."""

PANEL = {"width": 190, "height": 110}
"""Of many lines each has a panel of this size (px), three beside each other."""


@style.unless_empty
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
) -> alt.LayerChart | alt.FacetChart | pl.DataFrame:
    """Points joined by lines, one line per value of ``color``; of one place ``x``, a table.

    ``x`` holds numbers, or names in the order to be drawn.  ``y_title`` names the unit; its axis
    begins at zero, but not over blocks.  ``arms`` are all of the study's, ``record.arms``, so that
    colours stay the same from chart to chart.  Of the column ``step`` the reader chooses one value.
    Columns ``low`` and ``high``, or named so, are an interval: a band, or lines through the points
    of at most ``FEW`` places.  ``expectation`` has the columns ``x`` and ``y``, maybe ``step``: a
    dashed line.  Up to six lines are named at their ends; of more each has a panel, and what a post
    measured, or else the first line, is thin in all.  Without rows it is a sentence.  Raises
    StudyError without a column or the description.
    """
    band = style.interval(frame, low, high)
    steps = [step] if step else []
    style.require(frame, [x, y, color, *band, *steps], "series_chart")
    data = frame.select(x, y, color, *band, *steps)
    if data[x].n_unique() == 1:
        return data.select(*steps, color, x, y, *band).rename({y: y_title})
    if expectation is not None:
        style.require(expectation, [x, y], "the expectation")
    drawn = data[color].unique(maintain_order=True).to_list()
    zero, are_many = x != "block", len(drawn) > MOST
    labels = end_labels(data, x=x, y=y, color=color, step=step, band=band, log=log, zero=zero)
    picked, (colour, shape) = _names(color, arms, drawn, legend=labels is None and not are_many)
    width = PANEL["width"] if are_many else plot_width_beside(labels, color)
    where, title = _horizontal(data[x], width), None if are_many else y_title
    value = _value(y, title, log=log, zero=zero)
    ends = [_value(band[0], title, log=log), alt.Y2(band[1])] if band else []
    tooltip = _tooltip([color, *steps, x], data, [y, *band], y_title)
    if are_many:  # the chart's title says what the axes are
        where = where.title(None)
    elif expectation is not None:
        where = where.title([x, "dashed: expected"])
    base = (alt.Chart() if are_many else alt.Chart(data)).encode(x=where, color=colour)
    is_band = data[x].n_unique() > FEW
    layers = _lines(base, value, ends, None if are_many else picked, is_band=is_band)
    layers[-1] = layers[-1].encode(shape=shape, tooltip=tooltip)
    if expectation is not None:
        layers.append(_dashed(expectation, where, value, y_title, step))
    if are_many:
        panelled, beside = _in_panels(
            layers, data, {"x": where, "y": value}, color=color, arms=arms, step=step
        )
        about = f"{y_title}, by {x}; thin, in all: {', and dashed: '.join(beside)}"
        about += "." if expectation is None else "; thick and dashed: expected."
        return style.described(panelled, description, step=step, below=about)
    if labels is not None:
        ending = alt.Chart(labels).encode(x=where, y=value, opacity=style.faded(picked))
        layers += _named(ending, color, colour, shape)
    return _drawn(layers, data, description, picked, step, width=width, height=260)


def _horizontal(places: pl.Series, width: int) -> alt.X:
    """The axis of numbers, or of names in their order, of a plot of that width (px)."""
    if places.dtype.is_numeric():
        axis = {"format": "d", "labelOverlap": "greedy", **_ticks(places)}
        scale: Any = {"zero": False} if places.n_unique() <= FEW else {}  # lines would begin at 0
        where = alt.X(places.name, type="quantitative").axis(**axis)
        return where.scale(nice=False, padding=10, **scale)
    names = places.unique(maintain_order=True)
    where = alt.X(places.name, type="ordinal").sort(names.to_list())
    return where.axis(**_names_of_places(names, width))


def _lines(
    base: alt.Chart, value: alt.Y, ends: list[Any], picked: alt.Parameter | None, *, is_band: bool
) -> list[alt.Chart]:
    """The interval from ``ends``, if any, the lines and the points; those not picked are pale."""
    full: Any = alt.value(1)
    pale: Any = alt.value(0.18)
    if picked is not None:
        full, pale = style.faded(picked), alt.when(picked).then(pale).otherwise(alt.value(0.03))
    lines = base.encode(y=value, opacity=full)
    layers: list[alt.Chart] = []
    if ends:
        spans = base.encode(y=ends[0], y2=ends[1], opacity=pale if is_band else full)
        layers.append(spans.mark_area() if is_band else spans.mark_rule(strokeWidth=2))
    return [*layers, lines.mark_line(), lines.mark_point()]


def _in_panels(
    layers: list[alt.Chart],
    data: pl.DataFrame,
    axes: dict[str, Any],
    *,
    color: str,
    arms: Arms | None,
    step: str | None,
) -> tuple[alt.FacetChart, list[str]]:
    """A panel for each line, and the names of the lines that are thin in all panels instead."""
    drawn = data[color].unique(maintain_order=True).to_list()
    known = [arm for arm in style.complete(arms, drawn) if arm in drawn]
    beside = [arm for arm in known if style.is_published(arm)] or known[:1]
    dashes = alt.Scale(domain=beside, range=[[1, 0], [4, 3], [1, 3]][: len(beside)])
    dash = alt.StrokeDash(color, type="nominal").scale(dashes).legend(None)
    colour = style.arm_channels(color, arms, drawn)[0].legend(None)
    is_beside = pl.col(color).is_in(beside)
    thin = alt.Chart(data.filter(is_beside)).mark_line(strokeWidth=1)
    thin = thin.encode(**axes, color=colour, strokeDash=dash)
    own = data.sort(pl.col(color).cast(pl.Enum(known)), maintain_order=True).filter(~is_beside)
    return panels([thin, *layers], own, color, step, PANEL), beside


def _named(ending: alt.Chart, color: str, colour: alt.Color, shape: alt.Shape) -> list[alt.Chart]:
    """The names of lines at their ends; the zoom would cut them off at the edge of the plot."""
    symbols = ending.mark_point(xOffset=14, clip=False).encode(color=colour, shape=shape)
    names = ending.mark_text(align="left", dx=22, baseline="middle", fontSize=12, clip=False)
    names = names.encode(text=f"{color}:N", tooltip=f"{color}:N")  # which makes it take clicks
    return [symbols.properties(name=f"{LAYER}-symbols"), names.properties(name=f"{LAYER}-names")]


def _drawn(
    layers: list[alt.Chart],
    frame: pl.DataFrame,
    description: str,
    picked: alt.Parameter,
    step: str | None,
    *,
    width: int = style.WIDTH,
    height: int = 240,
) -> alt.LayerChart:
    chart = alt.LayerChart(layer=style.choosable(layers, frame, step))
    chart = chart.properties(width=width, height=height).add_params(picked, style.zoom("y"))
    return style.described(chart, description, step=step)


def _names(
    color: str, arms: Arms | None, drawn: list[str], *, legend: bool
) -> tuple[alt.Parameter, tuple[alt.Color, alt.Shape]]:
    """What picks a line, and colour and shape: by a legend, or by labels and panels."""
    colour, shape = style.arm_channels(color, arms, drawn)
    if legend:
        return alt.selection_point(fields=[color], bind="legend"), (colour, shape)
    return alt.selection_point(fields=[color]), (colour.legend(None), shape.legend(None))


def _ticks(values: pl.Series) -> dict[str, Any]:
    """Marks at the values themselves, such as the post's sizes, unless they are many."""
    known = values.unique().sort().to_list()
    return {"values": known} if len(known) <= MOST_TICKS else {"tickMinStep": 1, "tickCount": 10}


def _names_of_places(names: pl.Series, width: int) -> dict[str, Any]:
    """Names below the axis: in lines that do not touch, else aslant, and very many upright."""
    # 6.5 px is the mean width of a letter.
    letters = max(1, int((width / names.n_unique() - 6) / 6.5))
    wrapped = partial(textwrap.wrap, width=letters, break_long_words=False, break_on_hyphens=False)
    lines = {
        str(name): [line for part in str(name).split(", ") for line in wrapped(part)]
        for name in names.unique(maintain_order=True)
    }
    if max(len(line) for each in lines.values() for line in each or [""]) <= letters:
        return {"labelAngle": 0, "labelExpr": f"({json.dumps(lines)})[datum.label]"}
    if names.n_unique() > MOST_ASLANT:
        return {"labelAngle": -90, "labelOverlap": "greedy"}
    return {"labelAngle": -45, "labelExpr": "split(datum.label, ', ')"}


@style.unless_empty
def block_chart(
    values: pl.DataFrame,
    *,
    y_title: str,
    description: str,
    y: str = "value",
    arms: Arms | None = None,
    step: str | None = None,
) -> alt.LayerChart | alt.FacetChart | pl.DataFrame:
    """One value per arm and block, in the order of blocks: a machine that drifts shows here.

    Columns of ``values``: block, arm, ``y`` and, where given, ``step``, as in ``series_chart``.
    """
    return series_chart(
        values, x="block", y=y, y_title=y_title, description=description, arms=arms, step=step
    )


def _dashed(
    expectation: pl.DataFrame, x: alt.X, y: alt.Y, y_title: str, step: str | None
) -> alt.Chart:
    steps = style.present(expectation, step) if step else []
    columns = [str(x.shorthand), str(y.shorthand)]
    dashed: alt.Chart = (
        alt.Chart(expectation.select(*columns, *steps))
        .mark_line(color=style.NEUTRAL, strokeDash=[6, 4], strokeWidth=2)
        .encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip(columns[0], type="quantitative"),
                style.number(columns[1], f"expected (dashed): {y_title}"),
            ],
        )
    )
    return dashed


def _value(y: str, title: str | None, *, log: bool, zero: bool = True) -> alt.Y:
    # Rounded, it would reach from decade to decade.
    scale = alt.Scale(type="log", nice=False, padding=10) if log else alt.Scale(zero=zero)
    value = alt.Y(y, type="quantitative").title(title).scale(scale)
    return value.axis(gridOpacity=style.LABELLED_ONLY) if log else value


def _tooltip(
    places: list[str], frame: pl.DataFrame, values: list[str], title: str
) -> list[alt.Tooltip]:
    """A line for each place, then the value and the ends of its interval in its unit."""
    y, *band = values
    kinds = {place: frame.schema[place].is_numeric() for place in places}
    return [
        *(alt.Tooltip(p, type="quantitative" if kinds[p] else "nominal") for p in places),
        style.number(y, title),
        *(style.number(end, f"{end}, {title}") for end in band),
    ]


@style.unless_empty
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
    ``series_chart``; the interval is a line through the dot.  Without rows it is a sentence.
    Raises StudyError if a column or description is missing.
    """
    band = style.interval(frame, low, high)
    steps = [step] if step else []
    style.require(frame, [x, y, color, *band, *steps], "dot_chart")
    drawn = frame[color].unique(maintain_order=True).to_list()
    groups = frame[x].unique(maintain_order=True).to_list()
    value = _value(y, y_title, log=log)
    colour, shape = style.arm_channels(color, arms, drawn)
    picked = alt.selection_point(fields=[color], bind="legend")
    base = alt.Chart(frame.select(x, y, color, *band, *steps)).encode(
        x=alt.X(x, type="nominal")
        .sort(groups)
        .title(None)
        .axis(**_names_of_places(frame[x], style.WIDTH)),
        color=colour,
        opacity=style.faded(picked),
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
