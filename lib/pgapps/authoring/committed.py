"""A notebook as it is committed: without what a run left, and collapsed where its page hides it.

``python -m pgapps.authoring.committed NOTEBOOK...`` brings notebooks into line, as ``make strip``
and ``pgstudies check STUDY --strip`` do after JupyterLab has saved them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pgservers.files import write_file

HIDDEN = frozenset({"hide-input", "remove-input", "remove-cell"})
"""Tags of cells whose code a page does not show at once."""

_OF_RUNS = {"collapsed", "execution", "ExecuteTime", "papermill", "scrolled", "trusted", "widgets"}
"""Metadata that running a notebook leaves in it."""


def as_committed(document: dict[str, Any]) -> dict[str, Any]:
    """The notebook without outputs, with exactly those code cells collapsed that its tags hide.

    A cell that keeps its output has an execution count: nbval compares no other.
    """
    about = {k: v for k, v in document.get("metadata", {}).items() if k not in _OF_RUNS}
    more = {"metadata": about} if "metadata" in document else {}
    return document | more | {"cells": [_cell(cell) for cell in document["cells"]]}


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    metadata = {k: v for k, v in cell["metadata"].items() if k not in _OF_RUNS}
    if cell["cell_type"] != "code":
        return cell | {"metadata": metadata}
    jupyter = {k: v for k, v in metadata.pop("jupyter", {}).items() if k != "source_hidden"}
    tags = metadata.get("tags", ())
    if HIDDEN.intersection(tags):
        jupyter["source_hidden"] = True
    keeps = "keep_output" in tags and cell["outputs"]
    ran = {"outputs": cell["outputs"] if keeps else [], "execution_count": 1 if keeps else None}
    return cell | ran | {"metadata": ({"jupyter": jupyter} if jupyter else {}) | metadata}


def main(names: list[str]) -> None:
    """Rewrite every notebook that is not as it is committed."""
    for name in names:
        document = json.loads(Path(name).read_text(encoding="utf-8"))
        if as_committed(document) != document:
            text = json.dumps(as_committed(document), indent=1, ensure_ascii=False)
            write_file(Path(name), f"{text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
