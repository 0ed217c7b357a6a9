"""Two runs side by side: what differs between them is what was planted."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

from pgstudies.analysis.intervals import estimate_rows
from pgstudies.analysis.runs import runs_apart

if TYPE_CHECKING:
    from collections.abc import Sequence


def effects(
    draw: random.Random,
    ratios: Sequence[float],
    sd: float = 0.01,
    blocks: int = 8,
    metric: str = "cpu_s",
) -> pl.DataFrame:
    """What ``paired_effects`` says of candidates that take so many times as long."""
    d = np.log(ratios)[:, None] + [[draw.gauss(0, sd) for _ in range(blocks)] for _ in ratios]
    found = estimate_rows(d, 0.95)
    logs = {"ratio": found.centre, "low": found.low, "high": found.high}
    same = {"case": "", "step": "work", "metric": metric, "blocks": blocks, "margin": 0.02}
    return pl.DataFrame(
        {"candidate": [f"arm {number}" for number in range(len(ratios))], **logs}
    ).with_columns(
        pl.col(*logs).fill_nan(None).exp(),
        *(pl.lit(value).alias(name) for name, value in same.items()),
    )


def test_a_planted_difference_is_found_and_nothing_else() -> None:
    draw = random.Random(1)
    found = runs_apart(effects(draw, [2.0, 1.5, 1.0]), effects(draw, [2.0, 1.65, 1.0]))
    assert found["outcome"].to_list() == ["alike", "differs", "alike"]
    row = found.row(1, named=True)
    assert row["apart"] == pytest.approx(1.1, rel=0.02)
    assert row["apart_low"] < 1.1 < row["apart_high"]
    assert (row["ratio"], row["other_ratio"]) == pytest.approx((1.5, 1.65), rel=0.02)


def test_counts_that_differ_are_apart() -> None:
    draw = random.Random(2)
    pages = [effects(draw, [ratio], 0.0, metric="buffers") for ratio in (2.0, 2.1, 2.0)]
    found = [runs_apart(pages[0], other)["outcome"][0] for other in pages[1:]]
    assert found == ["differs", "alike"]


def test_one_disturbed_block_does_not_move_what_two_runs_are_apart() -> None:
    draw = random.Random(6)
    found = runs_apart(effects(draw, [2.0, 1.5]), effects(draw, [2.0, 1.5]))
    ratio = found["other_ratio"] / found["ratio"]
    assert found["apart"].to_list() == pytest.approx(ratio.to_list())


def test_equal_runs_seldom_differ_in_any_of_their_comparisons() -> None:
    draw = random.Random(3)
    runs = [[effects(draw, [1.0] * 5, 0.03) for _ in range(2)] for _ in range(200)]
    wrong = sum("differs" in runs_apart(*two)["outcome"] for two in runs)
    assert wrong <= 18  # 10 are expected at most; more than 18 come once in a hundred


def test_a_run_of_few_blocks_is_set_beside_without_an_outcome() -> None:
    draw = random.Random(4)
    found = runs_apart(effects(draw, [2.0], blocks=5), effects(draw, [2.1]))
    assert found["outcome"].to_list() == [None]
    assert found["apart_low"].to_list() == [None]
    assert found["apart"][0] == pytest.approx(1.05, rel=0.02)
    assert found["other_ratio"][0] == pytest.approx(2.1, rel=0.02)


def test_runs_without_a_comparison_in_common_have_no_rows() -> None:
    draw = random.Random(5)
    other = effects(draw, [2.0]).with_columns(candidate=pl.lit("another"))
    assert runs_apart(effects(draw, [2.0]), other).is_empty()
