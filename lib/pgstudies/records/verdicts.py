"""The verdicts that lie beside a reference record, so that nobody has to replay it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from .. import paths

if TYPE_CHECKING:
    from pathlib import Path


PREFIX = "verdicts-"
"""How the name of their file begins; the rest is a digest of all that judged them."""


def reference_verdicts(study: str) -> tuple[Path, pl.DataFrame] | None:
    """The newest reference record of a study that has verdicts, and these: the table of ``judge``.

    None where there is none.
    """
    found = sorted((paths.REFERENCE_RECORDS / study).glob(f"*/{PREFIX}*.parquet"))
    return (found[-1].parent, pl.read_parquet(found[-1])) if found else None
