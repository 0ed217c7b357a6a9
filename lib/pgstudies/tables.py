"""Tables of notebooks and pages: polars frames as plain HTML that a reader can take in."""

from __future__ import annotations

import datetime as dt
import html
from typing import TYPE_CHECKING

import polars as pl
from IPython.core.getipython import get_ipython

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGITS = 4
MOST_ROWS = 200
NOTHING = "–"


def table_html(frame: pl.DataFrame) -> str:
    """The frame as an HTML table of its first ``MOST_ROWS`` rows, numbers to ``DIGITS`` digits.

    Text stands left and numbers right; a null is a dash.
    """
    shown = frame.head(MOST_ROWS)
    right = [dtype.is_numeric() or dtype.is_temporal() for dtype in frame.dtypes]
    head = _row("th", frame.columns, right, ' scope="col"')
    body = "\n".join(_row("td", [_text(v) for v in row], right) for row in shown.iter_rows())
    left_out = frame.height - shown.height
    more = f'<p class="more">… and {left_out:,} more rows</p>' if left_out else ""
    if frame.is_empty():
        more = '<p class="more">No rows.</p>'
    return (
        f'<div class="table-box" tabindex="0"><table class="dataframe">\n'
        f"<thead>\n{head}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table>{more}</div>"
    )


def _row(tag: str, cells: Sequence[str], right: Sequence[bool], more: str = "") -> str:
    classes = ("text", "number")
    return (
        "<tr>"
        + "".join(
            f'<{tag}{more} class="{classes[is_right]}">{html.escape(cell)}</{tag}>'
            for cell, is_right in zip(cells, right, strict=True)
        )
        + "</tr>"
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    return NOTHING if value is None else str(value)


def _number(value: float) -> str:
    whole = f"{value:,.0f}"
    if abs(value) >= 10 ** (DIGITS - 1) or value == round(value):
        return whole
    text = f"{value:#.{DIGITS}g}"
    return text if "e" in text else f"{float(text):,.{len(text.partition('.')[2])}f}"


def enable() -> None:
    """Show polars frames of this session in this way, where it is a notebook's."""
    shell = get_ipython()
    if shell is not None and shell.display_formatter is not None:
        shell.display_formatter.formatters["text/html"].for_type(pl.DataFrame, table_html)
