"""Confidence sequences, a fair game with an exact value, and the family of a comparison."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from statsmodels.stats.multitest import multipletests

from book.bench.sequences import ever_missed
from pgapps.compare.judging.measured import as_family, effects_by_names
from pgapps.compare.judging.renaming import by_names
from pgapps.compare.judging.sequences import (
    anytime_effects,
    anytime_family,
    anytime_rows,
    blocks_in_sequence,
    evidence,
)
from pgstudies.analysis.effects import paired_effects
from pgstudies.analysis.intervals import estimate_rows
from pgstudies.analysis.verdicts import DIRECTIONS
from tests import made_up

NOISE = np.random.default_rng(3).normal(0, 0.02, (40, 30))
BASELINE = [1.00, 1.02, 0.99, 1.01, 1.03, 0.98, 1.00, 1.01, 0.99, 1.02]
SLOWER = [1.1 * b for b in (0.99, 1.03, 1.0, 1.0, 1.04, 0.97, 1.01, 1.0, 1.0, 1.01)]
magnitudes = st.lists(st.floats(1e-3, 10), min_size=1, max_size=7)


def evidence_at_0(d: list[float]) -> float:
    return float(evidence(np.array([d]), np.zeros(1))[0])


@settings(max_examples=25, deadline=None)
@given(magnitudes)
def test_whoever_bets_on_fair_signs_wins_nothing(sizes: list[float]) -> None:
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=len(sizes))))
    won = np.exp(evidence(signs * sizes, np.zeros(len(signs))))
    assert won.mean() == pytest.approx(1.0)


def test_blocks_that_all_agree_are_worth_what_the_formula_says() -> None:
    stakes = [c * sign for c in (0.25, 0.5, 1.0, 2.0, 4.0) for sign in (1, -1)]
    expected = math.log(np.mean([(math.exp(c) / math.cosh(c)) ** 7 for c in stakes]))
    assert evidence_at_0([0.3] * 7) == pytest.approx(expected)
    assert evidence_at_0([-5.0] * 7) == pytest.approx(expected)
    assert evidence_at_0([0.0] * 7) == pytest.approx(0)


def test_an_interval_takes_seven_blocks() -> None:
    assert np.isnan(anytime_rows(NOISE[:, :6])).any(axis=0).sum() == 40
    found = anytime_rows(NOISE[:, :7])
    assert not np.isnan([found.low, found.high, found.p_value]).any()


def test_the_interval_is_the_inverted_test() -> None:
    found = anytime_rows(NOISE)
    for bound, sign in ((found.low, -1), (found.high, 1)):
        assert (evidence(NOISE, bound - sign * 1e-6) < math.log(20)).all()
        for further in (1e-6, 0.01, 0.1, 1.0):
            assert (evidence(NOISE, bound + sign * further) >= math.log(20)).all()


def test_it_moves_with_the_data_and_is_wider_than_that_of_a_fixed_number_of_blocks() -> None:
    found, moved = anytime_rows(NOISE), anytime_rows(3 * NOISE + 0.5)
    assert_allclose(moved.low, 3 * found.low + 0.5, atol=1e-8)
    assert_allclose(moved.high, 3 * found.high + 0.5, atol=1e-8)
    fixed = estimate_rows(NOISE)
    assert (found.high - found.low > fixed.high - fixed.low).all()
    assert (found.high - found.low < 3 * (fixed.high - fixed.low)).all()
    assert_allclose(found.centre, fixed.centre)


def test_looking_after_every_block_seldom_misses_the_truth() -> None:
    d = np.random.default_rng(5).standard_t(3, (400, 40))
    assert ever_missed(d, anytime=True) <= 0.05
    assert ever_missed(d, anytime=False) > 0.15


def test_the_family_is_corrected_by_holm() -> None:
    p_values = [0.001, 0.04, 0.02, 0.9]
    corrected = anytime_family([*p_values, None])
    assert corrected[:4] == pytest.approx(multipletests(p_values, method="holm")[1])
    assert corrected[4] is None


def test_the_blocks_that_are_lacking_follow_from_the_evidence() -> None:
    # The evidence of 10 blocks is ln 100; ten such steps take ln 200 in all.
    assert blocks_in_sequence(10, 0.01, 0.1) == math.ceil(10 * math.log(200) / math.log(100))
    assert blocks_in_sequence(10, 0.9, 1.0) is None


def test_a_family_keeps_what_is_evident_in_all_blocks() -> None:
    for arms in (2, 12):
        names = {f"arm {i}": SLOWER[:6] for i in range(arms)}
        table = made_up.samples({"heap": BASELINE[:6]} | names)
        found = effects_by_names(table, baseline="heap", by=())
        assert set(found["verdict"]) == {"slower"}
        assert found["p_family"].to_list() == pytest.approx([2 / 2**6] * arms)


def test_a_difference_that_luck_can_make_among_many_is_open() -> None:
    rng = np.random.default_rng(3)
    many = {
        f"arm {i}": [b * math.exp(d) for b, d in zip(BASELINE, rng.normal(0, 0.1, 10), strict=True)]
        for i in range(60)
    }
    table = made_up.samples({"heap": BASELINE} | many)
    of: Any = {"baseline": "heap", "by": ()}
    alone = paired_effects(table, **of, intervals=by_names(table, **of))
    assert alone.filter(pl.col("verdict").is_in(DIRECTIONS)).height > 0
    together = effects_by_names(table, **of)
    assert together.filter(pl.col("verdict").is_in(DIRECTIONS)).is_empty()
    assert (together["p_family"] >= together["p_value"] - 0.02).all()


def test_what_could_not_be_tested_has_no_p_value() -> None:
    missing: list[float | None] = [*SLOWER[:4], *[None] * 6]
    table = made_up.samples({"heap": BASELINE, "b": SLOWER, "c": missing})
    found = effects_by_names(table, baseline="heap", by=())
    assert found["p_family"].to_list() == [pytest.approx(2 / 2**10), None]
    assert as_family(found.drop("p_family").clear(), []).is_empty()


def test_an_effect_is_estimated_by_the_intervals_it_is_given() -> None:
    table = made_up.samples({"heap": BASELINE, "b": SLOWER})
    (fixed,) = paired_effects(table, baseline="heap", by=()).to_dicts()
    (found,) = paired_effects(table, baseline="heap", by=(), intervals=anytime_effects).to_dicts()
    assert found["ratio"] == fixed["ratio"]
    assert found["low"] < fixed["low"] < fixed["high"] < found["high"]
    expected = anytime_rows([fixed["log_ratios"]])
    assert math.log(found["low"]) == pytest.approx(expected.low[0])
    assert found["detectable"] >= fixed["detectable"]
