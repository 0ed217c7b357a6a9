"""The verdicts of a study's notebook on a record, stored so that each record is replayed once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers import paths
from pgservers.errors import StudyError
from pgservers.files import temporary_directory, write_file
from pgservers.terminal import say
from pgstudies.analysis.agreement import RULES_VERSION
from pgstudies.analysis.claims import origins, rules
from pgstudies.records.counts import INSTRUCTIONS, claims_counted
from pgstudies.records.format import INFO
from pgstudies.records.reading import content_of, read_info, sample_files
from pgstudies.records.verdicts import (
    VERDICTS,
    checksum,
    read_document,
    read_verdicts,
    together_file,
)
from pgstudies.rooms import find_room

from ..execution.run import run_study
from .runs import of_reference

if TYPE_CHECKING:
    from ..execution.run import Executed


def judged(record: str | Path) -> pl.DataFrame:
    """The claims as the notebook of the record's study judges them: the table of ``judge``.

    A reference record has its verdicts beside it.  Another record that this code has not judged yet
    is replayed, which takes about ten seconds.  Raises StudyError when there is no such record, its
    study judges no claim or the verdicts beside it are damaged, and NotebookError when the notebook
    fails.
    """
    directory = Path(record).expanduser().resolve()
    study = read_info(directory)["study"]
    mark = digest_of(study, directory)
    beside = directory / VERDICTS
    known = read_verdicts(beside) if beside.exists() else None
    if known is not None and judged_by(beside) == mark:
        return known
    return _judged_here(study, directory, mark)


def _judged_here(study: str, directory: Path, mark: str) -> pl.DataFrame:
    place = _place(study, directory)
    if judged_by(place) != mark:
        say(f"judging {study} by {directory.name}, once")
        with temporary_directory() as scratch:
            done = run_study(study, replay=directory, output=scratch / f"{study}.ipynb")
        keep(done)
    if judged_by(place) != mark:
        raise StudyError(f"{study} judges no claim.")
    return read_verdicts(place)


def keep(done: Executed) -> None:
    """Store the verdicts of an executed notebook, if it judged a record."""
    if done.record is None or done.verdicts is None:
        return
    study = read_info(done.record)["study"]
    mark = digest_of(study, done.record)
    write_verdicts(_place(study, done.record), done.verdicts, mark)


def keep_reference() -> list[Path]:
    """Judge again every reference record whose inputs changed; returns the files written.

    The published verdicts come from these files.  Run it, by ``make verdicts``, after a change of a
    notebook, the analysis or a reference record.
    """
    written = []
    for study in origins():
        _remove_damaged(together_file(study))
        for directory in sorted((paths.REFERENCE_RECORDS / study).glob("*/")):
            require_clean(directory)
            mark, beside = digest_of(study, directory), directory / VERDICTS
            if judged_by(beside) != mark:
                _remove_damaged(beside)
                table = _judged_here(study, directory, mark)
                written.append(write_verdicts(beside, table, mark))
        written += keep_together(study)
    return written


def _remove_damaged(file: Path) -> None:
    """Remove a file of verdicts that is damaged: the notebook would read it."""
    if judged_by(file) is None:
        file.unlink(missing_ok=True)


def keep_together(study: str) -> list[Path]:
    """Store the verdicts by all reference records of a study; returns the file if it changed."""
    found, file = of_reference(study), together_file(study)
    if found is None:
        return []
    record, table = found
    if judged_by(file) == record.name and read_verdicts(file).equals(table):
        return []
    return [write_verdicts(file, table, record.name)]


def write_verdicts(file: Path, table: pl.DataFrame, mark: str) -> Path:
    """Write a table of ``judge`` with ``mark``, a digest of all that judged it, and a checksum."""
    types = {name: str(kind) for name, kind in table.schema.items()}
    document: dict[str, Any] = {"judged_by": mark, "columns": types, "claims": table.to_dicts()}
    first = {"sha256": checksum(document), "judged_by": mark, "columns": types}
    lines = "".join(f' "{name}": {_text(value)},\n' for name, value in first.items())
    rows = ",\n".join(f"  {_text(row)}" for row in document["claims"])
    write_file(file, f'{{\n{lines} "claims": [\n{rows}\n ]\n}}\n')
    return file


def require_clean(record: Path) -> None:
    """Raise StudyError for a record of uncommitted code, which cannot be a reference.

    Records of before 24 November 2026, which lack their claims, are exempt.
    """
    info = read_info(record)
    if "claims" in info and (info.get("git") or {}).get("dirty"):
        raise StudyError(
            f"{record} was measured with uncommitted changes, so it cannot be a reference: "
            f"commit them, and measure again."
        )


def _place(study: str, record: Path) -> Path:
    return paths.JUDGED / study / f"{record.name}.json"


def judged_by(file: Path) -> str | None:
    """The digest in a file of verdicts; None if there is no valid file."""
    try:
        mark: str = read_document(file)["judged_by"]
    except (OSError, StudyError):
        return None
    return mark


def digest_of(study: str, record: Path) -> str:
    """A digest of all that the verdicts on a record depend on.

    That is the code of the notebook and of modules beside it, the claims' rules, the post's
    numbers, the samples and counts, and the version of the rules of the analysis.
    """
    room, known = find_room(study), rules(study)
    asked = [rule["id"] for rule in known if rule["judged_by"] == INSTRUCTIONS]
    counted = claims_counted().filter(pl.col("claim").is_in(asked)).rows() if asked else []
    rules_text = json.dumps([RULES_VERSION, room.code, known, counted], sort_keys=True)
    digest = hashlib.sha256(rules_text.encode())
    contents = {f: f.read_bytes() for f in room.directory.glob("*.csv")}
    parts = [INFO, *sample_files(record, read_info(record))]
    contents |= {record / name: content_of(record, name) for name in parts}
    for file in sorted(contents, key=lambda f: (f.parent.name, f.name)):
        digest.update(hashlib.sha256(contents[file]).digest())
    return digest.hexdigest()[:16]


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
