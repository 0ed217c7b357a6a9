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
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String())).fill_null("")


def _took(record: Record) -> str:
    """From the first trial to the last, pauses between sessions included: 1:05 h."""
    times = record.timeline
    if times.is_empty():
        return ""
    seconds = (times["finished_at"].max() - times["started_at"].min()).total_seconds()  # type: ignore[operator, union-attr]
    return f"{seconds // 3600:.0f}:{seconds % 3600 // 60:02.0f} h"


def commands(runs: Sequence[StudyPage]) -> pl.DataFrame:
    """How to do the same again: study, measure again, analyse again (a command each)."""
    columns = ["study", "measure again", "analyse again"]
    rows = [(run.study, _measure(run.record), _analyse(run.record)) for run in runs if run.record]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()), orient="row")


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
    facts: dict[str, dict[str, str]] = {}
    for run in runs:
        if run.record:
            facts_of_run: Any = run.record.info.get(part)
            facts[run.study] = _flat(facts_of_run or {})
    names = list(dict.fromkeys(name for column in facts.values() for name in column))
    return pl.DataFrame(
        {"": names}
        | {study: [column.get(n, "") for n in names] for study, column in facts.items()},
        schema=dict.fromkeys(["", *facts], pl.String()),
    )


def nondefault_settings(runs: Sequence[StudyPage]) -> pl.DataFrame:
    """The settings that were not at their defaults: study, setting, value, set by."""
    rows = [
        {
            "study": run.study,
            "setting": setting["name"],
            "value": " ".join(str(setting[k]) for k in ("value", "unit") if setting.get(k)),
            "set by": setting.get("source") or "",
        }
        for run in runs
        if run.record
        for setting in run.record.info["server"].get("nondefault_settings", [])
    ]
    columns = ["study", "setting", "value", "set by"]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()))


def findings(runs: Sequence[StudyPage]) -> pl.DataFrame:
    """What the gate found before the runs: study, finding; no rows when it found nothing."""
    rows = [
        {"study": run.study, "finding": finding["sentence"]}
        for run in runs
        if run.record
        for finding in run.record.info["gate"]
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(["study", "finding"], pl.String()))


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested facts by dotted names, as text; lists of more than a few things are left out."""
    flat: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            if all(isinstance(item, (str, int, float)) for item in value):
                flat[f"{prefix}{name}"] = ", ".join(map(str, value))
        else:
            flat[f"{prefix}{name}"] = "not known" if value is None else str(value)
    return flat
