"""The answer of a page: its claims as published, as found, and what became of them."""

from __future__ import annotations

import math
import re
import textwrap
from typing import TYPE_CHECKING, Any

import polars as pl
from IPython.display import HTML

from pgservers import paths

from ..analysis.agreement import MEASURES, MUCH_STRONGER, UPWARD, by_several, ratio_text
from ..analysis.claims import all_claims, claim_marks, claims_changed, figures, headlines, meanings
from ..analysis.pairing import TIMES
from ..records.reading import version_number, where_of
from ..rooms import find_room
from .effects import beside_chart
from .outcomes import agreement_with, outcome_of, runs_text, usual_runs
from .tables import TEMPLATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import altair as alt

    from ..records.reading import Record
    from ..records.verdicts import Reference

LETTERS, FAR, OPEN = 36, 1.5, 6
"""Longer names of claims are broken into lines, which fit on a phone; a verdict says by how much
the whole interval is off the published ratio, if so many times; further rows are folded."""


def verdict_strip(judged: pl.DataFrame, record: Record, reference: Reference | None = None) -> HTML:
    """The claims in a few lines: published, now, verdict.

    ``judged`` is the table of ``judge`` on ``record``.  *Now* is what ``reference_verdicts`` says;
    a further column has what ``record`` says, and whether it agrees.  Without a ``reference``, or
    if ``record`` is the only one, *now* is ``record`` itself.
    """
    study, whose = record.info["study"], _beside(record, reference)
    own = {row["claim"]: row for row in judged.iter_rows(named=True)}
    table = _now(judged, reference)
    now = {row["claim"]: row for row in table.iter_rows(named=True)}
    told = reference.info if reference else record.info
    usual = usual_runs(table) if reference else None
    there = ", ".join(filter(None, [where_of(told), runs_text(usual)]))
    here, there = (record.where, there) if whose else (there, "")
    known = all_claims().filter(pl.col("study") == study)
    asked = _thresholds(known)
    stood = {row["claim"]: row for row in known.iter_rows(named=True)}
    stand_ins = {
        claim: stood.get(claim, {}).get("with_commit" if row.get("commit") else "stand_in")
        for claim, row in now.items()
    }
    texts = filter(None, stand_ins.values())
    sentences = (sentence for text in texts for sentence in re.split(r"(?<=\.) ", text))
    rows = []
    for claim, row in now.items():
        beside = _template_row(own[claim]) | {"agreement": agreement_with(row, own[claim])}
        more = {"own": beside if there else None, "stand_in": stand_ins.get(claim)}
        words = {"asked": asked.get(claim), "in_runs": runs_text(row.get("runs"), usual)}
        rows.append(_template_row(row | words) | more)
    text = TEMPLATES.get_template("claims.html").render(
        answer=answer(study, table),
        rows=rows,
        stand_ins=[*dict.fromkeys(sentences)],
        size=told.get("profile"),
        own_size=record.info.get("profile"),
        far=FAR,
        open=OPEN,
        here=here,
        run=whose,
        there=there,
        changed=claims_changed(study, record.info.get("claims")),
        since=_since(record),
    )
    return HTML(text)  # type: ignore[no-untyped-call]


def _beside(record: Record, reference: Reference | None) -> str | None:
    """What the page calls a record that is not the whole reference; None if it is, or without."""
    alone = reference and not by_several(reference.verdicts)
    if reference is None or (alone and reference.record.name == record.path.name):
        return None
    return f"this {'record' if record.path.is_relative_to(paths.REFERENCE_RECORDS) else 'machine'}"


def claims_chart(
    judged: pl.DataFrame, record: Record, reference: Reference | None
) -> alt.LayerChart | None:
    """The figures of ``verdict_strip`` as a chart, row by row; None where there are none."""
    study, whose = record.info["study"], _beside(record, reference)
    known = all_claims().filter(study=study)
    names = {row[0]: textwrap.fill(row[1], LETTERS) for row in known["claim", "name"].iter_rows()}
    columns = ["claim", "published_ratio", "ratio", "low", "high", "verdict"]
    now, own = (
        table.select(columns).drop_nulls("ratio").with_columns(pl.col("claim").replace(names))
        for table in (_now(judged, reference), judged)
    )
    if now.is_empty():
        return None
    words = f"The claims of {study}: the published ratio, and ours with its interval."
    return beside_chart(now, own if whose else None, whose=whose, description=words)


def _thresholds(known: pl.DataFrame) -> dict[str, str]:
    """What the ratio must be to hold, by the id of each claim that names a number."""
    return {
        row["claim"]: f"holds at {row['threshold']:.3g} or "
        f"{'above' if row['direction'] in UPWARD else 'below'}"
        for row in known.drop_nulls("threshold").iter_rows(named=True)
    }


def _since(record: Record) -> list[str]:
    """Sentences on what changed since the record's first block, and on runs alike before it."""
    info, own = record.info, claim_marks(record.info["study"])
    gone = [name for name in info.get("claims") or {} if name not in own]
    seen, mark = info.get("seen"), info.get("study_mark")
    told = [f"Dropped since: {'; '.join(gone)}."] if gone else []
    if mark and mark != find_room(info["study"]).mark:
        told.append("The study's code, which has its conditions and margins, was changed since.")
    if seen:
        told.append(f"The run was begun after {len(seen)} alike: {', '.join(seen)}.")
    return told


def today(study: str, judged: pl.DataFrame, reference: Reference | None, info: Any) -> HTML:
    """The study's answer in a few sentences, by the verdicts that ``verdict_strip`` calls *now*."""
    info = reference.info if reference else info
    server = version_number(info["server"].get("version_text")) if info else None
    sentences = meanings(study, _now(judged, reference))["sentence"].to_list()
    text = TEMPLATES.get_template("today.html").render(sentences=sentences, server=server)
    return HTML(text)  # type: ignore[no-untyped-call]


def answer(study: str, judged: pl.DataFrame) -> str:
    """The study's answer with figures and verdicts, in sentences on those claims that hold."""
    rows = {row["claim"]: row for row in judged.iter_rows(named=True)}
    found = [_sentence(wanted.text, rows.get(wanted.claim, {})) for wanted in headlines(study)]
    return " ".join(filter(None, found))


def _sentence(text: str, row: Mapping[str, Any]) -> str:
    names = {"published": "published_ratio", "now": "ratio", "low": "low", "high": "high"}
    known = {name: row[column] for name, column in names.items() if row.get(column)}
    if "low" not in known or not row["verdict"].startswith("holds"):
        return ""
    try:
        sentence = text.format(**figures(**known)).removesuffix(".")
    except KeyError:  # nothing is published for this size
        return ""
    return f"{sentence}: {outcome_of(row['verdict']).word}."


def _now(judged: pl.DataFrame, reference: Reference | None) -> pl.DataFrame:
    """``judged`` with the verdicts of all reference records together, if there is a reference."""
    if reference is None:
        return judged
    more = judged.join(reference.verdicts, on="claim", how="anti")
    return judged.select("claim").join(
        pl.concat([reference.verdicts, more], how="diagonal_relaxed"),
        on="claim",
        maintain_order="left",
    )


def _template_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the template needs of a row of ``judge``; the reason is apart from the verdict."""
    outcome = outcome_of(row["verdict"])
    interval = None
    if row["low"] is not None and row["low"] != row["high"]:
        interval = f"{ratio_text(row['low'])} to {ratio_text(row['high'])}"
    reason = row["verdict"].removeprefix(outcome.word).removeprefix(": ")
    asked = row.get("asked") if outcome.word == "inconclusive" else None
    if asked and (row["p_family"] or 1) <= 0.05 and (row["low"] > 1 or row["high"] < 1):
        asked = f"{_way(row)} for certain; {asked}"
    told = [row.get("in_runs"), asked, reason, distance(row)]
    wall = row["beside"] if row["metric"] == "cpu_s" else None
    return {
        "text": row["text"],
        "measure": MEASURES.get(row["metric"], row["metric"]),
        "by_wall": wall and ratio_text(wall),
        "published": ratio_text(row["published_ratio"]),
        "ratio": ratio_text(row["ratio"]),
        "interval": interval,
        "commit": (row.get("commit") or "")[:8],
        "stood_in": row.get("stood_in") and ratio_text(row["stood_in"]),
        "outcome": outcome,
        "reason": "; ".join(filter(None, told)),
    }


def distance(row: Mapping[str, Any]) -> str | None:
    """Whether a row of ``judge`` is ``FAR`` from the published ratio and its verdict is silent."""
    published, ratio, low, high = (row[n] for n in ("published_ratio", "ratio", "low", "high"))
    if None in (ratio, low, high):
        return None
    if row["kind"] == "alike":
        now = f"{100 * abs(ratio - 1):.2g} % {_way(row)} now"
        return f"no longer alike: {now}" if row["verdict"].startswith("gone") else None
    if published in {None, 1} or min(published, low) <= 0 or (published > 1) != (ratio > 1):
        return None
    wanted, sign = abs(math.log(published)), math.copysign(1, math.log(published))
    near, far = sorted(sign * math.log(bound) for bound in (low, high))
    if near >= wanted + math.log(FAR):
        return None if row["verdict"] == MUCH_STRONGER else "stronger"
    is_silent = "weaker" not in row["verdict"]
    return "weaker" if is_silent and far <= wanted - math.log(FAR) else None


def _way(row: Mapping[str, Any]) -> str:
    is_time = row["metric"] in {*TIMES, "disk_s"}
    return (("more", "fewer"), ("slower", "faster"))[is_time][row["ratio"] < 1]
