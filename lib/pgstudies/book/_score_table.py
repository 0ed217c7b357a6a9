"""The scorecard as HTML: front page, table, history."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from IPython.display import HTML

from ..analysis import origins
from ..charts import OUTCOMES, outcome_of, ratio_text
from ..charts.tables import column_labels
from ..records import made_where
from ..templates import environment
from ._scorecard import in_sum
from .checks import doubtful_machines, in_short, read_checks
from .score_text import in_text, interval_text

if TYPE_CHECKING:
    from collections.abc import Mapping


_TEMPLATES = environment(Path(__file__).parent)


def score_table(cards: pl.DataFrame) -> HTML:
    """The current rows of a ``scorecard``, a group for each study.

    A claim's row has the id of ``row_id``, its words link to the place on the study's page, and
    its title is what would count as holding.
    """
    groups = [
        {"study": study, "title": origins()[study].title, "about": _about(study, claims[0])}
        | {"claims": claims}
        for study, claims in _by_study(cards.filter("current"))
    ]
    return _html("score_table", groups)


def history_table(cards: pl.DataFrame) -> HTML:
    """The claims of one or more studies that have several records, a column for each record."""
    studies = []
    for (study,), part in cards.group_by("study", maintain_order=True):
        records = part.drop_nulls("record").unique("record", maintain_order=True)
        if records.height < 2:
            continue
        claims = [
            _side_by_side(claim, records["record"].to_list())
            for _, claim in part.group_by("claim", maintain_order=True)
        ]
        title, rows = origins()[str(study)].title, records.to_dicts()
        labels = column_labels(["claim", *map(_where, rows)])
        studies.append({"title": title, "records": rows, "labels": labels, "claims": claims})
    return _html("history_table", studies)


def score_front(cards: pl.DataFrame) -> HTML:
    """The findings of the reference records, and beside each what this copy's own run says.

    ``cards`` is a ``scorecard`` with the reference records.  A claim's line bears its name and
    links to its row in the scorecard; its title has the claim's words and both verdicts.  A study
    without a reference record shows its own run alone.  The last line says what the signs mean.
    """
    doubtful = doubtful_machines(read_checks())
    studies = []
    for (study,), part in cards.group_by("study", maintain_order=True):
        told = part.filter("reference") if part["reference"].any() else part.filter("current")
        own = part.filter("current", ~pl.col("reference"), pl.col("record").is_not_null())
        own = own if part["reference"].any() else own.clear()
        beside = {row["claim"]: _shown(row) for row in own.iter_rows(named=True)}
        origin = origins()[str(study)]
        studies.append(
            {
                "study": study,
                "title": origin.title,
                "post": origin.post,
                "is_doubtful": bool(doubtful & set(told["machine"])),
                "sum": in_sum(told),
                "about": _where(told.row(0, named=True)),
                "own": _where(own.row(0, named=True)) if own.height else "",
                "own_sum": in_sum(own) if own.height else "",
                "claims": [
                    _shown(row) | {"own": beside.get(row["claim"])}
                    for row in told.iter_rows(named=True)
                ],
            }
        )
    legend = list(OUTCOMES.values())
    return _html("score_front", studies, legend)


def score_downloads(cards: pl.DataFrame) -> HTML:
    """Links to take a ``scorecard`` away: every row as CSV, the current ones as text."""
    files = {
        "scorecard.csv": cards.drop("link", "machine").write_csv(),
        "scorecard.txt": in_text(cards),
    }
    links = {
        name: base64.b64encode(text.encode("utf-8")).decode("ascii") for name, text in files.items()
    }
    return _html("score_downloads", links)


def checks_line() -> HTML:
    """Whether this machine's measuring passed its checks, in a line that names what failed."""
    return _html("checks_line", in_short(read_checks()))


def row_id(row: Mapping[str, Any]) -> str:
    """The id of a claim's row in ``score_table``."""
    return re.sub(r"[^a-z0-9]+", "-", f"{row['study']} {row['claim']}".lower())


def _by_study(cards: pl.DataFrame) -> list[tuple[str, list[dict[str, Any]]]]:
    groups = cards.group_by("study", maintain_order=True)
    return [
        (str(study), [_shown(row) for row in part.iter_rows(named=True)])
        for (study,), part in groups
    ]


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row, with what the templates show of it; ``figures`` is our ratio and its interval."""
    ratio, _, interval = ("", "", "") if row["ratio"] is None else interval_text(row).partition(" ")
    return {
        **row,
        "id": row_id(row),
        "outcome": outcome_of(row["verdict"]),
        "figures": (ratio, interval) if ratio else None,
        "published": ratio_text(row["published_ratio"]),
    }


def _about(study: str, first: Mapping[str, Any]) -> str:
    about = origins()[study].post
    return f"{about}; here {_where(first)}" if first["record"] else about


def _where(row: Mapping[str, Any]) -> str:
    """By which run a row was judged: release, machine, date and size."""
    if row["record"] is None:
        return "no record"
    return made_where(row["server"], row["host"], row["date"], row["profile"])


def _side_by_side(claim: pl.DataFrame, records: list[str]) -> dict[str, Any]:
    by_record = {row["record"]: _shown(row) for row in claim.iter_rows(named=True)}
    first = claim.row(0, named=True)
    cells = [by_record.get(record) for record in records]
    return {"link": first["link"], "text": first["text"], "cells": cells}


def _html(macro: str, *values: object) -> HTML:
    text = str(getattr(_TEMPLATES.get_template("score.html").module, macro)(*values)).strip()
    return HTML(text)  # type: ignore[no-untyped-call]
