"""Verdicts by several runs of one version of a study, or several hosts, each as one number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl

from pgstudies.analysis.agreement import (
    COPIES_DIFFER,
    FAMILY,
    HOLDS,
    NOT_AMONG_ALL,
    NOT_JUDGED,
    NOT_TESTED,
    RUNS,
    gated,
)
from pgstudies.analysis.claims import rules
from pgstudies.analysis.families import flipped
from pgstudies.analysis.intervals import estimate_rows
from pgstudies.records.reading import conditions, read_info, representative
from pgstudies.records.verdicts import VERDICTS, read_verdicts, verdict_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pgstudies.records.info import Info

    Row = Mapping[str, Any]  # of a table of ``judge``


def of_reference(study: str) -> tuple[Path, pl.DataFrame] | None:
    """The newest reference record of a study, and the verdicts by all records of its version.

    The newest is the ``representative`` one.  None if no record has verdicts beside it.
    """
    files = verdict_files(study)
    newest = representative((file.parent, read_info(file.parent)) for file in files)
    if newest is None:
        return None
    return newest, of_all_runs(study, newest, read_verdicts(newest / VERDICTS))


def of_all_runs(study: str, record: Path, judged: pl.DataFrame) -> pl.DataFrame:
    """The verdicts on a reference record by all reference records of its version.

    ``judged`` is the table of ``judge`` on ``record``; the result has one more column, runs: by how
    many records the claim was measured, or null.  See ``judged_together``.  Of the records of one
    boot of a machine only the newest counts, as they agree with each other better than with others.
    """
    info = read_info(record)
    own, runs = version(info), {_boot(info): judged}
    for file in reversed(verdict_files(study)):
        info = read_info(file.parent)
        if _boot(info) not in runs and own is not None and version(info) == own:
            runs[_boot(info)] = read_verdicts(file)
    rows = judged_together(study, [*runs.values()])
    schema = dict(judged.schema) | {"runs": pl.Int64()}
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)


def _boot(info: Info) -> str | None:
    return next((session["boot_id"] for session in info.get("sessions", ())), None)


def version(info: Info) -> tuple[object, ...] | None:
    """What runs that are judged together have in common; None for a run that is judged alone.

    Alone are runs that were not completed, of uncommitted code, or that do not know their code.
    """
    is_dirty = (info.get("git") or {}).get("dirty")
    if info["status"] != "complete" or is_dirty or not info.get("code"):
        return None
    return info.get("profile"), info["code"], *conditions(info)


def judged_together(study: str, tables: Sequence[pl.DataFrame]) -> list[dict[str, Any]]:
    """The rows of the first of several tables of ``judge``, with the verdicts of all together.

    Each table is of one run, or of one host, and counts as one number.  The rows have one more key,
    runs: how many tables have a ratio of the claim by the same metric and commit, or None.  From
    ``RUNS`` on, ratio, low, high and how far copies differ are estimated from these tables, and
    p_family is among all such claims of ``FAMILY``.  With fewer, the row is that of the first.
    """
    by_claim = [{row["claim"]: row for row in table.iter_rows(named=True)} for table in tables]
    by_id = {rule["id"]: rule for rule in rules(study)}
    rows: list[dict[str, Any]] = []
    family: list[tuple[dict[str, Any], list[float | None]]] = []
    for claim, first in by_claim[0].items():
        known = [table.get(claim) for table in by_claim]
        known = [row if row and _is_measured(row) else None for row in known]
        lead = next(filter(None, known), first)
        by = lead["metric"], lead["commit"]
        same = [row if row and (row["metric"], row["commit"]) == by else None for row in known]
        found = [row for row in same if row]
        rows.append(first | {"runs": len(found) or None})
        if len(found) < RUNS:
            continue
        rows[-1] = row = lead | {"runs": len(found), "p_family": None, "blocks_needed": None}
        row |= _estimated(found, "ratio", "low", "high")
        if all(run["aa"] for run in found):
            row |= _estimated(found, "aa", "aa_low", "aa_high")
        rule = by_id.get(claim, {})
        row["verdict"] = gated(rule.get("direction", ""), rule.get("threshold"), row)
        if row["kind"] in FAMILY and not row["verdict"].startswith(NOT_JUDGED):
            family.append((row, [math.log(run["ratio"]) if run else None for run in same]))
    p_values = flipped([log_ratios for _, log_ratios in family]).p_value.tolist()
    for (row, _), p_family in zip(family, p_values, strict=True):
        row["p_family"] = p_family
        if row["verdict"] in (*HOLDS, "reversed") and p_family > 0.05:
            row["verdict"] = NOT_AMONG_ALL
    return rows


def _is_measured(row: Row) -> bool:
    """Whether a run's ratio counts, even if its copies differ: the copies of all runs decide."""
    word, _, reason = row["verdict"].partition(": ")
    is_out = word == NOT_TESTED or (word == NOT_JUDGED and not reason.startswith(COPIES_DIFFER))
    return row["ratio"] is not None and not is_out


def _estimated(rows: Sequence[Row], *names: str) -> dict[str, float]:
    """Estimate, low and high, by these names, of the ratios that rows have by the first name."""
    found = estimate_rows([[math.log(row[names[0]]) for row in rows]])
    return {n: math.exp(value[0]) for n, value in zip(names, found[:3], strict=True)}
