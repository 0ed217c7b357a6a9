"""Exchanging names in blocks: exact where a candidate against two copies is not symmetric."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from book.bench.alarms import in_places, noise
from pgapps.compare.judging.guards import LEVEL, independence
from pgapps.compare.judging.independence import autocorrelation
from pgapps.compare.judging.renaming import by_names, family, in_each_place, renamed_rows
from pgstudies.analysis.effects import paired_effects
from pgstudies.analysis.intervals import estimate_rows


def steps(kind: str, seed: int, blocks: int, many: int) -> np.ndarray:
    """Equal arms in each place: comparisons × blocks × three."""
    rng = np.random.default_rng(seed)
    return in_places(np.concatenate([noise(kind, rng, blocks) for _ in range(many)]))


def test_equal_steps_with_skewed_noise_are_as_seldom_faster_as_slower() -> None:
    values = steps("skewed", 1, 24, 40)
    signs, names = estimate_rows(values[:, :, 0]), renamed_rows(values)
    assert np.mean(signs.high < 0) > 0.04, "against the mean of two copies"
    assert np.mean(signs.low > 0) < 0.02
    assert np.mean(names.high < 0) <= 0.04
    assert np.mean(names.low > 0) <= 0.04
    assert abs(np.median(names.centre)) < abs(np.median(signs.centre)) / 2


def test_the_interval_has_what_the_test_does_not_reject_and_is_narrower_than_signs_give() -> None:
    values = steps("normal", 2, 8, 10)
    found = renamed_rows(values)
    np.testing.assert_array_equal(found.p_value <= 0.05, (found.low > 0) | (found.high < 0))
    assert np.all((found.low <= found.centre) & (found.centre <= found.high))
    signs = estimate_rows(values[:, :, 0])
    assert np.median(found.high - found.low) < np.median(signs.high - signs.low)
    shift = 0.03 * np.array([1.0, -0.5, -0.5])
    moved = renamed_rows(values + shift)
    np.testing.assert_allclose(moved.low, found.low + 0.03, atol=1e-4)


def test_a_family_of_skewed_steps_is_held() -> None:
    families = [steps("skewed", seed, 9, 1) for seed in range(120)]
    assert np.mean([family(values).min() <= 0.05 for values in families]) <= 0.08


def test_without_a_second_copy_names_are_exchanged_as_signs_are() -> None:
    d = np.random.default_rng(3).normal(0.01, 0.01, (3, 7))
    two = np.stack([d, -d, np.full_like(d, math.nan)], axis=2)
    np.testing.assert_allclose(renamed_rows(two).centre, estimate_rows(d).centre, atol=0.005)
    assert family(np.abs(two) * [1, -1, 1]).max() == pytest.approx(2 / 2**7)
    assert np.isnan(renamed_rows(two[:, :5]).low).all()


def test_an_effect_against_two_copies_is_of_all_three_places() -> None:
    rng = np.random.default_rng(4)
    log = rng.normal(0, 0.01, (7, 3))
    rows = [
        (block + 1, arm, math.exp(log[block, n]), "baseline" if n == 2 else None)
        for block in range(7)
        for n, arm in enumerate(("candidate", "baseline", "again"))
    ]
    table = pl.DataFrame(rows, schema=["block", "arm", "value", "copy_of"], orient="row")
    table = table.with_columns(unit=pl.lit("s"))
    of: Any = {"baseline": "baseline", "by": ()}
    found = paired_effects(table, **of, intervals=by_names(table, **of), gated=False)
    effect = found.filter(candidate="candidate")
    values = in_each_place(table, effect, **of)
    np.testing.assert_allclose(values, in_places(log[np.newaxis]), atol=1e-9)
    assert effect["low"].item() == pytest.approx(math.exp(renamed_rows(values).low[0]))
    again = found.filter(candidate="again")
    d = np.array(again["log_ratios"].to_list())
    assert again["low"].item() == pytest.approx(math.exp(estimate_rows(d).low[0]))
    alone = in_each_place(table.filter(pl.col("arm") != "again"), effect, **of)
    assert np.isnan(alone[:, :, 2]).all()


def guards(kind: str, blocks: int, comparisons: int) -> list[bool | None]:
    """What the guard says of comparisons of twelve equal steps."""
    rng = np.random.default_rng(5)
    return [
        independence(
            pl.DataFrame({"log_ratios": in_places(noise(kind, rng, blocks))[:, :, 0].tolist()})
        ).passed
        for _ in range(comparisons)
    ]


def test_blocks_that_follow_those_before_are_seen_where_intervals_are_too_narrow() -> None:
    values = steps("autocorrelated", 6, 12, 20)
    missed = estimate_rows(values[:, :, 0])
    assert np.mean((missed.low > 0) | (missed.high < 0)) > 0.25, "what the guard is for"
    for blocks in (12, 24):
        assert guards("autocorrelated", blocks, 40).count(False) >= 36


def test_the_guard_of_blocks_has_its_level_and_asks_for_six_blocks() -> None:
    rng = np.random.default_rng(7)
    common = rng.normal(0, 1, (400, 1, 9))  # what a block does to all steps alike
    found = [autocorrelation((c + rng.normal(0, 1, (12, 9))).tolist())[1] for c in common]
    assert np.mean(np.array(found) <= 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean(np.array(found) <= LEVEL) <= 0.015
    assert guards("normal", 5, 1) == [None]
    assert math.isnan(autocorrelation([[0.0] * 8])[0])
