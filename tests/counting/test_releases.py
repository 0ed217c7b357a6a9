"""The page of counts: measured, replayed from its record, and not run without valgrind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pgapps.counting.valgrind import reason_no_valgrind
from pgapps.execution.run import run_study
from pgservers.tools import installing
from pgstudies.records.counts import units_counted
from pgstudies.records.reading import read_record
from tests.servers_at_hand import skip_but_not_in_ci

pytestmark = pytest.mark.usefixtures("private")

SMALL = {"releases": [], "what": "one session started", "open_transactions": [20]}


def without_valgrind(directory: Path) -> str:
    """A PATH that has everything but valgrind, also for the servers' account."""
    directory.mkdir(mode=0o755)
    for place in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in place.iterdir() if place.is_dir() else []:
            link = directory / program.name
            if not program.name.startswith(("valgrind", "callgrind")) and not link.exists():
                link.symlink_to(program)
    assert shutil.which("valgrind", path=str(directory)) is None
    return str(directory)


@pytest.mark.thorough
def test_a_record_of_counts_is_replayed_where_nothing_can_be_counted(
    tmp_path: Path, run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = reason_no_valgrind()
    if reason:
        skip_but_not_in_ci(reason)
    monkeypatch.setenv("PGSTUDIES_CACHE", str(run_base / "counted"))
    first = run_study("releases", parameters=SMALL, output=tmp_path / "first.ipynb")
    assert first.record is not None
    counts = units_counted(read_record(first.record))
    assert set(counts.select("unit", "open").iter_rows()) == {
        ("one session started", 0),
        ("one session started", 20),
    }
    assert counts["arm"].n_unique() == 2  # with the second copy of the baseline

    monkeypatch.setenv("PATH", without_valgrind(run_base / "bin of replays"))
    page = tmp_path / "again.ipynb"
    again = run_study("releases", replay=first.record, output=page)
    assert again.record == first.record
    said = page.read_text(encoding="utf-8")
    assert "no two counts differ by 0.5 %: yes" in said
    assert "every unit that was counted executes something: yes" in said


@pytest.mark.thorough
def test_without_valgrind_the_page_says_so(
    tmp_path: Path, run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", without_valgrind(run_base / "bin of runs"))
    page = tmp_path / "page.ipynb"
    done = run_study("releases", parameters=SMALL, output=page)
    assert done.record is not None
    (reason,) = read_record(done.record).not_run["reason"].unique()
    assert reason.startswith(f"there is no valgrind on PATH ({installing('valgrind')}")
    assert "there is no valgrind on PATH" in page.read_text(encoding="utf-8")
