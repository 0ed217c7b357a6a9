"""How long blocks and runs take, by the records of earlier runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from pgstudies.records.reading import list_records, readable_records

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .plan import PlannedRun


def block_seconds(study: str, profile: str) -> float | None:
    """``Record.block_s`` of the newest complete record of that profile; None without one."""
    known = list_records(study).filter(pl.col("status") == "complete", pl.col("profile") == profile)
    record = next(readable_records(known["path"].reverse()), None)
    return None if record is None else record.block_s


def all_blocks_seconds(planned: PlannedRun) -> float | None:
    """How long the blocks of a run take in all (s), by ``block_seconds``; None without a record."""
    blocks, each_s = planned.parameters.get("blocks"), block_seconds(planned.study, planned.profile)
    return blocks * each_s if each_s and isinstance(blocks, int) else None


def expected_seconds(plans: Sequence[PlannedRun]) -> dict[str, float] | None:
    """By study, ``all_blocks_seconds``; None if one of them has none."""
    known = {planned.study: all_blocks_seconds(planned) for planned in plans}
    found = {study: seconds for study, seconds in known.items() if seconds is not None}
    return found if len(found) == len(known) else None


def seconds_left(
    studies: Sequence[str],
    done: Collection[str],
    took_s: float,
    expected: Mapping[str, float] | None = None,
) -> float | None:
    """How long the rest of ``studies`` will take (s), given that ``done`` took ``took_s``.

    ``expected`` has the time of each study (s), which is corrected by the speed of this machine;
    without it studies are assumed to take equally long.  None before the first is done.
    """
    if not done:
        return None
    seconds = expected or dict.fromkeys(studies, 1.0)
    left_s = sum(seconds[name] for name in studies if name not in done)
    return took_s * left_s / sum(seconds[name] for name in done)
