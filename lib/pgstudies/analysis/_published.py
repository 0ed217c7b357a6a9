"""The published numbers that a study is set beside."""

from __future__ import annotations

import tomllib
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl

from .. import paths
from ..errors import StudyError

if TYPE_CHECKING:
    from pathlib import Path


TYPES = {"text": pl.String(), "integer": pl.Int64(), "number": pl.Float64()}


def published(study: str, table: str | None = None) -> pl.DataFrame:
    """A published table of ``study``: the one named, else the study's main one.

    Its columns with their units, and where the numbers are from, are in
    ``data/published/sources.toml``.  Raises StudyError for a study or a table that is not known.
    """
    sources = _sources(paths.PUBLISHED)
    if study not in sources:
        raise StudyError(
            f"No published numbers of a study {study!r}; there are: {', '.join(sources)}."
        )
    tables = sources[study]["tables"]
    name = table or next(iter(tables))
    if name not in tables:
        raise StudyError(f"No published table {name!r} of {study}; there are: {', '.join(tables)}.")
    schema = {column["name"]: TYPES[column["type"]] for column in tables[name]["columns"]}
    return pl.read_csv(paths.PUBLISHED / tables[name]["file"], schema=schema)


@cache
def _sources(directory: Path) -> dict[str, Any]:
    return tomllib.loads((directory / "sources.toml").read_text(encoding="utf-8"))
