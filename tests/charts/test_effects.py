"""Published ratios beside ours: one scale that holds all of them."""

from __future__ import annotations

import json

import polars as pl
import pytest

from pgservers.errors import StudyError
from pgstudies.analysis.claims import all_claims
from pgstudies.charts.effects import beside_chart
from pgstudies.charts.style import arm_colours, log_ticks

JUDGED = pl.DataFrame(
    {
        "claim": ["one", "two", "three"],
        "published_ratio": [2.0, 0.5, None],
        "ratio": [1.5, 0.25, 3.0],
        "low": [1.25, 0.25, 2.0],
        "high": [1.75, 0.25, 4.0],
        "verdict": ["holds", "holds", "not tested: it has no figure"],
    }
)


def test_published_and_ours_share_one_scale_that_holds_all_of_them() -> None:
    spec = beside_chart(JUDGED, description="Both.").to_dict()
    axes = [layer["encoding"] for layer in spec["layer"] if "tooltip" in layer["encoding"]]
    (encoding,) = axes
    domain = encoding["x"]["scale"]["domain"]
    assert encoding["y"]["scale"]["domain"] == domain
    assert domain[0] < 0.25
    assert domain[1] > 2
    drawn = [row["claim"] for rows in spec["datasets"].values() for row in rows if "claim" in row]
    assert drawn == ["one", "two"]
    with pytest.raises(StudyError, match="without rows"):
        beside_chart(JUDGED.tail(1), description="None.")


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.7, 1.9], [0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0]),
        ([0.1, None, 3.0], [0.1, 0.2, 0.5, 1.0, 2.0]),
        ([0.0, 0.001, 40.0], [0.001, 0.01, 0.1, 1.0, 10.0]),
        ([], [0.95, 1.0, 1.05, 1.1]),
    ],
)
def test_a_logarithmic_axis_is_marked_between_decades(
    values: list[float | None], ticks: list[float]
) -> None:
    assert log_ticks(values) == ticks


def test_no_two_arms_of_a_study_share_a_colour() -> None:
    arms = ["array", "hash", "intset", "tbm", "radix", "radix_tree", "tidstore", "vacuum"]
    assert len(set(arm_colours(arms).values())) == len(arms)


def test_a_claim_is_labelled_by_its_name() -> None:
    row = all_claims().filter(study="hash_index").row(0, named=True)
    figures = {"published_ratio": 0.5, "ratio": 0.6, "low": 0.5, "high": 0.7, "verdict": "holds"}
    judged = pl.DataFrame([{name: row[name] for name in ("claim", "text")} | figures])
    assert row["name"] != row["claim"]
    assert row["name"] in json.dumps(beside_chart(judged, description="One claim.").to_dict())
