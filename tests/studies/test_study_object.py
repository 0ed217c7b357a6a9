"""The study object of a notebook: its parameters, arms, record, effects and verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import pgstudies as pg
from pgservers import paths
from pgservers.errors import StudyError
from pgstudies.run_options import Replies
from tests import made_up

if TYPE_CHECKING:
    from pathlib import Path

GIVEN = {"server": "", "pause_s": 0.0, "twice": True, "sizes": [1, 2], "blocks": 6, "seed": 1}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "NOTEBOOKS", (made_up.copied_rooms(tmp_path, "swept"),))
    monkeypatch.setattr(paths, "REFERENCE_RECORDS", tmp_path / "reference")
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    return tmp_path


def replayed(place: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> pg.Study:
    """The study, with a record that was read in place of measuring."""
    record = made_up.swept_record(place / "records" / "swept", "db1", **how)
    monkeypatch.setenv("PGSTUDIES_REPLAY", str(record))
    study = pg.study("swept", dict(GIVEN))
    study.measure(lambda *_: None, lambda *_: None, settings={})
    return study


@pytest.mark.usefixtures("place")
def test_parameters_are_checked_and_may_not_change_before_measuring() -> None:
    namespace: dict[str, Any] = GIVEN | {"server": 17, "pause_s": "0.5"}
    study = pg.study("swept", namespace)
    assert (namespace["server"], namespace["pause_s"]) == ("17", 0.5)
    assert study.parameters.filter(parameter="twice")["value"].to_list() == ["true"]
    with pytest.raises(StudyError, match=r"between 0\.0 and 600\.0"):
        pg.study("swept", GIVEN | {"pause_s": 601})
    namespace["pause_s"] = 1.0
    with pytest.raises(StudyError, match=r"pause_s was changed: run the cells from pg\.study on"):
        study.measure(lambda *_: None, lambda *_: None, settings={})


def test_in_a_replay_the_arms_are_the_records(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = replayed(place, monkeypatch, arms=made_up.arms_of("one", "two", "/x/bin"))
    assert study.replays
    assert study.arms()["arm"].to_list() == ["one", "two", "/x/bin"]
    monkeypatch.delenv("PGSTUDIES_REPLAY")
    assert not study.replays
    assert study.arms()["arm"].to_list() == ["one", "two"]


@pytest.mark.usefixtures("place")
def test_before_measuring_arms_are_made_of_parameters_and_there_are_no_results() -> None:
    study = pg.study("swept", dict(GIVEN))
    assert study.arms()["arm"].to_list() == ["one", "two"]
    assert study._arms[1].options == {"rows": 2}
    study.arms(twice=False)
    assert study._arms[1].options == {"rows": 1}
    with pytest.raises(StudyError, match="Nothing is measured yet"):
        study.effects()
    with pytest.raises(StudyError, match="Nothing is judged yet"):
        study.answer()


def test_a_record_is_explored_in_frames(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = replayed(place, monkeypatch)
    assert study.samples.height == 12
    assert study.blocks()["value"].sum() == 6 * 1 + 6 * 2
    effect = study.effects().row(0, named=True)
    assert (effect["candidate"], effect["blocks"]) == ("two", 6)
    assert effect["ratio"] == pytest.approx(2.0)
    assert study.effects(baseline="two")["ratio"].to_list() == [pytest.approx(0.5)]
    with pytest.raises(StudyError, match="Nothing was measured of 'three': name another baseline"):
        study.effects(baseline="three")
    assert study.records()["path"].to_list() == [str(study.record.path)]


def test_verdicts_are_shown_and_handed_to_the_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replayed(place, monkeypatch)
    monkeypatch.setenv("PGSTUDIES_RUN_OPTIONS", f'{{"replies": "{place}"}}')
    asked = study.claims().row(0, named=True)
    assert (asked["claim"], asked["baseline"], asked["candidate"]) == ("twice", None, "two")
    shown = study.judge(study.effects(), conditions=lambda _: None)
    assert shown["verdict"].to_list() == ["holds"]
    told = Replies(place).verdicts
    assert told is not None
    assert told["claim"].to_list() == ["twice"]
    assert "Two are twice as many as one." in study.answer().data
    unmet = study.judge(study.effects(), conditions=lambda claim: f"no {claim.id}")
    assert unmet["verdict"].to_list() == ["not judged: no twice"]


def test_two_runs_are_set_side_by_side(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = made_up.swept_record(place / "records" / "swept", "db2", two=2.4, name="other")
    study = replayed(place, monkeypatch)
    for named in ("other", other, pg.read_record(other)):
        row = study.compare_with(named, metrics=["rows"]).row(0, named=True)
        assert (row["ratio"], row["other_ratio"]) == pytest.approx((2.0, 2.4))
        assert row["apart"] == pytest.approx(1.2)
        assert row["outcome"] == "differs"
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    host = next(line for line in lines if line.split()[:1] == ["host"])
    assert host.split()[1:] == ["db1", "db2"]
    with pytest.raises(StudyError, match="nowhere cannot be read"):
        study.compare_with(place / "nowhere")


def test_the_page_says_what_was_not_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = replayed(place, monkeypatch)
    assert "Everything was run." in study.summary(rows=2).data
    study.record.info["left_out"].append(
        {"arm": "two", "step": "count", "case": "", "reason": "no <disk>"}
    )
    assert "no &lt;disk&gt;" in study.summary().data
    assert "swept-samples.parquet" in study.about().data
