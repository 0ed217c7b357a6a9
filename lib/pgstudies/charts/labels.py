"""Names at the ends of lines, in place of a legend, where they are few and short."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import numpy as np
import polars as pl
from scipy.optimize import isotonic_regression

from .style import COLUMN_PX, WIDTH, faded

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 6
"""So many lines are named at their ends; more have a legend."""

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


def label_layers(
    labels: pl.DataFrame,
    *,
    x: alt.X,
    y: alt.Y,
    color: str,
    channels: tuple[alt.Color, alt.Shape],
    picked: alt.Parameter,
) -> list[alt.Chart]:
    """The line's symbol, and its name after it, in the colour of the page's text; a click picks."""
    colour, shape = channels
    # The zoom would have all marks cut off at the edge of the plot.
    base = alt.Chart(labels).encode(x=x, y=y, opacity=faded(picked))
    return [
        base.mark_point(xOffset=14, clip=False)
        .encode(color=colour, shape=shape)
        .properties(name=f"{LAYER}-symbols"),
        base.mark_text(align="left", dx=22, baseline="middle", fontSize=12, clip=False)
        # Without a tooltip a layer takes no clicks.
        .encode(text=alt.Text(color, type="nominal"), tooltip=alt.Tooltip(color, type="nominal"))
        .properties(name=f"{LAYER}-names"),
    ]


def plot_width_beside(labels: pl.DataFrame | None, color: str) -> int:
    """The width of a plot (px) that leaves room for the names at the ends of its lines."""
    if labels is None:
        return WIDTH
    longest = max(len(str(name)) for name in labels[color])
    return min(WIDTH, int(COLUMN_PX - _AXIS_PX - _SYMBOL_PX - _LETTER_PX * longest))
