"""Modules beside a notebook: found wherever it runs, and part of what a run is."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pgapps.scorecard.judging import digest_of
from pgservers import paths
from pgservers.errors import StudyError
from pgstudies.analysis.agreement import RULES_VERSION
from pgstudies.rooms import find_room, study_module
from tests.made_up import copied_rooms


def test_a_module_is_found_from_anywhere_and_a_missing_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    room = copied_rooms(tmp_path, "well") / "well"
    monkeypatch.setattr(paths, "NOTEBOOKS", (room.parent,))
    (room / "words.py").write_text("WORD = 'found'\n")
    assert study_module("well", "words").WORD == "found"
    (room / "more.py").write_text("from . import words\n")
    monkeypatch.delitem(sys.modules, "notebooks", raising=False)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if Path(place) != paths.ROOT])
    assert study_module("well", "more").words.WORD == "found"
    with pytest.raises(StudyError, match=r"^There is no module .*well/numbers.py\.$"):
        study_module("well", "numbers")


def test_verdicts_depend_on_the_modules_of_their_study_and_on_the_version_of_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = min((paths.REFERENCE_RECORDS / "sync_scans").glob("*/"))
    other = copied_rooms(tmp_path, "well")
    shutil.copytree(find_room("sync_scans").directory, other / "sync_scans")
    monkeypatch.setattr(paths, "NOTEBOOKS", (other,))
    before = digest_of("sync_scans", record)
    (other / "well" / "watch.py").write_text("")
    assert digest_of("sync_scans", record) == before
    (other / "sync_scans" / "watch.py").write_text("")
    changed = digest_of("sync_scans", record)
    assert changed != before
    monkeypatch.setattr("pgapps.scorecard.judging.RULES_VERSION", RULES_VERSION + 1)
    assert digest_of("sync_scans", record) != changed
