"""The tables and charts of the scorecard: every verdict is in them, escaped and to be chosen."""

from __future__ import annotations

import base64
import json
import re

import polars as pl
import pytest

from pgapps.scorecard.table import in_text, question, score_front
from pgstudies.charts.outcomes import OUTCOMES
from pgstudies.rooms import study_module
from tests import made_up

CHARTS = study_module("scorecard", "charts")
TABLES = study_module("scorecard", "tables")
STUDY = "hash_index"


@pytest.fixture
def cards() -> pl.DataFrame:
    return made_up.cards(STUDY)


def by_two_records(cards: pl.DataFrame) -> pl.DataFrame:
    """The first claim, judged on two hosts."""
    return pl.concat(
        cards.head(1).with_columns(host=pl.lit(host), record=pl.lit(host), current=host == "db2")
        for host in ("db2", "db1")
    )


def anonymous(spec: str) -> str:
    """Without the names that Altair numbers through a session."""
    return re.sub(r"(view|param)_\d+", r"\1", spec)


def test_the_table_escapes_what_it_shows_and_the_front_page_leads_to_its_rows(
    cards: pl.DataFrame,
) -> None:
    table = TABLES.score_table(cards).data
    assert "<many>" not in table
    assert "&lt;no&gt; compiler" in table
    assert all(f'class="verdict {o.css}"' in table for o in OUTCOMES.values())
    assert all(o.sign in table for o in OUTCOMES.values())
    ids = re.findall(r'<tr id="([^"]+)"', table)
    assert re.findall(r'href="studies/scorecard.html#([^"]+)"', score_front(cards).data) == ids
    assert table.count('href="swept.html#claims"') == len(ids) == len(OUTCOMES)


def test_the_question_of_a_study_is_what_its_notebook_says_below_its_title() -> None:
    told = "Should a hash index store the indexed value, or its hash code alone?"
    assert question(STUDY) == told


def test_a_chart_has_at_most_five_outcomes_in_its_legend_and_each_in_its_tooltip(
    cards: pl.DataFrame,
) -> None:
    spec = CHARTS.score_chart(cards, description="Claims.").to_dict()
    rows = max(spec["datasets"].values(), key=len)
    assert {row["outcome"] for row in rows} == set(list(OUTCOMES)[:-1])
    legends = [layer["encoding"].get("color", {}).get("scale") for layer in spec["layer"]]
    domains = {tuple(scale["domain"]) for scale in legends if scale}
    assert [*map(len, domains)] == [5]
    assert {row["group"] for row in rows} == set(*domains)


def test_records_of_a_claim_stand_side_by_side(cards: pl.DataFrame) -> None:
    several = by_two_records(cards)
    chart = json.dumps(CHARTS.history_chart(several, description="By record.").to_dict())
    assert all(host in chart for host in ("db1", "db2"))
    table = TABLES.history_table(several).data
    assert table.count('<th scope="col"') == 3
    assert table.count('<span class="verdict holds">') == 2
    assert "There is one record of each study" in TABLES.history_table(cards).data


def test_the_same_claims_give_the_same_bytes(cards: pl.DataFrame) -> None:
    several = by_two_records(cards)
    for show in (TABLES.score_table, TABLES.history_table):
        assert show(several).data == show(several.clone()).data
    for draw in (CHARTS.score_chart, CHARTS.history_chart):
        one, two = (
            json.dumps(draw(c, description="Two.").to_dict()) for c in (several, several.clone())
        )
        assert anonymous(one) == anonymous(two)


def test_the_scorecard_can_be_taken_away(cards: pl.DataFrame) -> None:
    found = re.findall(r'download="(\S+)" href="[^,]*,([^"]+)"', TABLES.score_downloads(cards).data)
    files = {name: base64.b64decode(text) for name, text in found}
    assert pl.read_csv(files["scorecard.csv"]).height == cards.height
    assert files["scorecard.txt"].decode() == in_text(cards)


def test_a_chart_offers_every_study_release_and_verdict(cards: pl.DataFrame) -> None:
    spec = CHARTS.score_chart(cards, description="Claims.").to_dict()
    menus = {p["name"]: p["bind"]["options"] for p in spec["params"] if "bind" in p}
    assert menus["chosen_study"] == ["all", STUDY]
    assert menus["chosen_release"] == ["all", "18", "9.6"]
    assert menus["chosen_verdict"] == ["all", *list(OUTCOMES)[:-1]]  # the last has no ratio
