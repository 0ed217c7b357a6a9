"""A study that ``new-study`` writes: it runs and is judged, and ``check`` says what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import pgstudies as pg
from pgapps.authoring.new_study import keep_checked, new_study, problems
from pgapps.authoring.spoken import spoken
from pgservers import paths
from pgservers.errors import StudyError
from pgstudies.analysis.agreement import NO_SUCH, NOT_TESTED

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for studies of one's own."""
    directory = tmp_path / "mine"
    monkeypatch.setattr(paths, "NOTEBOOKS", (directory, paths.ROOT / "notebooks"))
    monkeypatch.setenv("PGSTUDIES_NOTEBOOKS", str(directory))
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    return directory


def run(own: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    left = ("PGSTUDIES_REPLAY", "PGSTUDIES_FRESH")
    environment = {name: value for name, value in os.environ.items() if name not in left}
    return subprocess.run(
        [sys.executable, "-m", "pgapps", *arguments],
        cwd=own.parent,
        env=environment | {"PGSTUDIES_SERVER": "embedded"},
        capture_output=True,
        text=True,
        check=False,
    )


def in_checkout() -> set[Path]:
    """Every file of the checkout that git knows, or would take."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {paths.ROOT / line for line in listed.stdout.splitlines()}


@pytest.mark.thorough
@pytest.mark.usefixtures("private", "on_disk")
def test_a_new_study_lives_in_a_directory_of_its_own(own: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in in_checkout() if file.exists()}
    written = run(own, "new-study", "half_full")
    assert written.returncode == 0, written.stderr
    assert "mine/half_full/half_full.ipynb" in written.stdout
    ran = run(own, "run", "half_full")
    assert ran.returncode == 0, ran.stderr
    page = own / "_build" / "site" / "book" / "studies" / "half_full.ipynb"
    assert "half-filled pages, about twice as many: yes" in page.read_text(encoding="utf-8")
    told = run(own, "scorecard", "--study", "half_full")
    assert "1 hold" in told.stdout, told.stderr
    notebook = own / "half_full" / "half_full.ipynb"
    edit(notebook, "about twice as many: yes", "?")
    checked = run(own, "check", "half_full", "--keep")
    assert checked.returncode == 1
    assert "about twice as many: yes" in notebook.read_text()
    assert "A sentence is still the template's" in checked.stdout
    assert "It was never run" not in checked.stdout
    edit(notebook.with_name("claims.toml"), 'candidate = "fillfactor', 'candidate = "fill')
    run(own, "run", "half_full", "-p", "seed=2")
    assert "that the claim 'size' compares" in run(own, "check", "half_full").stdout
    compared = run(own, "compare", "--candidate", "embedded", "--study", "half_full", *SHORT)
    assert compared.returncode == 2, compared.stderr  # one block decides nothing
    after = {file: file.stat().st_mtime_ns for file in in_checkout() if file.exists()}
    assert after == before


SHORT = ["--profile", "smallest", "--blocks", "1", "--no-instructions"]


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after), encoding="utf-8")


def rewritten(notebook: Path) -> Any:
    """The notebook with words of its own in place of the template's."""
    document = json.loads(notebook.read_text(encoding="utf-8"))
    for number, cell in enumerate(document["cells"]):
        if cell["cell_type"] == "markdown":
            heads = [x for x in "".join(cell["source"]).splitlines() if x.startswith("#")]
            text = f"See https://example.org for what is to be said, {number}. " + "Words. " * 25
            cell["source"] = "\n\n".join(x for head in heads or [""] for x in (head, text))
    return document


NOT_RUN = "It was never run to its end: `pgstudies run half_full` does."


def with_words_of_its_own(room: Path) -> None:
    """Replace what is the template's in the files beside the notebook."""
    for name, before, after in (
        ("published.toml", "The post's title", "Pages"),
        ("published.toml", "Its author", "N. N."),
        ("published.toml", "Made up", "Drawn"),
        ("published.toml", "https://example.org/post", "https://example.org/pages"),
        ("sizes.toml", "Its author, 2026", "N. N., 2020"),
        ("claims.toml", "A scan at", "Any scan at"),
        ("units.toml", "one row scanned", "a row scanned"),
    ):
        edit(room / name, before, after)


def test_a_new_study_has_its_own_name_in_all_its_files(own: Path) -> None:
    files = new_study("half_full")
    assert {file.parent for file in files} == {own / "half_full"}
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    assert "# Half full" in texts["half_full.ipynb"]
    assert [name for name, text in texts.items() if "_template" in text] == []


def test_what_a_study_lacks_is_said_in_a_sentence_each(own: Path) -> None:
    new_study("half_full")
    assert "A sentence is still the template's: " in "\n".join(problems("half_full"))
    notebook = own / "half_full" / "half_full.ipynb"
    document = rewritten(notebook)
    notebook.write_text(json.dumps(document), encoding="utf-8")
    theirs = "\n".join(problems("half_full"))
    assert "published.toml still has the title, author, url, note" in theirs
    assert "sizes.toml still has the template's post" in theirs
    assert "units.toml still has the template's unit" in theirs
    assert "The claim 'size' is the template's" in theirs
    with_words_of_its_own(notebook.parent)
    assert list(problems("half_full")) == [NOT_RUN]
    for cell in document["cells"]:
        cell["source"] = "".join(cell["source"]).replace("seed: int = 1  # for the order", "#")
        if cell["id"] == "verdict":
            cell["outputs"] = []
        if cell["id"] == "run":
            cell["execution_count"] = 3
        if cell["cell_type"] == "markdown":
            cell["source"] = cell["source"].replace("## Limits of", "## Notes on")
            cell["source"] += "\n- a list of 40\n  % and more"
    document["cells"].append({"cell_type": "markdown", "metadata": {}, "source": "## Nothing"})
    notebook.write_text(json.dumps(document), encoding="utf-8")
    (notebook.parent / "published.csv").write_text("arm,pages\nfillfactor 100,2\n")
    found = "\n".join(problems("half_full"))
    for what in (
        *("The parameter seed", "no output to compare a rerun with", "--strip"),
        *("A line begins with %", "'Nothing' is empty", "no section on its limits"),
        "published.csv is not the file whose sha256",
    ):
        assert what in found


def test_a_claim_that_no_run_has_a_row_for_is_named(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_study("half_full")
    told = "No run has a row that the claim 'size' compares"
    monkeypatch.setattr("pgstudies.records.verdicts.verdict_files", lambda _: [own])
    for verdict, is_missing in ((f"{NOT_TESTED}: {NO_SUCH}", True), ("holds", False)):
        found = pl.DataFrame({"claim": ["size"], "verdict": [verdict]})
        monkeypatch.setattr("pgstudies.records.verdicts.read_verdicts", lambda _, f=found: f)
        assert (told in "\n".join(problems("half_full"))) is is_missing


def test_what_checked_cells_printed_is_kept_and_nothing_else(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (notebook,) = (file for file in new_study("half_full") if file.suffix == ".ipynb")
    before = json.loads(notebook.read_text(encoding="utf-8"))
    executed = json.loads(notebook.read_text(encoding="utf-8"))
    printed = [{"output_type": "stream", "name": "stdout", "text": ["about as many: no\n"]}]
    for cell in executed["cells"]:
        cell["outputs"] = printed
    monkeypatch.setattr(paths, "STUDIES", tmp_path)
    (tmp_path / "half_full.ipynb").write_text(json.dumps(executed), encoding="utf-8")
    assert keep_checked("half_full") == notebook
    for cell in before["cells"]:
        if "nbval-check-output" in cell["metadata"].get("tags", []):
            cell["outputs"] = printed
    assert json.loads(notebook.read_text(encoding="utf-8")) == before
    assert own in notebook.parents


def test_what_a_referee_would_miss_is_said_in_a_sentence_each(own: Path) -> None:
    new_study("half_full")
    room = own / "half_full"
    notebook = room / "half_full.ipynb"
    with_words_of_its_own(room)
    document = rewritten(notebook)
    title, claimed, *_ = document["cells"]
    title["source"] = "# A title alone"
    claimed["source"] = claimed["source"].replace("https://example.org", "the post")
    notebook.write_text(json.dumps(document), encoding="utf-8")
    edit(notebook, "blocks: int = 6", "blocks: int = 4")
    sizes = (room / "sizes.toml").read_text()
    (room / "sizes.toml").write_text(sizes[: sizes.index("[standard]")])
    (room / "published.toml").unlink()
    wanted = ["'A title alone' is empty", "4 blocks", "There is no published.toml", "no link"]
    wanted += ["sizes.toml has no larger size", NOT_RUN]
    for what, found in zip(wanted, problems("half_full"), strict=True):
        assert what in found


def test_what_files_name_and_the_study_lacks_is_said(own: Path) -> None:
    new_study("half_full")
    room = own / "half_full"
    edit(room / "claims.toml", "the-post-s-claims", "what-they-claim")
    edit(room / "arms.py", "def arms()", "def arms(*, row: int)")
    place = '[["this server", "one scan", 0]]'
    with (room / "units.toml").open("a") as units:
        units.write(f'\n[[ratio]]\nid = "size"\nover = {place}\nunder = {place}\n')
    found = "\n".join(problems("half_full"))
    assert "arms.py asks for row, which is no parameter" in found
    assert "the anchor 'what-they-claim', which is no heading" in found
    assert "The ratio 'size' of units.toml has no unit 'one scan'" in found
    parameters = {"server": "", "rows": 1000, "blocks": 6, "seed": 1}
    with pytest.raises(StudyError, match="row, which is not among server, rows, blocks, seed"):
        pg.study("half_full", parameters).arms()


def test_what_a_run_or_the_book_would_refuse_is_said_by_the_check(own: Path) -> None:
    new_study("half_full")
    room = own / "half_full"
    edit(room / "sizes.toml", "[standard]", "[standard]\nrow = 3")
    (room / "page.py").write_text("def page(:\n")
    for before, after in (
        ('places={\\"half\\": 50}', "places={}"),
        ("# Half full", "Half full"),
        ("## The run", "#### The run"),
        ("study.about()", "study.about("),
    ):
        edit(room / "half_full.ipynb", before, after)
    found = "\n".join(problems("half_full"))
    for what in (
        *("standard: half_full has no parameter row", "page.py is no Python"),
        *("begins with 'study.about(' is no Python", "The claim 'size' has a place for half"),
        *("It does not begin with a title", "A heading leaves out a level"),
    ):
        assert what in found


def test_the_sentences_of_claims_are_said_with_numbers_before_there_are_any(own: Path) -> None:
    new_study("half_full")
    claims = own / "half_full" / "claims.toml"
    head = 'headlines = [{ claim = "size", text = "It was {published}, is {now_percent_more} %." }]'
    today = 'today = { about = "fillfactor", holds = "{ratio}", reversed = "{times_as_fast}" }'
    claims.write_text(f"{head}\n{claims.read_text()}{today}\n")
    assert list(spoken("half_full")) == [
        "holds: It was 2.00, is 100 %: holds.",
        "holds: 2.00",
        "reversed: 2.00",
    ]


@pytest.mark.parametrize("name", ["Half", "half-full", "../half", "", "half__full", "x" * 300])
def test_a_name_that_cannot_be_one_is_refused(own: Path, name: str) -> None:
    with pytest.raises(StudyError, match="cannot be a study's name"):
        new_study(name)
    assert not own.exists()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", ["hash_index", "scorecard"])
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    with pytest.raises(StudyError, match=f"There is a study {name} already"):
        new_study(name)


def test_a_study_that_cannot_be_written_leaves_nothing(own: Path) -> None:
    own.write_text("a file where the directory should be")
    with pytest.raises(StudyError, match=r"Cannot write to .*mine .*PGSTUDIES_NOTEBOOKS"):
        new_study("half_full")
    assert own.is_file()
