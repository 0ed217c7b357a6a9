"""Frames as tables, and links to take the values away."""

from __future__ import annotations

import base64
import datetime as dt
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from IPython.core.getipython import get_ipython
from IPython.display import HTML, display
from markupsafe import Markup

from pgservers.files import size_text
from pgservers.shown import environment
from pgservers.terminal import JUPYTER_SESSION, printable

from ..records.format import INFO, SAMPLES
from ..records.reading import content_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..records.reading import Record

TEMPLATES = environment(Path(__file__).parent)

DIGITS, MOST_ROWS, NOTHING = 3, 200, "–"

SCROLLING = 20
"""A table of more rows scrolls in a box of its own, which says so."""

NARROW = 3
"""So many columns fit into the width of a phone without breaking words."""


def table_html(frame: pl.DataFrame, *, whole: bool = False) -> str:
    """The frame as an HTML table of its first ``MOST_ROWS`` rows, numbers to ``DIGITS`` digits.

    Text stands left and numbers right; a null is a dash, a struct of text and href a link.
    One of more than ``NARROW`` columns is turned into a list where the page is narrow, and so is
    one that is shown ``whole``, which never scrolls in itself as long ones do.
    """
    first_rows = frame.head(MOST_ROWS)
    right = [dtype.is_numeric() or dtype.is_temporal() for dtype in frame.dtypes]
    return TEMPLATES.get_template("table.html").render(
        columns=[
            (name, "number" if is_right else "text")
            for name, is_right in zip(frame.columns, right, strict=True)
        ],
        rows=[[_cell(value) for value in row] for row in first_rows.iter_rows()],
        left_out=frame.height - first_rows.height,
        scrolls=first_rows.height > SCROLLING and not whole,
        whole=whole,
        labels=column_labels(frame.columns) if whole or frame.width > NARROW else "",
    )


def column_labels(columns: list[str]) -> str:
    """The names of columns, each with a colon, as CSS variables ``--c1``, ... for class "wide"."""
    titled = (name and f"{name}: " for name in columns)
    # A line's end would end the string, and the rest of the name would be CSS.
    quoted = (printable(name).replace("\\", r"\\").replace("'", r"\'") for name in titled)
    return "".join(f"--c{number}: '{name}';" for number, name in enumerate(quoted, start=1))


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return Markup('<a href="{href}">{text}</a>').format(**value)
    return _text(value)


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
    if not math.isfinite(value):
        return str(value)
    whole = f"{value:,.0f}"
    if abs(value) >= 10 ** (DIGITS - 1) or value == round(value):
        return whole
    text = f"{value:#.{DIGITS}g}"
    return text if "e" in text else f"{float(text):,.{len(text.partition('.')[2])}f}"


def enable() -> None:
    """Show polars frames of this session in this way where it is a notebook's, else as text."""
    pl.Config.set_tbl_hide_dataframe_shape(True).set_tbl_hide_column_data_types(True)
    pl.Config.set_tbl_rows(60).set_tbl_cols(20).set_fmt_str_lengths(200)
    shell = get_ipython()
    if shell is not None and shell.display_formatter is not None:
        shell.display_formatter.formatters["text/html"].for_type(pl.DataFrame, table_html)


def style_jupyterlab() -> None:
    """Give the tables of this notebook the book's look, where a person has it in JupyterLab."""
    if os.environ.get(JUPYTER_SESSION):
        display(HTML(TEMPLATES.get_template("jupyterlab.html").render()))  # type: ignore[no-untyped-call]


LARGEST_BYTES = 8_000_000
"""A larger file of a record is not in its page, which names it with its path."""


def began(record: Record, more: Mapping[str, object]) -> str:
    """The record in a line, with what a study has to say in ``more``, and what was not run."""
    left_out = record.not_run.group_by("step", "case", "reason", maintain_order=True)
    table = left_out.agg(pl.col("arm").str.join(", ")).select("arm", "step", "case", "reason")
    return TEMPLATES.get_template("began.html").render(
        summary=table_html(record.summary(**more)),
        not_run=table_html(table) if table.height else "",
    )


def about(record: Record) -> str:
    """Where and how it was measured, what the gate found, and links that hold the files."""
    files = []
    for name in (SAMPLES, INFO):
        content, href = content_of(record.path, name), None
        if len(content) <= LARGEST_BYTES:
            coded = base64.b64encode(content).decode("ascii")
            href = f"data:application/octet-stream;base64,{coded}"
        size, path = size_text(len(content)), record.path / name
        label = f"{record.info['study']}-{name}"
        files.append({"label": label, "path": path, "size": size, "href": href})
    return TEMPLATES.get_template("about.html").render(
        facts=table_html(record.facts),
        gate=table_html(record.gate) if record.gate.height else "",
        unmet=table_html(record.unmet_settings) if record.unmet_settings.height else "",
        files=files,
    )
