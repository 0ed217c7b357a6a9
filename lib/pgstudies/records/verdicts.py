"""The verdicts that lie beside reference records, so that nobody has to replay them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers import paths
from pgservers.errors import StudyError

from .reading import content_of, read_info

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .info import Info

VERDICTS = "verdicts.json"
"""Their file, in the record's directory: one line per claim, for readable diffs."""

_TYPES = {kind.__name__: kind() for kind in (pl.Boolean, pl.Float64, pl.Int64, pl.Null, pl.String)}


def verdict_files(study: str) -> list[Path]:
    """The verdicts beside the reference records of a study, the oldest record first."""
    return sorted((paths.REFERENCE_RECORDS / study).glob(f"*/{VERDICTS}"))


@dataclass(frozen=True)
class Reference:
    """The verdicts of a study's reference records together, as ``make verdicts`` stored them."""

    record: Path  # the directory of the newest of them
    info: Info  # its record.json
    verdicts: pl.DataFrame  # the table of ``judge``, with the column runs


def reference_verdicts(study: str) -> Reference | None:
    """The verdicts of a study's reference records, or None; raises StudyError if damaged."""
    file = together_file(study)
    if not file.exists():
        return None
    document = read_document(file)
    record = file.parent / document["judged_by"]
    return Reference(record, read_info(record), _table(document))


def together_file(study: str) -> Path:
    """The file of the verdicts of all reference records of a study together."""
    return paths.REFERENCE_RECORDS / study / VERDICTS


def read_verdicts(file: Path) -> pl.DataFrame:
    """The table of ``judge`` in a file of verdicts; raises StudyError when it is damaged."""
    return _table(read_document(file))


def _table(document: Mapping[str, Any]) -> pl.DataFrame:
    schema = {name: _TYPES[kind] for name, kind in document["columns"].items()}
    return pl.DataFrame(document["claims"], schema=schema, orient="row")


def read_document(file: Path) -> dict[str, Any]:
    """The contents of a file of verdicts without the checksum; raises StudyError if damaged."""
    try:
        document: dict[str, Any] = json.loads(content_of(file.parent, file.name))
        is_whole = document.pop("sha256") == checksum(document)
        is_whole = is_whole and _TYPES.keys() >= set(document["columns"].values())
    except (ValueError, KeyError, AttributeError, TypeError):
        is_whole = False
    if not is_whole:
        raise StudyError(
            f"{file} is damaged: its SHA-256 is not the one in it.  `make verdicts` judges its "
            f"record again."
        )
    return document


def checksum(document: Mapping[str, Any]) -> str:
    """The SHA-256 of a file of verdicts, without this entry."""
    return hashlib.sha256(json.dumps(document, ensure_ascii=False).encode()).hexdigest()
