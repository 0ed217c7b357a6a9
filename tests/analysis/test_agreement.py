"""Published beside reproduced: every verdict, at the edges and at random."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgstudies.analysis.agreement import Claim, agreement, judge
from pgstudies.errors import StudyError

MARGIN = 0.02
SLOWER = Claim("insert", "Inserting gets slower.", "table 2", 1.5, {"step": "insert"})


@pytest.mark.parametrize(
    ("published", "ratio", "low", "high", "expected"),
    [
        # as large, larger, just large enough: 1.2247 is the square root of 1.5
        (1.5, 1.5, 1.4, 1.6, "holds"),
        (1.5, 9.0, 8.0, 10.0, "holds"),
        (1.5, 1.23, 1.20, 1.26, "holds"),
        (1.5, 1.22, 1.20, 1.24, "holds, weaker"),
        # less than half, but the published ratio is within reach
        (1.5, 1.2, 1.01, 1.55, "holds, weaker"),
        (1.5, 1.03, 1.01, 1.05, "holds, weaker"),
        # the other direction is judged alike
        (0.5, 0.5, 0.4, 0.6, "holds"),
        (0.5, 0.1, 0.05, 0.2, "holds"),
        (0.5, 0.8, 0.75, 0.85, "holds, weaker"),
        # no effect of any size that matters, even where it is real
        (1.5, 1.0, 0.99, 1.01, "gone"),
        (1.5, 1.01, 1.005, 1.015, "gone"),
        (0.5, 1.0, 0.99, 1.01, "gone"),
        # the opposite
        (1.5, 0.9, 0.85, 0.95, "reversed"),
        (0.5, 1.1, 1.05, 1.15, "reversed"),
        (1.5, 0.97, 0.95, 0.99, "reversed"),
        # open: too wide, or on neither side of the margin
        (1.5, 1.1, 0.9, 1.4, "inconclusive"),
        (1.5, 1.01, 0.97, 1.05, "inconclusive"),
        (1.5, 1.015, 1.005, 1.025, "inconclusive"),
        (1.5, 0.985, 0.975, 0.995, "inconclusive"),
        (1.5, None, None, None, "inconclusive"),
        (1.5, 1.5, None, None, "inconclusive"),
        # nothing was claimed to change
        (1.0, 1.0, 0.99, 1.01, "holds"),
        (1.0, 1.01, 1.005, 1.015, "holds"),
        (1.0, 1.1, 1.05, 1.15, "gone"),
        (1.0, 0.9, 0.85, 0.95, "gone"),
        (1.0, 1.0, 0.9, 1.1, "inconclusive"),
        # a claim smaller than the margin cannot be told from none
        (1.01, 1.0, 0.99, 1.01, "inconclusive"),
        (1.01, 1.05, 1.04, 1.06, "holds"),
        (1.01, 0.95, 0.94, 0.96, "reversed"),
    ],
)
def test_agreement(
    published: float, ratio: float | None, low: float | None, high: float | None, expected: str
) -> None:
    assert agreement(published, ratio, low, high, MARGIN) == expected


def test_a_ratio_on_the_margin_is_inside() -> None:
    assert agreement(1.5, 1.02, 1.02, 1.02, 0.02) == "gone"
    assert agreement(1 / 1.5, 1 / 1.02, 1 / 1.02, 1 / 1.02, 0.02) == "gone"


def test_no_effect_can_be_another_ratio_than_one() -> None:
    # Ten times the rows: ten times the time is no effect of its own.
    assert agreement(20, 20, 19, 21, MARGIN, no_effect=10) == "holds"
    assert agreement(20, 10, 9.9, 10.1, MARGIN, no_effect=10) == "gone"
    assert agreement(20, 5, 4, 6, MARGIN, no_effect=10) == "reversed"
    assert agreement(10, 10, 9.9, 10.1, MARGIN, no_effect=10) == "holds"


@pytest.mark.parametrize("bad", [0.0, -1.5])
def test_what_is_no_ratio_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        agreement(bad, 1.0, 0.9, 1.1, MARGIN)


ratios = st.floats(0.1, 10)


@settings(deadline=None)
@given(ratios, st.lists(ratios, min_size=3, max_size=3).map(sorted), st.sampled_from([0.02, 0.3]))
def test_exchanging_the_arms_changes_no_verdict(
    published: float, interval: list[float], margin: float
) -> None:
    low, ratio, high = interval
    assert agreement(published, ratio, low, high, margin) == agreement(
        1 / published, 1 / ratio, 1 / high, 1 / low, margin
    )


@settings(deadline=None)
@given(ratios, st.lists(ratios, min_size=3, max_size=3).map(sorted))
def test_a_verdict_is_only_given_for_an_interval_that_supports_it(
    published: float, interval: list[float]
) -> None:
    low, ratio, high = interval
    verdict = agreement(published, ratio, low, high, MARGIN)
    if verdict in ("holds", "holds, weaker", "reversed") and abs(published - 1) > 1e-9:
        assert not low <= 1 <= high
        assert ((ratio > 1) == (published > 1)) == (verdict != "reversed")
    if verdict == "gone" and abs(published - 1) > 1e-9:
        assert 1 / 1.0201 <= low <= high <= 1.0201


# ---- claims


def effects(**changes: Any) -> pl.DataFrame:
    row = {
        "step": "insert",
        "baseline": "heap",
        "candidate": "tree",
        "ratio": 1.5,
        "low": 1.4,
        "high": 1.6,
        "margin": MARGIN,
        "blocks": 10,
        "blocks_needed": None,
        "verdict": "slower",
    }
    return pl.DataFrame([row | changes])


def verdict(claim: Claim, table: pl.DataFrame, **options: Any) -> str:
    return str(judge([claim], table, **options)["verdict"].item())


def test_a_claim_is_judged_by_the_row_it_names() -> None:
    table = pl.concat([effects(step="vacuum", ratio=0.5), effects()])
    found = judge([SLOWER], table)
    assert found.columns == [
        *("claim", "text", "source", "published_ratio"),
        *("ratio", "low", "high", "blocks", "margin", "verdict"),
        *("blocks_needed", "baseline", "candidate"),
    ]
    assert found.row(0) == (
        *("insert", "Inserting gets slower.", "table 2", 1.5),
        *(1.5, 1.4, 1.6, 10, 0.02, "holds"),
        *(None, "heap", "tree"),
    )


def test_claims_keep_their_order() -> None:
    claims = [Claim(name, "", "", 1.5, {"step": "insert"}) for name in ("c", "a", "b")]
    assert judge(claims, effects())["claim"].to_list() == ["c", "a", "b"]
    assert judge([], effects()).is_empty()


def test_a_claim_never_says_more_than_the_effect() -> None:
    # Excluded by the interval, but not evident among all primary comparisons.
    assert verdict(SLOWER, effects(verdict="inconclusive")) == "inconclusive"
    few = effects(verdict="too few blocks", low=None, high=None, blocks=4)
    assert verdict(SLOWER, few) == "inconclusive"


def test_a_claim_of_no_difference_is_judged_as_such_whatever_its_figures() -> None:
    alike = Claim("all", "The whole table is read as fast.", "", 1.04, {}, no_difference=True)
    equal = effects(verdict="equivalent", ratio=1.0, low=0.99, high=1.01)
    assert verdict(alike, equal) == "holds"
    assert verdict(alike, effects()) == "gone"
    assert judge([alike], equal)["published_ratio"].item() == 1.04


def test_untested_claims_say_why() -> None:
    patch = Claim("patch", "", "", 0.5, {"candidate": "patched"}, not_tested="it needs the patch")
    assert verdict(patch, effects()) == "not tested: it needs the patch"
    arm = Claim("arm", "", "", 0.5, {"candidate": "patched"})
    reasons = {"patched": "the extension is not installed"}
    assert verdict(arm, effects(), not_run=reasons) == "not tested: the extension is not installed"
    assert verdict(arm, effects()) == "not tested: this run has no such comparison"
    words = Claim("words", "", "", None, {"step": "insert"})
    assert verdict(words, effects()) == "not tested: the post gives no figure"
    zero = effects(verdict="not comparable", ratio=None, low=None, high=None)
    assert verdict(SLOWER, zero) == "not tested: there is no ratio of these values"


def test_a_claim_that_fits_several_comparisons_is_refused() -> None:
    table = pl.concat([effects(), effects(candidate="hash")])
    with pytest.raises(StudyError, match="'insert' fits 2 comparisons; name more columns"):
        judge([SLOWER], table)
