"""Pages made of executed notebooks: the answer first, and what only a run needs left out.

A notebook answers at its end, because it has to measure first; a reader wants the answer first.
Tags on its cells say what goes where.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

    from ..studies.executed import Document


TOP = ("answer", "today", "finding")
"""Tags of cells that stand below the title, in this order."""


FOLDED = {
    "parameters": "remove-cell",  # a table of them, with what they mean, follows
    "injected-parameters": "remove-cell",
    "fold": "hide-output",
}
"""Tags of cells that only those who audit a run will read, and what MyST-NB is told of them."""


def page_of(document: Document) -> Document:
    """An executed notebook as its page shows it."""
    cells = [_folded(cell) for cell in document["cells"]]
    top = [cell for tag in TOP for cell in cells if tag in _tags(cell)]
    rest = [cell for cell in cells if not set(TOP) & set(_tags(cell))]
    return document | {"cells": [*rest[:1], *top, *rest[1:]]}


def _folded(cell: dict[str, Any]) -> dict[str, Any]:
    tags = _tags(cell)
    more = [FOLDED[tag] for tag in tags if tag in FOLDED]
    if set(TOP) & set(tags):
        more.append("remove-input")
        tags = [tag for tag in tags if tag != "hide-input"]
    return cell | {"metadata": cell["metadata"] | {"tags": [*tags, *more]}} if more else cell


def _tags(cell: dict[str, Any]) -> list[str]:
    return list(cell["metadata"].get("tags", []))


def answer_first(_app: Sphinx, page: str, source: list[str]) -> None:
    """Turn the source of a study's page into that page (a handler of Sphinx's source-read)."""
    if page.startswith("book/studies/"):
        source[0] = json.dumps(page_of(json.loads(source[0])), ensure_ascii=False)
