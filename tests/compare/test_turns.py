"""The turns of a block, from made-up variances and costs."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from pgapps.compare.plan import _NOTEBOOK_S, Forecast, fit, fit_lines, next_look
from pgapps.compare.turns import LEAST, Repeats, best, repeats_in, shares_of_steps

ARMS = ["heap, baseline", "heap, baseline (again)"]
TURNS = 20
SELECT_S, OTHER_S = 0.01, 0.8


def record(between_turns: float, between_blocks: float, blocks: int = 8) -> Any:
    """A comparison of cluster_order, in which a block of an arm has 20 selects and an insert."""
    rng = np.random.default_rng(7)
    now = datetime(2026, 11, 23, tzinfo=UTC)
    rows = []
    for block in range(1, blocks + 1):
        luck = dict(zip(ARMS, rng.normal(0, between_blocks, 2), strict=True))
        for turn in range(1, TURNS + 3):
            step, case = ("select_range", "any range") if turn <= TURNS else ("insert", "")
            for position, arm in enumerate(ARMS, start=1):
                now += timedelta(seconds=SELECT_S if turn <= TURNS else OTHER_S / 2)
                value = float(np.exp(luck[arm] + rng.normal(0, between_turns)))
                rows.append((block, 1, turn, position, arm, case, step, 0, value, now))
    columns = ["block", "group", "turn", "position", "arm", "case", "step", "iteration", "value"]
    measured = pl.DataFrame(rows, schema=[*columns, "started_at"], orient="row").with_columns(
        metric=pl.lit("duration_s"),
        unit=pl.lit("s"),
        copy_of=pl.when(pl.col("arm") == ARMS[1]).then(pl.lit(ARMS[0])),
    )
    info = {
        "study": "compare_cluster_order",
        "parameters": {"selects": 40},
        "not_compared": [],
        "arms": [
            {"name": ARMS[0], "copy_of": None, "not_run": None},
            {"name": ARMS[1], "copy_of": ARMS[0], "not_run": None},
        ],
    }
    return SimpleNamespace(info=info, measured=measured, blocks=blocks)


def found(*args: Any) -> Repeats:
    (repeats,) = repeats_in(record(*args), {ARMS[0]: "heap"})
    return repeats


def test_the_cost_of_turns_is_told_by_when_they_ended() -> None:
    repeats = found(0.1, 0.01)
    assert (repeats.parameter, repeats.value, repeats.turns) == ("selects", 40, TURNS)
    assert repeats.shares == {"heap": pytest.approx(0.2, abs=0.01)}
    # Twice the turns take a fifth of the arm's time more.
    assert repeats.more("heap", 80) == pytest.approx(0.2, abs=0.01)
    assert repeats.more("another", 80) == 0


def test_of_a_workload_the_turns_of_all_its_scripts_are_repeated() -> None:
    ran = record(0.1, 0.01)
    ran.info |= {"study": "compare_workload", "parameters": {"turns": TURNS}}
    ran.info["not_compared"] = ["insert"]
    (repeats,) = repeats_in(ran, {ARMS[0]: "heap"})
    assert (repeats.parameter, repeats.turns) == ("turns", TURNS)
    assert repeats.shares == {"heap": pytest.approx(0.2, abs=0.01)}
    assert repeats.at(0.0) == LEAST


def test_a_scripts_first_turns_are_a_part_of_what_it_takes() -> None:
    ran = record(0.1, 0.01)
    ran.info["not_compared"] = ["select_range"]  # as a first turn is, its script being the case
    shares = shares_of_steps(ran)
    assert shares == {
        "any range": pytest.approx(0.2, abs=0.01),
        "insert": pytest.approx(0.8, abs=0.01),
    }
    assert sum(shares.values()) == pytest.approx(1)


def test_arms_that_did_not_run_have_no_part_in_the_turns() -> None:
    ran = record(0.1, 0.1)
    lacking = record(0.1, 0.1)
    lacking.info["arms"] += [
        {"name": "patched, baseline", "copy_of": None, "not_run": "it needs release 18"},
        {"name": "patched, baseline (again)", "copy_of": "patched, baseline", "not_run": "as it"},
    ]
    arms = {ARMS[0]: "heap"}
    assert repeats_in(lacking, arms) == repeats_in(ran, arms)


def test_more_turns_where_they_differ_and_fewer_where_blocks_do() -> None:
    # The rest costs as much as 4 × 20 turns, and the turns are of one of two steps.
    assert found(0.1, 0.0).wanted > found(0.1, 0.04).wanted > LEAST
    assert found(0.1, 0.04).wanted == pytest.approx(best(4 * TURNS, 6.25, 0.5), abs=4)
    assert found(0.001, 0.1).wanted == LEAST


@pytest.mark.parametrize("part", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("turns_to_blocks", [0.5, 4.0, 20.0])
def test_no_other_number_of_turns_gives_all_steps_less_variance(
    part: float, turns_to_blocks: float
) -> None:
    rest = 55.0

    def variance(turns: float) -> float:
        return math.log(rest + turns) + part * math.log(1 + turns_to_blocks / turns)

    found = best(rest, turns_to_blocks, part)
    assert variance(found) < min(variance(0.9 * found), variance(1.1 * found))
    if part == 1:
        assert found == pytest.approx(math.sqrt(rest * turns_to_blocks)), "Kalibera and Jones"


def test_too_few_blocks_tell_no_variance() -> None:
    assert found(0.1, 0.0, 5).wanted == TURNS


def plan(wanted: int) -> Forecast:
    repeats = Repeats("selects", value=40, turns=20, shares={"heap": 0.5}, wanted=wanted)
    return Forecast("a", None, 0.0, {"heap": 10.0}, None, pl.DataFrame(), (repeats,))


def test_the_turns_are_cut_before_there_are_fewer_than_twelve_blocks() -> None:
    plenty = fit([plan(wanted=40)], 1000)
    assert plenty.parameters == {"a": {"selects": 80}}
    assert plenty.block_s == {"a": pytest.approx(15.0)}
    short = fit([plan(wanted=40)], 107)
    assert short.blocks == 12
    assert short.parameters["a"]["selects"] <= 40
    least = fit([plan(wanted=40)], 30)
    assert least.parameters == {"a": {"selects": 2 * LEAST}}
    assert "Turns in a block, by their cost and variance: a selects = 80." in list(
        fit_lines(plenty, [plan(wanted=40)], 17)
    )


def test_the_next_look_is_half_as_many_blocks_on_and_ends_with_the_time() -> None:
    fitted = fit([plan(wanted=20)], 1000)
    eight = next_look(fitted, ["a"], 1e6)
    assert eight is not None
    assert eight.blocks == fitted.blocks + fitted.blocks // 2
    last = next_look(fitted, ["a"], _NOTEBOOK_S + 2 * fitted.block_s["a"] + 1)
    assert last is not None
    assert last.blocks == fitted.blocks + 2
    assert next_look(fitted, ["a"], _NOTEBOOK_S + fitted.block_s["a"] - 1) is None
