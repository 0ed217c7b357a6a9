"""How long a block takes, by the records of earlier runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from pgstudies.records.reading import list_records, readable_records

if TYPE_CHECKING:
    from pgstudies.records.reading import Record


def block_seconds(study: str, profile: str) -> float | None:
    """``seconds_apart`` of the newest complete record of that size; None without one."""
    known = list_records(study).filter(pl.col("status") == "complete", pl.col("profile") == profile)
    record = next(readable_records(known["path"].reverse()), None)
    return None if record is None else seconds_apart(record)


def seconds_apart(record: Record) -> float | None:
    """From the beginning of a block to that of the next (s), median; None without a block."""
    blocks = (
        record.timeline.group_by("block")
        .agg(began=pl.col("started_at").min(), ended=pl.col("finished_at").max())
        .sort("block")
    )
    apart = blocks["began"].diff().drop_nulls()
    took = apart if apart.len() else blocks["ended"] - blocks["began"]
    seconds = took.dt.total_seconds(fractional=True).median()
    return float(seconds) if isinstance(seconds, (int, float)) else None
