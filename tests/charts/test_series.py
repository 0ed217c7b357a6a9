"""Charts say what they show, keep an arm's colour everywhere and fit the page."""

from __future__ import annotations

import base64
import json
import math
import re
from html import unescape
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl
import pytest

from pgapps.markup import chart_markup, save
from pgservers.errors import StudyError
from pgstudies.charts.effects import effect_chart
from pgstudies.charts.series import block_chart, dot_chart, series_chart
from pgstudies.charts.style import MIME, REPEAT, arm_colours, arm_scale, book_renderer
from pgstudies.charts.tables import table_html

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


ARMS = ["heap", "heap (again)", "heap, fillfactor 90", "heap, CLUSTER every 5th iteration"]
SENTENCE = "Durations rise with each iteration."
COLUMN_PX = 704  # of the page's column on a screen 1300 px wide


@pytest.fixture
def series() -> pl.DataFrame:
    rows = [
        {"arm": arm, "iteration": i, "step": step, "seconds": i * 0.5, "low": i * 0.4, "high": i}
        for arm in ARMS
        for i in range(1, 5)
        for step in ("insert", "vacuum")
    ]
    return pl.DataFrame(rows)


@pytest.fixture
def effects() -> pl.DataFrame:
    rows = [
        {"candidate": arm, "step": step, "ratio": 0.9, "low": low, "high": high}
        | {"margin": 0.02, "verdict": verdict, "blocks": 6}
        for step in ("insert", "vacuum")
        for arm, low, high, verdict in [
            (ARMS[1], 0.99, 1.01, "equivalent"),
            (ARMS[2], None, None, "too few blocks"),
        ]
    ]
    return pl.DataFrame(rows)


@pytest.fixture
def blocks() -> pl.DataFrame:
    rows = [
        {"block": b, "position": p, "arm": arm, "value": 1.0 + b}
        for b in range(1, 7)
        for p, arm in enumerate(ARMS, start=1)
    ]
    return pl.DataFrame(rows)


@pytest.fixture
def charts(series: pl.DataFrame, effects: pl.DataFrame, blocks: pl.DataFrame) -> list[Any]:
    how: dict[str, Any] = {"y": "seconds", "y_title": "duration (s)", "description": SENTENCE}
    expected = pl.DataFrame({"iteration": [1, 4], "seconds": [0.5, 2.0]})
    band: dict[str, Any] = {"low": "low", "high": "high", "log": True, "expectation": expected}
    long_names = effects.with_columns(
        step=pl.format("{}, from a network disk, with four to each core", "step"),
        candidate=pl.format("{}, effective_io_concurrency = 64", "candidate"),
    )
    return [
        series_chart(series, step="step", **how),
        series_chart(series.filter(step="insert"), **band, **how),
        effect_chart(effects, description=SENTENCE),
        effect_chart(long_names, description=SENTENCE),
        block_chart(blocks, y_title="duration (s)", description=SENTENCE),
    ]


def test_every_chart_has_the_width_of_the_page_and_its_description(charts: list[Any]) -> None:
    for chart in charts:
        spec = chart.to_dict()
        markup = chart_markup(spec)
        found = re.search(r'<svg[^>]* width="([\d.]+)"', markup)
        assert found is not None
        assert float(found[1]) <= COLUMN_PX
        assert f'<figure role="img" aria-label="{SENTENCE}"' in markup
        bundle = book_renderer(spec)
        assert bundle["text/plain"] == SENTENCE
        assert bundle[MIME] == spec
        assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")


def test_a_chart_without_description_is_refused(series: pl.DataFrame) -> None:
    with pytest.raises(StudyError, match="no description"):
        series_chart(series, y="seconds", y_title="s", description=" ")
    with pytest.raises(StudyError, match="no description"):
        book_renderer(alt.Chart(series).mark_point().to_dict())


def test_a_description_cannot_end_its_attribute(series: pl.DataFrame) -> None:
    chart = series_chart(series, y="seconds", y_title="s", description='a "b" <c>')
    assert 'aria-label="a "b" <c>"' in unescape(chart_markup(chart.to_dict()))
    assert 'aria-label="a "b"' not in chart_markup(chart.to_dict())


@pytest.mark.parametrize("name", ["</script>", "<!--<script>"])
def test_a_name_can_neither_end_the_script_of_its_chart_nor_hide_its_end(name: str) -> None:
    """Within ``<!--<script`` a browser takes ``</script>`` for the end of the inner one."""
    frame = pl.DataFrame({"arm": [name] * 2, "iteration": [1, 2], "s": [1.0, 2.0]})
    chart = series_chart(frame, y="s", y_title="s", description=SENTENCE)
    markup = chart_markup(chart.to_dict())
    assert markup.count("</script>") == 1
    script = markup.partition('type="application/json">')[2].partition("</script>")[0]
    assert "<" not in script
    assert json.loads(script)


def test_a_page_keeps_counts_and_words_exact_and_drops_what_nobody_sees() -> None:
    counted, timed = 1_048_577.0, 0.12345678901
    frame = pl.DataFrame({"arm": ["a"] * 2, "iteration": [1, 2], "s": [counted, timed]})
    chart = series_chart(frame, y="s", y_title="0.123456 s", description=SENTENCE)
    picture, _, live = chart_markup(chart.to_dict()).partition('<script type="application/json">')
    assert '"s":1048577,' in live
    assert '"s":0.123457,' in live
    assert "0.123456 s" in picture
    assert picture.count("aria-") == 1  # the figure's
    assert not re.search(r' d="[^"]*\.\d{3}', picture)


@pytest.mark.parametrize(
    ("draw", "needed"),
    [
        (lambda f: series_chart(f, y="absent", y_title="s", description=SENTENCE), "absent"),
        (lambda f: effect_chart(f, description=SENTENCE), "candidate"),
        (lambda f: block_chart(f, y_title="s", description=SENTENCE), "block"),
        (lambda f: dot_chart(f, x="arm", y="no", y_title="s", description=SENTENCE), "no"),
    ],
)
def test_a_missing_column_is_named(
    series: pl.DataFrame, draw: Callable[[pl.DataFrame], object], needed: str
) -> None:
    with pytest.raises(StudyError, match=f"'{needed}'"):
        draw(series)


def test_a_frame_without_rows_is_a_sentence_that_may_have_any_character(
    series: pl.DataFrame,
) -> None:
    drawn: Any = series_chart(series.clear(), y="seconds", y_title="s", description="a < b")
    assert drawn.data == "<p><em>Not measured in this run: a &lt; b</em></p>"


def test_an_interval_is_that_of_low_and_high_unless_others_are_named(series: pl.DataFrame) -> None:
    banded = series.with_columns(low="seconds", high="seconds", least="seconds", most="seconds")
    how: dict[str, Any] = {"y": "seconds", "y_title": "s", "description": SENTENCE}
    named: dict[str, Any] = {"low": "least", "high": "most"}
    for more, ends in (({}, named.keys()), (named, named.values())):
        shown = json.dumps(series_chart(banded, **how, **more).to_dict())
        assert all(f'"field": "{end}"' in shown for end in ends)
    bare = series_chart(series.drop("low", "high"), **how)
    assert '"field": "low"' not in json.dumps(bare.to_dict())


def test_baselines_published_and_our_own_have_one_colour() -> None:
    ours, theirs = arm_colours(ARMS), arm_colours(["head", "v8_patch"])
    both = arm_colours(["head", "v8_patch", *ARMS])
    assert ours["heap"] == theirs["head"] == both["heap"] == both["head"]
    assert theirs["v8_patch"] == both["v8_patch"] == arm_colours(["heap", "patched"])["patched"]
    assert len(set(ours.values())) == len(ARMS)
    assert {arm: both[arm] for arm in ARMS} == ours


def test_a_second_copy_of_the_baseline_has_a_lighter_colour_by_its_column_not_its_name() -> None:
    arms = pl.DataFrame({"name": ["plain", "a twin", "wide"], "copy_of": [None, "plain", None]})
    colours = arm_colours(arms)
    assert colours["a twin"] == REPEAT
    assert colours == arm_colours({"plain": None, "a twin": "plain", "wide": None})
    assert arm_colours(["plain", "plain (again)"])["plain (again)"] != REPEAT


def test_a_chart_of_some_arms_keeps_the_colours_of_all() -> None:
    some = arm_scale(ARMS, [ARMS[3]]).to_dict()
    assert some == {"domain": [ARMS[3]], "range": [arm_colours(ARMS)[ARMS[3]]]}


@pytest.mark.parametrize("background", ["#ffffff", "#121212"])
def test_every_colour_stands_out_from_the_page(background: str) -> None:
    arms = [*ARMS, *(f"patched {i}" for i in range(5)), *(f"other {i}" for i in range(6))]
    for colour in arm_colours(arms).values():
        assert _contrast(colour, background) >= 3, (colour, background)  # WCAG 1.4.11


def test_a_published_ratio_of_an_arm_we_have_not_is_shown(effects: pl.DataFrame) -> None:
    published = pl.DataFrame(
        {"candidate": ["v8_patch"], "step": ["insert"], "published_ratio": [2.3]}
    )
    spec = effect_chart(effects, published=published, description=SENTENCE).to_dict()
    rows = [row for rows in spec["datasets"].values() for row in rows]
    assert [row["published_ratio"] for row in rows if row.get("candidate") == "v8_patch"] == [2.3]
    assert len([row for row in rows if row.get("ratio") is not None]) == effects.height


def test_steps_that_no_screen_holds_are_shown_one_at_a_time_the_most_moved_first(
    effects: pl.DataFrame,
) -> None:
    ratios = [1.0 + 0.01 * n if n != 17 else 0.4 for n in range(41)]
    first = effects.head(1).drop("step", "ratio")
    many = pl.DataFrame({"step": [f"step {n}" for n in range(41)], "ratio": ratios})
    tall = first.join(many, how="cross").with_columns(low="ratio", high="ratio")
    spec = effect_chart(tall, description=SENTENCE).to_dict()
    (chosen,) = (p for p in spec["params"] if p["name"] == "chosen_step")
    assert (chosen["value"], len(chosen["bind"]["options"])) == ("step 17", 41)
    assert spec["height"] == 30
    whole = effect_chart(tall, description=SENTENCE, tallest=math.inf).to_dict()
    assert whole["height"] == 41 * 30
    assert not [p for p in whole["params"] if p["name"] == "chosen_step"]


def test_many_candidates_are_named_at_their_rows_and_have_no_legend(effects: pl.DataFrame) -> None:
    names = [f"candidate {n}, with a long name" for n in range(7)]
    rows = effects.head(1).drop("candidate").join(pl.DataFrame({"candidate": names}), how="cross")
    many = pl.concat([rows, rows.with_columns(step=pl.lit("vacuum"))])
    spec = effect_chart(many, description=SENTENCE).to_dict()
    layers = [layer["encoding"] for layer in spec["spec"]["layer"]]
    assert all(e["color"]["legend"] is None for e in layers if "field" in e.get("color", {}))
    assert {e["y"]["field"] for e in layers if "y" in e} == {"row"}
    picture = chart_markup(spec).partition("<script")[0]
    assert all(picture.count(f">{name[:12]}") == 2 for name in names)
    assert picture.count(">insert<") == picture.count(">vacuum<") == 1


@pytest.mark.parametrize("suffix", ["svg", "png", "json"])
def test_a_chart_is_saved(tmp_path: Path, charts: list[Any], suffix: str) -> None:
    written = save(charts[0], tmp_path / f"chart.{suffix}")
    assert written.stat().st_size > 1000
    if suffix == "json":
        assert json.loads(written.read_text())["description"] == SENTENCE


def test_saving_elsewhere_or_otherwise_is_refused(tmp_path: Path, charts: list[Any]) -> None:
    with pytest.raises(StudyError, match=r"not as 'chart\.gif'"):
        save(charts[0], tmp_path / "chart.gif")
    with pytest.raises(StudyError, match="no directory"):
        save(charts[0], tmp_path / "absent" / "chart.svg")


def test_tables_show_rounded_numbers_and_plain_text() -> None:
    columns = ["arm", "seconds", "rows", "baseline"]
    rows = [("a <b>", 0.00313912, 1_000_000, True), (None, 1234.5678, 7, False)]
    rows += [("c", math.nan, 0, True), ("d", math.inf, 0, True)]
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    cells = re.findall(r"<td[^>]*>(.*?)</td>", table_html(frame))
    assert cells[:8] == ["a &lt;b&gt;", "0.00314", "1,000,000", "yes", "–", "1,235", "7", "no"]
    assert (cells[9], cells[13]) == ("nan", "inf")
    assert "and 50 more rows" in table_html(pl.DataFrame({"i": range(250)}))


def _contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("names", "angle", "line"),
    [
        (["17", "18", "this server"], 0, ""),
        (["cfq", *(f"reads on {n} kB" for n in range(8))], 0, '"reads on 0 kB": ["reads on", "0'),
        ([f"release 17.{minor}" for minor in range(15)], -45, ""),
        ([f"17.{minor}" for minor in range(25)], -90, ""),
    ],
)
def test_names_of_places_do_not_run_into_each_other(
    names: list[str], angle: int, line: str
) -> None:
    frame = pl.DataFrame({"arm": "a", "point": names, "s": [float(i) for i in range(len(names))]})
    draws: list[Callable[..., Any]] = [series_chart, dot_chart]
    for draw in draws:
        chart = draw(frame, x="point", y="s", y_title="s", description=SENTENCE)
        axis = chart.to_dict()["layer"][0]["encoding"]["x"]["axis"]
        assert axis["labelAngle"] == angle
    assert line in axis.get("labelExpr", "")


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
    reads = READS if "low" in more else READS.drop("low", "high")
    return dot_chart(reads, **options).to_dict()


def test_groups_and_arms_keep_their_order_and_nothing_is_joined() -> None:
    (layer,) = spec()["layer"]
    assert layer["mark"]["type"] == "point"
    assert layer["encoding"]["x"]["sort"] == ["wide", "narrow"]
    assert layer["encoding"]["xOffset"]["sort"] == ["hash", "btree"]


def test_a_dot_that_is_alone_stands_above_its_name() -> None:
    reads = READS[1:].drop("low", "high")
    alone = dot_chart(reads, x="case", y="reads", y_title="pages", description="Reads.")
    assert "xOffset" not in alone.to_dict()["layer"][0]["encoding"]


def test_an_interval_is_a_line_through_the_dot() -> None:
    line, dot = spec(low="low", high="high")["layer"]
    assert line["mark"]["type"] == "rule"
    assert (line["encoding"]["y"]["field"], line["encoding"]["y2"]["field"]) == ("low", "high")
    assert dot["mark"]["type"] == "point"


def test_the_reader_chooses_a_step() -> None:
    names = [p["name"] for p in spec(step="cache")["params"]]
    assert "chosen_step" in names
