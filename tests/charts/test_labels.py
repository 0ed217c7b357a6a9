"""Few lines are named at their ends, and names do not touch; of many each has a panel."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgapps.markup import chart_markup
from pgstudies.charts.labels import LONGEST, MOST, end_labels, places_apart
from pgstudies.charts.series import block_chart, series_chart

SENTENCE = "Seconds by size."


def lines(names: list[str], last: dict[str, int] | None = None) -> pl.DataFrame:
    rows = [
        {"arm": name, "iteration": i, "s": 1.0 + place / 1000 + i}
        for place, name in enumerate(names)
        for i in range(1, 1 + (last or {}).get(name, 3))
    ]
    return pl.DataFrame(rows)


def drawn(frame: pl.DataFrame, **more: Any) -> dict[str, Any]:
    chart = series_chart(frame, y="s", y_title="s", description=SENTENCE, **more)
    assert isinstance(chart, alt.LayerChart | alt.FacetChart)
    found: dict[str, Any] = chart.to_dict()
    return found


def has_legend(spec: dict[str, Any]) -> bool:
    colours = [
        layer["encoding"]["color"] for layer in spec["layer"] if "color" in layer["encoding"]
    ]
    return all(colour.get("legend", {}) is not None for colour in colours)


def named(spec: dict[str, Any]) -> list[str]:
    """The names at the ends of lines."""
    layers = [layer for layer in spec["layer"] if layer.get("name") == "labels-names"]
    assert all(layer["mark"]["clip"] is False for layer in layers)
    return [row["arm"] for layer in layers for row in spec["datasets"][layer["data"]["name"]]]


def test_up_to_six_lines_are_named_at_their_ends_and_have_no_legend() -> None:
    names = [f"arm {n}" for n in range(MOST)]
    spec = drawn(lines(names))
    assert named(spec) == names
    assert not has_legend(spec)
    picture = chart_markup(spec).partition("<script")[0]
    assert [name for name in names if f">{name}<" in picture] == names


@pytest.mark.parametrize(
    "frame",
    [
        lines(["alone"]),
        lines(["short", "l" * (LONGEST + 1)]),
        lines(["whole", "broken off"], {"broken off": 2}),
    ],
    ids=["one", "too long", "ends elsewhere"],
)
def test_other_lines_have_a_legend(frame: pl.DataFrame) -> None:
    spec = drawn(frame)
    assert named(spec) == []
    assert has_legend(spec)


def test_each_of_many_lines_has_a_panel_and_the_first_is_in_all() -> None:
    names = [f"arm {n} with a name of two lines" for n in range(MOST + 1)]
    spec = drawn(lines(names))
    panels = [row["panel"] for row in spec["datasets"][spec["data"]["name"]]]
    assert [*dict.fromkeys(panels)] == [name.replace(" lines", "\nlines") for name in names[1:]]
    (beside,) = (layer for layer in spec["spec"]["layer"] if "data" in layer)
    assert {row["arm"] for row in spec["datasets"][beside["data"]["name"]]} == {names[0]}
    colours = [layer["encoding"]["color"] for layer in spec["spec"]["layer"]]
    assert all(colour["legend"] is None for colour in colours)
    assert spec["title"]["subtitle"] == [f"s, by iteration; thin, in all: {names[0]}."]
    assert all(f">{name[:5]}" in chart_markup(spec) for name in names[1:])


def test_what_a_post_measured_is_in_every_panel() -> None:
    posts = ["post, head", "post, patched"]
    spec = drawn(lines([*(f"arm {n}" for n in range(MOST)), *posts]), arms=["arm 0"])
    beside = spec["spec"]["layer"][0]
    assert {row["arm"] for row in spec["datasets"][beside["data"]["name"]]} == {*posts}
    assert "thin, in all: post, head, and dashed: post, patched." in spec["title"]["subtitle"][0]


def test_of_many_lines_those_of_the_chosen_step_are_drawn() -> None:
    frame = pl.concat(
        lines([f"arm {n}" for n in range(MOST + 1)]).with_columns(step=pl.lit(step))
        for step in ("insert", "vacuum")
    )
    spec = drawn(frame, step="step")
    assert spec["transform"] == [{"filter": "datum['step'] === chosen_step"}]
    (chosen,) = spec["params"]
    assert chosen["bind"]["options"] == ["insert", "vacuum"]
    assert "vacuum" not in chart_markup(spec).partition("<script")[0]


def test_names_of_a_chosen_step_stand_where_that_step_ends() -> None:
    frame = pl.concat(
        lines(["a", "b"]).with_columns(pl.col("s") * factor, step=pl.lit(step))
        for step, factor in (("low", 1.0), ("high", 100.0))
    )
    found = end_labels(frame, x="iteration", y="s", color="arm", step="step")
    assert found is not None
    means = dict(found.group_by("step").agg(pl.col("s").mean()).iter_rows())
    assert means["high"] == pytest.approx(100 * means["low"])


def test_blocks_are_named_as_well() -> None:
    values = lines(["a", "b"]).rename({"iteration": "block", "s": "value"})
    spec = block_chart(values, y_title="s", description=SENTENCE).to_dict()
    assert named(spec) == ["a", "b"]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=MOST))
def test_names_keep_their_order_and_their_distance_within_the_axis(ends: list[float]) -> None:
    placed = places_apart(np.array(ends), 0, 100)
    order = np.argsort(ends, kind="stable")
    assert (np.diff(placed[order]) >= 6.5 - 1e-9).all()
    assert placed.min() >= -1e-9
    assert placed.max() <= 100 + 1e-9


def test_names_that_do_not_touch_stay_where_lines_end() -> None:
    assert places_apart(np.array([90.0, 10, 50]), 0, 100).tolist() == [90, 10, 50]


def test_of_one_place_there_is_a_table_with_the_unit_as_heading() -> None:
    frame = lines(["a", "b"], {"a": 1, "b": 1})
    shown = series_chart(frame, y="s", y_title="duration (s)", description=SENTENCE)
    assert isinstance(shown, pl.DataFrame)
    assert shown.columns == ["arm", "iteration", "duration (s)"]
