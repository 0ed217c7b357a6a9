"""The design of a run: its arms and copies, and the order in which they take turns."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgservers.errors import StudyError
from pgstudies.measuring.design import SIDES, Arm, Comparison, Side, planned, turn_order
from pgstudies.orders import Orders
from tests.made_up import info

ARMS = st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True)
PLAIN = [Arm("one"), Arm("two", state="other")]


@given(ARMS, st.integers(), st.integers(1, 50), st.integers(0, 200))
def test_every_turn_holds_every_arm_once_and_can_be_repeated(
    arms: list[str], seed: int, block: int, turn: int
) -> None:
    order = turn_order(arms, seed, block, turn)
    assert sorted(order) == sorted(arms)
    assert order == turn_order(arms, seed, block, turn)


def pairs_in(rounds: list[list[str]]) -> Counter[tuple[str, str]]:
    return Counter(pair for order in rounds for pair in itertools.pairwise(order))


@given(
    st.integers(1, 9),
    st.integers(),
    st.integers(1, 50),
    st.integers(0, 20),
)
def test_in_every_cycle_each_arm_comes_equally_often_before_each_other(
    count: int, seed: int, block: int, cycle: int
) -> None:
    arms = [str(number) for number in range(count)]
    length = count * (1 + count % 2)
    turns = range(1 + cycle * length, 1 + (cycle + 1) * length)
    rounds = [turn_order(arms, seed, block, turn) for turn in turns]
    assert pairs_in(rounds) == dict.fromkeys(itertools.permutations(arms, 2), 1 + count % 2)
    places = Counter((place, arm) for order in rounds for place, arm in enumerate(order))
    assert set(places.values()) == {1 + count % 2}


@given(st.integers(3, 8), st.integers(), st.integers(1, 30))
def test_arms_that_end_leave_the_others_balanced_from_the_next_cycle_on(
    count: int, seed: int, turn: int
) -> None:
    arms = [str(number) for number in range(count)]
    left = arms[: count - 1]
    length = len(left) * (1 + len(left) % 2)
    begin = turn + (1 - turn) % length  # of a cycle of those that are left
    rounds = [turn_order(left, seed, 1, at) for at in range(turn, begin + length)]
    assert all(sorted(order) == left for order in rounds)
    counts = pairs_in(rounds[-length:])
    assert set(counts.values()) == {1 + len(left) % 2}


def test_over_blocks_every_order_of_three_arms_occurs_as_often_as_by_chance() -> None:
    found = Counter(tuple(turn_order(["a", "b", "c"], 1, block, 4)) for block in range(1, 3001))
    assert len(found) == 6
    assert all(400 < count < 600 for count in found.values())


def test_over_many_turns_no_arm_comes_first_more_often_than_chance() -> None:
    first = Counter(turn_order(["a", "b", "c"], 1, 1, turn)[0] for turn in range(3000))
    assert all(900 < count < 1100 for count in first.values())


def test_a_run_has_all_blocks_and_one_copy_of_the_first_arm_that_can_run() -> None:
    design = planned("s", [Arm("known", not_run="why"), *PLAIN], 3, Orders()).served({})
    assert [arm.name for arm in design.arms] == ["known", "one", "one (again)", "two"]
    assert (design.study, design.blocks) == ("s", (1, 2, 3))
    assert design.needed == PLAIN[0]
    always, units = design.units(design.arms[1:])
    assert [arm.name for arm in always] == ["one", "one (again)"]
    assert units == [[PLAIN[1]]]


def test_an_arm_without_its_server_is_left_out_and_a_comparison_ends() -> None:
    errors: dict[str | None, StudyError] = {"18": StudyError("there is no 18")}
    arms = [*PLAIN, Arm("new", server="18")]
    assert planned("s", arms, 3, Orders()).served(errors).arms[-1].not_run == "there is no 18"
    comparison = Comparison(Side("14"), Side("18"))
    with pytest.raises(StudyError, match="there is no 18"):
        planned("s", PLAIN, 3, Orders(comparison=comparison.as_dict())).served(errors)


def test_an_arm_without_its_extension_is_left_out_on_all_sides() -> None:
    own = planned("s", PLAIN, 3, Orders()).served({}, {"one": "no headers"})
    assert [arm.not_run for arm in own.arms] == ["no headers", None, None]
    assert own.needed == PLAIN[1]
    orders = Orders(comparison=Comparison(Side("14"), Side("18")).as_dict())
    both = planned("s", PLAIN, 3, orders).served({}, {"one, candidate": "no headers"})
    left = [arm.name for arm in both.arms if arm.not_run == "no headers, on the candidate"]
    assert left == ["one, baseline", "one, baseline (again)", "one, candidate"]
    assert all(arm.not_run is None for arm in both.arms if arm.name not in left)


def test_one_block_of_a_sweep_is_the_same_design_with_one_block() -> None:
    alone, whole = (planned("s", PLAIN, 3, Orders(block=block)) for block in (2, 0))
    assert alone.arms == whole.arms
    assert alone.blocks == (2,)


def test_a_comparison_has_every_arm_on_both_sides_and_its_own_name() -> None:
    comparison = Comparison(Side("14"), Side("18", {"jit": "on"}), arms=("one",), seconds=60.0)
    orders = Orders(comparison=comparison.as_dict())
    design = planned("s", PLAIN, 3, orders).served({})
    names = ["one, baseline", "one, baseline (again)", "one, candidate"]
    assert [arm.name for arm in design.arms] == names
    assert [arm.server for arm in design.arms] == [None, None, "18"]
    assert design.arms[2].settings == {"jit": "on"}
    assert design.arms[1].copy_of == names[0]
    assert [arm.own_programs for arm in design.arms] == [False, True, False]
    assert (design.study, design.seconds) == ("compare_s", 60.0)
    assert design.completed(info("s"))["comparison"] == comparison.as_dict()
    assert design.units(design.arms) == ([], [list(design.arms)])
    assert [design.describe(arm)["side"] for arm in design.arms] == list(SIDES)
    assert design.fails_on(design.arms[2]) == "the candidate"


def test_where_only_settings_differ_all_sides_run_from_the_same_programs() -> None:
    comparison = Comparison(Side("18"), Side("18", {"jit": "on"}), arms=("one",))
    design = planned("s", PLAIN, 3, Orders(comparison=comparison.as_dict()))
    assert [arm.own_programs for arm in design.arms] == [False, False, False]


def test_a_comparison_of_unknown_arms_says_which_there_are() -> None:
    comparison = Comparison(Side("14"), Side("18"), arms=("three",))
    with pytest.raises(StudyError, match="no arm 'three' to compare; there is one, two"):
        planned("s", PLAIN, 3, Orders(comparison=comparison.as_dict()))
