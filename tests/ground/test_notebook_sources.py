"""Committed notebooks hold no outputs, but for the verdicts that a rerun is compared with."""

import json
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
        found: dict[str, object] = {"cell_type": "code", "source": "1"}
        about: dict[str, object] = {"metadata": {**metadata, "tags": [*tags]}}
        return found | about | {"outputs": [], "execution_count": None}

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


def test_stripping_takes_out_what_a_run_left_and_nothing_else(tmp_path: Path) -> None:
    for notebook in NOTEBOOKS:
        document = json.loads(notebook.read_text(encoding="utf-8"))
        document["metadata"]["papermill"] = {"duration": 1}
        for cell in document["cells"]:
            cell["metadata"]["scrolled"] = True
            tags = cell["metadata"].get("tags", ())
            if cell["cell_type"] == "code" and "keep_output" not in tags:
                output = {"output_type": "stream", "name": "stdout", "text": ["1"]}
                cell |= {"outputs": [output], "execution_count": 7}
        saved = tmp_path / notebook.name
        saved.write_text(json.dumps(document), encoding="utf-8")
        main([str(saved)])
        assert saved.read_bytes() == notebook.read_bytes(), "run `make strip`"
