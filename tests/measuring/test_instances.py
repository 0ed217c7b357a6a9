"""Prepared states that blocks leave each other: one user at a time, the latest used kept."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pytest

from pgservers.errors import SpaceError
from pgservers.servers.managed import ManagedServer
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.instances import KEPT_SHARE, Instances, PreparedStates
from pgstudies.records.samples import AMONG_OTHERS, SAMPLES_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

AT = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [(0, 1, 0, 1, AMONG_OTHERS, "plain", "", "fill", 0, "duration_s", 0.5, "s", AT)]
SIZE = 2**20


class Usage(NamedTuple):
    total: float
    used: float
    free: float


def leave_free(monkeypatch: pytest.MonkeyPatch, left: float) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, left))


def rows_of(arm: str) -> list[tuple[Any, ...]]:
    column = list(SAMPLES_SCHEMA).index("arm")
    return [(*row[:column], arm, *row[column + 1 :]) for row in ROWS]


class Holder(ManagedServer):
    """What hands over and adopts states as a managed server does, without a server."""

    def __init__(self, directory: Path, states: Sequence[str] = ()) -> None:
        self.spec = "embedded"
        self.directory = directory
        self.held_bytes = 0
        self._snapshots = directory
        self._states = {}
        directory.mkdir()
        for state in states:
            (directory / state).mkdir()
            (directory / state / "file").write_bytes(b"x" * SIZE)
            self._states[state] = (directory / state, SIZE)


@pytest.fixture
def kept(tmp_path: Path) -> PreparedStates:
    (tmp_path / "kept").mkdir()
    return PreparedStates(tmp_path / "kept", "mark")


def test_of_two_that_want_a_state_at_once_one_has_it_whole(
    tmp_path: Path, kept: PreparedStates
) -> None:
    arm = Arm("plain")
    kept.put(Holder(tmp_path / "first", ["plain"]), arm, ROWS)
    one, two = Holder(tmp_path / "one"), Holder(tmp_path / "two")
    assert kept.take(one, arm) == ROWS
    assert kept.take(two, arm) is None
    assert one.has("plain")
    assert one.state_bytes("plain") == SIZE
    assert not two.has("plain")
    # The second has prepared its own meanwhile, and both put theirs back.
    another = Holder(tmp_path / "another", ["plain"])
    kept.put(another, arm, ROWS)
    kept.put(one, arm, ROWS)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert kept.take(two, arm) == ROWS


@pytest.mark.parametrize(
    ("mark", "arm"),
    [
        ("another", Arm("plain")),
        ("mark", Arm("plain", state="wide")),
        ("mark", Arm("plain", server="16")),
    ],
)
def test_a_state_of_anything_else_is_not_used(
    tmp_path: Path, kept: PreparedStates, mark: str, arm: Arm
) -> None:
    kept.put(Holder(tmp_path / "a", ["plain"]), Arm("plain"), ROWS)
    assert PreparedStates(tmp_path / "kept", mark).take(Holder(tmp_path / "b"), arm) is None


def test_another_arm_that_starts_from_the_state_has_its_samples(
    tmp_path: Path, kept: PreparedStates
) -> None:
    """As when the arm that had prepared it is left out of what follows."""
    kept.put(Holder(tmp_path / "a", ["plain"]), Arm("left out", state="plain"), ROWS)
    taken = kept.take(Holder(tmp_path / "b"), Arm("stays", state="plain"))
    assert taken == rows_of("stays")


def test_what_was_used_longest_ago_goes_where_there_is_no_room_for_all(
    tmp_path: Path, kept: PreparedStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {name: Arm(name, state=name) for name in ("a", "b", "c")}

    def put(server: ManagedServer, name: str) -> None:
        kept.put(server, arms[name], ROWS)

    def disk(_: Any) -> Usage:
        """Two states are less than the share of it, three are more."""
        states = len(list((tmp_path / "kept").iterdir()))
        return Usage(0, 0, 2.5 * SIZE / KEPT_SHARE - states * SIZE)

    monkeypatch.setattr(shutil, "disk_usage", disk)
    made = Holder(tmp_path / "made", ["a", "b", "c"])
    put(made, "a")
    put(made, "b")
    user = Holder(tmp_path / "user")
    assert kept.take(user, arms["a"]) == rows_of("a")
    put(user, "a")
    put(made, "c")
    found = {name: kept.take(Holder(tmp_path / f"last-{name}"), arm) for name, arm in arms.items()}
    assert found == {"a": rows_of("a"), "b": None, "c": rows_of("c")}


def test_where_the_sweep_has_ended_nothing_is_kept_and_nobody_fails(tmp_path: Path) -> None:
    kept = PreparedStates(tmp_path / "gone", "mark")
    kept.put(Holder(tmp_path / "a", ["plain"]), Arm("plain"), ROWS)
    assert kept.take(Holder(tmp_path / "b"), Arm("plain")) is None
    assert not (tmp_path / "gone").exists()


class Stopped(Holder):
    """A stopped server with one state in common with the others, and a copy of it or none."""

    def another(self, *, own_programs: bool = False) -> Stopped:
        more = Stopped(self.directory / str(len(list(self.directory.iterdir()))))
        more._states = self._states
        more.programs = more if own_programs else self.programs
        return more

    @property
    def programs(self) -> Stopped:
        """The server whose programs it runs."""
        return self._run_from or self

    @programs.setter
    def programs(self, owner: Stopped) -> None:
        self._run_from = owner

    _run_from: Stopped | None = None
    closed: ClassVar[list[Stopped]] = []

    def close(self) -> None:
        self.closed.append(self)

    @property
    def data_directory(self) -> Path:
        return self.directory

    def memory_bytes(self, settings: Mapping[str, str] = {}) -> int:
        return 0 * len(settings)

    def clear(self) -> None:
        self.held_bytes = 0

    def copy(self, state: str) -> None:
        self.held_bytes = self.state_bytes(state)


ARMS = [
    Arm("plain", state="t"),
    Arm("plain (again)", state="t", copy_of="plain"),
    *(Arm(name, state="t") for name in ("one", "two", "three", "four")),
]

UNITS = (ARMS[:2], [[arm] for arm in ARMS[2:]])


def instances(tmp_path: Path, arms: Sequence[Arm] = ARMS) -> Instances:
    return Instances({None: Stopped(tmp_path / "root", ["t"])}, arms)


def of(these: Instances, arm: str) -> Stopped:
    found = these[arm]
    assert isinstance(found, Stopped)
    return found


def test_arms_share_a_copy_of_the_programs_and_their_second_copies_another(tmp_path: Path) -> None:
    names = {"a": None, "a2": "a", "b": None, "b2": "b"}
    arms = [Arm(name, own_programs=True, copy_of=first) for name, first in names.items()]
    with instances(tmp_path, arms) as these:
        programs = [of(these, name).programs for name in names]
        assert programs == [of(these, name) for name in ("a", "a2", "a", "a2")]
        assert len({*programs, *these.roots.values()}) == 3
        assert len({of(these, name) for name in names}) == 4
        Stopped.closed.clear()
    assert set(Stopped.closed[-2:]) == set(programs)


@pytest.mark.parametrize("held", [False, True])
def test_data_that_servers_hold_already_count_as_room_for_the_same_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """A disk of five copies and a little, of which four fifths may be taken: four at once."""
    these = instances(tmp_path)
    for arm in ARMS[: 3 * held]:
        of(these, arm.name).copy("t")
    left = (5.2 - 3 * held) * SIZE
    leave_free(monkeypatch, left)
    assert [[arm.name for arm in group] for group in these.groups(UNITS)] == [
        ["plain", "plain (again)", "one", "two"],
        ["plain", "plain (again)", "three", "four"],
    ]


def test_a_disk_that_does_not_hold_three_copies_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_free(monkeypatch, 2.5 * SIZE)
    with pytest.raises(SpaceError, match=r"needs 3\.1 MB .* of the 3 servers .* has 2\.6 MB free"):
        instances(tmp_path).groups(UNITS)


@pytest.mark.parametrize(("room", "left"), [(2.0, 6), (1.0, 3)])
def test_the_data_of_other_servers_go_where_the_disk_needs_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: float, left: int
) -> None:
    """Two groups of which the first has been measured, and the second wants one copy more."""
    these = instances(tmp_path)
    for arm in ARMS[:5]:
        of(these, arm.name).copy("t")
    leave_free(monkeypatch, room * SIZE)
    these.make_room([*ARMS[:2], ARMS[5]])
    of(these, ARMS[5].name).copy("t")
    assert sum(of(these, arm.name).held_bytes > 0 for arm in ARMS) == left


def test_before_a_state_of_unknown_size_more_data_go_than_are_left_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Arm("other", state="not yet")
    these = instances(tmp_path, [*ARMS, other])
    for arm in ARMS:
        of(these, arm.name).copy("t")
    leave_free(monkeypatch, 8 * SIZE)
    these.make_room([other])
    assert of(these, "one").held_bytes == SIZE
    leave_free(monkeypatch, 7 * SIZE)
    these.make_room([other])
    assert of(these, "one").held_bytes == 0
