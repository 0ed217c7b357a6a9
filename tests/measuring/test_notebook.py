"""What a notebook asks before it measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import pgstudies as pg
from pgservers.errors import StudyError

if TYPE_CHECKING:
    from pathlib import Path


def test_nothing_is_fetched_to_analyse_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PGSTUDIES_REPLAY", "data/records")
    monkeypatch.setattr("pgstudies.measuring.measure.reason_no_release", lambda _: "no mvn")
    assert pg.reason_not_available("9.3") is None
    assert not (tmp_path / "cache").exists()
    monkeypatch.delenv("PGSTUDIES_REPLAY")
    assert pg.reason_not_available("9.3") == "no mvn"


@pytest.mark.parametrize("replay", ["", "data/records"])
def test_a_release_that_there_is_not_is_an_error(
    replay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_REPLAY", replay)
    with pytest.raises(StudyError, match=r"^There is no release '8\.4'; there are 9\.3, "):
        pg.reason_not_available("8.4")
