"""The published numbers that a study is set beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

import polars as pl

from pgservers.errors import StudyError

from ..checking import checked
from ..rooms import find_room

if TYPE_CHECKING:
    from pathlib import Path

TYPES = {"text": pl.String(), "integer": pl.Int64(), "number": pl.Float64()}


class Column(TypedDict):
    """A column of a published table, without what explains it."""

    name: str
    type: Literal["text", "integer", "number"]


class Table(TypedDict):
    """A file of published numbers."""

    file: str
    columns: list[Column]


class Source(TypedDict, total=False):
    """The keys of a ``published.toml``."""

    tables: dict[str, Any]


def published(study: str, table: str | None = None) -> pl.DataFrame:
    """A published table of ``study``: the one named, else the study's main one.

    Its columns with their units, and where the numbers are from, are in ``published.toml`` of the
    study.  Raises StudyError for a study or a table that is not known, and for a file that is not
    as it is described.
    """
    room = find_room(study)
    file = str(room.directory / "published.toml")
    tables = checked(room.read("published.toml"), Source, file).get("tables", {})
    if not tables:
        raise StudyError(f"There are no published numbers of {study}.")
    name = table or next(iter(tables))
    if name not in tables:
        raise StudyError(f"No published table {name!r} of {study}; there are: {', '.join(tables)}.")
    found = checked(tables[name], Table, f"{file}, table {name!r}")
    return _table(room.directory / found["file"], found["columns"])


def _table(file: Path, columns: list[Column]) -> pl.DataFrame:
    place = f"{file.parent.name}/{file.name}"
    try:
        schema = {column["name"]: TYPES[column["type"]] for column in columns}
        with file.open(encoding="utf-8") as opened:
            found = opened.readline().strip().split(",")
        if found != list(schema):
            raise StudyError(
                f"{place} has the columns {', '.join(found)}, and published.toml describes "
                f"{', '.join(schema)}: they must be the same, in one order."
            )
        return pl.read_csv(file, schema=schema)
    except (OSError, pl.exceptions.PolarsError) as error:
        message = str(error).splitlines()[0]
        raise StudyError(f"{place} is not as published.toml describes it: {message}") from None
