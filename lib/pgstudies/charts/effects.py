"""Ratios with their intervals: forest plot, and ours against those published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from .style import (
    BASELINE,
    NEUTRAL,
    PATCHED,
    WIDTH,
    arm_channels,
    choosable,
    described,
    faded,
    log_ticks,
    plot_width,
    present,
    require,
    zoom,
)

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


def effect_chart(
    effects: pl.DataFrame,
    *,
    description: str,
    published: pl.DataFrame | None = None,
    arms: Arms | None = None,
    tallest: float = 1200,
) -> alt.LayerChart:
    """Ratio of every candidate to the baseline with its interval, one group of rows per step.

    Where that would be taller than ``tallest`` (pixels), one step at a time is drawn, to be chosen,
    first the one that moved most.
    Columns of ``effects``: candidate, step, ratio, low, high (both null where there are too few
    blocks for an interval), margin (a fraction: 0.02) and verdict; optionally blocks, and
    published_ratio, drawn as a hollow diamond.  ``published`` has candidate, step and
    published_ratio, of candidates that need not be among ours.  The grey band is the margin.
    Raises StudyError when a column is missing, there are no rows or the description is empty.
    """
    needed = ["candidate", "step", "ratio", "low", "high", "margin", "verdict"]
    require(effects, needed, "effect_chart")
    data = effects.select(*needed, *present(effects, "blocks", "published_ratio"))
    if published is not None:
        keys = ["candidate", "step"]
        require(published, [*keys, "published_ratio"], "published")
        ours = data.drop("published_ratio", strict=False)
        data = ours.join(
            published.select(*keys, "published_ratio"),
            on=keys, how="full", coalesce=True, maintain_order="left_right",
        )  # fmt: skip
    # Of a step, all candidates have the same margin.
    high = 1 + pl.col("margin")
    bands = data.drop_nulls("margin").unique("step", maintain_order=True)
    bands = bands.select("step", margin_low=1 / high, margin_high=high)
    candidates = data["candidate"].unique(maintain_order=True).to_list()
    steps = data["step"].unique(maintain_order=True).to_list()
    verdicts = data["verdict"].drop_nulls().unique(maintain_order=True).to_list()
    width = plot_width(steps, most=WIDTH - 90)
    legend = ["candidate / baseline (logarithmic)", "line: 95 % interval; grey: the margin"]
    if "published_ratio" in data.columns:
        legend[1] += "; hollow diamond: published, one run"

    scale = alt.Scale(type="log", nice=False, padding=14)
    picked = alt.selection_point(fields=["candidate"], bind="legend")
    group = alt.Y("step:N").sort(steps).title(None).scale(paddingInner=0.2)
    base = alt.Chart(data).encode(y=group)
    ours_only = base.transform_filter("isValid(datum.ratio)")
    place = {
        "yOffset": alt.YOffset("candidate:N").sort(candidates),
        "color": arm_channels("candidate", arms, candidates, width)[0],
        "opacity": faded(picked),
    }
    tooltip = [
        *_tooltip(data, "candidate", "step", "verdict"),
        alt.Tooltip("margin:Q").format(".1%").title("margin (±)"),
        *(alt.Tooltip(f"{c}:Q") for c in present(data, "blocks")),
    ]
    shape = alt.Shape("verdict:N").scale(
        domain=verdicts, range=[VERDICTS.get(v, "stroke") for v in verdicts]
    ).legend(orient="bottom", symbolFillColor=NEUTRAL, symbolStrokeColor=NEUTRAL)  # fmt: skip
    drawn = (value for name in present(data, *_RATIO_TITLES) for value in data[name])
    x = alt.X("ratio:Q").scale(scale).title(legend).axis(format="~r", values=log_ticks(drawn))
    layers = [
        alt.Chart(bands)
        .mark_bar(color=NEUTRAL, opacity=0.18)
        .encode(y=group, x=alt.X("margin_low:Q").scale(scale).title(legend), x2="margin_high:Q"),
        ours_only.mark_rule(strokeWidth=2).encode(
            x=alt.X("low:Q").scale(scale), x2="high:Q", **place
        ),
        ours_only.mark_point(size=70).encode(x=x, shape=shape, tooltip=tooltip, **place),
    ]
    if "published_ratio" in data.columns:
        layers.append(
            base.transform_filter("isValid(datum.published_ratio)")
            .mark_point(filled=False, shape="diamond", size=110, strokeWidth=1.5)
            .encode(x=alt.X("published_ratio:Q").scale(scale), tooltip=tooltip, **place)
        )
    one = alt.Chart().mark_rule(color=NEUTRAL).encode(x=alt.XDatum(1, scale=scale))
    of_a_step = max(30, 18 * len(candidates))
    height, step = len(steps) * of_a_step, None
    if height > tallest:
        height, step = of_a_step, "step"
        moved = data.sort(pl.col("ratio").log().abs(), descending=True, nulls_last=True)
        layers = choosable(layers, moved, step)
    chart = alt.LayerChart(layer=[layers[0], one, *layers[1:]])
    chart = chart.properties(width=width, height=height).add_params(picked, zoom("x"))
    return described(chart, description, step=step)


_RATIO_TITLES = {
    "ratio": "ratio (candidate / baseline)",
    "low": "95 % interval from",
    "high": "95 % interval to",
    "published_ratio": "published ratio (one run)",
}


def _tooltip(data: pl.DataFrame, *places: str) -> list[alt.Tooltip]:
    """A line for each place, then for each ratio that is there."""
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
    tables = {"now": (ours, "circle", BASELINE, 0)}
    if here is not None:
        tables["here"] = (here, "square", PATCHED, 9)
    seen = [v for table, *_ in tables.values() for n in _RATIO_TITLES for v in table[n]]
    scale = alt.Scale(type="log", nice=False, padding=14)
    labels = alt.Axis(labelExpr="split(datum.label, '\\n')", labelLimit=0, grid=True)
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
    chart = alt.LayerChart(layer=layers, usermeta={"letters": max(map(len, lines))})
    size = {"width": plot_width(lines, most=WIDTH), "height": alt.Step(34)}
    return described(chart.properties(**size), description)
