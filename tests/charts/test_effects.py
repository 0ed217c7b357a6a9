"""Published ratios beside ours: a row for each claim, on one axis, named at the row."""

from __future__ import annotations

import re
from typing import Any

import polars as pl
import pytest

from pgapps.markup import chart_markup
from pgstudies.charts.effects import beside_chart, effect_chart
from pgstudies.charts.style import arm_colours, log_ticks

JUDGED = pl.DataFrame(
    {
        "claim": ["two\nlines", "a word", "three"],
        "published_ratio": [2.0, 0.5, None],
        "ratio": [1.5, 0.25, 3.0],
        "low": [1.25, 0.25, None],
        "high": [1.75, 0.25, None],
        "verdict": ["holds", "holds", "inconclusive"],
    }
)


def drawn(here: pl.DataFrame | None = None) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The specification, and the rows of each layer that has a name."""
    spec = beside_chart(JUDGED, here, whose="this machine", description="Both.").to_dict()
    named = [layer for layer in spec["layer"] if "name" in layer]
    return spec, {layer["name"]: spec["datasets"][layer["data"]["name"]] for layer in named}


def test_claims_are_rows_in_their_order_on_one_axis_without_a_legend() -> None:
    spec, rows = drawn(JUDGED.head(1).with_columns(ratio=1.6))
    assert [row["claim"] for row in rows["now"]] == JUDGED["claim"].to_list()
    assert [row["ratio"] for row in rows["here"]] == [1.6]
    channels = [layer["encoding"] for layer in spec["layer"]]
    assert {e["y"]["sort"][0] for e in channels if "y" in e} == {"two\nlines"}
    assert {e["x"]["scale"]["type"] for e in channels} == {"log"}
    assert not any({"color", "shape"} & encoding.keys() for encoding in channels)
    titles = [e["x"]["title"] for e in channels if "title" in e["x"]]
    assert titles[0][1] == "circle: now, with its 95 % interval; square: this machine"


def test_without_another_run_nothing_is_said_of_one() -> None:
    spec, rows = drawn()
    assert rows.keys() == {"now"}
    assert "square" not in str(spec["layer"])


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


def effects(steps: list[str], candidates: list[str]) -> pl.DataFrame:
    """A row for each step with its candidate, all alike."""
    frame = pl.DataFrame({"step": steps, "candidate": candidates})
    known = {"ratio": 1.5, "low": 1.25, "high": 1.75, "margin": 0.02, "verdict": "slower"}
    return frame.with_columns(pl.lit(value).alias(name) for name, value in known.items())


def test_candidates_of_one_step_stand_beside_each_other_and_others_amid_their_row() -> None:
    both = effects(["scan", "scan", "lookup"], ["worker", "sync", "sync"])
    apart = effects(["scan", "lookup"], ["worker", "sync"])
    for frame, offsets, height in ((both, 2, 72), (apart, 0, 60)):
        spec = effect_chart(frame, description="Of made-up steps.").to_dict()
        assert sum("yOffset" in layer["encoding"] for layer in spec["layer"]) == offsets
        assert spec["height"] == height


def test_a_picture_says_what_its_menu_stands_at_for_readers_without_scripts() -> None:
    both = effects(["scan", "lookup", "scan", "lookup"], ["worker", "worker", "sync", "sync"])
    one = effect_chart(both, description="Of made-up steps.", tallest=50).to_dict()
    (sentence,) = re.findall("<noscript>(.*?)</noscript>", chart_markup(one))
    assert re.search("shows only “(scan|lookup)”", sentence)
    everything = effect_chart(both, description="Of made-up steps.").to_dict()
    assert "<noscript>" not in chart_markup(everything)
