"""Charts of ``scorecard.ipynb``: published claims beside what is found here, and by record."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from pgapps.scorecard.scorecard import with_outcome
from pgapps.scorecard.table import now_and_here
from pgstudies.analysis.agreement import MUCH_STRONGER, NOT_JUDGED
from pgstudies.charts.labels import IN_LINES
from pgstudies.charts.outcomes import OUTCOMES
from pgstudies.charts.style import (
    NEUTRAL,
    WIDTH,
    described,
    legend_columns,
    plot_width,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


ALL = "all"
"""What a menu shows before the reader has chosen."""

_NEEDED = [
    "study",
    "claim",
    "text",
    "published_ratio",
    "ratio",
    "low",
    "high",
    "verdict",
]

_LETTERS = 36
"""Longer names of claims are broken into lines."""

_GROUPS = {
    MUCH_STRONGER: "holds",
    "holds, perhaps weaker": "holds",
    "inconclusive": "undecided",
    NOT_JUDGED: "undecided",
}
"""Outcomes that share an entry of the legend; the tooltip and the table have each."""

_TITLE = [
    "candidate / baseline (logarithmic)",
    "line: 95 % interval; hollow diamond: published",
]


def score_chart(cards: pl.DataFrame, *, description: str) -> alt.LayerChart:
    """Every claim's ratio with its interval beside the published one, at first of one study.

    ``cards`` is a ``scorecard``, of which the rows of now with a ratio are drawn.  The reader may
    choose another study or all, a release and a verdict.  Raises StudyError when there is nothing
    to draw or the description is empty.
    """
    parts = cards.partition_by("study", maintain_order=True)
    data = _drawn(pl.concat(now_and_here(part)[0] for part in parts))
    menus = [_menu(data, "study", chosen=data["study"][0])]
    menus += [_menu(data, column) for column in ("release", "outcome")]
    rows = data["row"].unique(maintain_order=True).to_list()
    lines = 1 + max(row.count("\n") for row in rows)
    layers = _layers(data, _named(rows), menus)
    return _sized(layers, rows, alt.Step(4 + 14 * lines), description)


def history_chart(cards: pl.DataFrame, *, description: str) -> alt.LayerChart:
    """The claims of which there are several records: the newest below, the page's on top.

    At first those of one study; another can be chosen.  ``cards`` is a ``scorecard``; claims with a
    single record are left out.  Raises StudyError as ``score_chart`` does.
    """
    data = _drawn(cards).filter(pl.len().over("row") > 1)
    require(data, _NEEDED, "history_chart")
    menus = [_menu(data, "study", chosen=data["study"][0])]
    data = data.with_columns(nth=pl.int_range(pl.len()).over("row"))
    nth = data["nth"].unique().sort().to_list()
    rows = data["row"].unique(maintain_order=True).to_list()
    y = _named(rows).scale(paddingInner=0.25)
    layers = _layers(
        data,
        y,
        menus,
        yOffset=alt.YOffset("nth:O").sort(nth),
        opacity=alt.when(alt.datum.current)
        .then(alt.value(1))
        .otherwise(alt.value(0.55)),
    )
    height: Any = alt.Step(13, **{"for": "offset"})
    return _sized(layers, rows, height, description)


def _named(rows: Sequence[str]) -> alt.Y:
    return alt.Y("row:N").sort(rows).title(None).axis(labelExpr=IN_LINES, labelLimit=0)


def _sized(
    layers: list[alt.Chart], rows: Sequence[str], height: Any, description: str
) -> alt.LayerChart:
    lines = [line for row in rows for line in row.split("\n")]
    chart = alt.LayerChart(layer=layers).properties(
        width=plot_width(lines, most=WIDTH), height=height
    )
    return described(chart, description, letters=max(map(len, lines)))


def _drawn(cards: pl.DataFrame) -> pl.DataFrame:
    """The rows that have a ratio, with a name for each claim."""
    require(cards, _NEEDED, "score_chart")
    data = with_outcome(cards.drop_nulls("ratio"))
    names = [f"{study}: {name}" for study, name in data["study", "name"].iter_rows()]
    data = data.with_columns(
        row=pl.Series([textwrap.fill(n, _LETTERS) for n in names], dtype=pl.String()),
        group=pl.col("outcome").replace(_GROUPS),
    )
    require(data, _NEEDED, "score_chart")
    return data.drop("source", "holds_when", "link")


def _layers(
    data: pl.DataFrame,
    y: alt.Y,
    menus: Sequence[tuple[str, alt.Parameter]],
    **more: Any,
) -> list[alt.Chart]:
    """The line at 1, intervals, published ratios and ours, with ``more`` channels."""
    looks = {_GROUPS.get(word, word): o for word, o in reversed(OUTCOMES.items())}
    words = [word for word in reversed(looks) if word in data["group"].to_list()]
    shown = [looks[word] for word in words]
    columns = legend_columns(words)
    colour = (
        alt.Color("group:N")
        .title(None)
        .scale(domain=words, range=[o.colour for o in shown])
        .legend(columns=columns)
    )
    shape = (
        alt.Shape("group:N")
        .title(None)
        .scale(domain=words, range=[o.shape for o in shown])
        .legend(columns=columns)
    )
    scale = alt.Scale(type="log", nice=False, padding=14)
    x = alt.X("ratio:Q").scale(scale).title(_TITLE).axis(format="~r")
    low, published = (
        alt.X(f"{name}:Q").scale(scale) for name in ("low", "published_ratio")
    )
    base = alt.Chart(data).encode(y=y, tooltip=_tooltip(), **more)
    for column, menu in menus:
        base = base.transform_filter((menu == ALL) | (alt.datum[column] == menu))
    one = alt.Chart().mark_rule(color=NEUTRAL).encode(x=alt.XDatum(1, scale=scale))
    diamond: dict[str, Any] = {
        "shape": "diamond",
        "filled": False,
        "strokeWidth": 1.5,
        "color": NEUTRAL,
    }
    return [
        one.add_params(*(menu for _, menu in menus)),
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=2)
        .encode(x=low, x2="high:Q", color=colour),
        base.mark_point(size=90, opacity=1, **diamond).encode(x=published),
        base.mark_point(size=65, opacity=1).encode(x=x, color=colour, shape=shape),
    ]


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("text:N").title("claim"),
        alt.Tooltip("verdict:N"),
        alt.Tooltip("metric:N").title("judged by"),
        alt.Tooltip("ratio:Q").format(".3f").title("now"),
        alt.Tooltip("low:Q").format(".3f").title("95 % interval from"),
        alt.Tooltip("high:Q").format(".3f").title("95 % interval to"),
        alt.Tooltip("published_ratio:Q").format(".3f").title("published (one run)"),
        alt.Tooltip("beside:Q").format(".3f").title("by the other time"),
        alt.Tooltip("server:N").title("PostgreSQL"),
        alt.Tooltip("host:N"),
        alt.Tooltip("date:N").title("date (UTC)"),
        alt.Tooltip("profile:N").title("size"),
        alt.Tooltip("blocks:Q"),
    ]


def _menu(
    data: pl.DataFrame, column: str, *, chosen: str = ALL
) -> tuple[str, alt.Parameter]:
    """A menu of what there is in a column, and all of it."""
    options = [ALL, *data[column].unique(maintain_order=True)]
    name = "verdict" if column == "outcome" else column
    bind = alt.binding_select(options=options, name=f"{name} ")
    return column, alt.param(name=f"chosen_{name}", value=chosen, bind=bind)
