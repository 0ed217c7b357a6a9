"""The charts that several studies share: series, effects and blocks, published or our own.

Each takes a polars frame and returns an Altair chart with a description for readers who cannot see
it.  Clicking an arm in the legend fades the others; Shift and the wheel zoom the y axis, dragging
moves it, and a double click brings everything back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from .chartstyle import (
    MIME,
    NEUTRAL,
    WIDTH,
    arm_colours,
    arm_scale,
    arm_shapes,
    book_renderer,
    description_of,
    legend_columns,
)
from .errors import SpaceError, StudyError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MIME",
    "arm_colours",
    "arm_scale",
    "arm_shapes",
    "block_chart",
    "book_renderer",
    "effect_chart",
    "save",
    "series_chart",
]

ROUNDED = ",.4~r"
# Vega marks every 2, 3, … 9 on a logarithmic axis, and labels a few.
LABELLED_ONLY: Any = {"condition": {"test": "datum.label === ''", "value": 0}, "value": 0.6}
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


def series_chart(
    frame: pl.DataFrame,
    *,
    y: str,
    y_title: str,
    description: str,
    x: str = "iteration",
    color: str = "arm",
    arms: Sequence[str] | None = None,
    step: str | None = None,
    low: str | None = None,
    high: str | None = None,
    log: bool = False,
    expectation: pl.DataFrame | None = None,
) -> alt.LayerChart:
    """Points joined by lines, one line per value of ``color``.

    ``y_title`` names the unit: it stands at the axis and in the tooltip.  ``arms`` is the study's
    whole list of arms, so that colours stay the same from chart to chart.  ``step`` names a column
    of which the reader chooses one value at a time.  ``low`` and ``high`` name the columns of an
    interval, drawn as a band.  ``expectation`` has the columns ``x`` and ``y`` (and may have
    ``step``): a dashed line.  Raises StudyError when a column is missing, there are no rows or the
    description is empty.
    """
    band = [low, high] if low and high else []
    steps = [step] if step else []
    _require(frame, [x, y, color, *band, *steps], "series_chart")
    shown = frame[color].unique(maintain_order=True).to_list()
    scale = alt.Scale(type="log") if log else alt.Scale(zero=True)
    value = alt.Y(y, type="quantitative").title(y_title).scale(scale)
    if log:
        value = value.axis(gridOpacity=LABELLED_ONLY)
    picked = alt.selection_point(fields=[color], bind="legend")
    where = alt.X(x, type="quantitative").axis(format="d", tickMinStep=1)
    where = where.scale(nice=False, padding=10)
    if expectation is not None:
        where = where.title([x, "dashed: expected"])
    colour, shape = _arm_channels(color, arms, shown)
    base = alt.Chart(frame.select(x, y, color, *band, *steps)).encode(x=where, color=colour)
    layers: list[alt.Chart] = []
    if band:
        shade = alt.when(picked).then(alt.value(0.18)).otherwise(alt.value(0.03))
        edge = alt.Y(band[0], type="quantitative").title(y_title).scale(scale)
        layers.append(base.mark_area().encode(y=edge, y2=alt.Y2(band[1]), opacity=shade))
    layers.append(base.mark_line().encode(y=value, opacity=_faded(picked)))
    layers.append(
        base.mark_point().encode(
            y=value,
            shape=shape,
            opacity=_faded(picked),
            tooltip=[
                alt.Tooltip(color, type="nominal"),
                *(alt.Tooltip(s, type="nominal") for s in steps),
                alt.Tooltip(x, type="quantitative"),
                _number(y, y_title),
                *(_number(c, f"{c}, {y_title}") for c in band),
            ],
        )
    )
    if expectation is not None:
        _require(expectation, [x, y], "the expectation")
        layers.append(_dashed(expectation, where, value, y_title, step))
    layers = _choosable(layers, frame, step)
    chart = alt.LayerChart(layer=layers).properties(width=WIDTH, height=260)
    chart = chart.add_params(picked, _zoom())
    return _described(chart, description)


def effect_chart(
    effects: pl.DataFrame,
    *,
    description: str,
    published: pl.DataFrame | None = None,
    arms: Sequence[str] | None = None,
) -> alt.LayerChart:
    """Ratio of every candidate to the baseline with its interval, one group of rows per step.

    Columns of ``effects``: candidate, step, ratio, low, high (both null where there are too few
    blocks for an interval), margin (a fraction: 0.02) and verdict; optionally blocks, and
    published_ratio, drawn as a hollow diamond.  ``published`` has candidate, step and
    published_ratio, of candidates that need not be among ours.  The grey band is the margin.
    Raises StudyError when a column is missing, there are no rows or the description is empty.
    """
    needed = ["candidate", "step", "ratio", "low", "high", "margin", "verdict"]
    _require(effects, needed, "effect_chart")
    data = effects.select(*needed, *_present(effects, "blocks", "published_ratio"))
    if published is not None:
        keys = ["candidate", "step"]
        _require(published, [*keys, "published_ratio"], "published")
        ours = data.drop("published_ratio", strict=False)
        data = ours.join(
            published.select(*keys, "published_ratio"),
            on=keys, how="full", coalesce=True, maintain_order="left_right",
        )  # fmt: skip
    # Of a step, all candidates have the same margin.
    bands = data.drop_nulls("margin").unique("step", maintain_order=True)
    bands = bands.select(
        "step", margin_low=1 / (1 + pl.col("margin")), margin_high=1 + pl.col("margin")
    )
    shown = data["candidate"].unique(maintain_order=True).to_list()
    steps = data["step"].unique(maintain_order=True).to_list()
    verdicts = data["verdict"].drop_nulls().unique(maintain_order=True).to_list()
    legend = ["candidate / baseline (logarithmic)", "line: 95 % interval; grey: the margin"]
    if "published_ratio" in data.columns:
        legend[1] += "; hollow diamond: published, one run"

    scale = alt.Scale(type="log", nice=False, padding=14)
    picked = alt.selection_point(fields=["candidate"], bind="legend")
    group = alt.Y("step:N").sort(steps).title(None).scale(paddingInner=0.2)
    base = alt.Chart(data).encode(y=group)
    ours_only = base.transform_filter("isValid(datum.ratio)")
    place = {
        "yOffset": alt.YOffset("candidate:N").sort(shown),
        "color": _arm_channels("candidate", arms, shown)[0],
        "opacity": _faded(picked),
    }
    tooltip = [
        alt.Tooltip("candidate:N"),
        alt.Tooltip("step:N"),
        alt.Tooltip("verdict:N"),
        *(
            alt.Tooltip(f"{column}:Q").format(".3f").title(title)
            for column, title in _RATIO_TITLES.items()
            if column in data.columns
        ),
        alt.Tooltip("margin:Q").format(".1%").title("margin (±)"),
        *(alt.Tooltip(f"{c}:Q") for c in _present(data, "blocks")),
    ]
    shape = alt.Shape("verdict:N").scale(
        domain=verdicts, range=[VERDICTS.get(v, "stroke") for v in verdicts]
    ).legend(orient="bottom", symbolFillColor=NEUTRAL, symbolStrokeColor=NEUTRAL)  # fmt: skip
    x = alt.X("ratio:Q").scale(scale).title(legend).axis(format="~r", tickCount=8)
    layers = [
        alt.Chart(bands)
        .mark_bar(color=NEUTRAL, opacity=0.18)
        .encode(y=group, x=alt.X("margin_low:Q").scale(scale).title(legend), x2="margin_high:Q"),
        alt.Chart().mark_rule(color=NEUTRAL).encode(x=alt.XDatum(1, scale=scale)),
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
    height = len(steps) * max(30, 18 * len(shown))
    chart = (
        alt.LayerChart(layer=layers).properties(width=WIDTH - 90, height=height).add_params(picked)
    )
    return _described(chart, description)


_RATIO_TITLES = {
    "ratio": "ratio (candidate / baseline)",
    "low": "95 % interval from",
    "high": "95 % interval to",
    "published_ratio": "published ratio (one run)",
}


def block_chart(
    values: pl.DataFrame,
    *,
    y_title: str,
    description: str,
    y: str = "value",
    arms: Sequence[str] | None = None,
    step: str | None = None,
) -> alt.LayerChart:
    """One value per arm and block, in the order of blocks: a machine that drifts shows here.

    Columns of ``values``: block, arm, ``y`` and, where given, ``step``, of which the reader
    chooses one at a time; position (place within the block) is shown where it is there.
    Raises StudyError when a column is missing, there are no rows or the description is empty.
    """
    steps = [step] if step else []
    columns = ["block", "arm", y, *steps, *_present(values, "position")]
    _require(values, columns, "block_chart")
    shown = values["arm"].unique(maintain_order=True).to_list()
    colour, shape = _arm_channels("arm", arms, shown)
    picked = alt.selection_point(fields=["arm"], bind="legend")
    base = alt.Chart(values.select(columns)).encode(
        x=alt.X("block:Q").axis(format="d", tickMinStep=1).scale(nice=False, padding=10),
        y=alt.Y(y, type="quantitative").scale(zero=False).title(y_title),
        color=colour,
    )
    lines = base.mark_line(strokeWidth=1).encode(
        opacity=alt.when(picked).then(alt.value(0.4)).otherwise(alt.value(0.05))
    )
    points = base.mark_point().encode(
        shape=shape,
        opacity=_faded(picked),
        tooltip=[
            alt.Tooltip("arm:N"),
            *(alt.Tooltip(s, type="nominal") for s in steps),
            alt.Tooltip("block:Q"),
            *(alt.Tooltip(f"{c}:Q").title("place in block") for c in _present(values, "position")),
            _number(y, y_title),
        ],
    )
    layers = _choosable([lines, points], values, step)
    chart = (
        alt.LayerChart(layer=layers).properties(width=WIDTH, height=240).add_params(picked, _zoom())
    )
    return _described(chart, description)


def save(chart: alt.TopLevelMixin, path: str | Path) -> Path:
    """Write the chart to ``path`` as .svg, .png or .json and return the absolute path.

    Raises StudyError for another suffix, a missing directory or a chart without a description, and
    SpaceError where it cannot be written.
    """
    target = Path(path).expanduser().resolve()
    if target.suffix not in {".svg", ".png", ".json"}:
        raise StudyError(f"A chart is saved as .svg, .png or .json, not as {target.name!r}.")
    if not target.parent.is_dir():
        raise StudyError(f"There is no directory {target.parent}: make it, or save elsewhere.")
    description_of(chart.to_dict())
    options: dict[str, Any] = {"scale_factor": 2} if target.suffix == ".png" else {}
    try:
        chart.save(target, **options)
    except OSError as error:
        raise SpaceError(f"Cannot write {target}: {error.strerror}.") from error
    return target


def _dashed(
    expectation: pl.DataFrame, x: alt.X, y: alt.Y, y_title: str, step: str | None
) -> alt.Chart:
    steps = _present(expectation, step) if step else []
    columns = [str(x.shorthand), str(y.shorthand)]
    dashed: alt.Chart = (
        alt.Chart(expectation.select(*columns, *steps))
        .mark_line(color=NEUTRAL, strokeDash=[6, 4], strokeWidth=2)
        .encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip(columns[0], type="quantitative"),
                _number(columns[1], f"expected (dashed): {y_title}"),
            ],
        )
    )
    return dashed


def _choosable(layers: list[alt.Chart], frame: pl.DataFrame, step: str | None) -> list[alt.Chart]:
    """The layers, showing one step at a time where there are several."""
    if step is None:
        return layers
    options = frame[step].unique(maintain_order=True).to_list()
    chosen = alt.param(
        name="chosen_step",
        value=options[0],
        bind=alt.binding_select(options=options, name=f"{step} "),
    )
    filtered = [
        layer.transform_filter(alt.datum[step] == chosen) if step in layer.data.columns else layer
        for layer in layers
    ]
    return [filtered[0].add_params(chosen), *filtered[1:]]


def _zoom() -> alt.Parameter:
    # A finger's drag must scroll the page, and so must the wheel alone.
    drag = "[pointerdown[event.pointerType === 'mouse'], window:pointerup] > window:pointermove!"
    return alt.selection_interval(
        bind="scales", encodings=["y"], translate=drag, zoom="wheel![event.shiftKey]"
    )


def _faded(picked: alt.Parameter) -> Any:
    return alt.when(picked).then(alt.value(1)).otherwise(alt.value(0.1))


def _number(column: str, title: str) -> alt.Tooltip:
    return alt.Tooltip(column, type="quantitative").format(ROUNDED).title(title)


def _described(chart: alt.LayerChart, description: str) -> alt.LayerChart:
    sentence = description_of({"description": description})
    described: alt.LayerChart = chart.properties(description=sentence)
    return described


def _arm_channels(
    column: str, arms: Sequence[str] | None, shown: list[str]
) -> tuple[alt.Color, alt.Shape]:
    known = _complete(arms, shown)
    columns = legend_columns(shown)
    return (
        alt.Color(column, type="nominal").scale(arm_scale(known, shown)).legend(columns=columns),
        alt.Shape(column, type="nominal").scale(arm_shapes(known, shown)).legend(columns=columns),
    )


def _complete(arms: Sequence[str] | None, shown: list[str]) -> list[str]:
    known = list(arms) if arms is not None else []
    return known + [arm for arm in shown if arm not in known]


def _present(frame: pl.DataFrame, *columns: str) -> list[str]:
    return [c for c in columns if c in frame.columns]


def _require(frame: pl.DataFrame, columns: Sequence[str], who: str) -> None:
    missing = [c for c in columns if c not in frame.columns]
    if missing:
        raise StudyError(
            f"{who} needs the column {missing[0]!r}, and this frame has only "
            f"{', '.join(frame.columns)}."
        )
    if frame.is_empty():
        raise StudyError(f"{who} was given a frame without rows, so there is nothing to draw.")
