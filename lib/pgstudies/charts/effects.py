"""Ratios with their intervals: forest plot, and ours against those published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from ..analysis.claims import all_claims
from .style import (
    NEUTRAL,
    WIDTH,
    arm_channels,
    arm_scale,
    arm_shapes,
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
    from typing import Any

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


_MARGIN = 1.15
"""How far an axis reaches past the outermost number, as a factor."""

_SIDE = 400


def beside_chart(judged: pl.DataFrame, *, description: str) -> alt.LayerChart:
    """Every published ratio against ours with its interval; on the diagonal the two are equal.

    Columns of ``judged``, such as ``judge`` returns: claim, of which the name is the label of a
    point, published_ratio, ratio, low, high, and verdict.  Rows without one of the two ratios are
    left out.  Right of the vertical line and above the horizontal one the candidate costs more.
    Raises StudyError when a column is missing, there are no rows or the description is empty.
    """
    needed = ["claim", "published_ratio", "ratio", "low", "high", "verdict"]
    require(judged, needed, "beside_chart")
    data = _named(judged.select(*needed, *present(judged, "text")))
    data = data.drop_nulls(["published_ratio", "ratio"])
    require(data, needed, "beside_chart")
    numbers = data.select("published_ratio", "ratio", "low", "high").to_numpy().ravel()
    seen = [1.0, *(float(number) for number in numbers if number > 0)]
    least, most = min(seen) / _MARGIN, max(seen) * _MARGIN
    scale = alt.Scale(type="log", domain=[least, most], nice=False)
    x = alt.X("published_ratio:Q").scale(scale).title("published ratio, one run")
    y = alt.Y("ratio:Q").scale(scale).title("ours, with its 95 % interval")
    ends = alt.Chart(pl.DataFrame({"published_ratio": [least, most], "ratio": [least, most]}))
    ticks = log_ticks(seen)
    base = alt.Chart(data).encode(x=x.axis(format="~r", values=ticks))
    names = data["claim"].unique(maintain_order=True).to_list()
    legend: Any = alt.Legend(orient="right", direction="vertical", columns=1)
    color = alt.Color("claim:N").scale(arm_scale(names)).legend(legend)
    shape = alt.Shape("claim:N").scale(arm_shapes(names)).legend(legend)
    picked = alt.selection_point(fields=["claim"], bind="legend")
    layers = [
        ends.mark_line(color=NEUTRAL, strokeDash=[5, 4]).encode(x=x, y=y),
        alt.Chart().mark_rule(color=NEUTRAL, opacity=0.5).encode(x=alt.XDatum(1, scale=scale)),
        alt.Chart().mark_rule(color=NEUTRAL, opacity=0.5).encode(y=alt.YDatum(1, scale=scale)),
        base.mark_rule(strokeWidth=2).encode(
            y=alt.Y("low:Q").scale(scale), y2="high:Q", color=color, opacity=faded(picked)
        ),
        base.mark_point(size=70).encode(
            y=y.axis(format="~r", values=ticks),
            color=color,
            shape=shape,
            opacity=faded(picked),
            tooltip=_tooltip(data, "claim", "text", "verdict"),
        ),
    ]
    # A browser's letters can be wider than those that the picture was laid out with.
    chart = alt.LayerChart(layer=layers).properties(
        width=_SIDE, height=_SIDE, padding={"left": 12, "top": 4, "right": 30, "bottom": 4}
    )
    return described(chart.add_params(picked), description)


def _named(judged: pl.DataFrame) -> pl.DataFrame:
    """The table with the names of claims in place of their ids, where their words are known."""
    if "text" not in judged.columns:
        return judged
    names = all_claims().select("claim", "text", "name").unique(["claim", "text"])
    found = judged.join(names, on=["claim", "text"], how="left", maintain_order="left")
    return found.with_columns(claim=pl.coalesce("name", "claim")).drop("name")
