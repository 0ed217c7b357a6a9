"""The scorecard as HTML: tiles, table, history."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.display import HTML
from markupsafe import Markup

from ..analysis import origins
from ..templates import environment
from ._instrument_page import doubtful_hosts, executed, instrument_markup, read_checks
from ._scorecard import OUTCOMES, in_sum, outcome_of, with_outcome
from .score_text import interval_text, ratio_text

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
        title = origins()[str(study)].title
        studies.append({"title": title, "records": records.to_dicts(), "claims": claims})
    return _html("history_table", studies)


def score_tiles(cards: pl.DataFrame) -> HTML:
    """The current rows of a ``scorecard``: a row of tiles for each study, and how many hold.

    A tile bears the sign and the name of a claim, its title the claim's words and verdict; it links
    to the claim's row in the scorecard.  The last line says what the signs mean.
    """
    doubtful = doubtful_hosts(read_checks())
    current = cards.filter("current")
    studies = [
        {
            "study": study,
            "title": origins()[study].title,
            "post": origins()[study].post,
            "is_doubtful": any(claim["host"] in doubtful for claim in claims),
            "holding": in_sum(current.filter(study=study)),
            "claims": claims,
        }
        for study, claims in _by_study(current)
    ]
    counts = dict(with_outcome(current)["outcome"].value_counts().iter_rows())
    legend = [(outcome, counts.get(word, 0)) for word, outcome in OUTCOMES.items()]
    return _html("score_tiles", studies, legend)


def instrument_line() -> HTML:
    """Whether this machine's measuring passed its checks, with those that failed in a red box."""
    notice = Markup(instrument_markup(read_checks()))  # noqa: S704  (of a template of ours)
    return _html("instrument_line", notice, executed().exists())


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
    if first["record"] is None:
        return about
    size = f"{first['profile']} size" if first["profile"] else "size unknown"
    return f"{about}; here on {first['host']}, {first['date']} UTC, {size}"


def _side_by_side(claim: pl.DataFrame, records: list[str]) -> dict[str, Any]:
    by_record = {row["record"]: _shown(row) for row in claim.iter_rows(named=True)}
    first = claim.row(0, named=True)
    cells = [by_record.get(record) for record in records]
    return {"link": first["link"], "text": first["text"], "cells": cells}


def _html(macro: str, *values: object) -> HTML:
    text = str(getattr(_TEMPLATES.get_template("score.html").module, macro)(*values)).strip()
    return HTML(text)  # type: ignore[no-untyped-call]
