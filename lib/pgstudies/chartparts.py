"""What the charts are put together from: checks, descriptions, tooltips, fading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from .chartstyle import arm_scale, arm_shapes, description_of, legend_columns
from .errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

ROUNDED = ",.4~r"

# Vega marks every 2, 3, … 9 on a logarithmic axis, and labels a few.
LABELLED_ONLY: Any = {"condition": {"test": "datum.label === ''", "value": 0}, "value": 0.6}


def faded(picked: alt.Parameter) -> Any:
    """Full strength for the arms picked in the legend, a tenth for the others."""
    return alt.when(picked).then(alt.value(1)).otherwise(alt.value(0.1))


def number(column: str, title: str) -> alt.Tooltip:
    """A tooltip's line for a quantity; ``title`` names its unit."""
    return alt.Tooltip(column, type="quantitative").format(ROUNDED).title(title)


def described(chart: alt.LayerChart, description: str) -> alt.LayerChart:
    """The chart with its sentence for readers who cannot see it; StudyError if it is empty."""
    sentence = description_of({"description": description})
    described: alt.LayerChart = chart.properties(description=sentence)
    return described


def arm_channels(
    column: str, arms: Sequence[str] | None, shown: list[str]
) -> tuple[alt.Color, alt.Shape]:
    """Colour and shape by arm, the same on every chart, in a legend that fits the page."""
    known = complete(arms, shown)
    columns = legend_columns(shown)
    return (
        alt.Color(column, type="nominal").scale(arm_scale(known, shown)).legend(columns=columns),
        alt.Shape(column, type="nominal").scale(arm_shapes(known, shown)).legend(columns=columns),
    )


def complete(arms: Sequence[str] | None, shown: list[str]) -> list[str]:
    """The study's arms, and after them those that are shown without being listed."""
    known = list(arms) if arms is not None else []
    return known + [arm for arm in shown if arm not in known]


def present(frame: pl.DataFrame, *columns: str) -> list[str]:
    """Which of these columns the frame has."""
    return [c for c in columns if c in frame.columns]


def require(frame: pl.DataFrame, columns: Sequence[str], who: str) -> None:
    """Raise StudyError unless the frame has rows and these columns."""
    missing = [c for c in columns if c not in frame.columns]
    if missing:
        raise StudyError(
            f"{who} needs the column {missing[0]!r}, and this frame has only "
            f"{', '.join(frame.columns)}."
        )
    if frame.is_empty():
        raise StudyError(f"{who} was given a frame without rows, so there is nothing to draw.")


def choosable(layers: list[alt.Chart], frame: pl.DataFrame, step: str | None) -> list[alt.Chart]:
    """The layers, with a menu of the steps, of which one is shown at a time."""
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
