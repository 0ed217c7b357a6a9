"""The book of the reference records: each is analysed by its notebook, judged, and has its page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pgapps.book.build import COMMAND, build
from pgapps.execution.plan import studies
from pgapps.scorecard.judging import digest_of, judged, judged_by
from pgservers import paths
from pgstudies.analysis.claims import all_claims, origins
from pgstudies.records.reading import find_record
from pgstudies.records.verdicts import read_verdicts
from pgstudies.rooms import find_room
from tests.servers_at_hand import skip_but_not_in_ci
from tests.studies.test_measured import checked

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def replacing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip unless the book may be replaced."""
    if not request.config.getoption("--book"):
        pytest.skip("it would replace the book that was built last: give --book")
    for name in ("PGSTUDIES_SERVER", "PGSTUDIES_FRESH", "PGSTUDIES_REPLAY"):
        monkeypatch.delenv(name, raising=False)


REFERENCE = [s for s in studies() if any((paths.REFERENCE_RECORDS / s).glob("*/record.json"))]
JUDGED = [study for study in origins() if study in REFERENCE]


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.usefixtures("replacing")
@pytest.mark.parametrize("study", REFERENCE)
def test_a_reference_record_is_analysed_by_its_notebook(study: str) -> None:
    done = run("-m", "pgapps", "run", study, "--replay", str(paths.REFERENCE_RECORDS))
    assert done.returncode == 0, done.stderr
    page = paths.STUDIES / f"{study}.ipynb"
    assert checked(page) == checked(find_room(study).notebook)


@pytest.mark.parametrize("study", JUDGED)
def test_the_reference_record_is_judged_by_every_claim_of_the_file(study: str) -> None:
    """Each claim has a verdict; one that is not tested says why."""
    table = judged(find_record(study, paths.REFERENCE_RECORDS))
    assert table["claim"].to_list() == all_claims().filter(study=study)["claim"].to_list()
    assert not table["verdict"].str.contains("has no such comparison").any()


@pytest.mark.usefixtures("replacing")
@pytest.mark.parametrize("study", JUDGED)
def test_the_verdicts_beside_a_reference_record_are_those_of_its_notebook(study: str) -> None:
    record = find_record(study, paths.REFERENCE_RECORDS)
    kept = paths.JUDGED / study / f"{record.name}.json"
    assert judged_by(kept) == digest_of(study, record)
    assert read_verdicts(kept).drop("text").equals(judged(record).drop("text"))


@pytest.mark.usefixtures("replacing")
def test_the_book_is_built_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path))  # no records of the user's in it
    assert build().exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("replacing")
def test_a_study_of_ones_own_has_its_place_in_ones_own_book(tmp_path: Path) -> None:
    """The other pages are copied, so that their records are not replayed again."""
    front = paths.HTML / "index.html"
    if not front.exists():
        skip_but_not_in_ci("the book is not built: make test")
    own = tmp_path / "mine"
    shutil.copytree(paths.STUDIES, own / "_build" / "site" / "book" / "studies")
    before = front.stat().st_mtime_ns
    more = {"PGSTUDIES_NOTEBOOKS": str(own), "PGSTUDIES_RECORDS": str(tmp_path / "records")}
    for words in ("new-study half_full", "run half_full", "book half_full", "book"):
        done = run("-m", "pgapps", *words.split(), **more, PGSTUDIES_SERVER="embedded")
        assert done.returncode == 0, done.stderr
    alone = own / "_build" / "page" / "_build" / "html" / "book" / "studies" / "half_full.html"
    assert "A scan at fillfactor 50" in alone.read_text()
    assert done.stdout == f"{own / '_build' / 'html' / 'index.html'}\n"
    pages = own / "_build" / "html" / "book"
    assert "A scan at fillfactor 50" in (pages / "studies" / "half_full.html").read_text()
    assert "half_full.html" in (pages / "intro.html").read_text()
    assert "half-full pages: twice as many" in (pages / "intro.html").read_text()
    assert front.stat().st_mtime_ns == before


def test_jupyter_book_alone_names_the_pages_that_are_missing(tmp_path: Path) -> None:
    shutil.copy(paths.ROOT / "_config.yml", tmp_path)
    shutil.copy(paths.ROOT / "_toc.yml", tmp_path)
    shutil.copytree(
        paths.BOOK, tmp_path / "book", ignore=shutil.ignore_patterns("studies", "__pycache__")
    )
    done = run("-c", COMMAND, "build", str(tmp_path))
    assert done.returncode != 0
    assert "book/studies has no page of scorecard, cluster_order" in done.stdout + done.stderr
