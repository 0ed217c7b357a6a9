"""Executed notebooks: where one stopped and why, the secrets hidden in it, its record."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import markupsafe
from click import unstyle

from pgservers import errors
from pgservers.errors import StudyError
from pgservers.paths import STUDIES
from pgstudies.records.reading import Record, read_record
from pgstudies.rooms import rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from papermill import PapermillExecutionError

    from pgservers.addresses import Address


Document = dict[str, Any]
"""A notebook's JSON."""

HIDDEN = "********"

_COMMON = {"password", "postgres", "pgstudies"}

_MARKER = "papermill-error-cell-tag"
"""The tag of cells that papermill adds to a failed notebook."""


def last_place(document: Document) -> str:
    """The cell during which the kernel ended, in words."""
    started = [
        index
        for index, cell in enumerate(_cells(document))
        if cell["cell_type"] == "code" and cell["metadata"].get("papermill", {}).get("start_time")
    ]
    return _place(document, started[-1]) if started else "its first cell"


def error_of(
    document: Document, stopped: PapermillExecutionError, hide: Callable[[Any], Any]
) -> BaseException:
    """The error a notebook stopped with, as an exception of this process, without secrets.

    An error of ``pgservers.errors`` and KeyboardInterrupt keep their class; any other becomes a
    NotebookError that begins with the cell.
    """
    name, sentence = stopped.ename, " ".join(hide(stopped.evalue).split())
    if name in {KeyboardInterrupt.__name__, errors.Interrupted.__name__}:
        return KeyboardInterrupt()
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, errors.StudyError):
        return known(sentence)
    message = f"{name}: {sentence or _failing_line(hide(stopped.traceback))}".rstrip(":. ")
    return errors.NotebookError(f"{_place(document, stopped.cell_index)}: {message}")


def _place(document: Document, index: int) -> str:
    """A cell in words: its number, as Jupyter writes it beside the cell, and its heading.

    ``index`` counts all cells but those that papermill adds to a failed notebook.
    """
    number, heading, lines = 0, "", [""]
    for cell in _cells(document)[: index + 1]:
        lines = "".join(cell["source"]).strip().splitlines()
        if cell["cell_type"] == "code":
            number += bool(lines)
        else:
            heading = next((x.strip("# ") for x in reversed(lines) if x.startswith("#")), heading)
    return f'cell {number}, under "{heading}"' if heading else f"cell {number}, `{lines[0]}`"


def _cells(document: Document) -> list[dict[str, Any]]:
    return [cell for cell in document["cells"] if _MARKER not in cell["metadata"].get("tags", [])]


def _failing_line(traceback: Iterable[str]) -> str:
    """The line that raised an error: all that is known of a failed assertion without a message."""
    plain = unstyle("\n".join(traceback))
    marked = re.search(r"^-+> \d+ (.*)$", plain, re.MULTILINE)
    return marked[1].strip() if marked else ""


def hiding(server: Address, password: str = "") -> Callable[[Any], Any]:
    """A function that hides a server's password and address in texts, also of lists and dicts.

    We write neither into a notebook, but the output of a cell or the error of a library could.
    """
    hidden = _hidden(server, password)

    def hide(value: Any) -> Any:
        if isinstance(value, str):
            return hidden.sub(HIDDEN, value)
        if isinstance(value, list):
            return [hide(item) for item in value]
        if isinstance(value, dict):
            return {key: hide(item) for key, item in value.items()}
        return value

    return hide


def without_secrets(document: Document, hide: Callable[[Any], Any]) -> Document:
    """The notebook, with what ``hide`` hides unreadable in every output."""
    cells = [
        cell | {"outputs": hide(cell["outputs"])} if "outputs" in cell else cell
        for cell in document["cells"]
    ]
    return document | {"cells": cells}


def _hidden(server: Address, password: str) -> re.Pattern[str]:
    """A pattern of all texts to hide, however they are spelled."""
    addresses = {server.text} if server.secrets else set()
    passwords = ({password} | server.secrets) - {""}
    spelled = {
        spelling
        for secret in passwords
        for spelling in (
            secret,
            quote(secret, safe=""),
            repr(secret)[1:-1],
            html.escape(secret),
            str(markupsafe.escape(secret)),  # as templates do, with another spelling of quotes
        )
    }
    # A short password, or a word of every page, is hidden only in the place of a password.
    words = {secret for secret in spelled if len(secret) < 8 or secret in _COMMON}
    patterns = [re.escape(secret) for secret in sorted(addresses | spelled - words, key=len)[::-1]]
    for word in map(re.escape, sorted(words)):
        patterns += [rf"(?<=:){word}(?=@)", rf"(?<=password=){word}", rf"(?<=password='){word}"]
    return re.compile("|".join(patterns) or r"(?!)")


@dataclass(frozen=True)
class StudyPage:
    """An executed notebook of the book; without a ``record``, ``reason`` says why."""

    study: str
    profile: str
    record: Record | None
    reason: str = ""


def book_runs(directory: Path = STUDIES) -> list[StudyPage]:
    """The executed studies in ``directory``, by name, each with its record."""
    summaries = rooms("summary")
    notebooks = sorted(directory.glob("[!._]*.ipynb"))
    return [_page(notebook) for notebook in notebooks if notebook.stem not in summaries]


def _page(notebook: Path) -> StudyPage:
    about = json.loads(notebook.read_text(encoding="utf-8"))["metadata"].get("pgstudies", {})
    page = partial(StudyPage, notebook.stem, about.get("profile", ""))
    if "record" not in about:
        return page(None, "made without `pgstudies run`")
    if not Path(about["record"]).exists():
        return page(None, "its record is not on this machine")
    try:
        return page(read_record(about["record"]))
    except StudyError as error:
        return page(None, str(error))
