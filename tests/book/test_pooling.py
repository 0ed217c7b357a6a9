"""Several runs of one study together: what a run's luck does to intervals, and to verdicts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgapps.scorecard.pooling import Runs, has_planned_blocks, luck
from pgservers import paths
from pgstudies.records.reading import alike_before
from tests.bench.runs import missed
from tests.made_up import SWEPT, swept_info, swept_record

if TYPE_CHECKING:
    from pathlib import Path


def run(ratio: float, error: float = 0.01) -> tuple[float, float, float]:
    """A ratio and its 95 % interval, whose standard error is ``error`` on the log scale."""
    return ratio, ratio * math.exp(-1.96 * error), ratio * math.exp(1.96 * error)


def test_one_run_misses_what_the_luck_of_runs_moves() -> None:
    share, _ = missed(7, 1, 0.015, 200)
    assert share > 0.2


@pytest.mark.parametrize("sigma", [0.0, 0.005, 0.01, 0.015, 0.03])
@pytest.mark.parametrize(("claims", "runs"), [(7, 2), (7, 4), (3, 4)])
def test_several_runs_together_keep_their_level(sigma: float, claims: int, runs: int) -> None:
    share, _ = missed(claims, runs, sigma, 300)
    # 900 to 2,100 intervals, those of one study dependent through their common variance.
    assert share <= 0.08


def test_runs_that_agree_narrow_the_interval() -> None:
    _, one = missed(7, 1, 0.0, 200)
    _, four = missed(7, 4, 0.0, 200)
    assert four < 0.65 * one


def test_one_claim_run_twice_can_say_almost_nothing() -> None:
    runs = Runs([run(1.0), run(1.1)])
    variance, freedom = luck([runs])
    assert freedom == 1
    found = runs.pooled(variance, freedom)
    assert found["low"] < 0.65
    assert found["high"] > 1.65


def test_without_a_second_run_there_is_no_luck_to_see() -> None:
    assert luck([Runs([run(1.2)]), Runs([run(3.0)])]) == (0.0, 0)


def test_a_claim_run_once_has_the_luck_of_the_others_in_its_interval() -> None:
    once, others = Runs([run(1.0)]), [Runs([run(1.0), run(1.2)]), Runs([run(2.0), run(2.3)])]
    variance, freedom = luck([once, *others])
    assert freedom == 2
    found = once.pooled(variance, freedom)
    assert math.log(found["high"]) > 4.3 * math.sqrt(variance)


def test_counts_that_every_run_repeats_have_no_width() -> None:
    runs = Runs([(2.0, 2.0, 2.0)] * 3)
    assert luck([runs]) == (0.0, 2)
    found = runs.pooled(0.0, 2)
    assert found["low"] == found["ratio"] == found["high"] == pytest.approx(2.0)


@settings(deadline=None)
@given(st.lists(st.floats(0.2, 5), min_size=2, max_size=5), st.integers(0, 4))
def test_the_order_of_runs_and_of_arms_changes_nothing(ratios: list[float], by: int) -> None:
    runs = [run(ratio, 0.005 * (n + 1)) for n, ratio in enumerate(ratios)]
    turned = [*runs[by % len(runs) :], *runs[: by % len(runs)]]
    exchanged = [(1 / ratio, 1 / high, 1 / low) for ratio, low, high in runs]
    found, same, inverse = (
        Runs(given).pooled(*luck([Runs(given)])) for given in (runs, turned, exchanged)
    )
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
