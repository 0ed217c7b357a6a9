"""The verdicts that lie beside a reference record, so that nobody has to replay it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers import paths
from pgservers.errors import StudyError
from pgservers.files import write_file

from .reading import newest_on_most_cores, read_info

if TYPE_CHECKING:
    from pathlib import Path


VERDICTS = "verdicts.json"
"""Their file, in the directory of the record: a claim to a line, so that a change can be read."""


def verdict_files(study: str) -> list[Path]:
    """The verdicts beside the reference records of a study, the oldest record first."""
    return sorted((paths.REFERENCE_RECORDS / study).glob(f"*/{VERDICTS}"))


def reference_verdicts(study: str) -> tuple[Path, pl.DataFrame] | None:
    """The newest reference record of a study that has verdicts, and these: the table of ``judge``.

    Which is the newest says ``newest_on_most_cores``.  None where there is none.  Raises StudyError
    when the file is damaged.
    """
    found = verdict_files(study)
    newest = newest_on_most_cores((file.parent, read_info(file.parent)) for file in found)
    return None if newest is None else (newest, read_verdicts(newest / VERDICTS))


def write_verdicts(file: Path, table: pl.DataFrame, mark: str) -> Path:
    """Write a table of ``judge`` with ``mark``, a digest of all that judged it, and a checksum."""
    types = {name: str(kind) for name, kind in table.schema.items()}
    told: dict[str, Any] = {"judged_by": mark, "columns": types, "claims": table.to_dicts()}
    *first, claims = ({"sha256": _checksum(told)} | told).items()
    lines = [f" {_text(name)}: {_text(value)},\n" for name, value in first]
    rows = ",\n".join(f"  {_text(row)}" for row in claims[1])
    write_file(file, "".join(["{\n", *lines, f' "{claims[0]}": [\n{rows}\n ]\n}}\n']))
    return file


def read_verdicts(file: Path) -> pl.DataFrame:
    """The table that ``write_verdicts`` wrote; raises StudyError when the file is damaged."""
    told = _read(file)
    schema = {name: getattr(pl, kind)() for name, kind in told["columns"].items()}
    return pl.DataFrame(told["claims"], schema=schema, orient="row")


def judged_by(file: Path) -> str | None:
    """The mark with which ``write_verdicts`` wrote the file, None where there is no whole one."""
    try:
        mark: str = _read(file)["judged_by"]
    except (OSError, StudyError):
        return None
    return mark


def _read(file: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(file.read_bytes())
        is_whole = told.pop("sha256") == _checksum(told)
    except (ValueError, KeyError, AttributeError, TypeError):
        is_whole = False
    if not is_whole:
        raise StudyError(
            f"{file} is damaged: its SHA-256 is not the one in it.  `make verdicts` judges its "
            f"record again."
        )
    return told


def _checksum(told: dict[str, Any]) -> str:
    return hashlib.sha256(_text(told).encode()).hexdigest()


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
