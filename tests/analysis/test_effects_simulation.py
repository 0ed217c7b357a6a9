"""Effects on simulated machines whose truth is known: false alarms, coverage, power.

The machine drifts (random walk, 1 % per run), every run has noise of its own (0.5 %), and two arms
run in each of 10 blocks, as often in one order as in the other. At 10 blocks the exact test has a
level of 4.88 %; 2,000 repetitions measure that to ±1 %. All seeds are fixed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from scipy.stats import ttest_ind

from pgstudies.analysis.effects import paired_effects
from pgstudies.analysis.families import permuted
from pgstudies.analysis.intervals import estimate_rows, smallest_detectable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

REPETITIONS = 2000
BLOCKS = 10
SPIKE = math.log(1.08)


def simulated_runs(
    rng: np.random.Generator, ratio: float, *, spikes: bool
) -> tuple[Numbers, NDArray[np.bool_]]:
    """ln(seconds) of each run, and whether the candidate ran: repetition × block × position."""
    shape = (REPETITIONS, BLOCKS, 2)
    machine = rng.normal(0, 0.01, shape).reshape(REPETITIONS, -1).cumsum(axis=1).reshape(shape)
    run = machine + rng.normal(0, 0.005, shape)
    if spikes:
        run += SPIKE * (rng.random(shape) < 0.1)
    orders = rng.permuted(np.tile([False, True], (REPETITIONS, BLOCKS // 2)), axis=1)
    is_candidate = np.stack([orders, ~orders], axis=2)
    return run + math.log(ratio) * is_candidate, is_candidate


def effects(rng: np.random.Generator, ratio: float, *, spikes: bool) -> pl.DataFrame:
    """The effect of each repetition, by the same way that a study takes."""
    run, is_candidate = simulated_runs(rng, ratio, spikes=spikes)
    repetition, block, position = np.indices(run.shape)
    values = pl.DataFrame(
        {
            "repetition": repetition.ravel(),
            "block": block.ravel() + 1,
            "position": position.ravel() + 1,
            "arm": np.where(is_candidate.ravel(), "candidate", "baseline"),
            "unit": "s",
            "value": np.exp(run.ravel()),
        }
    )
    found = paired_effects(values, baseline="baseline", by=("repetition",))
    assert found.height == REPETITIONS
    return found


def share(found: pl.DataFrame, condition: pl.Expr) -> float:
    return found.filter(condition).height / found.height


EXCLUDES_ONE = (pl.col("low") > 1) | (pl.col("high") < 1)


@pytest.mark.parametrize(("spikes", "seed"), [(False, 101), (True, 102)])
def test_false_alarms_are_as_rare_as_promised(spikes: bool, seed: int) -> None:
    found = effects(np.random.default_rng(seed), 1.0, spikes=spikes)
    assert 0.03 <= share(found, EXCLUDES_ONE) <= 0.07
    assert share(found, pl.col("verdict").is_in(["faster", "slower"])) <= 0.05


@pytest.mark.parametrize(("spikes", "seed"), [(False, 103), (True, 104)])
def test_the_interval_covers_the_true_ratio(spikes: bool, seed: int) -> None:
    found = effects(np.random.default_rng(seed), 1.02, spikes=spikes)
    covered = pl.lit(1.02).is_between("low", "high")
    assert 0.93 <= share(found, covered) <= 0.97
    assert found["ratio"].median() == pytest.approx(1.02, abs=0.001)


def test_pooled_samples_of_the_same_runs_would_cry_wolf() -> None:
    # The reason for blocks: the samples within a run share its luck, so 60 a run are not 600.
    rng = np.random.default_rng(105)
    run, is_candidate = simulated_runs(rng, 1.0, spikes=False)
    samples = run[..., np.newaxis] + rng.normal(0, 0.03, (*run.shape, 60))
    candidate = samples[is_candidate].reshape(REPETITIONS, -1)
    baseline = samples[~is_candidate].reshape(REPETITIONS, -1)
    pooled = ttest_ind(candidate, baseline, axis=1, equal_var=False).pvalue
    assert np.mean(pooled < 0.05) > 0.20


def test_unpaired_means_would_miss_what_pairs_see() -> None:
    rng = np.random.default_rng(106)
    run, is_candidate = simulated_runs(rng, 1.02, spikes=False)
    candidate = run[is_candidate].reshape(REPETITIONS, -1)
    baseline = run[~is_candidate].reshape(REPETITIONS, -1)
    unpaired = ttest_ind(candidate, baseline, axis=1, equal_var=False).pvalue
    paired = estimate_rows(candidate - baseline).p_value
    assert np.mean(paired <= 0.05) > 0.85
    assert np.mean(unpaired <= 0.05) < 0.70


@pytest.mark.parametrize(("blocks", "at_least"), [(6, 0.70), (7, 0.77), (10, 0.77), (25, 0.77)])
def test_the_detectable_change_is_detected_four_times_in_five(blocks: int, at_least: float) -> None:
    change = smallest_detectable(0.01, blocks)
    assert change is not None
    d = np.random.default_rng(blocks).normal(math.log1p(change), 0.01, (REPETITIONS, blocks))
    assert at_least <= np.mean(estimate_rows(d).p_value <= 0.05) <= 0.84


def test_the_blocks_still_needed_do_settle_it() -> None:
    rng = np.random.default_rng(107)

    def found(blocks: int) -> pl.DataFrame:
        d = rng.normal(0, 0.03, (400, blocks))
        repetition, block = np.indices(d.shape)
        long = {"repetition": repetition.ravel(), "block": block.ravel() + 1, "unit": "s"}
        baseline = pl.DataFrame(long | {"arm": "a", "value": np.ones(d.size)})
        candidate = pl.DataFrame(long | {"arm": "b", "value": np.exp(d.ravel())})
        values = pl.concat([baseline, candidate])
        return paired_effects(values, baseline="a", by=("repetition",))

    first = found(10)
    assert share(first, pl.col("verdict") == "inconclusive") > 0.8
    advised = first["blocks_needed"].median()
    assert isinstance(advised, float)
    assert 15 < advised < 60
    assert share(found(round(advised)), pl.col("verdict") == "equivalent") > 0.5


def test_diagnostics_stay_quiet_on_a_machine_that_merely_drifts() -> None:
    run, is_candidate = simulated_runs(np.random.default_rng(108), 1.0, spikes=False)
    d = np.where(is_candidate, run, -run).sum(axis=2)
    after = np.where(is_candidate[..., 1], 1.0, -1.0)
    block = np.arange(1.0, BLOCKS + 1)
    checked = range(600)
    # The walk goes on within the block, so a step of it sits in each order alike.
    for against in (np.tile(block, (600, 1)), after):
        found = [permuted([d[i]], [against[i]]).p_value[0] <= 0.05 for i in checked]
        assert np.mean(found) < 0.07
