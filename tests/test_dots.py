"""Values by group: a dot for each arm in each group, in the order given, with its interval."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from pgstudies.dots import dot_chart
from pgstudies.errors import StudyError

READS = pl.DataFrame(
    {
        "case": ["wide", "wide", "narrow"],
        "arm": ["hash", "btree", "hash"],
        "cache": ["cold", "cold", "warm"],
        "reads": [2.9, 3.2, 2.9],
        "low": [2.8, 3.1, 2.8],
        "high": [3.0, 3.3, 3.0],
    }
)


def spec(**more: object) -> Any:
    options: Any = {"x": "case", "y": "reads", "y_title": "pages", "description": "Reads."} | more
    return dot_chart(READS, **options).to_dict()


def test_groups_and_arms_keep_their_order_and_nothing_is_joined() -> None:
    (layer,) = spec()["layer"]
    assert layer["mark"]["type"] == "point"
    assert layer["encoding"]["x"]["sort"] == ["wide", "narrow"]
    assert layer["encoding"]["xOffset"]["sort"] == ["hash", "btree"]


def test_a_dot_that_is_alone_stands_above_its_name() -> None:
    alone = dot_chart(READS[1:], x="case", y="reads", y_title="pages", description="Reads.")
    assert "xOffset" not in alone.to_dict()["layer"][0]["encoding"]


def test_an_interval_is_a_line_through_the_dot() -> None:
    line, dot = spec(low="low", high="high")["layer"]
    assert line["mark"]["type"] == "rule"
    assert (line["encoding"]["y"]["field"], line["encoding"]["y2"]["field"]) == ("low", "high")
    assert dot["mark"]["type"] == "point"


def test_the_reader_chooses_a_step() -> None:
    names = [p["name"] for p in spec(step="cache")["params"]]
    assert "chosen_step" in names


def test_a_missing_column_is_named() -> None:
    with pytest.raises(StudyError, match="dot_chart needs the column 'absent'"):
        spec(y="absent")
