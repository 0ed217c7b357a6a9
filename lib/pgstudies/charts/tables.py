"""Frames as tables, and links to take the values away."""

from __future__ import annotations

import base64
import datetime as dt
import html
from typing import TYPE_CHECKING

import polars as pl
from IPython.core.getipython import get_ipython
from IPython.display import HTML

from ..files import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records.reading import Record


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


LARGEST_BYTES = 8_000_000


def downloads(record: Record) -> HTML:
    """Links to the record's files, which are inside the links: they work wherever the page is.

    A file above ``LARGEST_BYTES`` is named with its path instead.
    """
    items = []
    for name in ("samples.parquet", "record.json"):
        path = record.path / name
        size = path.stat().st_size
        label = f"{record.info['study']}-{name}"
        if size > LARGEST_BYTES:
            items.append(f"<li>{html.escape(str(path))} ({size_text(size)})</li>")
            continue
        content = base64.b64encode(path.read_bytes()).decode("ascii")
        items.append(
            f'<li><a download="{html.escape(label)}" '
            f'href="data:application/octet-stream;base64,{content}">{html.escape(label)}</a> '
            f"({size_text(size)})</li>"
        )
    return HTML(f"<ul>{''.join(items)}</ul>")  # type: ignore[no-untyped-call]
