"""Families: the many comparisons of one run judged together, by what chance alone does to them.

Holm's correction needs more blocks the more comparisons there are, as no p-value of n blocks is
below 2 / 2ⁿ. A step-down maximum test has no such bound: what is drawn is the same for all
comparisons at once, so that the family's error is held and their dependence is used, not paid for
(Westfall and Young, Resampling-Based Multiple Testing, 1993; Romano and Wolf, Journal of the
American Statistical Association 100, 2005; Winkler et al., NeuroImage 92, 2014).
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtr

from .intervals import MINIMUM_BLOCKS, MORE_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]


DRAWS = 4096
"""The number of flips or permutations, if there are too many to try all."""

_SEED = 20261123  # the same samples always get the same verdicts

_ROUNDING = 1e-9


class Family(NamedTuple):
    """One entry per comparison; NaN below 6 blocks."""

    p_value: Numbers  # corrected over the family
    least: Numbers  # the smallest p-value that so many blocks could have given


def flipped(d: Sequence[Sequence[float | None]]) -> Family:
    """Whether each centre is off 0, by flipping the signs of whole blocks.

    ``d`` has a row per comparison with its log-ratios, one per block, None where it has none. A
    flip of a block applies to all comparisons, also to those of another study: two equal arms in
    random order are symmetric about no difference. Each comparison's statistic is Student's t, of
    its own number of blocks.
    """
    values = _blocks(d)
    if not values.size:
        return Family(np.full(len(values), np.nan), np.full(len(values), np.nan))
    has = ~np.isnan(values)
    count = has.sum(axis=1)
    held = np.where(has, values, 0.0)
    flips = _flips(values.shape[1])
    with np.errstate(all="ignore"):
        # The sum of squares is the same for all flips; t rises with the sum over its root.
        share = np.abs(flips @ held.T) / np.sqrt((held**2).sum(axis=1))
    return Family(of_sums(share, count), np.where(count < MINIMUM_BLOCKS, np.nan, 2 / 2.0**count))


def of_sums(share: Numbers, count: NDArray[np.int64]) -> Numbers:
    """Corrected p-values of sums over the root of the sum of the squares of ``count`` numbers.

    ``share`` has a row per draw, the first what was measured, and a column per comparison.
    """
    with np.errstate(all="ignore"):
        share = np.where(np.isfinite(share), share, 0.0)
        t = share * np.sqrt((count - 1) / np.maximum(count - share**2, 1e-12))
        tails = np.asarray(stdtr(np.maximum(count - 1, 1), -t))
    return _stepped_down(tails, count >= MINIMUM_BLOCKS)


def permuted(d: Sequence[Sequence[float | None]], x: Sequence[Sequence[float | None]]) -> Family:
    """Whether each comparison goes with its ``x``, by permuting the blocks' ``x``.

    Rows as for ``flipped``. The same permutation of the blocks is applied to all; the statistic
    is Pearson's correlation, 0 where one of the two is constant.
    """
    values, others = _blocks(d), _blocks(x)
    has = ~(np.isnan(values) | np.isnan(others))
    enough = has.sum(axis=1) >= MINIMUM_BLOCKS
    draws = np.random.default_rng(_SEED).random((DRAWS, values.shape[1]))
    found = np.zeros((DRAWS, len(values)))
    least = np.full(len(values), np.nan)
    for row in np.flatnonzero(enough):
        at = np.flatnonzero(has[row])
        draws[0] = np.arange(values.shape[1])  # the first is what was measured
        mine, other = (_standardized(part[row, at]) for part in (values, others))
        shuffled = other[draws[:, at].argsort(axis=1)]
        found[:, row] = np.abs(shuffled @ mine)
        least[row] = (np.abs(shuffled @ other) >= 1 - _ROUNDING).mean()
    return Family(_stepped_down(-found, enough), least)


def holm(p_values: Sequence[float] | Numbers) -> Numbers:
    """Holm's correction, where nothing is known of how the p-values depend on each other."""
    p = np.asarray(p_values, float)
    order = np.argsort(p)  # NaN comes last, and stays
    factors = np.count_nonzero(~np.isnan(p)) - np.arange(len(p))
    return np.minimum(np.maximum.accumulate(p[order] * factors), 1)[np.argsort(order)]


def blocks_in_family(blocks: int, p_family: float, *, level: float = 0.95) -> int | None:
    """Total blocks at which an effect that is significant alone would probably be so in its family.

    If estimate and spread stay as they are, the normal quantile of a p-value grows as √blocks.
    None if that takes more than ``MORE_BLOCKS`` more.
    """
    growth = (float(ndtri((1 - level) / 2)) / min(float(ndtri(p_family / 2)), -1e-9)) ** 2
    needed = max(blocks + 1, math.ceil(blocks * growth))
    return needed if needed <= blocks + MORE_BLOCKS else None


def _blocks(rows: Sequence[Sequence[float | None]]) -> Numbers:
    """Rows of the same length, with NaN for what is missing."""
    longest = max(map(len, rows), default=0)
    values = np.full((len(rows), longest), np.nan)
    for row, held in zip(values, rows, strict=True):
        row[: len(held)] = [np.nan if value is None else value for value in held]
    return values


def _flips(blocks: int) -> Numbers:
    """Signs of the blocks, one row per flip, the first all 1; of two opposite ones, one."""
    if 2 ** max(blocks - 1, 0) <= DRAWS:
        signs = itertools.product([1.0], *[[1.0, -1.0]] * (blocks - 1))
        return np.array(list(signs)).reshape(-1, blocks)
    drawn = np.random.default_rng(_SEED).choice([1.0, -1.0], size=(DRAWS, blocks))
    drawn[0] = 1.0
    return drawn


def _standardized(values: Numbers) -> Numbers:
    centred = values - values.mean()
    length = float(np.sqrt((centred**2).sum()))
    return centred / length if length > 1e-12 else np.zeros_like(values)


def _stepped_down(tails: Numbers, enough: NDArray[np.bool_]) -> Numbers:
    """Each comparison's p-value among the comparisons that are no more evident.

    ``tails`` has a row per draw, the first what was measured, and a column per comparison; a lower
    value is more evident.
    """
    p_values = np.full(tails.shape[1], np.nan)
    if not enough.any():
        return p_values
    tails = tails[:, enough]
    order = np.argsort(tails[0], kind="stable")
    least = np.minimum.accumulate(tails[:, order[::-1]], axis=1)[:, ::-1]
    measured = tails[0, order]
    reached = (least <= measured + _ROUNDING * np.abs(measured)).mean(axis=0)
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(reached)
    p_values[enough] = corrected
    return p_values
