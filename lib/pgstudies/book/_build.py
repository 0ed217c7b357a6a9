"""Building the book: Jupyter Book with warnings as errors, and one sentence when it fails."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import yaml
from click import unstyle

from .. import paths
from ..errors import NotebookError, StudyError
from ..paths import HTML, ROOT
from ..studies import SUMMARIES
from ..studies.run import run_study
from ..terminal import say
from .judging import keep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


COMMAND = "from jupyter_book.cli.main import main; main()"


def build(html: Path = HTML) -> Path:
    """Build the book into the directory ``html`` and return its front page.

    ``html`` must end in ``_build/html``, because Jupyter Book will have it so; what it prints is
    kept in ``_build/book.log``.  A study that has not been run shows its reference record, and one
    that has none is left out.  The summaries, which measure nothing, are executed as well.  Raises
    StudyError when there is nothing to show or Jupyter Book is not installed, NotebookError when a
    page has a mistake.
    """
    if html.parts[-2:] != ("_build", "html"):
        raise StudyError(f"The book goes to a directory that ends in _build/html, not to {html}.")
    shown = studies_in_book(ROOT)
    left_out = [study for study in shown if study not in SUMMARIES and not _is_there(study)]
    if importlib.util.find_spec("jupyter_book") is None:
        raise StudyError("Jupyter Book is not installed: run `pip install --editable '.[book]'`.")
    for summary in SUMMARIES:
        if summary in shown:
            run_study(summary)  # anew each time: it rests on whatever was run last
    arguments = ["build", ROOT, "--path-output", html.parents[1], "-W", "-n", "--keep-going", "-q"]
    if left_out:
        arguments += ["--toc", _toc_without(left_out, html.parent)]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    output = unstyle(done.stdout + done.stderr)
    log = html.parent / "book.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(output, encoding="utf-8")
    if done.returncode != 0:
        raise NotebookError(f"The book was not built: {_first_complaint(output)} ({log} has more).")
    return html / "index.html"


def _is_there(study: str) -> bool:
    """Whether the study's page is there, if need be now made of its reference record."""
    if (paths.STUDIES / f"{study}.ipynb").exists():
        return True
    if not any((paths.REFERENCE_RECORDS / study).glob("*/record.json")):
        say(f"{study} has not been run and has no reference record: the book is built without it.")
        return False
    say(f"{study} has not been run: its page shows the reference record.")
    keep(run_study(study, replay=paths.REFERENCE_RECORDS))
    return True


def _toc_without(left_out: Sequence[str], directory: Path) -> Path:
    """A table of contents without these studies."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = {f"book/studies/{study}" for study in left_out}
    for part in toc["parts"]:
        part["chapters"] = [c for c in part["chapters"] if c.get("file") not in files]
    directory.mkdir(parents=True, exist_ok=True)
    shorter = directory / "_toc.yml"
    shorter.write_text(yaml.safe_dump(toc, sort_keys=False), encoding="utf-8")
    return shorter


def studies_in_book(root: Path) -> list[str]:
    """The studies and summaries that ``_toc.yml`` names, in its order."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    prefix = "book/studies/"
    return [file.removeprefix(prefix) for file in _files(toc) if file.startswith(prefix)]


def _files(node: object) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _files(item)
    elif isinstance(node, dict):
        if "file" in node:
            yield str(node["file"]).removesuffix(".ipynb")
        for value in node.values():
            yield from _files(value)


def _first_complaint(output: str) -> str:
    """The line that says what is wrong, with paths as seen from the checkout."""
    lines = [line.strip().replace(f"{ROOT}/", "") for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("[IPKernelApp]")]  # warns of TCP, always
    complaints = [x for x in lines if re.search(r"WARNING|ERROR|SEVERE|Error\b|Exception", x)]
    return (complaints or lines[-1:] or ["it ended without a word"])[0].rstrip(".")
