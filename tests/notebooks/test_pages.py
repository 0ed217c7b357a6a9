"""The analysis of every notebook, in its own cells, on the newest reference record."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import pgstudies as pg
from pgstudies.analysis.claims import origins
from pgstudies.records.reading import read_record
from pgstudies.records.verdicts import verdict_files
from pgstudies.rooms import find_room

if TYPE_CHECKING:
    from pgstudies.records.reading import Record

WORKED = {
    "cluster_order": "decay",
    "hash_index": "hash beats btree",
    "sync_scans": "as if alone",
    "dead_tuples": "dense lookup",
    "mvcc_catalog": "drop today",
    "io_method": "in memory",
}
"""The claim that each study works by hand."""


def analysed(name: str, record: Record, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The globals of a notebook whose cells have read that record."""
    notebook = json.loads(find_room(name).notebook.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]

    def measure(study: pg.Study, *_: object, **__: object) -> Record:
        study._record = record
        return record

    monkeypatch.setattr(pg.Study, "measure", measure)
    monkeypatch.setattr(pg.Study, "arms", lambda *_, **__: None)
    found: dict[str, Any] = {"__name__": "__main__", "display": lambda *_: None}
    for cell in cells:
        exec("".join(cell["source"]), found)
    return found


def newest(name: str) -> Record:
    return read_record(verdict_files(name)[-1].parent)


@pytest.mark.parametrize("name", origins())
def test_a_step_is_added_in_the_procedure_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = newest(name)
    timed = record.measured.filter(metric="duration_s")
    most = timed["step"].value_counts(sort=True)["step"][0]
    added = record.samples.filter(step=most).with_columns(step=pl.lit("another step"))
    longer = replace(record, samples=pl.concat([record.samples, added]))
    analysed(name, longer, monkeypatch)


@pytest.mark.parametrize(("name", "claim"), WORKED.items())
def test_the_claim_worked_by_hand_is_the_one_that_is_judged(
    name: str, claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = analysed(name, newest(name), monkeypatch)
    by_hand = found["by_hand"].row(0, named=True)
    judged = found["study"].verdicts.row(by_predicate=pl.col("claim") == claim, named=True)
    assert by_hand["ratio"] == pytest.approx(judged["ratio"])
    if name == "dead_tuples":  # whose intervals are widened for what two builds differ by
        within = 1 + 1e-9  # where nothing widens them, both are the same but for rounding
        assert judged["low"] <= within * by_hand["low"] < by_hand["high"] <= within * judged["high"]
    else:
        for end in ("low", "high"):
            assert by_hand[end] == pytest.approx(judged[end])
