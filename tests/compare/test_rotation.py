"""The order of a comparison's blocks: every study in turn, until the time is up, by its clock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgapps.compare import rotation
from pgapps.compare.rotation import FEWEST_ROUNDS, ComparedStudy, Rotation
from pgservers.errors import ServerDied, StudyError
from pgstudies.analysis.intervals import MOST_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW = [0.0]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is what the made-up studies take."""
    monkeypatch.setattr(rotation, "time", Mock(monotonic=lambda: NOW[0]))
    NOW[0] = 0.0


class MadeUp(ComparedStudy):
    """A study whose arms take so many seconds of a block, after so many to begin."""

    def __init__(self, name: str, arms: Mapping[str, float], *, begins_s: float = 0.0) -> None:
        super().__init__(name, Mock(), list(arms), list(arms))
        self.seconds = dict(arms)
        self.begins_s = begins_s
        self.number = 0
        self.dies_in = 0

    @property
    def done(self) -> int:
        return self.number

    @property
    def count(self) -> int:
        return 3 * len(self.known)

    def block(self) -> None:
        if not self.took:
            NOW[0] += self.begins_s
        if self.number + 1 == self.dies_in:
            raise ServerDied("The server went away.")
        self.number += 1
        self.took.append(sum(self.seconds.values()))
        NOW[0] += self.took[-1]

    def arm_of(self, unit: Any) -> str:
        return str(unit[0])

    def costs(self) -> dict[tuple[str, ...], float]:
        return {(arm,): seconds for arm, seconds in self.seconds.items()}

    def leave_out(self, names: Any) -> None:
        del self.seconds[names[0]]
        self.took = [sum(self.seconds.values())]


def rotated(
    *studies: MadeUp, ends_at: float = math.inf, blocks: int | None = None
) -> tuple[list[tuple[str, float]], list[str]]:
    """What was left out, and whose studies failed."""
    failures: list[str] = []
    found = Rotation(
        studies,
        blocks=blocks,
        ends_at=ends_at,
        enter=lambda _: None,
        failed=lambda name, _: failures.append(name),
        progress=Mock(),
    )
    found.first_round()
    gone = found.leave_out_arms()
    for done in found.rounds():
        assert {study.done for study in found.left} == {done}
    return gone, failures


def test_every_study_has_as_many_blocks_as_every_other_give_or_take_one() -> None:
    a, b, c = MadeUp("a", {"x": 1}), MadeUp("b", {"x": 5}), MadeUp("c", {"x": 2})
    assert rotated(a, b, c, ends_at=100) == ([], [])
    assert (a.done, b.done, c.done) == (13, 12, 13)
    assert NOW[0] <= 100


@given(
    st.lists(st.floats(0.1, 20), min_size=1, max_size=6),
    st.floats(0, 600),
    st.floats(0, 30),
)
def test_it_ends_in_time_with_blocks_that_differ_by_one_at_most(
    seconds: list[float], ends_at: float, begins_s: float
) -> None:
    NOW[0] = 0.0
    studies = [MadeUp(str(n), {"x": s}, begins_s=begins_s) for n, s in enumerate(seconds)]
    rotated(*studies, ends_at=ends_at)
    done = [study.done for study in studies]
    assert max(done) - min(done) <= 1
    once = sum(seconds) + begins_s * len(seconds)
    assert NOW[0] <= max(ends_at, once) * (1 + 1e-9)
    if ends_at > once and max(done) < MOST_BLOCKS:
        assert ends_at - NOW[0] < max(seconds) * (1 + 1e-9)


def test_so_many_blocks_of_each_take_what_they_take() -> None:
    a, b = MadeUp("a", {"x": 1}), MadeUp("b", {"x": 50})
    a.number = 4  # of an earlier run
    rotated(a, b, blocks=6)
    assert (a.done, b.done) == (6, 6)
    assert NOW[0] == 2 + 6 * 50
    c = MadeUp("c", {"x": 1})
    c.number = 7
    rotated(c, blocks=6)
    assert c.done == 7


def test_the_dearest_arms_are_left_out_until_twelve_blocks_fit() -> None:
    a = MadeUp("a", {"heap": 5, "tree": 1, "hash": 2})
    b = MadeUp("b", {"heap": 9})
    gone, _ = rotated(a, b, ends_at=17 + (FEWEST_ROUNDS - 1) * 12)
    assert gone == [("a, heap", 5)]
    assert (a.done, b.done) == (FEWEST_ROUNDS, FEWEST_ROUNDS)
    assert list(a.seconds) == ["tree", "hash"]


def test_a_study_keeps_an_arm_and_then_there_are_fewer_blocks() -> None:
    a, b = MadeUp("a", {"heap": 5, "tree": 2}), MadeUp("b", {"heap": 20})
    gone, _ = rotated(a, b, ends_at=27 + 3 * 22 + 1)
    assert gone == [("a, heap", 5)]
    assert (a.done, b.done) == (4, 4)


def test_what_there_is_time_for_is_not_left_out() -> None:
    a = MadeUp("a", {"heap": 5, "tree": 5})
    assert rotated(a, ends_at=FEWEST_ROUNDS * 10) == ([], [])
    assert a.done == FEWEST_ROUNDS


def test_a_study_that_fails_ends_alone() -> None:
    a, b, c = (MadeUp(name, {"x": 1}) for name in "abc")
    a.dies_in, c.dies_in = 3, 1
    assert rotated(a, b, c, blocks=5)[1] == ["c", "a"]
    assert (a.done, b.done, c.done) == (2, 5, 0)


def test_what_concerns_all_studies_ends_all() -> None:
    def failed(_: str, error: StudyError) -> None:
        raise error

    a = MadeUp("a", {"x": 1})
    a.dies_in = 1
    found = Rotation([a], blocks=1, ends_at=9, enter=lambda _: None, failed=failed, progress=Mock())
    with pytest.raises(ServerDied):
        found.first_round()
