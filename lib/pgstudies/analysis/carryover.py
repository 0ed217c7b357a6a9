"""Carry-over: whether a turn's value depends on whose turn was before, unlike for two arms.

A turn after another arm's finds its caches cold.  In random order that comes upon all arms alike,
and costs those more that use the caches more: then their ratio is not that of two arms that run
alone.  It shows in the turns themselves: some follow a turn of the same arm, most another's, and
of those some follow an arm that leaves less behind than the others do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from .pairing import copies_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Turn = tuple[str, float]  # the arm before, and the logarithm of the value


OTHERS = "another arm"
"""What a turn is said to be after where the contrast is with a turn of the same arm."""


SCHEMA: dict[str, pl.DataType] = {
    "candidate": pl.String(),
    "before": pl.String(),
    "block": pl.Int32(),
    "log_carried": pl.Float64(),
}


_FAR = 2 * 1.4826
"""A round farther from what is fitted than this many median deviations counts as so far (Huber): a
machine that changes its speed in the middle of a round says nothing of caches."""


_FITS = 10


_SPARE = 2
"""Rounds of a block, at least, beyond the numbers that are fitted to them."""


def carried(
    values: pl.DataFrame, *, baseline: str, key: str = "arm", by: Sequence[str] = ()
) -> pl.DataFrame:
    """By how much whose turn was before moves each comparison's ratio, block by block.

    ``values`` are those of ``round_values``, with the column after.  In every block the rounds'
    log-ratios are fitted with what either arm's turn came after.  A copy of an arm, which has a
    server and memory of its own, is another arm.

    Columns: the ``by`` columns, candidate, before, block and log_carried: the part of the block's
    log-ratio that is there because the candidate's turn suffers more (above 0) or less than the
    baseline's from what ``before`` left behind: any other arm (``OTHERS``, beside an arm's own
    turn), or one that is neither of the two (beside the rest).  Blocks in which one of them has not
    followed what is asked, or always has, have no row.
    """
    schema = {name: values.schema[name] for name in by} | SCHEMA
    if "after" not in values.columns:
        return pl.DataFrame(schema=schema)
    own = [baseline, *map(str, copies_of(values, baseline, key))]
    kept = values.filter(
        pl.col("block") > 0, pl.col("value").is_finite() & (pl.col("value") > 0)
    ).drop_nulls("after")
    parts = kept.partition_by(*by, maintain_order=True) if by else [kept]
    rows = [
        (*(part[name][0] for name in by), *found)
        for part in parts
        if part.height
        for found in _of_comparisons(part, own, key)
    ]
    return pl.DataFrame(rows, schema=schema, orient="row")


def _of_comparisons(
    values: pl.DataFrame, own: Sequence[str], key: str
) -> list[tuple[str, str, int, float]]:
    rows = []
    columns = ["round", "after", "value"]
    for (block,), part in values.group_by("block", maintain_order=True):
        turns = {
            str(name): {r: (after, math.log(v)) for r, after, v in held.select(columns).rows()}
            for (name,), held in part.group_by(key, maintain_order=True)
        }
        baselines = {name: turns[name] for name in own if name in turns}
        if own[0] not in baselines:
            continue
        for candidate in sorted(turns.keys() - set(own)):
            found = _of_block(turns[candidate], baselines, candidate)
            rows += [(candidate, before, int(str(block)), d) for before, d in found.items()]
    return rows


def _of_block(
    mine: Mapping[str, Turn], baselines: Mapping[str, Mapping[str, Turn]], candidate: str
) -> dict[str, float]:
    """By what is before, how it moves the log-ratio of a block; turns are by round."""
    rounds = [r for r in mine if all(r in turns for turns in baselines.values())]
    if not rounds:
        return {}
    others = {name: [turns[r] for r in rounds] for name, turns in baselines.items()}
    d = np.array([mine[r][1] for r in rounds])
    d -= np.mean([[log for _, log in turns] for turns in others.values()], axis=0)

    def followed(before: str | None) -> tuple[Numbers, Numbers]:
        """By round, whether the candidate's turn is after it, and what part of the baselines'.

        None is an arm's own turn.
        """
        of_mine = [float(mine[r][0] == (before or candidate)) for r in rounds]
        of_others = [
            [float(after == (before or name)) for after, _ in turns]
            for name, turns in others.items()
        ]
        return np.array(of_mine), np.mean(of_others, axis=0)

    own = followed(None)
    found = {OTHERS: _slopes(d, own)}
    found[OTHERS] = found[OTHERS] * (float(own[0].mean()) - 1)
    for before in sorted({after for after, _ in mine.values()} - {candidate, *baselines}):
        columns = followed(before)
        found[before] = _slopes(d, columns, own) * float(columns[0].mean())
    return {before: change for before, change in found.items() if not math.isnan(change)}


def _slopes(d: Numbers, columns: Sequence[Numbers], beside: Sequence[Numbers] = ()) -> float:
    """The sum of the columns' slopes, fitted with others ``beside`` them; NaN if it is not told."""
    design = [np.ones_like(d), *columns, *(column for column in beside if np.ptp(column))]
    matrix = np.column_stack(design)
    if d.size < len(design) + _SPARE or np.linalg.matrix_rank(matrix) < len(design):
        return math.nan
    project = np.linalg.pinv(matrix)
    slopes = project @ d
    for _ in range(_FITS):
        off = d - matrix @ slopes
        far = _FAR * float(np.median(np.abs(off)))
        slopes += project @ np.clip(off, -far, far)
    return float(slopes[1 : 1 + len(columns)].sum())
