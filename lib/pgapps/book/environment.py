"""Where the book's runs were made: the tables of its page "Environment"."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers.errors import StudyError
from pgservers.paths import REFERENCE_RECORDS, ROOT
from pgstudies.parameters import spelled

from ..execution.plan import plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgstudies.records.reading import Record

    from ..execution.executed import StudyPage


def summary(runs: Sequence[StudyPage]) -> pl.DataFrame:
    """One row per run: study, profile, record, started (UTC), took, blocks, server, status."""
    columns = ["study", "profile", "record", "started (UTC)", "took", "blocks", "server", "status"]
    rows = [
        {
            "study": run.study,
            "profile": run.record.info.get("profile") or run.profile,
            "record": run.record.path.name,
            "started (UTC)": str(run.record.info["started_at"])[:16].replace("T", " "),
            "took": _took(run.record),
            "blocks": str(run.record.blocks),
            "server": run.record.info["server"].get("version_text", "").partition(" ")[2],
            "status": run.record.info["status"],
        }
        if run.record is not None
        else {"study": run.study, "profile": run.profile, "status": run.reason}
        for run in runs
    ]
    return _texts(rows, columns).fill_null("")


def _took(record: Record) -> str:
    """The time from the first trial to the last, such as "1:05 h"; it includes pauses."""
    times = record.timeline
    if times.is_empty():
        return ""
    seconds = (times["finished_at"].max() - times["started_at"].min()).total_seconds()  # type: ignore[operator, union-attr]
    return f"{seconds // 3600:.0f}:{seconds % 3600 // 60:02.0f} h"


def commands(runs: Sequence[StudyPage]) -> pl.DataFrame:
    """The commands that repeat each run: study, measure again, analyse again."""
    rows = [(run.study, _measure(run.record), _analyse(run.record)) for run in runs if run.record]
    return _texts(rows, ["study", "measure again", "analyse again"])


def _measure(record: Record) -> str:
    study, profile = record.info["study"], record.info.get("profile") or "quick"
    words = ["pgstudies", "run", study, "--profile", profile]
    server = record.info["server"].get("spec") or "embedded"
    if server != "embedded":
        words += ["--server", server]
    try:
        usual = plan(study, profile=profile).parameters
    except StudyError:
        usual = {}
    for name, value in record.parameters.items():
        if name != "server" and name in usual and usual[name] != value:
            words += ["-p", f"{name}={spelled(value)}"]
    return shlex.join(words)


def _analyse(record: Record) -> str:
    path = record.path
    place = path.relative_to(ROOT) if path.is_relative_to(REFERENCE_RECORDS) else path.name
    return shlex.join(["pgstudies", "run", record.info["study"], "--replay", str(place)])


def compared(runs: Sequence[StudyPage], part: str) -> pl.DataFrame:
    """A part of record.json, such as ``host``: one row per fact, one column per study."""
    parts: dict[str, Any] = {run.study: run.record.info.get(part) for run in runs if run.record}
    facts = {study: _flat(known or {}) for study, known in parts.items()}
    names = dict.fromkeys(name for column in facts.values() for name in column)
    rows = [(name, *(column.get(name, "") for column in facts.values())) for name in names]
    return _texts(rows, ["", *facts])


def nondefault_settings(runs: Sequence[StudyPage]) -> pl.DataFrame:
    """The settings that were not at their defaults: study, setting, value, set by."""
    rows = [
        (
            run.study,
            setting["name"],
            " ".join(str(setting[k]) for k in ("value", "unit") if setting.get(k)),
            setting.get("source") or "",
        )
        for run in runs
        if run.record
        for setting in run.record.info["server"].get("nondefault_settings", [])
    ]
    return _texts(rows, ["study", "setting", "value", "set by"])


def findings(runs: Sequence[StudyPage]) -> pl.DataFrame:
    """What the gate found before the runs: study, finding; no rows when it found nothing."""
    found = [(run.study, run.record.info["gate"]) for run in runs if run.record]
    rows = [(study, finding["sentence"]) for study, gate in found for finding in gate]
    return _texts(rows, ["study", "finding"])


def _texts(rows: Sequence[Any], columns: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()), orient="row")


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested facts by dotted names, as text; lists of lists or tables are left out."""
    flat: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            flat[f"{prefix}{name}"] = "not known" if value is None else str(value)
        elif all(isinstance(item, (str, int, float)) for item in value):
            flat[f"{prefix}{name}"] = ", ".join(map(str, value))
    return flat
