"""Whether blocks are independent, which intervals take for granted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pgstudies.analysis.families import DRAWS
from pgstudies.analysis.intervals import MINIMUM_BLOCKS
from pgstudies.analysis.pairing import DECIMALS

if TYPE_CHECKING:
    from collections.abc import Sequence


_SEED = 20261128  # the same samples always get the same verdicts


def autocorrelation(d: Sequence[Sequence[float | None]]) -> tuple[float, float]:
    """The lag-1 autocorrelation of blocks' deviations, over all comparisons.

    ``d`` as for ``families.flipped``; comparisons that vary, with six blocks or more, count.
    Returns the mean of their correlations, and the share of orders of the blocks, the same for all
    comparisons, that give as much or more: a test that is exact for blocks that may be exchanged,
    however their comparisons depend on each other.  NaN and 1 without any.
    """
    values = np.array(
        [[np.nan if one is None else one for one in row] for row in d], dtype=np.float64
    )
    keys = np.random.default_rng(_SEED).random((DRAWS, values.shape[-1]))
    keys[0] = np.arange(keys.shape[1])  # the first is what was measured
    found, number = np.zeros(DRAWS), 0
    has = ~np.isnan(values)
    for at in np.unique(has[has.sum(axis=-1) >= MINIMUM_BLOCKS], axis=0):
        rows = values[(has == at).all(axis=1)][:, at]
        rows = (rows - rows.mean(axis=1, keepdims=True)).round(DECIMALS)
        rows = rows[rows.any(axis=1)]
        scaled = rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))
        order = keys[:, at].argsort(axis=1)
        found += (scaled.T @ scaled)[order[:, 1:], order[:, :-1]].sum(axis=1)
        number += len(rows)
    if not number:
        return math.nan, 1.0
    return float(found[0]) / number, float((found >= found[0] - 1e-9).mean())
