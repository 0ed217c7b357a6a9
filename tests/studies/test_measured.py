"""Every study, measured at its smallest on a server of ours, finds what its notebook says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pgstudies.records.reading import list_records, read_record
from pgstudies.rooms import find_room
from pgstudies.studies._plan import studies
from pgstudies.studies.run import run_study
from tests.servers_at_hand import embedded

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, dict[str, Any]] = {
    "cluster_order": {"rows": 20_000, "iterations": 3, "shared_buffers": 200, "selects": 2},
    "dead_tuples": {"probes": 40_000, "rows": 400_000},
    "hash_index": {
        "transactions": 20,
        "turns": 2,
        "queries": 50,
    },
    "instrument": {"letters": 1_000, "iterations": 1, "rounds": 1},
    "mvcc_catalog": {
        "releases": ["9.6"],
        "prepared": [20, 80],
        "objects": 40,
        "at_once": 20,
        "starts": 5,
    },
    "releases": {
        "releases": [],
        "what": "one session started",
        "open_transactions": [20],
        "twice": True,
    },
    "sync_scans": {"offsets": [0.0]},
}
"""What makes a run small and yet shows what is counted; everything else is as in quick."""

ANYWHERE: dict[str, dict[str, Any]] = {"sync_scans": {"table_mb": 384, "read_mb": 250}}
"""What makes a count come out beside other work.

Small memory has an eighth of the table and what the kernel reads ahead: of a table of 128 MB more
than a third, so a scan out of step that waits for a core begins where the one before it has just
been, and reads as little as one in step.  The slower the disk, the longer a scan in step may wait.
"""

pytestmark = pytest.mark.usefixtures("private", "on_disk")


def checked(notebook: Path) -> list[str]:
    """What the cells print that say of themselves that every run prints the same."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [
        "".join(output["text"])
        for cell in cells
        if "nbval-check-output" in cell["metadata"].get("tags", [])
        for output in cell["outputs"]
    ]


def measured(study: str, output: Path, **parameters: Any) -> list[str]:
    page = run_study(
        study,
        server="embedded",
        fresh=True,
        parameters=parameters,
        output=output / f"{study}.ipynb",
    ).notebook
    record = read_record(list_records(study)["path"][-1])
    assert record.info["status"] == "complete"
    assert record.blocks == record.parameters["blocks"]
    return checked(page)


def skip_what_is_not_counted_here(study: str) -> None:
    if study == "sync_scans":
        with embedded({}) as server:
            reason = server.capabilities.reason("limits")
        if reason:
            pytest.skip(f"the study ran, and none of its arms with a small memory did: {reason}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("study", studies())
def test_what_is_counted_is_what_the_notebook_says(study: str, tmp_path: Path) -> None:
    wanted = checked(find_room(study).notebook)
    assert wanted
    small = {"blocks": 2} | SMALL.get(study, {}) | ANYWHERE.get(study, {})
    found = measured(study, tmp_path, **small)
    skip_what_is_not_counted_here(study)
    assert found == wanted


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("study", studies())
def test_what_is_counted_at_quick_size_is_what_the_notebook_says(
    study: str, tmp_path: Path
) -> None:
    found = measured(study, tmp_path, **ANYWHERE.get(study, {}))
    skip_what_is_not_counted_here(study)
    assert found == checked(find_room(study).notebook)


def test_the_template_is_a_study_that_runs(tmp_path: Path) -> None:
    page = run_study("_template", server="embedded", output=tmp_path / "page.ipynb").notebook
    assert checked(page) == checked(find_room("_template").notebook)
