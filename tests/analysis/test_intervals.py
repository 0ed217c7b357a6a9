"""The signed-rank interval against brute force, textbook values and its own p-value."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import wilcoxon

from pgstudies.analysis.intervals import (
    MOST_BLOCKS,
    attained_level,
    blocks_to_detect,
    estimate_rows,
    fewest_blocks,
    hodges_lehmann,
    signed_rank_interval,
    smallest_detectable,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Multiples of 1/1024, so that sums and halves are exact and only true ties tie.
numbers = st.integers(-10_000, 10_000).map(lambda i: i / 1024)
# Nine patients' depression before and after treatment: Hollander and Wolfe, Nonparametric
# Statistical Methods, example 3.1. They give −0.46 and, at 96.1 %, the interval −0.786 to −0.010.
BEFORE = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
AFTER = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]


def interval(d: list[float], level: float = 0.95) -> tuple[float, float]:
    found = signed_rank_interval(d, level)
    assert found is not None
    return found


def p_value_of(d: ArrayLike) -> float:
    return float(estimate_rows(np.asarray(d)[np.newaxis]).p_value[0])


def test_centre_is_the_median_of_the_walsh_averages() -> None:
    # 1, (1+2)/2, (1+9)/2, 2, (2+9)/2, 9
    assert hodges_lehmann([9, 1, 2]) == (2 + 5) / 2


def test_textbook_example() -> None:
    d = [after - before for before, after in zip(BEFORE, AFTER, strict=True)]
    assert hodges_lehmann(d) == pytest.approx(-0.46)
    assert interval(d) == pytest.approx((-0.786, -0.010))
    assert attained_level(len(d)) == pytest.approx(0.961, abs=5e-4)
    assert p_value_of(d) == 2 * 0.01953125


@settings(max_examples=25, deadline=None)
@given(
    st.lists(numbers, min_size=6, max_size=10, unique=True), st.sampled_from([0.9, 0.95, 0.96875])
)
def test_interval_is_the_inverted_test(d: list[float], level: float) -> None:
    values = np.array(d)
    walsh = np.unique(np.add.outer(values, values) / 2)
    between = np.concatenate([[walsh[0] - 1], (walsh[1:] + walsh[:-1]) / 2, [walsh[-1] + 1]])
    low, high = interval(d, level)
    for centre in between:
        kept = wilcoxon(values - centre, method="exact").pvalue > 1 - level + 1e-12
        assert kept == (low < centre < high)


@settings(deadline=None)
@given(st.lists(numbers, min_size=6, max_size=25))
def test_interval_p_value_and_estimate_agree_even_with_ties(d: list[float]) -> None:
    low, high = interval(d)
    assert (p_value_of(d) <= 0.05) == (low > 0 or high < 0)
    assert low <= hodges_lehmann(d) <= high
    narrow = interval(d, 0.8)
    assert low <= narrow[0] <= narrow[1] <= high


def test_no_interval_below_six_blocks() -> None:
    assert signed_rank_interval([1, 2, 3, 4, 5]) is None
    assert math.isnan(p_value_of([1, 2, 3, 4, 5]))
    assert interval([1, 2, 3, 4, 5, 6]) == (1, 6)
    assert p_value_of([1, 2, 3, 4, 5, 6]) == 2 / 2**6


def test_no_interval_where_the_level_cannot_be_reached() -> None:
    assert signed_rank_interval(range(7), 0.99) is None
    assert signed_rank_interval(range(8), 0.99) == (0, 7)
    assert fewest_blocks(0.99) == 8
    assert fewest_blocks(0.95) == 6


@pytest.mark.parametrize(("blocks", "covers"), [(6, 1 - 2 / 64), (7, 1 - 6 / 128), (10, 0.951172)])
def test_attained_level_is_that_of_the_tables(blocks: int, covers: float) -> None:
    assert attained_level(blocks) == pytest.approx(covers, abs=1e-6)


@pytest.mark.parametrize("blocks", [50, 200, 700])
def test_attained_level_of_many_blocks_comes_close_to_the_nominal_one(blocks: int) -> None:
    attained = attained_level(blocks)
    assert attained is not None
    assert 0.95 <= attained < 0.951


def test_identical_differences_give_an_interval_of_one_point() -> None:
    assert interval([0.25] * 8) == (0.25, 0.25)
    assert p_value_of([0.25] * 8) == 2 / 2**8
    assert p_value_of([0.0] * 8) == 1


def test_hundreds_of_blocks_work() -> None:
    d = np.random.default_rng(1).normal(0.5, 1, 500)
    low, high = interval(list(d))
    assert low < 0.5 < high
    assert_allclose(high - low, 2 * 1.96 / math.sqrt(500 * 3 / math.pi), rtol=0.15)
    assert p_value_of(d) < 1e-20


def test_rows_are_estimated_alike_in_pieces_and_one_by_one() -> None:
    d = np.random.default_rng(2).normal(size=(500, 150))  # 5.7 million Walsh averages
    together = estimate_rows(d)
    for row in (0, 249, 250, 499):
        assert together.centre[row] == hodges_lehmann(d[row])
        assert (together.low[row], together.high[row]) == signed_rank_interval(d[row])
        assert together.p_value[row] == p_value_of(d[row])


@pytest.mark.parametrize("bad", [[], 3.0, [[1.0, 2.0]]])
def test_what_is_not_a_list_of_numbers_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="at least one number"):
        hodges_lehmann(bad)  # type: ignore[arg-type]


def test_more_blocks_detect_less() -> None:
    detectable = [smallest_detectable(0.01, blocks) for blocks in range(6, 200)]
    assert None not in detectable
    assert all(b < a for a, b in pairwise(detectable))  # type: ignore[operator]
    assert smallest_detectable(0.01, 5) is None


@pytest.mark.parametrize("sd", [0.005, 0.01, 0.03, 0.05])
def test_blocks_to_detect_are_the_fewest_that_do(sd: float) -> None:
    blocks = blocks_to_detect(0.02, sd)
    assert blocks is not None
    assert smallest_detectable(sd, blocks) <= 0.02  # type: ignore[operator]
    assert blocks == 6 or smallest_detectable(sd, blocks - 1) > 0.02  # type: ignore[operator]


def test_blocks_to_detect_agree_with_the_paired_t_test() -> None:
    # statsmodels: 16.4 blocks for an effect of 0.74 sd; a signed-rank test needs π/3 times that.
    assert blocks_to_detect(math.expm1(0.0074), 0.01) in (17, 18)
    assert blocks_to_detect(0.02, 0.5) is None, f"more than {MOST_BLOCKS}"
