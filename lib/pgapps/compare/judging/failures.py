"""The transactions that failed: serialization failures and deadlocks, which pgbench tells apart."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import polars as pl

from pgstudies.analysis.intervals import signed_rank_interval
from pgstudies.measuring.pgbench import FAILURES

from ..design import BASELINE, CANDIDATE
from .measured import PLACE, TIME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .measured import Measured

_AT = ("of", "side", "step", "block", "turn")

_SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys((*PLACE, "failure"), pl.String()),
    **dict.fromkeys((BASELINE, CANDIDATE, "low", "high"), pl.Float64()),
}


def failed_transactions(measured: Iterable[Measured]) -> pl.DataFrame:
    """The fraction of failed transactions: one row per step and kind of failure.

    Columns: ``PLACE``, failure (of ``FAILURES``), baseline and candidate (means of the blocks), low
    and high (95 % interval of the difference from baseline to candidate, null with too few blocks).
    """
    rows: list[dict[str, Any]] = []
    for m, failure in product(measured, FAILURES.values()):
        # A turn without any has no such sample.
        failed = m.samples.filter(metric=failure, case="").select(*_AT, share="value")
        turns = m.samples.filter(pl.col("side").is_in([BASELINE, CANDIDATE]), metric=TIME, case="")
        parts = (
            turns.join(failed, on=["of", "step"], how="semi")
            .join(failed, on=_AT, how="left")
            .group_by(*PLACE, "side", "block", maintain_order=True)
            .agg(pl.col("share").fill_null(0.0).mean())
        )
        for place, part in parts.group_by(*PLACE, maintain_order=True):
            sides = part.pivot("side", index="block", values="share")
            if not {BASELINE, CANDIDATE} <= set(sides.columns):
                continue
            both = sides.drop_nulls()
            interval = signed_rank_interval((both[CANDIDATE] - both[BASELINE]).to_numpy())
            low, high = interval or (None, None)
            means = {side: both[side].mean() for side in (BASELINE, CANDIDATE)}
            at = dict(zip(PLACE, place, strict=True)) | {"failure": failure}
            rows.append(at | means | {"low": low, "high": high})
    return pl.DataFrame(rows, schema=_SCHEMA)
