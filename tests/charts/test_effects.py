"""Published ratios beside ours: one scale that holds all of them."""

from __future__ import annotations

import polars as pl
import pytest

from pgstudies.charts.effects import beside_chart
from pgstudies.errors import StudyError

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
