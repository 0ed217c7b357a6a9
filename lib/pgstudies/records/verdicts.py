"""The verdicts that lie beside a reference record, so that nobody has to replay it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import polars as pl

from .. import paths
from ..errors import StudyError
from ..files import read_sealed
from .reading import newest_on_most_cores, read_info

if TYPE_CHECKING:
    from pathlib import Path


PREFIX = "verdicts-"
"""How the name of their file begins; a digest of all that judged them and a checksum follow."""


def reference_verdicts(study: str) -> tuple[Path, pl.DataFrame] | None:
    """The newest reference record of a study that has verdicts, and these: the table of ``judge``.

    Which is the newest says ``newest_on_most_cores``.  None where there is none.  Raises StudyError
    when the file is damaged.
    """
    found = sorted((paths.REFERENCE_RECORDS / study).glob(f"*/{PREFIX}*.parquet"))
    newest = newest_on_most_cores((file.parent, read_info(file.parent)) for file in found)
    if newest is None:
        return None
    return newest, read_verdicts(next(file for file in reversed(found) if file.parent == newest))


def read_verdicts(file: Path) -> pl.DataFrame:
    """The verdicts that ``write_sealed`` wrote; raises StudyError when the file is damaged."""
    try:
        content = read_sealed(file)
    except StudyError as error:
        raise StudyError(f"{error}  `make verdicts` judges its record again.") from None
    return pl.read_parquet(io.BytesIO(content))
