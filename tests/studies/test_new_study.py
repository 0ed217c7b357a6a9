"""A study that one command writes: it runs, is judged, and is told what it lacks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pgstudies import paths
from pgstudies.errors import StudyError
from pgstudies.studies._plan import studies
from pgstudies.studies.new_study import new_study, problems

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what a study is made of, without the records."""
    left = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in ("lib", "notebooks", "data/published"):
        shutil.copytree(paths.ROOT / part, tmp_path / part, ignore=left)
    for file in (paths.ROOT / "data").glob("*.toml"):
        shutil.copy(file, tmp_path / "data")
    shutil.copy(paths.ROOT / "_toc.yml", tmp_path)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(paths, "PUBLISHED", tmp_path / "data" / "published")
    monkeypatch.setattr(paths, "CLAIMS", tmp_path / "data" / "claims.toml")
    return tmp_path


def run(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    left = ("PGSTUDIES_NOTEBOOKS", "PGSTUDIES_REPLAY", "PGSTUDIES_FRESH")
    environment = {name: value for name, value in os.environ.items() if name not in left}
    return subprocess.run(
        [sys.executable, "-m", "pgstudies", *arguments],
        cwd=checkout,
        env=environment | {"PYTHONPATH": str(checkout / "lib"), "PGSTUDIES_SERVER": "embedded"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.usefixtures("private", "on_disk")
def test_a_new_study_runs_at_once_and_its_claim_is_judged(checkout: Path) -> None:
    written = run(checkout, "new-study", "half_full")
    assert written.returncode == 0, written.stderr
    assert "notebooks/half_full.ipynb" in written.stdout
    ran = run(checkout, "run", "half_full")
    assert ran.returncode == 0, ran.stderr
    page = (checkout / "book" / "studies" / "half_full.ipynb").read_text(encoding="utf-8")
    assert "half-filled pages, about twice as many: yes" in page
    told = run(checkout, "scorecard", "--study", "half_full")
    assert "1 hold" in told.stdout, told.stderr
    checked = run(checkout, "check", "half_full")
    assert (checked.returncode, checked.stdout) == (0, "half_full is whole.\n")


def test_what_a_study_lacks_is_said_in_a_sentence_each(checkout: Path) -> None:
    new_study("half_full")
    assert list(problems("half_full")) == []
    notebook = checkout / "notebooks" / "half_full.ipynb"
    document = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in document["cells"]:
        cell["source"] = "".join(cell["source"]).replace("seed: int = 1  # for the order", "#")
        if cell["id"] == "verdict":
            cell["outputs"] = []
        if cell["id"] == "run":
            cell["execution_count"] = 3
        if cell["cell_type"] == "markdown":
            cell["source"] += "\n- a list of 40\n  % and more"
    notebook.write_text(json.dumps(document), encoding="utf-8")
    toc = checkout / "_toc.yml"
    toc.write_text(toc.read_text().replace("      - file: book/studies/half_full\n", ""))
    found = "\n".join(problems("half_full"))
    assert "The parameter seed, which every study has, is missing." in found
    assert "no output to compare a rerun with" in found
    assert "`make strip` takes them out" in found
    assert "add `- file: book/studies/half_full`" in found
    assert "A line of cell 1 begins with %" in found


@pytest.mark.parametrize("study", studies())
def test_every_study_of_the_book_is_whole(study: str) -> None:
    assert list(problems(study)) == []


@pytest.mark.parametrize("name", ["Half", "half-full", "../half", "", "half__full"])
def test_a_name_that_cannot_be_one_is_refused(checkout: Path, name: str) -> None:
    before = (checkout / "data" / "claims.toml").read_text(encoding="utf-8")
    with pytest.raises(StudyError, match="cannot be a study's name"):
        new_study(name)
    assert (checkout / "data" / "claims.toml").read_text(encoding="utf-8") == before


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("name", ["hash_index", "scorecard"])
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    with pytest.raises(StudyError, match=f"There is a study {name} already"):
        new_study(name)


def test_an_unknown_study_is_named() -> None:
    with pytest.raises(StudyError, match="There is no study absent"):
        list(problems("absent"))
