"""What every study's page shows of its effects, verdicts and answers."""

from __future__ import annotations

import polars as pl
import pytest

from pgstudies.analysis.agreement import Claim, judge
from pgstudies.analysis.effects import paired_effects
from pgstudies.analysis.tables import (
    effect_table,
    if_known,
    sentences,
    spread,
    verdict_table,
    with_interval,
    yes_or_no,
)
from pgstudies.analysis.verdicts import describe
from pgstudies.charts.tables import table_html


@pytest.fixture
def effects() -> pl.DataFrame:
    """Two steps in eight blocks: the insert takes twice as long, and one block has the select."""
    rows = [
        (block, arm, "insert", factor * (1 + block / 1000))
        for block in range(1, 9)
        for arm, factor in (("heap", 1.0), ("patched", 2.0))
    ]
    rows += [(1, "heap", "select", 1.0), (1, "patched", "select", 3.0)]
    values = pl.DataFrame(rows, schema=["block", "arm", "step", "value"], orient="row")
    full = values.with_columns(metric=pl.lit("duration_s"), unit=pl.lit("s"))
    by = ["step", "metric"]
    return paired_effects(full, baseline="heap", by=by)


def test_effects_are_shown_after_what_tells_them_apart(effects: pl.DataFrame) -> None:
    shown = effect_table(effects, "step", (1 / pl.col("baseline_median")).round().alias("per s"))
    assert shown.columns == [
        *("step", "per s", "blocks", "ratio", "low", "high", "verdict"),
        *("margin, %", "detectable, %", "blocks_needed"),
    ]
    insert = shown.row(0, named=True)
    places = ("step", "blocks", "ratio", "low", "high", "margin, %")
    assert [insert[name] for name in places] == ["insert", 8, 2.0, 2.0, 2.0, 2.0]


def test_effects_say_where_some_turns_were_much_dearer(effects: pl.DataFrame) -> None:
    sums = pl.when(pl.col("step") == "insert").then(2.5).otherwise("ratio_of_sums")
    shown = effect_table(effects.with_columns(ratio_of_sums=sums), "step")
    insert, select = shown["remark"]
    assert insert == "by the sums over all turns +150.0 %: some turns were much dearer"
    assert select is None


def test_each_effect_has_a_sentence_that_says_where_it_is(effects: pl.DataFrame) -> None:
    insert, select = effects.iter_rows(named=True)
    assert sentences(effects, "{step}, {candidate}").splitlines() == [
        f"insert, patched: {describe(insert)}",
        f"select, patched: {describe(select)}",
    ]
    assert sentences(effects.clear(), "{step}") == ""


def test_a_ratio_is_told_with_its_interval_or_that_there_is_none(effects: pl.DataFrame) -> None:
    told = effects.select(with_interval())
    assert told.to_series().to_list() == ["2.0 (2.0–2.0)", "3.0 (no interval)"]


def test_a_small_published_ratio_is_not_shown_as_zero(effects: pl.DataFrame) -> None:
    comparison = {"step": "insert"}
    claim = Claim("few", "It is less.", "a post", "faster", 0.000146, "cpu_s", comparison)
    shown = verdict_table(judge([claim], effects))
    assert shown["published_ratio"].item() == 0.000146
    assert ">0.000146<" in table_html(shown)


def test_verdicts_are_shown_to_four_digits(effects: pl.DataFrame) -> None:
    claim = Claim("slow", "It is slower.", "a post", "slower", 1.98765, "cpu_s", {"step": "insert"})
    shown = verdict_table(judge([claim], effects))
    assert shown.to_dicts() == [
        {
            **{"text": "It is slower.", "source": "a post", "metric": "duration_s"},
            **{"published_ratio": 1.988, "ratio": 2.0, "low": 2.0, "high": 2.0, "beside": None},
            **{"blocks": 8, "verdict": "holds"},
        }
    ]


def test_a_group_is_spread_from_its_least_to_its_most() -> None:
    values = pl.DataFrame({"arm": ["heap"] * 3, "value": [5.0, 1.0, 2.0]})
    assert values.group_by("arm").agg(spread("s")).row(0) == ("heap", 2.0, 1.0, 5.0)
    in_ms = values.group_by("arm").agg(spread("ms", 1000 * pl.col("value")))
    assert in_ms.drop("arm").to_dicts() == [{"ms": 2000.0, "low": 1000.0, "high": 5000.0}]


def test_an_answer_needs_all_that_it_rests_on() -> None:
    answers = {
        "more": if_known(lambda one, two: one < two, 0, 1),
        "less": if_known(lambda one, two: one > two, 0, 1),
        "told": if_known(lambda one, two: one > two, None, 1),
    }
    lines = ["more: yes", "less: NO", "told: not judged in this run"]
    assert yes_or_no(answers).splitlines() == lines
