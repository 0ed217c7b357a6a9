"""The picture of scans: a line for each, broken where it wraps at the end of the table."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from pgstudies.charts._scans import scan_chart
from pgstudies.charts.markup import chart_markup
from pgstudies.errors import StudyError

PATHS = pl.DataFrame(
    {
        "what": ["on"] * 5 + ["off"],
        "scan": [1, 1, 2, 2, 2, 1],
        "seconds": [0.0, 1.0, 0.5, 1.0, 1.5, 0.0],
        "page": [0, 90, 45, 99, 10, 0],
    }
)


def spec(**more: object) -> Any:
    options: Any = {"pages": 100, "description": "Scans."} | more
    return scan_chart(PATHS, **options).to_dict()


def laps(found: Any) -> dict[tuple[str, int, int], int]:
    (data,) = found["datasets"].values()
    return {(row["what"], row["scan"], row["page"]): row["lap"] for row in data}


def test_a_scan_that_wraps_begins_another_line() -> None:
    assert laps(spec(step="what")) == {
        ("on", 1, 0): 0, ("on", 1, 90): 0,
        ("on", 2, 45): 0, ("on", 2, 99): 0, ("on", 2, 10): 1,
        ("off", 1, 0): 0,
    }  # fmt: skip


def test_earlier_scans_are_wider_so_that_all_can_be_seen() -> None:
    widths = [layer["mark"].get("strokeWidth") for layer in spec(step="what")["layer"]]
    assert widths == [4, 2, None]


def test_the_axis_is_the_whole_table() -> None:
    assert spec(step="what")["layer"][0]["encoding"]["y"]["scale"]["domain"] == [0, 100]


def test_the_steps_come_in_the_order_given() -> None:
    (chosen,) = [p for p in spec(step="what")["params"] if "value" in p]
    assert chosen["bind"]["options"] == ["on", "off"]


def test_two_charts_can_have_the_same_time_axis() -> None:
    def seconds(**more: object) -> Any:
        return spec(step="what", **more)["layer"][0]["encoding"]["x"]["scale"].get("domain")

    assert seconds() == [0, 1.5]
    assert seconds(until=4) == [0, 4]


def test_of_many_places_some_are_drawn() -> None:
    places = pl.DataFrame({"scan": 1, "seconds": range(10_000), "page": 5})
    (data,) = scan_chart(places, pages=9, description="One.").to_dict()["datasets"].values()
    assert [row["seconds"] for row in data[:3]] == [0, 3, 6]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(StudyError, match="scan_chart needs the column 'scan'"):
        scan_chart(PATHS.drop("scan"), pages=100, description="Scans.")


def test_the_still_picture_has_no_marks_that_only_serve_tooltips() -> None:
    spec = scan_chart(PATHS, pages=100, description="One.").to_dict()
    picture, _, live = chart_markup(spec).partition('<script type="application/json">')
    assert 'opacity="0"' not in picture
    assert '"opacity":{"value":0}' in live
