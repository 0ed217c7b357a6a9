"""Ratios with their intervals: forest plot, and ours against those published."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from . import style
from .labels import IN_LINES, LETTERS, MOST, panels
from .style import NEUTRAL, WIDTH, described, log_ticks, plot_width, present, require

if TYPE_CHECKING:
    from .style import Arms

VERDICTS = {
    "faster": "triangle-left",
    "fewer": "triangle-left",
    "slower": "triangle-right",
    "more": "triangle-right",
    "equivalent": "circle",
    "inconclusive": "cross",
    "too few blocks": "square",
}
"""The shape of each verdict; any other is a stroke."""


@style.unless_empty
def effect_chart(
    effects: pl.DataFrame,
    *,
    description: str,
    published: pl.DataFrame | None = None,
    arms: Arms | None = None,
    tallest: float = 1200,
) -> alt.LayerChart | alt.FacetChart:
    """Ratio of every candidate to the baseline with its interval, one group of rows per step.

    If that would be taller than ``tallest`` (pixels), the reader chooses one step at a time, first
    the one that moved most.  More than six candidates are named at their rows.
    Columns of ``effects``: candidate, step, ratio, low, high (both null where there are too few
    blocks for an interval), margin (a fraction: 0.02) and verdict; optionally blocks, and
    published_ratio, drawn as a hollow diamond.  ``published`` has candidate, step and
    published_ratio, of candidates that need not be among ours.  The grey band is the margin.
    Without rows it is a sentence.  Raises StudyError if a column or the description is missing.
    """
    data = _with_published(effects, published)
    # Of a step, all candidates have the same margin.
    high = 1 + pl.col("margin")
    margins = {"margin_low": 1 / high, "margin_high": high}
    bands = data.drop_nulls("margin").unique("step", maintain_order=True).select("step", **margins)
    candidates = data["candidate"].unique(maintain_order=True).to_list()
    candidates = [arm for arm in style.complete(arms, candidates) if arm in candidates]
    are_many = len(candidates) > MOST
    names = {each: textwrap.fill(each, LETTERS) for each in candidates}
    lines = [line for name in names.values() for line in name.split("\n")]
    steps = data["step"].unique(maintain_order=True).to_list()
    width = plot_width(lines if are_many else steps, most=WIDTH - 90)
    picked = alt.selection_point(fields=["candidate"], bind="legend")
    group = alt.Y("step:N").sort(steps).title(None).scale(paddingInner=0.2)
    colour = style.arm_channels("candidate", arms, candidates, width)[0]
    base, grey = alt.Chart(data), alt.Chart(bands)
    lanes = len(candidates) if data["step"].is_duplicated().any() else 1
    place: dict[str, Any] = {"opacity": style.faded(picked)}
    place |= {"yOffset": alt.YOffset("candidate:N").sort(candidates)} if lanes > 1 else {}
    if are_many:  # a step has a panel, in which names stand at the rows
        group = alt.Y("row:N").sort([*names.values()]).title(None)
        group = group.axis(labelExpr=IN_LINES, labelLimit=0)
        data = data.with_columns(row=pl.col("candidate").replace(names), **margins)
        base, grey, place, colour = alt.Chart(), alt.Chart(), {}, colour.legend(None)
    layers = _ratio_layers(base.encode(y=group, color=colour, **place), grey, group, data)
    row = 4 + 14 * max(1 + name.count("\n") for name in names.values())
    of_a_step = row * (2 + len(candidates)) if are_many else max(30, 18 * lanes)
    height, step = len(steps) * of_a_step, None
    if height > tallest:
        height, step = of_a_step, "step"
        data = data.sort(pl.col("ratio").log().abs(), descending=True, nulls_last=True)
    if are_many:
        drawn = panels(layers, data, "step", step, {"width": width, "height": alt.Step(row)})
        return described(drawn, description, step=step, letters=max(map(len, lines)))
    chart = alt.LayerChart(layer=style.choosable(layers, data, step))
    chart = chart.properties(width=width, height=height).add_params(picked, style.zoom("x"))
    return described(chart, description, step=step)


def _with_published(effects: pl.DataFrame, published: pl.DataFrame | None) -> pl.DataFrame:
    """The columns to be drawn, with the ratios of ``published`` in place of the effects' own."""
    needed = ["candidate", "step", "ratio", "low", "high", "margin", "verdict"]
    require(effects, needed, "effect_chart")
    data = effects.select(*needed, *present(effects, "blocks", "published_ratio"))
    if published is None:
        return data
    require(published, ["candidate", "step", "published_ratio"], "published")
    posts = published.select("candidate", "step", "published_ratio")
    how: Any = {"on": ["candidate", "step"], "how": "full", "coalesce": True}
    ours = data.drop("published_ratio", strict=False)
    return ours.join(posts, **how, maintain_order="left_right")


def _ratio_layers(
    base: alt.Chart, grey: alt.Chart, group: alt.Y, data: pl.DataFrame
) -> list[alt.Chart]:
    """The margins, a line at 1, intervals, ratios and published ratios, from back to front."""
    legend = ["candidate / baseline (logarithmic)", "line: 95 % interval; grey: the margin"]
    if "published_ratio" in data.columns:
        legend[1] += "; hollow diamond: published, one run"
    scale = alt.Scale(type="log", nice=False, padding=14)
    tooltip = [
        *_tooltip(data, "candidate", "step", "verdict"),
        alt.Tooltip("margin:Q").format(".1%").title("margin (±)"),
        *(alt.Tooltip(f"{c}:Q") for c in present(data, "blocks")),
    ]
    verdicts = data["verdict"].drop_nulls().unique(maintain_order=True).to_list()
    shapes = [VERDICTS.get(verdict, "stroke") for verdict in verdicts]
    shape = alt.Shape("verdict:N").scale(domain=verdicts, range=shapes)
    shape = shape.legend(orient="bottom", symbolFillColor=NEUTRAL, symbolStrokeColor=NEUTRAL)
    seen = (value for name in present(data, *_RATIO_TITLES) for value in data[name])
    x = alt.X("ratio:Q").scale(scale).title(legend).axis(format="~r", values=log_ticks(seen))
    ours = base.transform_filter("isValid(datum.ratio)")
    layers = [
        grey.mark_bar(color=NEUTRAL, opacity=0.18).encode(
            y=group, x=alt.X("margin_low:Q").scale(scale).title(legend), x2="margin_high:Q"
        ),
        alt.Chart().mark_rule(color=NEUTRAL).encode(x=alt.XDatum(1, scale=scale)),
        ours.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q").scale(scale), x2="high:Q"),
        ours.mark_point(size=70).encode(x=x, shape=shape, tooltip=tooltip),
    ]
    if "published_ratio" in data.columns:
        known = "isValid(datum.published_ratio)"  # of a step none may be, and an axis needs one
        posts = base.transform_calculate(post=f"{known} ? datum.published_ratio : datum.ratio")
        posts = posts.mark_point(filled=False, shape="diamond", strokeWidth=1.5)
        size = alt.condition(known, alt.value(110), alt.value(0))
        layers.append(posts.encode(x=alt.X("post:Q").scale(scale), size=size, tooltip=tooltip))
    return layers


_RATIO_TITLES = {
    "ratio": "ratio (candidate / baseline)",
    "low": "95 % interval from",
    "high": "95 % interval to",
    "published_ratio": "published ratio (one run)",
}


def _tooltip(data: pl.DataFrame, *places: str) -> list[alt.Tooltip]:
    """A line for each place, and for each ratio in it."""
    ratios = present(data, *_RATIO_TITLES)
    return [
        *(alt.Tooltip(f"{place}:N") for place in present(data, *places)),
        *(alt.Tooltip(f"{r}:Q").format(".3f").title(_RATIO_TITLES[r]) for r in ratios),
    ]


def beside_chart(
    ours: pl.DataFrame, here: pl.DataFrame | None, *, whose: str | None, description: str
) -> alt.LayerChart:
    """A row for each claim, in their order: the published ratio, ours with its interval, ``here``.

    Columns: claim, the label, which may have several lines; published_ratio and bounds may be null.
    ``here`` is of ``whose`` run.
    """
    tables = {"now": (ours, "circle", style.BASELINE, 0)}
    if here is not None:
        tables["here"] = (here, "square", style.PATCHED, 9)
    seen = [v for table, *_ in tables.values() for n in _RATIO_TITLES for v in table[n]]
    scale = alt.Scale(type="log", nice=False, padding=14)
    labels = alt.Axis(labelExpr=IN_LINES, labelLimit=0, grid=True)
    y = alt.Y("claim:N").sort(ours["claim"].to_list()).title(None).axis(labels)
    titles = ["candidate / baseline (logarithmic); hollow diamond: published, one run"]
    titles += [f"circle: now, with its 95 % interval{'' if here is None else f'; square: {whose}'}"]
    x = alt.X("ratio:Q").scale(scale).axis(format="~r", values=log_ticks(seen)).title(titles)
    layers = [alt.Chart().mark_rule(color=NEUTRAL).encode(x=alt.XDatum(1, scale=scale))]
    for name, (table, shape, color, below) in tables.items():
        base = alt.Chart(table).encode(y=y)
        layers += [
            base.mark_rule(strokeWidth=2, color=color, yOffset=below).encode(
                x=alt.X("low:Q").scale(scale), x2="high:Q"
            ),
            base.mark_point(size=70, shape=shape, color=color, yOffset=below)
            .encode(x=x, tooltip=_tooltip(table, "claim", "verdict"))
            .properties(name=name),
        ]
    layers.append(
        alt.Chart(ours.drop_nulls("published_ratio"))
        .mark_point(filled=False, shape="diamond", size=110, color=NEUTRAL)
        .encode(x=alt.X("published_ratio:Q").scale(scale), y=y)
    )
    lines = [line for name in ours["claim"] for line in name.split("\n")]
    width = plot_width(lines, most=WIDTH)
    chart = alt.LayerChart(layer=layers, width=width, height=alt.Step(34))
    return described(chart, description, letters=max(map(len, lines)))
