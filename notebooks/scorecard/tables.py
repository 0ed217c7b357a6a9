"""Tables of ``scorecard.ipynb``: the claims, their history, and both to take away."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import polars as pl
from IPython.display import HTML

from pgapps.scorecard.scorecard import decided, of_posts
from pgapps.scorecard.table import (
    came_to,
    for_template,
    in_text,
    judged_where,
    now_and_here,
    side_by_side,
)
from pgservers.shown import environment
from pgstudies.analysis.claims import origins
from pgstudies.charts.outcomes import OUTCOMES, usual_runs
from pgstudies.charts.tables import column_labels

_TEMPLATES = environment(Path(__file__).parent)


def score_sum(cards: pl.DataFrame) -> HTML:
    """How many claims came to what, and which, but for those that hold."""
    posts = of_posts(cards)
    parts = posts.partition_by("study", maintain_order=True)
    now = pl.concat([now_and_here(part)[0] for part in parts] or [posts])
    return _html("score_sum", came_to(posts), decided(now))


def score_table(cards: pl.DataFrame) -> HTML:
    """The claims of a ``scorecard``: published, now, and this machine; a group for each study.

    A claim's row has the id of ``row_id``, its words link to the place on the study's page, and
    its title is what would count as holding.  In the book ``claims.js`` filters and sorts the rows.
    """
    groups = [
        {
            "study": study,
            "title": origins()[str(study)].title,
            "about": _about(str(study), part),
            "claims": side_by_side(part),
            "stand_ins": part["stand_in"]
            .drop_nulls()
            .unique(maintain_order=True)
            .to_list(),
        }
        for (study,), part in cards.group_by("study", maintain_order=True)
    ]
    has_own = any(row["own"] for g in groups for row in g["claims"])
    ranks = {word: rank for rank, word in enumerate(OUTCOMES)}
    return _html("score_table", groups, has_own, ranks)


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


def _about(study: str, part: pl.DataFrame) -> str:
    """The post, and by which runs its claims are judged now and on this machine."""
    told, own = now_and_here(part)
    words = [origins()[study].post]
    for name, rows in (("now", told), ("this machine", own)):
        if rows["record"].count():
            row = rows.drop_nulls("record").row(0, named=True)
            where = judged_where(row | {"runs": usual_runs(rows)})
            words.append(f"{name}: {where}")
    return "; ".join(words)


def _side_by_side(claim: pl.DataFrame, records: list[str]) -> dict[str, Any]:
    by_record = {
        row["record"]: for_template(row) for row in claim.iter_rows(named=True)
    }
    first = claim.row(0, named=True)
    cells = [by_record.get(record) for record in records]
    return {"link": first["link"], "text": first["text"], "cells": cells}


def _html(macro: str, *values: object) -> HTML:
    macros = _TEMPLATES.get_template("tables.html").module
    return HTML(str(getattr(macros, macro)(*values)).strip())  # type: ignore[no-untyped-call]
