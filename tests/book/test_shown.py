"""A study's row on the front page shows what is judged, and says what is open and what it lacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl
import pytest

from pgapps.scorecard.scorecard import SCHEMA
from pgapps.scorecard.shown import is_judged, missing, shown
from pgapps.scorecard.table import score_front, side_by_side
from pgstudies.analysis.claims import Headline
from pgstudies.charts.outcomes import OUTCOMES
from tests import made_up

if TYPE_CHECKING:
    from collections.abc import Mapping

STUDY = "hash_index"
HEADLINES = [Headline(claim, "{now}") for claim in ("claim 2", "claim 1", "claim 3")]


@pytest.fixture(autouse=True)
def _headlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgapps.scorecard.shown.headlines", lambda _: HEADLINES)


def cards(verdicts: Mapping[str, str]) -> pl.DataFrame:
    """The first six claims of the made-up scorecard, with these verdicts; all others hold."""
    rows = made_up.cards(STUDY).head(6).to_dicts()
    return pl.DataFrame(
        [row | {"verdict": verdicts.get(row["claim"], "holds")} for row in rows], schema=SCHEMA
    )


def shown_of(verdicts: Mapping[str, str]) -> tuple[str, list[str], str, str]:
    """The claim that is shown, the other main ones that are open, what it lacks, the command."""
    found = shown(STUDY, side_by_side(cards(verdicts)))
    assert found["main"] == 3
    left_open = [row["claim"] for row in found["open"]]
    return found["shown"]["claim"], left_open, found["lacks"], found["remedy"]


def test_the_first_headline_is_shown_where_it_is_judged() -> None:
    assert shown_of({}) == ("claim 2", [], "", "")
    assert shown_of({"claim 2": "gone", "claim 1": "inconclusive"})[:2] == ("claim 2", ["claim 1"])


def test_a_judged_headline_is_shown_before_an_open_one_and_a_claim_without_one_never() -> None:
    one, two = {"claim 2": "inconclusive: 3 more blocks"}, {"claim 1": "not judged: of copies"}
    assert shown_of(one) == ("claim 1", ["claim 2"], "", "")
    assert shown_of(one | two) == ("claim 3", ["claim 2", "claim 1"], "", "")


def test_where_no_headline_is_judged_the_first_says_what_it_lacks() -> None:
    all_open = dict.fromkeys(("claim 1", "claim 2", "claim 3"), "inconclusive: 4 more blocks")
    claim, left_open, lacks, remedy = shown_of(all_open)
    assert (claim, left_open) == ("claim 2", ["claim 1", "claim 3"])
    assert lacks == "8 blocks do not decide it, 4 more may"
    assert remedy == f"pgstudies run {STUDY} --profile standard -p blocks=12"


def test_without_headlines_all_claims_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgapps.scorecard.shown.headlines", lambda _: [])
    found = shown(STUDY, side_by_side(cards({"claim 0": "inconclusive"})))
    assert (found["shown"]["claim"], found["main"], found["open"]) == ("claim 1", 0, [])


@pytest.mark.parametrize(
    ("verdict", "lacks", "blocks"),
    [
        ("inconclusive", "6 blocks do not decide it, 6 more may", 12),
        ("inconclusive: 1 more block", "6 blocks do not decide it, 1 more may", 7),
        ("not tested: no record", "no record", None),
        ("not judged: two copies differ", "two copies differ", None),
    ],
)
@pytest.mark.parametrize("profile", ["quick", None])
def test_what_is_missing_names_the_command_that_measures_it(
    verdict: str, lacks: str, blocks: int | None, profile: str | None
) -> None:
    command = "pgstudies run swept" + (f" --profile {profile}" if profile else "")
    command += f" -p blocks={blocks}" if blocks else ""
    row = {"study": "swept", "profile": profile, "blocks": 6, "verdict": verdict}
    assert missing(row) == (lacks, command)


def test_the_outcomes_that_judge_are_those_of_the_sum() -> None:
    judged = {word for word in OUTCOMES if is_judged({"verdict": f"{word}: because"})}
    left_open = {"inconclusive", "not judged", "not tested"}
    assert judged == set(OUTCOMES) - left_open


def test_the_row_of_the_front_page_says_it_and_leads_to_what_is_open() -> None:
    some = cards({"claim 2": "inconclusive", "claim 1": "gone"})
    (row,) = re.findall(r'<th scope="row">.*?</tr>', score_front(some).data, flags=re.DOTALL)
    assert "claim 1 of &lt;many&gt;" in row
    assert "○ gone" in row
    assert re.search(r'1 of the 3 main claims is open: <a href="[^"]*#hash-index-claim-2">', row)
    assert "To measure it" not in row
    none = cards(dict.fromkeys(("claim 1", "claim 2", "claim 3"), "not judged: <two> copies"))
    (row,) = re.findall(r'<th scope="row">.*?</tr>', score_front(none).data, flags=re.DOTALL)
    assert "⊘ not judged" in row
    assert "2 of the 3 main claims are open" in row
    assert "Open: &lt;two&gt; copies. To measure it: <code>pgstudies run hash_index" in row
