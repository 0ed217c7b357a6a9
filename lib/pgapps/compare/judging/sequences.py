"""Confidence sequences: intervals that are valid whenever one looks and stops.

Of two equal arms in random order a block's difference is as likely to be d as −d. So whoever bets
on the sides of the next blocks wins nothing on average, at whatever centre θ the differences are
symmetric about: the product over blocks of exp(λᵢ(dᵢ − θ)) / cosh(λᵢ(dᵢ − θ)) is a martingale, if
λᵢ knows no sign that is still to come. By Ville's inequality it reaches 20 in at most one run of
twenty, ever. The centres at which it has not are a 95 % confidence sequence, and its inverse is a
p-value at any stopping time (de la Peña, Annals of Probability 27, 1999; Waudby-Smith and Ramdas,
Journal of the Royal Statistical Society B 86, 2024).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pgstudies.analysis.intervals import MORE_BLOCKS, Estimates, estimate_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from numpy.typing import ArrayLike, NDArray

    Numbers = NDArray[np.float64]


_STAKES = np.array([0.25, 0.5, 1.0, 2.0, 4.0])
"""The bets on either side (inverse of the root mean square so far); their capitals are averaged."""

_DISTANCES = np.geomspace(1e-7, 8.0, 400)
"""The distances from the mean at which a centre is searched, up to a ratio of 3,000."""

_HALVINGS = 30


def anytime_rows(d: ArrayLike, level: float = 0.95) -> Estimates:
    """As ``intervals.estimate_rows``, for runs that may have been continued after a look.

    The columns of ``d`` are blocks in the order of measurement.  A 95 % interval takes at least 7.
    """
    values = np.asarray(d, dtype=np.float64)
    centre = estimate_rows(values, level).centre
    mean = values.mean(axis=1)
    limit = -math.log(1 - level)
    low, high = (_bound(values, mean, sign, limit) for sign in (-1.0, 1.0))
    p_value = np.exp(-np.maximum(evidence(values, np.zeros(len(values))), 0.0))
    has_none = np.isnan(low) | np.isnan(high)
    low, high, p_value = (np.where(has_none, np.nan, part) for part in (low, high, p_value))
    return Estimates(centre, low, high, p_value)


def anytime_effects(rows: pl.DataFrame, level: float) -> Estimates:
    """The ``intervals`` of ``paired_effects`` for such runs."""
    return anytime_rows(rows["log_ratio"].to_list(), level)


def evidence(values: Numbers, centre: Numbers) -> Numbers:
    """The logarithm of the martingale for each row of ``values``, at that row's ``centre``."""
    apart = values - centre[:, np.newaxis]
    mean_squares = np.cumsum(apart**2, axis=1) / np.arange(1, apart.shape[1] + 1)
    scaled = apart / np.sqrt(np.where(mean_squares > 0, mean_squares, 1.0))
    bets = np.multiply.outer(np.concatenate([_STAKES, -_STAKES]), scaled)
    # ln cosh x, without an overflow
    log_cosh = np.abs(bets) + np.log1p(np.exp(-2 * np.abs(bets))) - math.log(2)
    won = (bets - log_cosh).sum(axis=2)
    found: Numbers = np.logaddexp.reduce(won, axis=0) - math.log(len(bets))
    return found


def anytime_family(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values of ``anytime_rows`` corrected over their family, by Holm; None stays None."""
    order = sorted((p, row) for row, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for place, (p, row) in enumerate(order):
        highest = max(highest, min(1.0, p * (len(order) - place)))
        corrected[row] = highest
    return corrected


def blocks_in_sequence(
    blocks: int, p_value: float, p_family: float, level: float = 0.95
) -> int | None:
    """The total number of blocks that would probably make an effect evident in its family.

    Evidence is taken to grow with the number of blocks.  None for more than ``MORE_BLOCKS`` more.
    """
    lacking = math.log(p_family / (1 - level))
    needed = max(blocks + 1, math.ceil(blocks * (1 - lacking / math.log(p_value))))
    return needed if needed <= blocks + MORE_BLOCKS else None


def _bound(values: Numbers, mean: Numbers, sign: float, limit: float) -> Numbers:
    """The last centre on that side of the mean that is not excluded; NaN if all are."""
    held = np.array([evidence(values, mean + sign * far) < limit for far in _DISTANCES])
    # The furthest that is held: what lies between may be excluded, and is then held as well.
    last = len(_DISTANCES) - 1 - held[::-1].argmax(axis=0)
    inside = np.where(held.any(axis=0), _DISTANCES[last], 0.0)
    outside = _DISTANCES[np.minimum(last + 1, len(_DISTANCES) - 1)]
    outside = np.where(held.any(axis=0), outside, _DISTANCES[0])
    for _ in range(_HALVINGS):
        between = (inside + outside) / 2
        is_held = evidence(values, mean + sign * between) < limit
        inside, outside = np.where(is_held, between, inside), np.where(is_held, outside, between)
    bound: Numbers = mean + sign * np.where(held[-1], np.nan, outside)
    return bound
