"""The published numbers that a study is set beside, and where they come from."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl

from ..errors import StudyError
from ..paths import PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


TYPES = {"text": pl.String(), "integer": pl.Int64(), "number": pl.Float64()}


@dataclass(frozen=True)
class Column:
    """A column of a published table; ``unit`` is empty where there is none."""

    name: str
    type: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """A file of published numbers; ``sha256`` is of its bytes."""

    name: str
    path: Path
    sha256: str
    description: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """The polars type of each column, in the order of the file."""
        return {column.name: TYPES[column.type] for column in self.columns}


@dataclass(frozen=True)
class Source:
    """The post behind a study.  ``date`` is as exact as it is known; ``url`` is None if unknown."""

    study: str
    title: str
    author: str
    date: str
    url: str | None
    licence: str
    note: str
    tables: Mapping[str, Table]


def published(study: str, table: str | None = None) -> pl.DataFrame:
    """A published table of ``study``: the one named, else the study's main one.

    Columns and units are those of ``published_source(study).tables``.  Raises StudyError for a
    study or a table that is not known.
    """
    source = published_source(study)
    name = table or next(iter(source.tables))
    if name not in source.tables:
        known = ", ".join(source.tables)
        raise StudyError(f"No published table {name!r} of {study}; there are: {known}.")
    found = source.tables[name]
    return pl.read_csv(found.path, schema=found.schema)


def published_source(study: str) -> Source:
    """Author, date, title, address, licence note and tables of the post behind ``study``.

    Raises StudyError for a study that is not known.
    """
    sources = _sources()
    if study not in sources:
        known = ", ".join(sources)
        raise StudyError(f"No published numbers of a study {study!r}; there are: {known}.")
    return sources[study]


@cache
def _sources() -> dict[str, Source]:
    text = (PUBLISHED / "sources.toml").read_text(encoding="utf-8")
    return {study: _source(study, entry) for study, entry in tomllib.loads(text).items()}


def _source(study: str, entry: dict[str, Any]) -> Source:
    tables = {name: _table(name, table) for name, table in entry["tables"].items()}
    return Source(study, **({"url": None} | entry | {"tables": tables}))


def _table(name: str, entry: dict[str, Any]) -> Table:
    return Table(
        name=name,
        path=PUBLISHED / entry["file"],
        sha256=entry["sha256"],
        description=entry["description"],
        columns=tuple(Column(**column) for column in entry["columns"]),
    )
