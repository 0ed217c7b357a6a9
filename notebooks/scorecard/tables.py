"""Tables of ``scorecard.ipynb``: the claims, their history, and both to take away."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.display import HTML

from pgstudies.analysis import origins
from pgstudies.book import in_text, judged_where, shown
from pgstudies.charts.tables import column_labels
from pgstudies.templates import environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

_TEMPLATES = environment(Path(__file__).parent)


def score_table(cards: pl.DataFrame) -> HTML:
    """The current rows of a ``scorecard``, a group for each study.

    A claim's row has the id of ``row_id``, its words link to the place on the study's page, and
    its title is what would count as holding.
    """
    groups = [
        {
            "study": study,
            "title": origins()[study].title,
            "about": _about(study, claims[0]),
        }
        | {"claims": claims}
        for study, claims in _by_study(cards.filter("current"))
    ]
    return _html("score_table", groups)


def history_table(cards: pl.DataFrame) -> HTML:
    """The claims of one or more studies that have several records, a column for each record."""
    studies = []
    for (study,), part in cards.group_by("study", maintain_order=True):
        records = part.drop_nulls("record").unique(
            "record", maintain_order=True
        )
        if records.height < 2:
            continue
        claims = [
            _side_by_side(claim, records["record"].to_list())
            for _, claim in part.group_by("claim", maintain_order=True)
        ]
        title, rows = origins()[str(study)].title, records.to_dicts()
        labels = column_labels(["claim", *map(judged_where, rows)])
        studies.append(
            {
                "title": title,
                "records": rows,
                "labels": labels,
                "claims": claims,
            }
        )
    return _html("history_table", studies)


def score_downloads(cards: pl.DataFrame) -> HTML:
    """Links to take a ``scorecard`` away: every row as CSV, the current ones as text."""
    files = {
        "scorecard.csv": cards.drop("link", "machine").write_csv(),
        "scorecard.txt": in_text(cards),
    }
    links = {
        name: base64.b64encode(text.encode("utf-8")).decode("ascii")
        for name, text in files.items()
    }
    return _html("score_downloads", links)


def _by_study(
    cards: pl.DataFrame,
) -> list[tuple[str, list[dict[str, Any]]]]:
    groups = cards.group_by("study", maintain_order=True)
    return [
        (str(study), [shown(row) for row in part.iter_rows(named=True)])
        for (study,), part in groups
    ]


def _about(study: str, first: Mapping[str, Any]) -> str:
    about = origins()[study].post
    return (
        f"{about}; here {judged_where(first)}"
        if first["record"]
        else about
    )


def _side_by_side(
    claim: pl.DataFrame, records: list[str]
) -> dict[str, Any]:
    by_record = {
        row["record"]: shown(row) for row in claim.iter_rows(named=True)
    }
    first = claim.row(0, named=True)
    cells = [by_record.get(record) for record in records]
    return {"link": first["link"], "text": first["text"], "cells": cells}


def _html(macro: str, value: object) -> HTML:
    macros = _TEMPLATES.get_template("tables.html").module
    return HTML(str(getattr(macros, macro)(value)).strip())  # type: ignore[no-untyped-call]
