"""Modules beside a notebook: found wherever it runs, part of what a run is, and right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import pgstudies as pg
from pgstudies import paths
from pgstudies.book.judging import digest_of
from pgstudies.errors import StudyError

if TYPE_CHECKING:
    from pathlib import Path

WATCH = pg.beside("sync_scans_watch")
REASONS = pg.beside("sync_scans_reasons")
BEGIN = datetime(2026, 11, 22, tzinfo=UTC)


def path_of(*blocks: int, after_s: float = 0) -> list[tuple[datetime, int]]:
    """A scan that is at these blocks, a second apart."""
    return [(BEGIN + timedelta(seconds=after_s + n), block) for n, block in enumerate(blocks)]


def test_a_module_is_found_from_anywhere_and_a_missing_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    (tmp_path / "my_study_words.py").write_text("WORD = 'found'\n")
    assert pg.beside("my_study_words").WORD == "found"
    with pytest.raises(StudyError, match=r"^There is no module .*my_study_numbers.py\.$"):
        pg.beside("my_study_numbers")


def test_verdicts_depend_on_the_modules_of_their_study_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = (paths.REFERENCE_RECORDS / "sync_scans").glob("*/")
    notebook = (paths.NOTEBOOKS / "sync_scans.ipynb").read_text(encoding="utf-8")
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    (tmp_path / "sync_scans.ipynb").write_text(notebook)
    without = digest_of("sync_scans", record)
    (tmp_path / "hash_index_watch.py").write_text("")
    assert digest_of("sync_scans", record) == without
    (tmp_path / "sync_scans_watch.py").write_text("")
    assert digest_of("sync_scans", record) != without


def test_a_distance_is_the_shorter_way_round_while_both_are_at_work() -> None:
    one = path_of(10, 20, 30, 40)
    assert WATCH.distances(one, path_of(15, 25, after_s=1), pages=100) == [-5, -5]
    assert WATCH.distances(one, path_of(95, 5, after_s=0), pages=100) == [-15, -15]
    assert WATCH.distances(one, path_of(1, after_s=60), pages=100) == []


def test_distances_are_recorded_as_a_median_the_most_and_the_share_that_is_near() -> None:
    told: dict[str, float] = {}

    def record(*what: Any, **_: Any) -> None:
        told[what[1]] = what[2]

    paths_of_two = [path_of(0, 100, 200, 300), path_of(0, 90, 100, 100)]
    WATCH.note_distances(SimpleNamespace(record=record), "walk", "slow", paths_of_two, pages=1000)
    assert told == {
        "began_at": 0,
        "began_ahead": 0,
        "apart": 55,
        "apart_most": 200,
        "together": 0.5,
    }


@pytest.mark.parametrize("lag", [0, 64, 1000])
def test_leader_and_follower_each_count_every_block_once(lag: int) -> None:
    counted: dict[str, list[int]] = {"leader": [], "follower": []}
    work = WATCH.leader_and_follower(
        lag, lambda session, begin, end: counted[session].extend(range(begin, end)), pages=640
    )
    work("leader", 0)
    work("follower", 1)
    assert counted["leader"] == list(range(640))
    assert sorted(counted["follower"]) == list(range(640))
    assert counted["follower"][0] == (640 - lag) % 640


def test_each_reason_speaks_where_its_condition_fails_and_is_silent_elsewhere() -> None:
    assert REASONS.no_chance(None, 1, 4) == "memory and disk could not be made small and slow here"
    assert "read only 1.5 tables" in REASONS.no_chance(1.5, 1, 4)
    assert "4 read 3.5 tables, 4.0 without" in REASONS.no_chance(4, 3.5, 4)
    assert REASONS.no_chance(4, 1.8, 4) is None
    assert REASONS.few(4, 0.25) == "not at this size: 4 scans gain at most 2.3 times"
    assert REASONS.few(8, 0.25) is None
    assert "8 MB ahead, and two such windows are 16 %" in REASONS.small(100 * 2**20, 8 * 2**20, 0.1)
    assert REASONS.small(400 * 2**20, 8 * 2**20, 0.1) is None
    assert (
        REASONS.parted(4, 2.5, 0.25) == "scans lost step here: 4 read 2.5 tables, 1.8 if none does"
    )
    assert REASONS.parted(4, 2.0, 0.25) is None
    wanted = "5 scans at a time may read 80 MB ahead, and an eighth of the table is 44 MB"
    assert wanted in REASONS.crowded(352 * 2**20, 8 * 2**20, 8, 0.25)
    assert REASONS.crowded(352 * 2**20, 2**20, 8, 0.25) is None
    assert REASONS.crowded(640 * 2**20, 8 * 2**20, 20, 0.25) is None
    assert REASONS.crowded(512 * 2**20, 8 * 2**20, 4, 0.25) is None
    took, half, read = pl.Series([1.0]), pl.Series([2.0]), pl.Series([1e6])
    assert "50 % of the time" in REASONS.no_cores(half, read, 1e6)
    assert REASONS.no_cores(took, read, 1e6) is None
    assert REASONS.no_cores(took.clear(), read.clear(), 1e6) is None
