"""Every study, measured at its smallest on a server of ours, finds what its notebook says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pgapps.execution.plan import studies
from pgapps.execution.run import run_study
from pgstudies.records.reading import list_records, read_record
from pgstudies.rooms import find_room
from tests.servers_at_hand import embedded, skip_but_not_in_ci

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("private", "on_disk")


def checked(notebook: Path) -> list[str]:
    """The output of the cells that are tagged as printing the same in every run."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [
        "".join(output["text"])
        for cell in cells
        if "nbval-check-output" in cell["metadata"].get("tags", [])
        for output in cell["outputs"]
    ]


def measured(study: str, output: Path, profile: str, **parameters: int) -> list[str]:
    page = run_study(
        study,
        profile=profile,
        parameters=parameters,
        server="embedded",
        fresh=True,
        output=output / f"{study}.ipynb",
    ).notebook
    record = read_record(list_records(study)["path"][-1])
    assert record.info["status"] == "complete"
    assert record.blocks == record.parameters["blocks"]
    return checked(page)


def skip_what_is_not_counted_here(study: str) -> None:
    if study == "sync_scans":
        with embedded({}, "modelled") as server:
            reason = server.capabilities.reason("limits")
        if reason:
            skip_but_not_in_ci(f"the study ran without its arms of a small memory: {reason}")


QUICKEST = ("cluster_order", "releases")
"""Studies of which one block takes no longer than ten seconds."""


MORE = {"sync_scans": {"blocks": 3, "walks": 3}}
"""A scan that waits for a core begins where the other no longer is: the median of three decides."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "study",
    [
        study if study in QUICKEST else pytest.param(study, marks=pytest.mark.thorough)
        for study in studies()
    ],
)
def test_what_is_counted_is_what_the_notebook_says(study: str, tmp_path: Path) -> None:
    wanted = checked(find_room(study).notebook)
    assert wanted
    found = measured(study, tmp_path, "smallest", **({"blocks": 1} | MORE.get(study, {})))
    skip_what_is_not_counted_here(study)
    assert found == wanted


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("study", studies())
def test_what_is_counted_at_quick_size_is_what_the_notebook_says(
    study: str, tmp_path: Path
) -> None:
    found = measured(study, tmp_path, "quick")
    skip_what_is_not_counted_here(study)
    assert found == checked(find_room(study).notebook)


def test_the_template_is_a_study_that_runs(tmp_path: Path) -> None:
    page = run_study("_template", server="embedded", output=tmp_path / "page.ipynb").notebook
    assert checked(page) == checked(find_room("_template").notebook)
