"""The map of effects: a cell for every ratio, in brackets where nothing was decided."""

from __future__ import annotations

import polars as pl
import pytest

from pgstudies.charts.effects import beside_chart, effect_map
from pgstudies.errors import StudyError

EFFECTS = pl.DataFrame(
    {
        "case": ["wide", "wide", "narrow", "narrow"],
        "cache": ["cold", "warm", "cold", "warm"],
        "ratio": [0.5, 0.9, 1.1, None],
        "low": [0.4, 0.8, 0.9, None],
        "high": [0.6, 1.0, 1.2, None],
        "verdict": ["faster", "faster", "inconclusive", "not comparable"],
        "server": ["18", "18", "10", "10"],
    }
)


def test_every_ratio_has_a_cell_in_the_order_given() -> None:
    spec = effect_map(EFFECTS, x="cache", y="case", description="A map.").to_dict()
    (data,) = spec["datasets"].values()
    assert [row["text"] for row in data] == ["0.50", "0.90", "(1.10)"]
    assert spec["layer"][0]["encoding"]["y"]["sort"] == ["wide", "narrow"]
    assert spec["description"] == "A map."


def test_both_directions_have_the_same_span() -> None:
    spec = effect_map(EFFECTS, x="cache", y="case", description="A map.").to_dict()
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == [0.5, 1, 2]


def test_the_reader_chooses_a_step() -> None:
    spec = effect_map(EFFECTS, x="cache", y="case", step="server", description="A map.").to_dict()
    assert spec["params"][0]["bind"]["options"] == ["18", "10"]


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(StudyError, match="without rows"):
        effect_map(
            EFFECTS.filter(pl.col("ratio").is_null()), x="cache", y="case", description="A map."
        )


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
