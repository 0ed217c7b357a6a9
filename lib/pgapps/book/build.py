"""Building the book: Jupyter Book with warnings as errors, and one sentence when it fails."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import yaml
from click import unstyle

from pgservers import paths
from pgservers.errors import NotebookError, StudyError
from pgservers.files import copy_tree
from pgservers.paths import HTML, ROOT, SITE
from pgservers.terminal import say
from pgstudies.rooms import contents, find_room, in_contents, rooms

from ..execution.run import read_studies
from ..scorecard.judging import keep
from .first_page import lead_on

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


COMMAND = "from jupyter_book.cli.main import main; main()"


def build(study: str | None = None) -> Path:
    """Build the book, or the page of one study alone, and return its front page.

    A study that has not been run shows its reference record, and is left out if it has none.
    Studies that ``_toc.yml`` does not name come last.  Jupyter Book's output is kept in book.log.
    Raises StudyError when Jupyter Book is not installed or there is no page, NotebookError when a
    page has a mistake.
    """
    if importlib.util.find_spec("jupyter_book") is None:
        raise StudyError(
            "Jupyter Book is not installed: it comes with the extra `book`, as in pip install "
            "'pgstudies[book]'."
        )
    if SITE != ROOT:
        _copy_pages()
    if study is not None:
        return _build_one(study)
    measured = [*rooms("study", "check", "counts")]
    lacking = [name for name in measured if not _page_of(name).exists()]
    replayed = _replayed(lacking)
    # Summaries show what was run last and the verdicts above, so they are always executed.
    summaries = dict.fromkeys(rooms("summary"))
    read_studies(summaries)
    present = [name for name in measured if name not in lacking or name in replayed]
    present += [name for name in rooms("workload") if _page_of(name).exists()]
    present += summaries
    # Jupyter Book writes into _build/html below the path of its output.
    _jupyter_book(_toc_of(present), HTML.parents[1], "-W", "-n", "--keep-going")
    front = HTML / "index.html"
    lead_on(front)
    return front


def _build_one(study: str) -> Path:
    """Build the page of one study, whose links to other pages lead nowhere; returns its path."""
    page = f"book/studies/{find_room(study).name}"
    if not _page_of(study).exists() and not _replayed([study]):
        raise StudyError(f"{study} has no page yet: `pgstudies run {study}` makes it.")
    output = HTML.parent / "page"
    _jupyter_book({"format": "jb-book", "root": page}, output)
    return output / "_build" / "html" / f"{page}.html"


def _replayed(lacking: Sequence[str]) -> list[str]:
    """The studies of these that have a reference record, which their pages then show."""
    replayed = [name for name in lacking if _has_reference(name)]
    for read in read_studies(dict.fromkeys(replayed, paths.REFERENCE_RECORDS)):
        keep(read)
    return replayed


def _jupyter_book(toc: Mapping[str, Any], output: Path, *options: str) -> None:
    """Have Jupyter Book write the pages of ``toc`` to _build/html below ``output``."""
    file, log = HTML.parent / "_toc.yml", HTML.parent / "book.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(dict(toc), sort_keys=False), encoding="utf-8")
    arguments = ["build", SITE, "--path-output", output, "--toc", file, *options, "-q"]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        cwd=SITE,
        env=os.environ | {"PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = unstyle(done.stdout + done.stderr)
    log.write_text(said, encoding="utf-8")
    if done.returncode != 0:
        raise NotebookError(f"The book was not built: {_first_complaint(said)} ({log} has more).")


def _copy_pages() -> None:
    """Copy the prose, and the rooms that pages link to, beside the pages of the user's studies."""
    SITE.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "_config.yml", SITE / "_config.yml")
    for directory in (ROOT / "book", *paths.NOTEBOOKS[::-1]):
        name = "book" if directory == ROOT / "book" else "notebooks"
        copy_tree(directory, SITE / name, "bench", "studies", "__pycache__", "_build", ".*")


def _has_reference(study: str) -> bool:
    """Whether a study that has not been run has a reference record; prints what that means."""
    found = any((paths.REFERENCE_RECORDS / study).glob("*/record.json"))
    if found:
        say(f"{study} has not been run: its page shows the reference record.")
    else:
        say(f"{study} has not been run and has no reference record: the book is built without it.")
    return found


def _page_of(study: str) -> Path:
    return paths.STUDIES / f"{study}.ipynb"


def _toc_of(present: Sequence[str]) -> dict[str, Any]:
    """The table of contents with exactly these studies, and without prose that does not exist.

    The pages of an application that was removed do not exist.
    """
    toc = contents()
    named = in_contents(toc)
    files = {f"book/{path.stem}" for path in paths.BOOK.glob("*.md")}
    files |= {f"book/studies/{study}" for study in present}
    for part in toc["parts"]:
        part["chapters"] = [c for c in part["chapters"] if c["file"] in files]
    more = [{"file": f"book/studies/{study}"} for study in present if study not in named]
    toc["parts"][0]["chapters"] += more
    return toc


def _first_complaint(output: str) -> str:
    """The first line of the log that names an error, with paths relative to the checkout."""
    lines = [line.strip().replace(f"{ROOT}/", "") for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("[IPKernelApp]")]  # warns of TCP, always
    complaints = [x for x in lines if re.search(r"WARNING|ERROR|SEVERE|Error\b|Exception", x)]
    return (complaints or lines[-1:] or ["it ended without a word"])[0].rstrip(".")
