"""A notebook as it is committed: what its page hides is collapsed in JupyterLab as well.

``python -m pgapps.authoring.committed NOTEBOOK...`` brings notebooks into line, as ``make strip``
does after JupyterLab has saved them and nbstripout has taken their outputs out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pgservers.files import write_file

HIDDEN = frozenset({"hide-input", "remove-input", "remove-cell"})
"""Tags of cells whose code a page does not show at once."""


def as_committed(document: dict[str, Any]) -> dict[str, Any]:
    """The notebook with exactly those code cells collapsed that its tags hide.

    A cell that keeps its output has an execution count: nbval compares no other, and nbstripout
    takes it away.
    """
    return document | {"cells": [_cell(cell) for cell in document["cells"]]}


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    if cell["cell_type"] != "code":
        return cell
    metadata = dict(cell["metadata"])
    jupyter = {k: v for k, v in metadata.pop("jupyter", {}).items() if k != "source_hidden"}
    if HIDDEN.intersection(metadata.get("tags", ())):
        jupyter["source_hidden"] = True
    keeps = "keep_output" in metadata.get("tags", ()) and cell.get("outputs")
    count = {"execution_count": 1} if keeps and cell["execution_count"] is None else {}
    return cell | count | {"metadata": ({"jupyter": jupyter} if jupyter else {}) | metadata}


def main(names: list[str]) -> None:
    """Rewrite every notebook whose collapsed cells do not match their tags."""
    for name in names:
        document = json.loads(Path(name).read_text(encoding="utf-8"))
        if as_committed(document) != document:
            text = json.dumps(as_committed(document), indent=1, ensure_ascii=False)
            write_file(Path(name), f"{text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
