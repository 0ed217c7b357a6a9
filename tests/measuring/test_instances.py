"""Prepared states that blocks leave each other: one user at a time, the latest used kept."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pgstudies.measuring._design import Arm
from pgstudies.measuring._instances import KEPT_SHARE, Kept
from pgstudies.servers import OwnedServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROWS = [
    (0, 1, 0, 1, "plain", "", "fill", 0, "duration_s", 0.5, "s", datetime(2026, 1, 1, tzinfo=UTC))
]
SIZE = 2**20


class Holder(OwnedServer):
    """What hands over and adopts states as an owned server does, without a server."""

    def __init__(self, directory: Path, states: Sequence[str] = ()) -> None:
        self.spec = "embedded"
        self._snapshots = directory
        self._states = {}
        directory.mkdir()
        for state in states:
            (directory / state).mkdir()
            (directory / state / "file").write_bytes(b"x" * SIZE)
            self._states[state] = (directory / state, SIZE)


def test_of_two_that_want_a_state_at_once_one_has_it_whole(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    kept = Kept(tmp_path / "kept", "mark")
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
        ("mark", Arm("other")),
        ("mark", Arm("plain", server="16")),
    ],
)
def test_a_state_of_anything_else_is_not_used(tmp_path: Path, mark: str, arm: Arm) -> None:
    (tmp_path / "kept").mkdir()
    Kept(tmp_path / "kept", "mark").put(Holder(tmp_path / "a", ["plain"]), Arm("plain"), ROWS)
    assert Kept(tmp_path / "kept", mark).take(Holder(tmp_path / "b"), arm) is None


def test_what_was_used_longest_ago_goes_where_there_is_no_room_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        total: float
        used: float
        free: float

    (tmp_path / "kept").mkdir()
    kept = Kept(tmp_path / "kept", "mark")
    arms = {name: Arm(name, state=name) for name in ("a", "b", "c")}

    def put(server: OwnedServer, name: str) -> None:
        kept.put(server, arms[name], ROWS)

    def disk(_: Any) -> Usage:
        """Two states are less than the share of it, three are more."""
        return Usage(
            0, 0, 2.5 * SIZE / KEPT_SHARE - len(list((tmp_path / "kept").iterdir())) * SIZE
        )

    monkeypatch.setattr(shutil, "disk_usage", disk)
    made = Holder(tmp_path / "made", ["a", "b", "c"])
    put(made, "a")
    put(made, "b")
    user = Holder(tmp_path / "user")
    assert kept.take(user, arms["a"]) == ROWS
    put(user, "a")
    put(made, "c")
    found = {name: kept.take(Holder(tmp_path / f"last-{name}"), arm) for name, arm in arms.items()}
    assert found == {"a": ROWS, "b": None, "c": ROWS}


def test_where_the_sweep_has_ended_nothing_is_kept_and_nobody_fails(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "gone", "mark")
    kept.put(Holder(tmp_path / "a", ["plain"]), Arm("plain"), ROWS)
    assert kept.take(Holder(tmp_path / "b"), Arm("plain")) is None
    assert not (tmp_path / "gone").exists()
