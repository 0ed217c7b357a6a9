"""Studies of the user's own: that they are code is said before any of it is run."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

from pgapps.execution.run import run_study
from pgservers import paths
from pgstudies.rooms import study_module, tell_whose
from tests.made_up import copied_rooms

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two studies of the user's own."""
    rooms = copied_rooms(tmp_path, "swept", "well").resolve()
    monkeypatch.setattr(paths, "NOTEBOOKS", (rooms,))
    monkeypatch.setattr(paths, "OWN", rooms)
    monkeypatch.setattr(paths, "STUDIES", tmp_path / "studies")
    monkeypatch.setattr(paths, "BUILD", tmp_path / "_build")
    tell_whose.cache_clear()
    return rooms


def test_a_study_from_elsewhere_is_said_to_be_code_once_before_it_runs(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "swept" / "arms.py").write_text("import sys; print('runs', file=sys.stderr)\n")
    for _ in range(2):
        study_module("swept", "arms")
    assert capsys.readouterr().err.splitlines() == [
        f"pgstudies: swept is code from PGSTUDIES_NOTEBOOKS, {own}/swept: it runs with your "
        f"privileges.",
        "runs",
        "runs",
    ]
    run_study("well", terminal=io.StringIO())
    assert capsys.readouterr().err.startswith("pgstudies: well is code from PGSTUDIES_NOTEBOOKS")


def test_nothing_is_said_of_the_projects_studies_nor_again_in_a_kernel(
    own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_RUN_OPTIONS", json.dumps({"replies": "/replies"}))
    study_module("swept", "arms")
    monkeypatch.delenv("PGSTUDIES_RUN_OPTIONS")
    monkeypatch.setattr(paths, "OWN", own / "others")
    tell_whose.cache_clear()
    study_module("swept", "arms")
    assert capsys.readouterr().err == ""
