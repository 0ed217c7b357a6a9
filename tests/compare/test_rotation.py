"""What a comparison measures and in which order: every study in turn, until the time is up."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgapps.compare import rotation, run
from pgapps.compare.design import Side
from pgapps.compare.request import Request
from pgapps.compare.rotation import FEWEST_ROUNDS, ComparedStudy, Rotation
from pgservers.errors import ServerDied, StudyError
from pgstudies.analysis.intervals import MOST_BLOCKS
from pgstudies.measuring.arms import Arm
from pgstudies.rooms import rooms

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

    def costs(self) -> dict[str, float]:
        return dict(self.seconds)

    def leave_out(self, arm: str) -> None:
        del self.seconds[arm]
        self.took = [sum(self.seconds.values())]


def rotated(
    *studies: MadeUp, ends_at: float = math.inf, blocks: int = MOST_BLOCKS
) -> tuple[list[tuple[str, float]], list[str]]:
    """What was left out, and whose studies failed."""
    failures: list[str] = []
    found = Rotation(
        list(studies), Mock(), lambda name, _: failures.append(name), Mock(), ends_at, blocks
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
    c, d = MadeUp("c", {"heap": 5, "tree": 2}), MadeUp("d", {"heap": 20})
    gone, _ = rotated(c, d, ends_at=NOW[0] + 27 + 3 * 22 + 1)
    assert gone == [("c, heap", 5)]
    assert (c.done, d.done) == (4, 4), "a study keeps an arm"
    e = MadeUp("e", {"heap": 5, "tree": 5})
    assert rotated(e, ends_at=NOW[0] + FEWEST_ROUNDS * 10) == ([], [])
    assert e.done == FEWEST_ROUNDS


def test_a_study_that_fails_ends_alone() -> None:
    a, b, c = (MadeUp(name, {"x": 1}) for name in "abc")
    a.dies_in, c.dies_in = 3, 1
    assert rotated(a, b, c, blocks=5)[1] == ["c", "a"]
    assert (a.done, b.done, c.done) == (2, 5, 0)


class Crashing:
    """A session whose block crashes a server as often as there are messages."""

    def __init__(self, *messages: str) -> None:
        self.messages = list(messages)
        self.arms = {"heap, candidate": Arm("heap, candidate")}
        self.design = Mock(fails_on=lambda _: "the candidate")
        self.finished: list[int] = []

    def begin(self) -> None:
        pass

    def block(self, number: int) -> None:
        if self.messages:
            died = ServerDied(self.messages.pop(0))
            died.arm, died.crashed = "heap, candidate", "crashed" in str(died)
            raise died
        self.finished.append(number)


def test_a_block_is_measured_again_without_what_crashed_a_server() -> None:
    study = ComparedStudy("shop", Mock(), ["heap"], ["heap"])
    study.session = Crashing("one.sql crashed", "two.sql crashed")  # type: ignore[assignment]
    study.block()
    assert study.crashes == [("candidate", "one.sql crashed"), ("candidate", "two.sql crashed")]
    assert study.done == 1
    for ends in ("one.sql crashed", "the network was cut"):
        study.session = Crashing(ends)  # type: ignore[assignment]
        with pytest.raises(ServerDied, match=ends):
            study.block()
    assert len(study.crashes) == 2


def test_what_concerns_all_studies_ends_all() -> None:
    def failed(_: str, error: StudyError) -> None:
        raise error

    a = MadeUp("a", {"x": 1})
    a.dies_in = 1
    with pytest.raises(ServerDied):
        Rotation([a], Mock(), failed, Mock()).first_round()


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [((), ["a: heap", "b: tree, hash"]), (("all",), ["a: heap, sorted", "b: tree, hash"]),
     (("sorted",), ["a: sorted", "b: not compared, has no such arm"]),
     (("hash", "heap"), ["a: heap", "b: hash"])],
)  # fmt: skip
def test_what_is_measured_and_until_when_is_told(
    asked: tuple[str, ...], chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {"a": [Arm("heap"), Arm("sorted"), Arm("other", server="9.6")]}
    arms["b"] = [Arm("tree"), Arm("hash")]
    rooms = {name: Mock(kind="study", about={}) for name in arms}
    rooms["a"].about["compare"] = ["heap", "of another size"]
    monkeypatch.setattr(run, "find_room", rooms.__getitem__)
    monkeypatch.setattr(run, "plan", lambda name, **_: name)
    monkeypatch.setattr(run, "measurement_of", lambda name: Mock(arms=arms[name]))
    request = Request(Side("embedded"), Side("17"), ("a", "b"), arms=asked)
    studies = [run._planned(name, request) for name in arms]
    told = [line.strip().partition(" (")[0] for line in run._intention(request, studies)]
    assert told[:2] == ["Baseline:  embedded", "Candidate: 17"]
    assert re.fullmatch(r"A block of each study in turn, until \d\d:\d\d:\d\d:", told[2])
    assert told[3:] == chosen
    wrong = Request(Side("embedded"), Side("17"), ("a", "b"), arms=("heap", "haep"))
    with pytest.raises(StudyError, match="no arm 'haep' to compare; there is a: heap"):
        list(run._intention(wrong, studies))


@pytest.mark.parametrize("study", [*rooms("study")])
def test_the_arms_of_a_default_comparison_are_among_those_of_the_study(study: str) -> None:
    chosen = run._planned(study, Request(Side("embedded"), Side("17"), (study,)))
    assert set(chosen.arms) == set(rooms()[study].about["compare"])
    assert chosen.what.parameters["server"] == ""


BUILD, SETTINGS = Side("/home/me/patched"), Side("embedded", {"jit": "on"})


@pytest.mark.parametrize(
    ("candidate", "asked", "seconds"),
    [
        (BUILD, {}, [120.0]),
        (BUILD, {"minutes": 20.0}, [240.0]),
        (BUILD, {"blocks": 9}, [120.0]),
        (BUILD, {"instructions": True}, [300.0]),
        (BUILD, {"instructions": True, "blocks": 9}, [math.inf]),
        (BUILD, {"instructions": False}, []),
        (SETTINGS, {}, []),
        (SETTINGS, {"instructions": True}, [300.0]),
        (Side("postgresql://me@db/test"), {}, []),
    ],
)
def test_instructions_are_counted_where_programs_differ_or_it_is_asked_for(
    candidate: Side,
    asked: dict[str, Any],
    seconds: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent: list[float] = []
    monkeypatch.setattr(run, "counted", lambda *_, seconds: spent.append(seconds))
    monkeypatch.setattr(run, "reason_no_valgrind", lambda: None)
    request = Request(Side("embedded"), candidate, ("made_up",), **asked)
    run._counts(request, print, print)
    assert spent == pytest.approx(seconds, abs=1)
    spent.clear()
    monkeypatch.setattr(run, "reason_no_valgrind", lambda: "there is no valgrind")
    run._counts(request, print, print)
    assert spent == pytest.approx(seconds if asked.get("instructions") else [], abs=1)


def test_what_cannot_be_counted_ends_a_comparison_only_where_counts_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StudyError("One script fails.")

    monkeypatch.setattr(run, "counted", fail)
    monkeypatch.setattr(run, "reason_no_valgrind", lambda: None)
    request = partial(Request, Side("embedded"), BUILD, ("made_up",))
    told: list[str] = []
    assert run._counts(request(), print, told.append) is None
    assert told == ["No instructions are counted: One script fails."]
    with pytest.raises(StudyError, match="One script fails"):
        run._counts(request(instructions=True), print, told.append)
