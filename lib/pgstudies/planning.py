"""What a number of blocks can show: the smallest detectable effect, the blocks for an effect."""

from __future__ import annotations

import bisect
import math
from functools import lru_cache

import numpy as np
from statsmodels.stats.power import TTestPower

from .intervals import MINIMUM_BLOCKS, attained_level

POWER = 0.8
"""How often an effect of the size named is to be seen."""

MOST_BLOCKS = 1000
"""More blocks than this are never advised: the answer is a quieter machine or a wider margin."""

# Of the blocks that a signed-rank test needs, a t test on normal noise needs 3/π: 95 %.
_EFFICIENCY = 3 / math.pi


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


def blocks_for_family(comparisons: int, *, level: float = 0.95) -> int:
    """The blocks below which, of so many comparisons, none can be told from chance.

    After Holm's correction the smallest p-value that n blocks can give, 2 / 2ⁿ, must remain.
    """
    return next(
        n for n in range(MINIMUM_BLOCKS, MOST_BLOCKS) if 2 * comparisons <= (1 - level) * 2**n
    )


@lru_cache(maxsize=4096)
def _smallest_detectable_in_sd(blocks: int, level: float) -> float | None:
    attained = attained_level(blocks, level)
    if attained is None:
        return None
    solved = TTestPower().solve_power(
        nobs=blocks * _EFFICIENCY, alpha=1 - attained, power=POWER, alternative="two-sided"
    )
    return float(np.squeeze(solved))  # an array of one where its first root finder gave up
