"""How long a block takes, by the records of earlier runs."""

from __future__ import annotations

import polars as pl

from pgstudies.records.reading import list_records, readable_records


def block_seconds(study: str, profile: str) -> float | None:
    """``Record.block_s`` of the newest complete record of that size; None without one."""
    known = list_records(study).filter(pl.col("status") == "complete", pl.col("profile") == profile)
    record = next(readable_records(known["path"].reverse()), None)
    return None if record is None else record.block_s
