"""The checks on the instrument where readers meet them: its page, and the front page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from .. import paths
from ..analysis.instrument import SCHEMA, check_lines
from ..charts.tables import table_html
from ..records import machine_of
from ..templates import environment

if TYPE_CHECKING:
    from ..records.reading import Record


_TEMPLATES = environment(Path(__file__).parent)


KEY = "pgstudies_checks"
"""Where the executed notebook keeps the checks: in the metadata of the output that shows them,
because MyST-NB warns of every MIME type that it does not know."""


SHOWN = {**SCHEMA, **dict.fromkeys(["host", "date", "machine"], pl.String())}
"""The checks, and where and when (UTC) they were made; machine is that of ``machine_of``."""


class ShownChecks:
    """A table of checks as a notebook's output: for readers, and for ``read_checks``."""

    def __init__(self, checks: pl.DataFrame) -> None:
        self.checks = checks

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, str], dict[str, Any]]:
        words = pl.col("passed").replace_strict(_WORDS, default="not judged")
        table = self.checks.select("check", "sentence", result=words)
        shown = {
            "text/html": instrument_markup(self.checks)
            + table_html(table.select("check", "result", "sentence")),
            "text/plain": "\n".join(check_lines(self.checks.to_dicts())),
        }
        return shown, {KEY: self.checks.to_dicts()}


def display_checks(checks: pl.DataFrame, record: Record) -> ShownChecks:
    """Show the checks that rest on ``record``, so that the front page can read them."""
    host, date = record.info["host"].get("hostname"), record.info["started_at"][:10]
    told = {"host": host, "date": date, "machine": machine_of(record.info["host"])}
    shown = checks.with_columns(pl.lit(v, pl.String()).alias(name) for name, v in told.items())
    return ShownChecks(shown)


def executed() -> Path:
    """The executed notebook in the book, whether or not it is there."""
    return paths.STUDIES / "instrument.ipynb"


def read_checks(notebook: Path | None = None) -> pl.DataFrame:
    """The checks that an executed notebook shows: check, passed, sentence, host, date, machine.

    By default that of the book.  No rows where there is no such notebook, or it has not got so far.
    """
    notebook = notebook or executed()
    if not notebook.exists():
        return pl.DataFrame(schema=SHOWN)
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = (output for cell in cells for output in cell.get("outputs", []))
    kept = (output["metadata"][KEY] for output in outputs if KEY in output.get("metadata", {}))
    return pl.DataFrame(next(kept, []), schema=SHOWN)


def doubtful_machines(checks: pl.DataFrame) -> set[str]:
    """The machines whose instrument failed a check: what was measured there is marked."""
    failed = checks.filter(pl.col("passed").not_())
    return set(failed["machine"].drop_nulls())


def instrument_markup(checks: pl.DataFrame) -> str:
    """The notice on the instrument's page, as HTML: a line, or a box of what failed."""
    return _TEMPLATES.get_template("instrument.html").render(in_short(checks))


def in_short(checks: pl.DataFrame) -> dict[str, Any]:
    """The checks as templates show them: checks, passed and open (how many), failed, where."""
    rows = checks.to_dicts()
    return {
        "checks": rows,
        "passed": sum(row["passed"] is True for row in rows),
        "failed": [row for row in rows if row["passed"] is False],
        "open": sum(row["passed"] is None for row in rows),
        "where": f"on {rows[0]['host']}, {rows[0]['date']}" if rows else "",
    }


_WORDS = {True: "passed", False: "FAILED"}
