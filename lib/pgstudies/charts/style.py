"""The look of every chart and table: renderer, theme, and the colours and shapes of the arms."""

from __future__ import annotations

import base64
import itertools
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from html import escape
from typing import Any, Literal, TypeAlias, TypeVar

import altair as alt
import polars as pl
import vl_convert
from IPython.display import HTML

from pgservers.errors import StudyError
from pgservers.shown import quotable

from . import tables

# JupyterLab 4.6 draws Vega-Lite natively, but registers MIME types only up to v5.
MIME = "application/vnd.vegalite.v5+json"

# Every colour stands out 3:1 from white and from the book's dark background (WCAG 1.4.11).
# Okabe and Ito's palette, its two lightest colours darkened for that; the shapes carry the
# distinction for readers to whom two of them look alike.
BASELINE, REPEAT, PATCHED, NEUTRAL = "#0072b2", "#3d9bd4", "#d55e00", "#7a7a7a"

FURTHER_PATCHED = ("#e0568a", "#c8322a", "#bb6d14")

PUBLISHED = ("#6b6b6b", "#8c8c8c")

CANDIDATES = (
    *("#009e73", "#cc79a7", "#a67c00", "#7f6cd0", "#7a7a7a"),
    *("#2f93a8", "#a3643b", "#7d8f2e", "#a45bb8", "#b8574f"),
)

SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")

COLUMN_PX = 690
"""The width of the page's column on a desktop; wider charts would scroll."""

WIDTH = 600

LABEL_PX = 280
"""Longer labels of an axis are cut."""


def book_renderer(spec: dict[str, Any], **_options: object) -> dict[str, Any]:
    """The specification for JupyterLab and the book, a PNG and a sentence for every other reader.

    Raises StudyError for a chart without a description.
    """
    spec = quotable(spec)
    png = vl_convert.vegalite_to_png(spec, scale=2)
    return {
        MIME: spec,
        "image/png": base64.b64encode(png).decode("ascii"),
        "text/plain": description_of(spec),
    }


def description_of(spec: dict[str, Any]) -> str:
    """The sentence that stands for the chart where it cannot be seen."""
    sentence = str(spec.get("description") or "").strip()
    if not sentence:
        raise StudyError(
            "This chart has no description: give it one sentence that says what it shows, "
            "with chart.properties(description=...)."
        )
    return sentence


TITLE_COLUMNS = 95
"""In so many characters a chart's title is as wide as the chart."""


def _theme() -> Any:
    """Colours of text and axes are those of paper: the page's style sheet adapts them."""
    text: dict[str, Any] = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    return {
        "config": {
            "background": "white",
            "font": "Helvetica, Arial, sans-serif",
            "padding": {"left": 12, "top": 4, "right": 8, "bottom": 4},
            "view": {"continuousWidth": WIDTH, "continuousHeight": 260, "stroke": None},
            "axis": {**text, "gridOpacity": 0.6, "titlePadding": 8, "labelLimit": LABEL_PX,
                     "titleLimit": COLUMN_PX},
            "axisY": {"domain": False, "ticks": False, "labelPadding": 6},
            "axisX": {"grid": False, "labelFlush": False},
            "header": {**text, "labelFontWeight": "bold", "labelAnchor": "start", "title": None,
                       "labelLimit": LABEL_PX},
            "legend": {**text, "orient": "top", "direction": "horizontal", "title": None,
                       "symbolSize": 80, "labelLimit": 300, "symbolOpacity": 1,
                       "columnPadding": 16},
            "title": {"anchor": "start", "fontSize": 13, "subtitleFontSize": 12, "offset": 8,
                      "limit": 2 * COLUMN_PX},
            "line": {"strokeWidth": 1.5},
            "point": {"size": 45, "filled": True},
            "range": {"category": [BASELINE, PATCHED, *CANDIDATES]},
        }
    }  # fmt: skip


Arms: TypeAlias = Sequence[str] | Mapping[str, str | None] | pl.DataFrame
"""A study's arms: names; names with the arms that they are copies of; or ``record.arms``."""


def copies_of(arms: Arms) -> dict[str, str | None]:
    """The names of arms, each with the arm that it is a second copy of."""
    if isinstance(arms, pl.DataFrame):
        return dict(arms.select("name", "copy_of").iter_rows())
    return dict(arms) if isinstance(arms, Mapping) else dict.fromkeys(arms)


def arm_colours(arms: Arms) -> dict[str, str]:
    """The colour of each arm, in the order given; a study passes the same list to every chart.

    ``heap`` and the posts' ``head`` are baselines and have one blue in every study; without them
    the first arm has it.  A baseline's second copy has a lighter one.  Arms with ``patch`` in their
    name are vermilion and, where there are several, of other warm colours.  What a post measured is
    grey wherever it stands beside ours.  The others take the palette's colours in order, again from
    its beginning when all are taken: then their shapes tell them apart.
    """
    known = copies_of(arms)
    baselines = {arm for arm in known if arm.lower() in {"heap", "head"}} or {*list(known)[:1]}
    patched, rest = iter((PATCHED, *FURTHER_PATCHED)), itertools.cycle(CANDIDATES)
    published = itertools.cycle(PUBLISHED)
    colours: dict[str, str] = {}
    for arm, copy_of in known.items():
        if is_published(arm):
            colours[arm] = next(published)
        elif arm in baselines:
            colours[arm] = BASELINE
        elif copy_of in baselines:
            colours[arm] = REPEAT
        elif "patch" in arm.lower():
            colours[arm] = next(patched, PATCHED)
        else:
            colours[arm] = next(rest)
    return colours


def is_published(arm: str) -> bool:
    """Whether this is what a post measured, such as ``post`` or ``post, head``."""
    return arm.partition(",")[0] == "post"


def arm_scale(arms: Arms, drawn: Sequence[str] | None = None) -> alt.Scale:
    """The colour scale of ``arms``; with ``drawn`` it lists only those, in unchanged colours."""
    return _scale(arm_colours(arms), drawn)


def arm_shapes(arms: Arms, drawn: Sequence[str] | None = None) -> alt.Scale:
    """The scale of point shapes that goes with ``arm_scale``."""
    return _scale(dict(zip(copies_of(arms), itertools.cycle(SHAPES), strict=False)), drawn)


def _scale(of_arms: Mapping[str, str], drawn: Sequence[str] | None) -> alt.Scale:
    domain = [arm for arm in of_arms if drawn is None or arm in drawn]
    return alt.Scale(domain=domain, range=[of_arms[arm] for arm in domain])


def plot_width(labels: Sequence[str], *, most: int) -> int:
    """What the page has room for (px, at most so much) beside the labels of a vertical axis."""
    # 6.5 px is the mean width of a letter of 12 px; 36 px is what is left free around the plot.
    widest = min(LABEL_PX, 6.5 * max(map(len, labels)))
    return min(most, int(COLUMN_PX - widest - 36))


def legend_columns(names: Sequence[str], width: int = WIDTH) -> int:
    """The number of columns in which a legend of these names is no wider than that (px)."""
    # 7 px is the mean width of a letter, 38 px a symbol and the gap; columns are aligned.
    widths = [38 + 7 * len(name) for name in names]
    fitting = (
        n for n in range(len(names), 1, -1) if sum(max(widths[i::n]) for i in range(n)) <= width
    )
    return next(fitting, 1)


def enable() -> None:
    """Make this the style of all charts and tables of the session; importing the module does."""
    alt.renderers.register("book", book_renderer)
    alt.renderers.enable("book")
    alt.theme.register("pgstudies", enable=True)(_theme)
    tables.enable()


enable()

ROUNDED = ",.4~r"


def log_ticks(values: Iterable[float | None]) -> list[float]:
    """Where a logarithmic axis over these values is marked: some between any two decades."""
    known = [value for value in values if value is not None and value > 0]
    least, most = min([*known, 1.0]), max([*known, 1.0])
    span = most / least
    steps = next(steps for limit, steps in _TICKS if span <= limit)
    decades = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 1)
    ticks = (round(step * 10.0**decade, 12) for decade in decades for step in steps)
    return [tick for tick in ticks if least / 1.1 <= tick <= most * 1.1]


_TICKS: tuple[tuple[float, tuple[float, ...]], ...] = (
    (1.6, (1, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 2, 3, 4, 5, 6, 7, 8, 8.5, 9, 9.5)),
    (4, (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)),
    (20, (1, 1.5, 2, 3, 5, 7)),
    (300, (1, 2, 5)),
    (math.inf, (1,)),
)
"""The marks of a decade, for values whose largest is at most so many times their least."""

# Vega marks every 2, 3, … 9 on a logarithmic axis, and labels a few.
LABELLED_ONLY: Any = {"condition": {"test": "datum.label === ''", "value": 0}, "value": 0.6}


def faded(picked: alt.Parameter) -> Any:
    """Full strength for the arms picked in the legend, a tenth for the others."""
    return alt.when(picked).then(alt.value(1)).otherwise(alt.value(0.1))


def number(column: str, title: str) -> alt.Tooltip:
    """A tooltip's line for a quantity; ``title`` names its unit."""
    return alt.Tooltip(column, type="quantitative").format(ROUNDED).title(title)


def zoom(axis: Literal["x", "y"]) -> alt.Parameter:
    """Drag with the mouse, or turn its wheel with shift, to move and stretch this axis."""
    # A finger's drag must scroll the page, and so must the wheel alone.
    drag = "[pointerdown[event.pointerType === 'mouse'], window:pointerup] > window:pointermove!"
    return alt.selection_interval(
        bind="scales", encodings=[axis], translate=drag, zoom="wheel![event.shiftKey]"
    )


_Chart = TypeVar("_Chart", alt.LayerChart, alt.FacetChart)


def described(
    chart: _Chart, description: str, *, step: str | None = None, below: str = "", letters: int = 0
) -> _Chart:
    """The chart with its sentence, as title and for readers who cannot see it.

    With ``step`` the title ends with the one that is chosen in the menu, and ``below`` it there is
    more.  ``letters`` has the longest name of a row.  Raises StudyError if the sentence is empty.
    """
    sentence = description_of({"description": description})
    text: Any = textwrap.wrap(sentence, TITLE_COLUMNS, max_lines=8)
    if step is not None:
        known = "".join(f"{json.dumps(line)}, " for line in text)
        text = alt.ExprRef(f"[{known}{json.dumps(f'{step}: ')} + chosen_step]")
    more = textwrap.wrap(below, TITLE_COLUMNS, max_lines=8) or alt.Undefined
    title = alt.TitleParams(text, fontWeight="normal", subtitle=more)
    meta = {"step": step, "letters": letters}  # charts.js needs both, on a phone
    return chart.properties(description=sentence, title=title, usermeta=meta)


def arm_channels(
    column: str, arms: Arms | None, drawn: list[str], width: int = WIDTH
) -> tuple[alt.Color, alt.Shape]:
    """Colour and shape by arm, the same on every chart, in a legend of that width (px)."""
    known = complete(arms, drawn)
    columns = legend_columns(drawn, width)
    return (
        alt.Color(column, type="nominal").scale(arm_scale(known, drawn)).legend(columns=columns),
        alt.Shape(column, type="nominal").scale(arm_shapes(known, drawn)).legend(columns=columns),
    )


def complete(arms: Arms | None, drawn: list[str]) -> dict[str, str | None]:
    """The study's arms, and after them those of ``drawn`` that are not among them."""
    known = copies_of(arms) if arms is not None else {}
    return known | {arm: None for arm in drawn if arm not in known}


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


_Drawn = TypeVar("_Drawn", bound=Callable[..., Any])


def unless_empty(draw: _Drawn) -> _Drawn:
    """Have a chart of a frame without rows be a sentence instead, as a run may lack an arm."""

    @wraps(draw)
    def drawn(frame: pl.DataFrame, **how: Any) -> object:
        if frame.is_empty() and how.get("description"):
            words = f"Not measured in this run: {how['description']}"
            return HTML(f"<p><em>{escape(words)}</em></p>")  # type: ignore[no-untyped-call]
        return draw(frame, **how)

    return drawn  # type: ignore[return-value]


def interval(frame: pl.DataFrame, low: str | None, high: str | None) -> list[str]:
    """The columns of an interval: ``low`` and ``high``, or if not given those of that name."""
    if low and high:
        return [low, high]
    named = present(frame, "low", "high")
    return named if len(named) == 2 else []


def choosable(layers: list[alt.Chart], frame: pl.DataFrame, step: str | None) -> list[alt.Chart]:
    """The layers, with a menu of the steps, of which one is shown at a time."""
    if step is None:
        return layers
    options = frame[step].unique(maintain_order=True).to_list()
    bind = alt.binding_select(options=options, name=f"{step} ")
    chosen = alt.param(name="chosen_step", value=options[0], bind=bind)
    filtered = [
        layer.transform_filter(alt.datum[step] == chosen)
        if layer.data is not alt.Undefined and step in layer.data.columns
        else layer
        for layer in layers
    ]
    return [filtered[0].add_params(chosen), *filtered[1:]]
