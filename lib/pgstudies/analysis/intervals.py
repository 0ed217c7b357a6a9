"""The exact interval, and what a number of blocks can show."""

from __future__ import annotations

import bisect
import math
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

MINIMUM_BLOCKS = 6
"""Fewer blocks give no interval: five signs that agree by chance are not yet rare enough."""

_AT_ONCE = 4_000_000  # Walsh averages held in memory (32 MB)


class Estimates(NamedTuple):
    """One entry per comparison; low, high and p_value are NaN where there is no interval."""

    centre: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    p_value: NDArray[np.float64]


def hodges_lehmann(d: ArrayLike) -> float:
    """The median of all Walsh averages (dᵢ + dⱼ) / 2, i ≤ j, in the unit of ``d``.

    Hodges and Lehmann, Annals of Mathematical Statistics 34 (1963). Raises ValueError for no data.
    """
    return float(estimate_rows(np.asarray(d)[np.newaxis]).centre[0])


def signed_rank_interval(d: ArrayLike, level: float = 0.95) -> tuple[float, float] | None:
    """The values that an exact Wilcoxon signed-rank test of ``d`` would not reject.

    Low and high are order statistics of the Walsh averages, in the unit of ``d``, and cover the
    centre with at least probability ``level`` (96.9 % for 0.95 at 6 blocks, 95.1 % at 10). Ties
    make the interval cover more, never less. None below 6 blocks, and where so few cannot reach
    ``level``. Exact for every number of blocks: 500 of them take 20 ms.
    """
    found = estimate_rows(np.asarray(d)[np.newaxis], level)
    return None if np.isnan(found.low[0]) else (float(found.low[0]), float(found.high[0]))


def attained_level(blocks: int, level: float = 0.95) -> float | None:
    """The coverage that ``signed_rank_interval`` really has; None where there is no interval."""
    rank = _critical_rank(blocks, level)
    if rank is None:
        return None
    return 1 - 2 * float(_null_distribution(blocks)[rank - 1])


def fewest_blocks(level: float = 0.95) -> int:
    """The blocks from which on ``signed_rank_interval`` gives an interval at ``level``."""
    return next(n for n in count(MINIMUM_BLOCKS) if _critical_rank(n, level) is not None)


def estimate_rows(d: ArrayLike, level: float = 0.95) -> Estimates:
    """All of the above for many comparisons at once: a row of ``d`` each, a column per block.

    p_value is the two-sided exact one of "the centre is 0": at most 1 − level exactly when 0 lies
    outside of the interval, with ties too, where that of ``scipy.stats.wilcoxon`` may not agree.
    """
    values = np.asarray(d, dtype=np.float64)
    if values.ndim != 2 or not values.shape[1]:
        raise ValueError("an estimate needs a list of at least one number")
    rows, blocks = values.shape
    if rows > 1 and rows * blocks * (blocks + 1) // 2 > _AT_ONCE:
        halves = [estimate_rows(half, level) for half in np.array_split(values, 2)]
        return Estimates(*(np.concatenate(both) for both in zip(*halves, strict=True)))
    first, second = np.triu_indices(blocks)
    averages = np.sort((values[:, first] + values[:, second]) / 2, axis=1)
    centre = np.median(averages, axis=1)
    rank = _critical_rank(blocks, level)
    if rank is None:
        nothing = np.full(rows, np.nan)
        return Estimates(centre, nothing, nothing, nothing)
    fewest = np.minimum((averages <= 0).sum(axis=1), (averages >= 0).sum(axis=1))
    p_value = np.minimum(1, 2 * _null_distribution(blocks)[fewest])
    return Estimates(centre, averages[:, rank - 1], averages[:, -rank], p_value)


def _critical_rank(blocks: int, level: float) -> int | None:
    """Which Walsh average, counted from either end, bounds the interval."""
    if blocks < MINIMUM_BLOCKS:
        return None
    rank = int(np.searchsorted(_null_distribution(blocks), (1 - level) / 2, side="right"))
    return rank or None


@lru_cache(maxsize=256)
def _null_distribution(blocks: int) -> NDArray[np.float64]:
    """P(T ≤ t), t = 0, 1, …, of the signed-rank statistic when each sign is a fair coin."""
    p = np.zeros(blocks * (blocks + 1) // 2 + 1)
    p[0] = 1
    for rank in range(1, blocks + 1):
        reached = rank * (rank + 1) // 2 + 1
        p[:reached] /= 2
        p[rank:reached] += p[: reached - rank].copy()
    cumulative: NDArray[np.float64] = p.cumsum()
    cumulative.flags.writeable = False  # it is shared by every caller of the cache
    return cumulative


POWER = 0.8
"""The power: how often an effect of the named size is seen."""

MOST_BLOCKS = 1000
"""More blocks are never advised: use a quieter machine or a wider margin."""

# Of the blocks that a signed-rank test needs, a t test on normal noise needs 3/π: 95 %.
_EFFICIENCY = 3 / math.pi

_SO_MANY_ATTAIN_IT = 100
"""Beyond these blocks an interval covers within 0.04 % what is asked; the exact distribution of
hundreds takes seconds."""


def smallest_detectable(sd: float, blocks: int, *, level: float = 0.95) -> float | None:
    """The change that ``blocks`` blocks show four times in five, as a fraction of the baseline.

    ``sd`` is the standard deviation of the log-ratios. From the power of the paired t test, at
    the level that the signed-rank test attains and at its efficiency, for normal noise. None
    where there are too few blocks for an interval.
    """
    in_sd = _smallest_detectable_in_sd(blocks, level)
    return None if in_sd is None else math.expm1(in_sd * sd)


def blocks_to_detect(change: float, sd: float, *, level: float = 0.95) -> int | None:
    """The blocks that show a change of ``change`` (0.02 = 2 %) four times in five.

    ``sd`` is the standard deviation of the log-ratios, from a pilot run. None for more than
    ``MOST_BLOCKS``.
    """
    wanted = math.log1p(change)

    def is_enough(blocks: int) -> bool:
        in_sd = _smallest_detectable_in_sd(blocks, level)
        return in_sd is not None and in_sd * sd <= wanted

    choices = range(MINIMUM_BLOCKS, MOST_BLOCKS + 1)
    found = bisect.bisect_left(choices, True, key=is_enough)
    return choices[found] if found < len(choices) else None


MORE_BLOCKS = 50
"""If more further blocks than this are needed, another design is needed."""


@lru_cache(maxsize=4096)
def _smallest_detectable_in_sd(blocks: int, level: float) -> float | None:
    from statsmodels.stats.power import TTestPower  # noqa: PLC0415, its import takes a second

    attained = attained_level(blocks, level) if blocks <= _SO_MANY_ATTAIN_IT else level
    if attained is None:
        return None
    solved = TTestPower().solve_power(
        nobs=blocks * _EFFICIENCY, alpha=1 - attained, power=POWER, alternative="two-sided"
    )
    return float(np.squeeze(solved))  # an array of one where its first root finder gave up
