"""The front page while a run goes on: there at once, filled in, and leading to the report."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING

import polars as pl
import pytest

from pgapps.book.first_page import first_page, lead_on, place, settle_first_page, write_first_page
from pgapps.execution.durations import seconds_left
from pgservers.files import try_lock, write_file
from tests import made_up

if TYPE_CHECKING:
    from pathlib import Path

STUDIES = ["hash_index", "sync_scans"]


@pytest.fixture(autouse=True)
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The studies whose records of this machine each written page asks for."""
    found: list[list[str]] = []

    def scorecard(*, records: str, own: list[str]) -> pl.DataFrame:
        assert records == "reference"
        found.append([*own])
        return made_up.cards("hash_index").with_columns(reference=pl.lit(True))

    monkeypatch.setattr("pgapps.book.first_page.scorecard", scorecard)
    monkeypatch.setattr("pgservers.paths.BUILD", tmp_path / "_build")
    return found


def shown(page: str = "") -> str:
    text = page or place().read_text()
    return " ".join(re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL).split())


def test_the_page_is_there_before_the_first_study_and_filled_in_after_each(
    asked: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = []

    def written(path: Path, text: str) -> None:
        pages.append(text)
        write_file(path, text)

    monkeypatch.setattr("pgapps.book.first_page.write_file", written)
    clock = iter([1000.0, 1240.0])
    known = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("pgapps.book.first_page.time", known)
    with first_page(STUDIES) as finished:
        assert str(place()) in capsys.readouterr().err
        assert "hash_index, study 1 of 2." in shown()
        finished("hash_index")
    told = capsys.readouterr().err
    assert "1 of 2 studies have ended; the others take about 4 minutes on this machine." in told
    _, second, last = map(shown, pages)
    assert "sync_scans, study 2 of 2; about 4 minutes left on this machine" in second
    assert 'http-equiv="refresh"' in second
    assert last == shown()
    assert asked == [[], ["hash_index"], ["hash_index"]]
    assert "The run has ended after 1 of 2 studies." in shown()
    assert 'http-equiv="refresh"' not in shown()


def test_a_run_that_is_interrupted_leaves_no_page_that_waits() -> None:
    with pytest.raises(KeyboardInterrupt), first_page(STUDIES):
        raise KeyboardInterrupt
    assert 'http-equiv="refresh"' not in shown()


def test_the_page_of_a_killed_run_says_so_after_the_next_command(tmp_path: Path) -> None:
    write_first_page(STUDIES, ["hash_index"])
    going_on = shown()
    assert re.search(r"At 20..-..-.. ..:.. UTC process \d+ began to .*: sync_scans", going_on)
    lock = tmp_path / "_build" / "first-page.lock"
    descriptor = try_lock(lock)
    assert descriptor is not None
    settle_first_page()
    assert shown() == going_on
    os.close(descriptor)
    settle_first_page()
    assert not lock.exists()
    assert "The run was killed; <code>pgstudies run all</code> continues it." in shown()
    assert 'http-equiv="refresh"' not in shown()
    assert "began to measure" not in shown()
    assert shown().count("Which published claims still hold") == 1


def test_the_page_tells_the_time_left_asks_for_nothing_and_links_to_no_page() -> None:
    write_first_page(STUDIES, STUDIES[:1], left_s=180)
    assert "3 minutes left on this machine" in shown()
    assert not re.search(r'(?:href|src)="', shown())


def test_the_page_leads_to_the_report(tmp_path: Path) -> None:
    lead_on(tmp_path / "_build" / "html" / "index.html")
    assert not place().exists()  # there was no run
    write_first_page(STUDIES, [])
    lead_on(tmp_path / "_build" / "html" / "index.html")
    assert 'content="0; url=html/index.html"' in shown()


def test_the_time_left_is_corrected_by_how_much_slower_this_machine_is() -> None:
    studies = ["a", "b", "c"]
    assert seconds_left(studies, [], 0) is None
    assert seconds_left(studies, ["a"], 30) == 60  # taken to be alike
    expected = {"a": 10.0, "b": 40.0, "c": 20.0}
    assert seconds_left(studies, ["a"], 30, expected) == 180  # three times as slow
    assert seconds_left(studies, studies, 30, expected) == 0
