"""Several runs of one study together: what a run's luck does to intervals, and to verdicts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgapps.scorecard.pooling import LEAST, has_planned_blocks, luck, pooled
from pgservers import paths
from pgstudies.records.reading import alike_before
from tests.bench.runs import missed
from tests.made_up import SWEPT, swept_info, swept_record

if TYPE_CHECKING:
    from pathlib import Path


NOTHING_TWICE = np.array([[0.2, np.nan], [1.1, np.nan]])


def luck_of(*claims: list[float], error: float = 0.01) -> tuple[list[float], float]:
    """The luck of claims whose log ratios by each run are given."""
    ratios = np.array(claims)
    variances, freedom = luck(ratios, np.full(ratios.shape, error))
    return variances.tolist(), freedom


def test_one_run_misses_what_the_luck_of_runs_moves() -> None:
    assert missed(7, 1, 0.015, 200).alone > 0.2


@pytest.mark.parametrize("common", [0.0, 0.9])
@pytest.mark.parametrize("sigma", [0.0, 0.005, 0.01, 0.03, 0.1])
@pytest.mark.parametrize(("claims", "runs"), [(7, 2), (7, 4), (2, 3)])
def test_an_interval_keeps_its_level_by_several_runs_and_by_one(
    sigma: float, claims: int, runs: int, common: float
) -> None:
    found = missed(claims, runs, sigma, 300, common=common)
    # 600 to 2,100 intervals, those of one study dependent through their common variance.
    assert found.pooled <= 0.075
    assert found.widened <= 0.06


def test_runs_that_agree_narrow_the_interval() -> None:
    assert missed(7, 4, 0.0, 200).half < 0.75 * missed(7, 2, 0.0, 200).half


def test_one_claim_run_twice_can_say_almost_nothing() -> None:
    (variance,), freedom = luck_of([0.0, 0.1])
    assert freedom == pytest.approx(1)
    found = pooled([(0.0, 0.01), (0.1, 0.01)], variance, freedom)
    assert found["low"] < 0.65
    assert found["high"] > 1.65


def test_without_a_second_run_there_is_no_luck_to_see() -> None:
    variances, freedom = luck(NOTHING_TWICE, np.full((2, 2), 0.01))
    assert (variances.tolist(), freedom) == ([0.0, 0.0], 0.0)


def test_what_a_run_moves_in_all_claims_was_drawn_once() -> None:
    _, freedom = luck_of(*[[0.0, 0.1, 0.3]] * 5)
    assert freedom == pytest.approx(2)
    _, freedom = luck_of([0.1, -0.1, 0.0], [0.0, 0.1, -0.1], [-0.1, 0.0, 0.1])
    assert freedom == pytest.approx(4)


def test_a_claim_of_more_luck_than_its_kind_keeps_its_own() -> None:
    (quiet, loud), _ = luck_of([0.0, 0.01, 0.02], [0.0, 0.3, 0.6])
    assert loud == pytest.approx(0.09, rel=0.01)
    assert quiet == pytest.approx(0.045, rel=0.01)


def test_a_claim_run_once_has_the_luck_of_the_others_in_its_interval() -> None:
    ratios = np.log([[1.0, np.nan], [1.0, 1.2], [2.0, 2.3]])
    (variance, *_), freedom = luck(ratios, np.full((3, 2), 0.01))
    assert 1 <= freedom <= 2
    found = pooled([(0.0, 0.01)], variance, freedom)
    assert math.log(found["high"]) > 4.3 * math.sqrt(variance)


def test_counts_that_every_run_repeats_have_no_width() -> None:
    assert luck_of([0.7, 0.7, 0.7], error=LEAST) == ([0.0], 2.0)
    found = pooled([(math.log(2), LEAST)] * 3, 0.0, 2.0)
    assert found["low"] == found["ratio"] == found["high"] == pytest.approx(2.0)


@settings(deadline=None)
@given(st.lists(st.floats(-1.6, 1.6), min_size=2, max_size=5), st.integers(0, 4))
def test_the_order_of_runs_and_of_arms_changes_nothing(ratios: list[float], by: int) -> None:
    runs = [(ratio, 0.005 * (n + 1)) for n, ratio in enumerate(ratios)]
    turned = [*runs[by % len(runs) :], *runs[: by % len(runs)]]
    exchanged = [(-ratio, error) for ratio, error in runs]

    def of(given: list[tuple[float, float]]) -> dict[str, float]:
        y, errors = np.array(given).T
        (variance,), freedom = luck(y[None], errors[None])
        return pooled(given, variance, freedom)

    found, same, inverse = map(of, (runs, turned, exchanged))
    bounds = ("low", "ratio", "high")
    assert [same[name] for name in bounds] == pytest.approx([found[name] for name in bounds])
    assert [1 / inverse[name] for name in reversed(bounds)] == pytest.approx(
        [found[name] for name in bounds]
    )
    assert np.all(np.diff([found[name] for name in bounds]) >= 0)


@pytest.mark.parametrize(
    ("blocks", "seen", "judges"),
    [
        (6, ["a"], True),
        (12, ["a"], True),  # as many as it was said to need
        (5, ["a"], True),  # 17 in all, 12 of them done
        (2, ["a"], False),
        (2, [], True),  # nobody had looked
        (2, ["elsewhere"], True),
        (2, None, False),  # an older record: by the dates
    ],
)
def test_blocks_are_added_as_said_or_do_not_judge(
    blocks: int, seen: list[str] | None, *, judges: bool
) -> None:
    first: Any = {"blocks": 6, "started_at": "2026-01-01", "finished_at": "2026-01-02"}
    needs = pl.DataFrame({"blocks": [12, 6], "blocks_needed": [17, None]})
    later: Any = {"blocks": blocks, "started_at": "2026-01-03"}
    later |= {} if seen is None else {"seen": seen}
    assert has_planned_blocks(later, {"a": (first, needs)}) is judges


def test_a_run_knows_which_complete_runs_alike_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "own"))
    monkeypatch.setattr(paths, "REFERENCE_RECORDS", tmp_path / "reference")
    swept_record(tmp_path / "own" / "swept", "db1", name="own", blocks=6)
    swept_record(tmp_path / "reference" / "swept", "db2", name="reference", blocks=2)
    swept_record(tmp_path / "own" / "swept", "db1", name="stopped", status="interrupted")
    other = SWEPT | {"blocks": 6, "sizes": [9]}
    swept_record(tmp_path / "own" / "swept", "db1", name="larger", parameters=other)
    assert alike_before("swept", swept_info("db3", 4)) == ["own", "reference"]
