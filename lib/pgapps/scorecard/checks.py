"""Checks of the measuring itself, as their page shows them and as other pages read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers import paths
from pgservers.shown import environment
from pgstudies.analysis.pairing import TIMES
from pgstudies.charts.tables import table_html
from pgstudies.rooms import rooms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgstudies.records.reading import Record


_TEMPLATES = environment(Path(__file__).parent)

SCHEMA = {"check": pl.String(), "passed": pl.Boolean(), "sentence": pl.String()}
"""A table of checks: ``passed`` is null for one that is not judged."""

KEY = "pgstudies_checks"
"""The key of the checks in the metadata of the output that shows them: MyST-NB warns of every MIME
type that it does not know."""

_WORDS = {True: "passed", False: "FAILED"}


class ShownChecks:
    """A table of checks as a notebook's output: for readers, and for ``read_checks``."""

    def __init__(self, checks: pl.DataFrame) -> None:
        self.checks = checks

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, str], dict[str, Any]]:
        result = pl.col("passed").replace_strict(_WORDS, default="not judged")
        table = self.checks.select("check", result.alias("result"), "sentence")
        lines = [f"{word}: {check}: {sentence}" for check, word, sentence in table.rows()]
        html = checks_markup(self.checks) + table_html(table, whole=True)
        bundle = {"text/html": html, "text/plain": "\n".join(lines)}
        return bundle, {KEY: self.checks.to_dicts()}


def machine_of(host: Mapping[str, Any]) -> str:
    """A machine's identity beyond its name: the boot of its kernel, and its processor."""
    return f"{host.get('boot_id') or host.get('hostname')}, {host.get('cpu_model')}"


def display_checks(checks: pl.DataFrame, record: Record) -> ShownChecks:
    """The checks with the host, date (UTC) and machine of ``record``, as ``read_checks`` wants."""
    host, date = record.info["host"].get("hostname"), record.info["started_at"][:10]
    origin = {"host": host, "date": date, "machine": machine_of(record.info["host"])}
    located = checks.with_columns(pl.lit(v, pl.String()).alias(name) for name, v in origin.items())
    return ShownChecks(located)


def read_checks(*notebooks: Path) -> pl.DataFrame:
    """The checks that executed notebooks show: check, passed, sentence, host, date, machine, study.

    The notebooks are by default those in the book; one that does not exist or shows none has no
    rows.
    """
    rows = []
    for notebook in notebooks or [paths.STUDIES / f"{study}.ipynb" for study in rooms("check")]:
        if notebook.exists():
            cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
            outputs = (output for cell in cells for output in cell.get("outputs", []))
            kept = (o["metadata"][KEY] for o in outputs if KEY in o.get("metadata", {}))
            rows += [row | {"study": notebook.stem} for row in next(kept, [])]
    more = dict.fromkeys(["host", "date", "machine", "study"], pl.String())
    return pl.DataFrame(rows, schema={**SCHEMA, **more})


def doubtful_machines(checks: pl.DataFrame) -> set[str]:
    """The machines on which the measuring failed a check."""
    failed = checks.filter(pl.col("passed").not_())
    return set(failed["machine"].drop_nulls())


def doubt(rows: pl.DataFrame, checks: pl.DataFrame) -> str | None:
    """How many rows of a scorecard failed checks make doubtful, in words; None if none.

    All checks are of times, so counts of pages, bytes and instructions are not doubtful.
    """
    there = rows.filter(pl.col("machine").is_in([*doubtful_machines(checks)]))
    of_times = there.filter(pl.col("metric").is_in(TIMES)).height
    if not of_times:
        return None
    which = f"{of_times} of these {rows.height} claims" if rows.height > 1 else "This claim"
    return f"{which} rest{'' if of_times > 1 else 's'} on times that may be off"


def failures(checks: pl.DataFrame) -> str:
    """The failed checks, each with its sentence."""
    failed = checks.filter(pl.col("passed").not_()).select("check", "sentence")
    return "; ".join(f"{name}: {sentence}" for name, sentence in failed.rows())


def checks_markup(checks: pl.DataFrame) -> str:
    """The checks in short, as HTML: a line, or a box of the failed ones."""
    return _TEMPLATES.get_template("checks.html").render(in_short(checks))


def in_short(checks: pl.DataFrame) -> dict[str, Any]:
    """The checks for templates: checks, passed and open (numbers), failed, where and study."""
    rows = checks.to_dicts()
    return {
        "checks": rows,
        "passed": sum(row["passed"] is True for row in rows),
        "failed": [row for row in rows if row["passed"] is False],
        "open": sum(row["passed"] is None for row in rows),
        "where": f"on {rows[0]['host']}, {rows[0]['date']}" if rows else "",
        "study": next(iter(rooms("check")), None),
    }
