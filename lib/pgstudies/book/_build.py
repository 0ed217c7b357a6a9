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

from ..errors import NotebookError, StudyError
from ..paths import HTML, ROOT
from ..studies import SUMMARIES
from ..studies.run import run_study

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


COMMAND = "from jupyter_book.cli.main import main; main()"


def build(html: Path = HTML) -> Path:
    """Build the book into the directory ``html`` and return its front page.

    ``html`` must end in ``_build/html``, because Jupyter Book will have it so; what it prints is
    kept in ``_build/book.log``.  The summaries, which measure nothing, are executed first.  Raises
    StudyError when a study has not been run or Jupyter Book is not installed, NotebookError when a
    page has a mistake.
    """
    if html.parts[-2:] != ("_build", "html"):
        raise StudyError(f"The book goes to a directory that ends in _build/html, not to {html}.")
    shown = studies_in_book(ROOT)
    measured = [study for study in shown if study not in SUMMARIES]
    missing = [study for study in measured if not _executed(ROOT, study).exists()]
    if missing:
        raise StudyError(
            f"The book shows {missing[0]}, which has not been run: "
            f"run `pgstudies run {missing[0]}`, then build the book again."
        )
    if importlib.util.find_spec("jupyter_book") is None:
        raise StudyError("Jupyter Book is not installed: run `pip install --editable '.[book]'`.")
    for summary in SUMMARIES:
        if summary in shown:
            run_study(summary)  # anew each time: it rests on whatever was run last
    arguments = ["build", ROOT, "--path-output", html.parents[1], "-W", "-n", "--keep-going", "-q"]
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


def _executed(root: Path, study: str) -> Path:
    return root / "book" / "studies" / f"{study}.ipynb"


def _first_complaint(output: str) -> str:
    """The line that says what is wrong, with paths as seen from the checkout."""
    lines = [line.strip().replace(f"{ROOT}/", "") for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("[IPKernelApp]")]  # warns of TCP, always
    complaints = [x for x in lines if re.search(r"WARNING|ERROR|SEVERE|Error\b|Exception", x)]
    return (complaints or lines[-1:] or ["it ended without a word"])[0].rstrip(".")
