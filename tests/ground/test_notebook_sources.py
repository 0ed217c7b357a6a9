"""Committed notebooks hold no outputs, but for the verdicts that a rerun is compared with."""

import json
from pathlib import Path

import pytest

from pgservers.paths import ROOT


@pytest.mark.parametrize(
    "notebook", sorted(ROOT.glob("notebooks/*/*.ipynb")), ids=lambda path: path.name
)
def test_outputs_are_stripped(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    left = [
        "".join(cell["source"])[:60]
        for cell in cells
        if cell["cell_type"] == "code"
        and "keep_output" not in cell["metadata"].get("tags", [])
        and (cell["outputs"] or cell["execution_count"] is not None)
    ]
    assert left == []
