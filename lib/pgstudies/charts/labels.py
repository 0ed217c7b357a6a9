"""Names at the ends of lines, in place of a legend, where they are few and short."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import polars as pl
from scipy.optimize import isotonic_regression

from .style import COLUMN_PX, WIDTH, choosable

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 6
"""So many lines are named at their ends, or in a legend; of more each has a panel."""

LETTERS = 24
"""Longer names of panels and rows are broken into lines."""

IN_LINES = "slice(split(datum.label, '\\n'), 0, 6)"

LONGEST = 30
"""Longer names (letters) would leave the lines too little width."""

# A letter of 12 px is 6.5 px wide on average; 30 px are the symbol before the name and the gaps.
_LETTER_PX, _SYMBOL_PX, _AXIS_PX = 6.5, 30, 75

# A line of text as a share of the axis, and what the axis gains by being rounded up.
_LINE = 0.065

LAYER = "labels"
"""What the names of their layers begin with: charts.js puts a legend in their place on a phone."""


def end_labels(
    frame: pl.DataFrame,
    *,
    x: str,
    y: str,
    color: str,
    step: str | None = None,
    band: Sequence[str] = (),
    log: bool = False,
    zero: bool = True,
) -> pl.DataFrame | None:
    """Where the name of each line stands: columns ``x``, ``y``, ``color`` and, if given, ``step``.

    That is at the line's end, or as near to it as the others' names allow.  ``band`` are further
    columns of the vertical axis, which is logarithmic (``log``) or begins at zero (``zero``).
    None where a legend serves better: for one line, more than ``MOST``, names of more than
    ``LONGEST`` letters, or lines that end at different places.
    """
    names = [str(name) for name in frame[color].unique()]
    if not 1 < len(names) <= MOST or max(map(len, names)) > LONGEST:
        return None
    known = frame.drop_nulls([x, y])
    if known.schema[x].is_numeric():
        known = known.sort(x, maintain_order=True)
    parts = known.partition_by(step, maintain_order=True) if step else [known]
    labels = []
    for part in parts:
        ends = part.group_by(color, maintain_order=True).last()
        if ends[x].n_unique() > 1:
            return None
        drawn = part.select(y, *band).to_numpy().ravel()
        low, high = float(np.nanmin(drawn)), float(np.nanmax(drawn))
        here = ends[y].to_numpy()
        if log:
            placed = np.exp(places_apart(np.log(here), np.log(low), np.log(high)))
        else:
            placed = places_apart(here, min(low, 0.0) if zero else low, high)
        labels.append(ends.select(x, pl.Series(y, placed), color, *([step] if step else [])))
    return pl.concat(labels) if labels else None


def places_apart(ends: np.ndarray, low: float, high: float) -> np.ndarray:
    """The places between low and high nearest to ``ends`` that are a line's height apart."""
    gap = _LINE * (high - low)
    order = np.argsort(ends, kind="stable")
    room = gap * np.arange(len(ends))
    # Distances of at least the gap are an order of what is left without the gaps.
    nearest = isotonic_regression(ends[order] - room).x
    placed = np.empty(len(ends))
    placed[order] = np.clip(nearest, low, max(low, high - room[-1])) + room
    return placed


def plot_width_beside(labels: pl.DataFrame | None, color: str) -> int:
    """The width of a plot (px) that leaves room for the names at the ends of its lines."""
    if labels is None:
        return WIDTH
    longest = max(len(str(name)) for name in labels[color])
    return min(WIDTH, int(COLUMN_PX - _AXIS_PX - _SYMBOL_PX - _LETTER_PX * longest))


def panels(
    layers: list[alt.Chart], data: pl.DataFrame, by: str, step: str | None, size: dict[str, Any]
) -> alt.FacetChart:
    """A panel for each value of ``by``; a layer with data of its own is the same in all of them."""
    names = {each: textwrap.fill(each, LETTERS) for each in data[by].unique(maintain_order=True)}
    facet = alt.Facet("panel:N").sort([*names.values()]).title(None).header(labelExpr=IN_LINES)
    chart = alt.LayerChart(layer=choosable(layers, data, step)).properties(**size).facet(
        facet=facet, columns=COLUMN_PX // (size["width"] + 20),
        data=data.with_columns(panel=pl.col(by).replace(names)),
    )  # fmt: skip
    return chart.transform_filter(f"datum['{step}'] === chosen_step") if step else chart
