"""Committed notebooks hold no outputs, but for the verdicts that a rerun is compared with."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pgapps.authoring.committed import as_committed, main
from pgservers.paths import ROOT

NOTEBOOKS = sorted(ROOT.glob("notebooks/*/*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stripped_collapsed_as_its_page_and_short(notebook: Path) -> None:
    document = json.loads(notebook.read_text(encoding="utf-8"))
    assert as_committed(document) == document, "run `make strip`"
    cells = document["cells"]
    assert len(cells) <= 60
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        tags = cell["metadata"].get("tags", [])
        if "keep_output" not in tags:
            assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["source"]
        assert len(cell["source"]) <= 15 or "parameters" in tags
    code = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
    assert sum("globals()" in line for line in code) <= 1


def test_collapsing_follows_the_tags_and_keeps_the_rest(tmp_path: Path) -> None:
    def cell(*tags: str, **metadata: object) -> dict[str, object]:
        return {"cell_type": "code", "metadata": {**metadata, "tags": [*tags]}, "source": "1"}

    hidden = {"jupyter": {"source_hidden": True}}
    notebook = tmp_path / "a.ipynb"
    prose = {"cell_type": "markdown", "metadata": {"tags": ["hide-input"]}, "source": "1"}
    cells = [cell("hide-input"), cell("fold", **hidden), cell(jupyter={"outputs_hidden": True})]
    notebook.write_text(json.dumps({"cells": [*cells, prose], "nbformat": 4}))
    main([str(notebook)])
    after = json.loads(notebook.read_text())
    wanted = [cell("hide-input", **hidden), cell("fold"), cells[2], prose]
    assert after == {"cells": wanted, "nbformat": 4}
    written = notebook.stat().st_mtime_ns
    main([str(notebook)])
    assert notebook.stat().st_mtime_ns == written


def test_stripping_leaves_what_is_committed_as_it_is(tmp_path: Path) -> None:
    copies = [Path(shutil.copy(notebook, tmp_path)) for notebook in NOTEBOOKS]
    strip = Path(sys.executable).with_name("nbstripout")
    subprocess.run([strip, "--keep-id", *copies], check=True)
    main(list(map(str, copies)))
    for notebook, copy in zip(NOTEBOOKS, copies, strict=True):
        assert copy.read_bytes() == notebook.read_bytes(), "run `make strip`"
