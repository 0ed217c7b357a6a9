"""The design of a run: its arms and copies, and the order in which they take turns."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import pgstudies
from pgservers.errors import StudyError
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.design import Design, turn_order

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


@given(st.integers(1, 9), st.integers(), st.integers(1, 50), st.integers(0, 20))
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


def designed(*arms: Arm) -> Design:
    return Design(study="s", arms=arms)


def test_a_run_has_one_copy_of_the_first_arm_that_can_run() -> None:
    design = designed(Arm("known", not_run="why"), *PLAIN).served({})
    assert [arm.name for arm in design.arms] == ["known", "one", "one (again)", "two"]
    assert design.needed == PLAIN[0]
    always, units = design.units(design.arms[1:])
    assert [arm.name for arm in always] == ["one", "one (again)"]
    assert units == [[PLAIN[1]]]


def test_arms_that_belong_together_are_in_one_group_and_each_is_left_out_by_itself() -> None:
    pair = [Arm(name, together="commits") for name in ("before", "after")]
    arms = [PLAIN[0], pair[0], PLAIN[1], pair[1]]
    design = designed(*arms)
    assert design.units(arms) == ([PLAIN[0]], [pair, [PLAIN[1]]])
    assert design.fall_with(pair[0]) == [pair[0]]


def test_an_arm_without_its_server_or_extension_is_left_out() -> None:
    errors: dict[str | None, StudyError] = {"18": StudyError("there is no 18")}
    arms = [*PLAIN, Arm("new", server="18")]
    assert designed(*arms).served(errors).arms[-1].not_run == "there is no 18"
    design = designed(*PLAIN).served({}, {"one": "no headers"})
    assert [arm.not_run for arm in design.arms] == ["no headers", None, None]
    assert design.needed == PLAIN[1]


def test_measuring_and_run_options_know_no_comparison() -> None:
    """But for ``not_compared``, which is the study's own, and a key of every record."""
    package = Path(pgstudies.__file__).parent
    files = [package / "run_options.py", *(package / "measuring").glob("*.py*")]
    words = re.compile(r"(?i)(?<!not_)compar|baseline.*candidate")
    found = [(f.name, line) for f in files for line in f.read_text().splitlines()
             if words.search(line)]  # fmt: skip
    assert found == []
