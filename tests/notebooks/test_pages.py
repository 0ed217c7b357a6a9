"""A step that is added to a procedure alone is on the page."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cached_property

import polars as pl
import pytest

import pgstudies as pg
from pgstudies.analysis.claims import origins
from pgstudies.records.reading import read_record
from pgstudies.records.verdicts import read_verdicts, verdict_files


@pytest.mark.parametrize("name", origins())
def test_a_step_is_added_in_the_procedure_alone(name: str) -> None:
    file = verdict_files(name)[-1]
    record = read_record(file.parent)
    timed = record.measured.filter(metric="duration_s")
    most = timed["step"].value_counts(sort=True)["step"][0]
    added = record.samples.filter(step=most).with_columns(step=pl.lit("another step"))
    study = pg.Study(name, record.parameters)
    study._record = replace(record, samples=pl.concat([record.samples, added]))
    study.verdicts = read_verdicts(file)
    page = study.module("page").Page(study)
    for shown, what in vars(type(page)).items():
        if isinstance(what, cached_property):
            getattr(page, shown)
        elif inspect.isfunction(what) and not shown.startswith("_"):
            needed = [
                p for p in inspect.signature(what).parameters.values() if p.default is p.empty
            ]
            if len(needed) == 1:
                what(page)
