"""Executed notebooks: where one stopped and why, and what is taken out before it is kept."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from . import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Document = dict[str, Any]
"""A notebook as its JSON has it."""

HIDDEN = "********"
_MARKERS = "papermill-error-cell-tag"  # cells that papermill adds to a failed notebook
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def last_place(document: Document) -> str:
    """The cell that was being executed when the kernel ended, in words."""
    started = [
        index
        for index, cell in enumerate(document["cells"])
        if cell["cell_type"] == "code" and cell["metadata"].get("papermill", {}).get("start_time")
    ]
    return _place(document, started[-1]) if started else "its first cell"


def error_of(document: Document) -> BaseException | None:
    """The error a notebook stopped with, as an exception of this process, or None.

    One of ``pgstudies.errors`` keeps its class, and so does KeyboardInterrupt; any other is a
    NotebookError that begins with the cell.
    """
    found = next(
        (
            (index, output)
            for index, cell in enumerate(document["cells"])
            for output in cell.get("outputs", [])
            if output["output_type"] == "error"
        ),
        None,
    )
    if found is None:
        return None
    index, output = found
    name, sentence = output["ename"], " ".join(output["evalue"].split())
    if name == "KeyboardInterrupt":
        return KeyboardInterrupt()
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, errors.StudyError):
        return known(sentence)
    said = f"{name}: {sentence or _failing_line(output)}".rstrip(":. ")
    return errors.NotebookError(f"{_place(document, index)}: {said}")


def _place(document: Document, index: int) -> str:
    """A cell in words: its number, as Jupyter writes it beside the cell, and its heading."""
    number, heading = 0, ""
    for cell in document["cells"][: index + 1]:
        if _MARKERS in cell["metadata"].get("tags", []):
            continue
        lines = _text(cell["source"]).strip().splitlines()
        if cell["cell_type"] == "code":
            number += bool(lines)
        else:
            heading = next((x.strip("# ") for x in reversed(lines) if x.startswith("#")), heading)
    if heading:
        return f'cell {number}, under "{heading}"'
    first = _text(document["cells"][index]["source"]).strip().splitlines()[0]
    return f"cell {number}, `{first}`"


def _failing_line(output: Mapping[str, Any]) -> str:
    """The line an error without a message came from: a failed assertion says what it expected."""
    marked = re.findall(r"^-+> \d+ (.*)$", _COLOURS.sub("", _text(output["traceback"], "\n")), re.M)
    return str(marked[0]).strip() if marked else ""


def without_secrets(document: Document, server: str, password: str = "") -> Document:
    """The notebook with the server's address and password made unreadable wherever they occur.

    Nothing of ours writes them there; but what a notebook's own cells print, or an error of
    somebody's library quotes, would go into the book with it.
    """
    hide = _hider(server, password)
    return document | {"cells": [_changed(cell, hide) for cell in document["cells"]]}


def _hider(server: str, password: str) -> Callable[[str], str]:
    secrets = {password} - {""}
    if "://" in server:
        secrets.add(server)
        try:
            found = conninfo_to_dict(server)
        except ProgrammingError:
            found = {}
        secrets |= {str(found[key]) for key in ("password", "sslpassword") if found.get(key)}
    secrets |= {quote(secret, safe="") for secret in secrets}
    # A password such as "postgres" is a word of every page: it is hidden in an address only.
    telling = sorted((s for s in secrets if len(s) >= 8 and s != "postgres"), key=len, reverse=True)
    patterns = [re.escape(secret) for secret in telling]
    patterns += [rf"(?<=:){re.escape(secret)}(?=@)" for secret in secrets - set(telling)]
    patterns += [rf"(?<=password=){re.escape(secret)}" for secret in secrets - set(telling)]
    if not patterns:
        return lambda text: text
    return lambda text: re.sub("|".join(patterns), HIDDEN, text)


def _changed(value: Any, hide: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list):
        return [_changed(item, hide) for item in value]
    if isinstance(value, dict):
        return {key: _changed(item, hide) for key, item in value.items()}
    return value


def _text(source: str | list[str], between: str = "") -> str:
    return source if isinstance(source, str) else between.join(source)
