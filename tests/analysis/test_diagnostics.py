"""Diagnostics on blocks with a planted fault, and on blocks without one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

from book.bench.machines import GOOD, TWO_SPEEDS, after_others
from pgstudies.analysis.diagnostics import OTHERS, carried, checks, diagnose, drift, order_effect
from pgstudies.analysis.intervals import MINIMUM_BLOCKS

if TYPE_CHECKING:
    from book.bench.machines import Machine

BLOCKS = 10
# A candidate that runs second as often as first, in no regular order.
AFTER = np.array([1, -1, -1, 1, -1, 1, 1, -1, 1, -1])
COPY = "the other heap"
BLOCK = np.arange(1, BLOCKS + 1)
RNG = np.random.default_rng(7)
NOISE = np.random.default_rng(5).normal(0, 0.003, BLOCKS)


def run(d: np.ndarray, **arms: np.ndarray) -> pl.DataFrame:
    """Block values of a baseline of 1 s and candidates with these log-ratios."""
    frames = [
        pl.DataFrame(
            {
                "block": BLOCK[: d.size],
                "arm": arm,
                "unit": "s",
                "position": position[: d.size],
                "copy_of": "heap" if arm == COPY else None,
                "value": np.exp(log_ratio),
            }
        )
        for arm, position, log_ratio in [
            ("heap", np.full(BLOCKS, 2), np.zeros(d.size)),
            ("tree", 2 + AFTER, d),
            *((arm, 2 - AFTER, other) for arm, other in arms.items()),
        ]
    ]
    return pl.concat(frames, how="vertical_relaxed")


def test_nothing_is_said_of_a_run_in_order() -> None:
    found = diagnose(run(0.05 + NOISE, **{COPY: NOISE[::-1]}), baseline="heap", by=())
    assert found.is_empty()
    assert found.columns == ["candidate", "check", "blocks", "change", "p_family", "sentence"]


@pytest.mark.parametrize(
    ("values", "candidate", "check", "change", "said"),
    [
        (
            *(run(0.05 + 0.02 * AFTER + NOISE), "tree", "order"),
            *(pytest.approx(math.expm1(0.02), abs=0.003), "% higher"),
        ),
        (
            *(run(0.05 - 0.01 * BLOCK + NOISE), "tree", "drift"),
            *(pytest.approx(math.expm1(-0.09), abs=0.005), "% lower than it began"),
        ),
        (
            *(run(0.05 + NOISE, **{COPY: 0.03 + NOISE[::-1]}), COPY, "A/A"),
            *(pytest.approx(0.03, abs=0.003), "% higher"),
        ),
    ],
    ids=["order", "drift", "A/A"],
)
def test_what_is_planted_is_seen(
    values: pl.DataFrame, candidate: str, check: str, change: float, said: str
) -> None:
    found = diagnose(values, baseline="heap", by=())
    assert found.select("candidate", "check", "change").rows() == [(candidate, check, change)]
    assert said in found["sentence"].item()


def in_turns(settling: float, turns: int = 12, **columns: str) -> pl.DataFrame:
    """A candidate that reads 5 % higher in the end, and more at first, by e^(−turn/3)."""
    turn = np.arange(turns)
    ratio = 0.05 - settling * np.exp(-turn / 3)
    frames = [
        pl.DataFrame(
            {
                "block": int(block),
                "round": [f"3.0.{n}" for n in range(1, turns + 1)],
                "arm": arm,
                "unit": "s",
                "position": 1,
                "value": np.exp(values + RNG.normal(0, 0.002, turns)),
                **columns,
            }
        )
        for block in BLOCK
        for arm, values in (("heap", np.zeros(turns)), ("tree", ratio))
    ]
    return pl.concat(frames).sample(fraction=1, shuffle=True, seed=1)


def test_an_arm_that_still_warms_up_is_seen() -> None:
    found = diagnose(in_turns(-0.2), baseline="heap", by=())
    assert found["check"].to_list() == ["settling"]
    first, last = (np.median(0.2 * np.exp(-t / 3)) for t in (np.arange(4), np.arange(8, 12)))
    assert found["change"].item() == pytest.approx(math.expm1(last - first), abs=0.004)
    assert "% lower than that of its first" in found["sentence"].item()


def test_little_settling_or_few_turns_or_several_iterations_are_no_warning() -> None:
    assert diagnose(in_turns(-0.01), baseline="heap", by=()).is_empty()
    assert diagnose(in_turns(-0.2), baseline="heap", by=(), margin=0.2).is_empty()
    assert diagnose(in_turns(-0.2, turns=8), baseline="heap", by=()).is_empty()
    several = pl.col("round").str.replace(r"3\.0\.(\d+)$", "3.$1.1")
    iterations = in_turns(-0.2).with_columns(round=several)
    assert diagnose(iterations, baseline="heap", by=()).is_empty()


def test_many_comparisons_are_corrected_for() -> None:
    draws = np.random.default_rng(6).normal(0, 0.01, (60, BLOCKS))
    many = [run(d).with_columns(step=pl.lit(f"step {i}")) for i, d in enumerate(draws)]
    alone = [diagnose(one, baseline="heap", by=("step",)) for one in many]
    assert sum(found.height for found in alone) > 0
    assert diagnose(pl.concat(many), baseline="heap", by=("step",)).is_empty()


def test_a_check_says_what_its_blocks_could_have_shown() -> None:
    for blocks, expected in ((6, 2 / 2**6), (10, 2 / 2**10)):
        values = run(NOISE[:blocks], **{COPY: NOISE[::-1][:blocks]})
        looked = checks(values, baseline="heap", by=()).filter(check="A/A")
        assert looked["least"].to_list() == [expected]
    few = checks(run(NOISE[:6]), baseline="heap", by=()).filter(check="order")
    assert few["least"].item() == pytest.approx(2 / math.comb(6, 3), abs=0.03)


def test_few_blocks_and_missing_ratios_are_not_checked() -> None:
    d = 0.05 - 0.1 * BLOCK
    assert diagnose(run(d[:5]), baseline="heap", by=()).is_empty()
    zero = run(d).with_columns(
        value=pl.when(pl.col("block") == 3, pl.col("arm") == "tree").then(0.0).otherwise("value")
    )
    assert diagnose(zero, baseline="heap", by=()).is_empty()
    steps = [zero.with_columns(step=pl.lit("zero")), run(d).with_columns(step=pl.lit("faulty"))]
    found = diagnose(pl.concat(steps), baseline="heap", by=("step",))
    assert found["step"].to_list() == ["faulty"]


def test_counts_that_never_vary_show_nothing() -> None:
    assert drift(np.zeros(10), BLOCK.astype(float)) == 0
    assert order_effect(np.full(10, 0.3), AFTER.astype(float)) == 0
    assert order_effect(NOISE, np.ones(10)) == 0
    assert diagnose(run(np.full(10, 0.3)), baseline="heap", by=()).is_empty()


ARMS = ["baseline", "baseline (again)", "calm", "empties", "memory"]
ONE_EMPTIES = dict.fromkeys(ARMS, 0.0) | {"empties": 1.0}


def test_an_arm_that_suffers_alone_from_what_others_leave_behind_is_seen() -> None:
    costs = dict.fromkeys(ARMS[:2], 0.0) | {"candidate": 0.1}
    values = after_others(np.random.default_rng(1), GOOD, costs)
    found = diagnose(values, baseline="baseline", by=())
    assert found.select("candidate", "check").rows() == [("candidate", "carry-over")]
    # Of an arm's turns, somewhat fewer than a third follow its own.
    assert found["change"].item() == pytest.approx(math.expm1(0.1 * 0.75), abs=0.02)
    assert "one arm's turns suffer more from another arm's turn" in found["sentence"].item()
    assert diagnose(values, baseline="baseline", by=(), margin=0.2).is_empty()
    # Nothing is said of it where nobody knows whose turn was before.
    assert "carry-over" not in checks(values.drop("after"), baseline="baseline", by=())["check"]


@pytest.mark.parametrize("machine", [GOOD, TWO_SPEEDS])
def test_an_arm_that_empties_the_cache_is_named(machine: Machine) -> None:
    costs = dict.fromkeys(ARMS, 0.0) | {"memory": 0.4}
    values = after_others(np.random.default_rng(2), machine, costs, left=ONE_EMPTIES)
    found = diagnose(values, baseline="baseline", by=()).filter(check="carry-over")
    assert found["candidate"].to_list() == ["memory"]
    assert "from a turn of empties before them" in found["sentence"].item()


def test_what_all_arms_suffer_alike_is_no_carry_over_between_them() -> None:
    values = after_others(np.random.default_rng(3), GOOD, dict.fromkeys(ARMS, 0.2))
    assert diagnose(values, baseline="baseline", by=()).is_empty()


def test_what_is_carried_over_without_noise_is_found_exactly() -> None:
    machine = replace(GOOD, noise=0.0)
    costs = dict.fromkeys(ARMS, 0.05) | {"memory": 0.25}
    values = after_others(np.random.default_rng(5), machine, costs, rounds=30)
    found = carried(values, baseline="baseline").filter(candidate="memory", before=OTHERS)
    # By 0.2 more than the baseline's, after all turns but an arm's own.
    assert found.height >= MINIMUM_BLOCKS
    assert found["log_carried"].is_between(0.2 * 0.75, 0.2).all()
