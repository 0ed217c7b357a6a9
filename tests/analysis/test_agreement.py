"""Published beside reproduced: every verdict, at the edges and at random."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgservers.errors import StudyError
from pgstudies.analysis.agreement import (
    COPIES_DIFFER,
    FAMILY,
    HOLDS,
    NO_SUCH,
    NOT_AMONG_ALL,
    Claim,
    Kind,
    agreement,
    judge,
)

MARGIN = 0.02
SLOWER = Claim(
    "insert", "Inserting gets slower.", "table 2", "slower", 1.5, "cpu_s", {"step": "insert"}
)


@pytest.mark.parametrize(
    ("published", "ratio", "low", "high", "expected"),
    [
        # as large, larger, just large enough: 1.2247 is the square root of 1.5
        (1.5, 1.5, 1.4, 1.6, "holds"),
        (1.5, 2.4, 2.2, 2.6, "holds"),
        (1.5, 9.0, 2.24, 10.0, "holds"),
        # all of it beyond the square of the published ratio
        (1.5, 9.0, 2.26, 10.0, "holds, much stronger"),
        (3.13, 68.5, 66.5, 70.6, "holds, much stronger"),
        (1.5, 1.25, 1.23, 1.26, "holds"),
        # large enough by the estimate, not by the interval
        (1.5, 1.25, 1.22, 1.26, "holds, perhaps weaker"),
        (1.5, 1.5, 1.01, 2.2, "holds, perhaps weaker"),
        (0.5, 0.6, 0.4, 0.9, "holds, perhaps weaker"),
        (1.5, 1.22, 1.20, 1.24, "holds, weaker"),
        # less than half, but the published ratio is within reach
        (1.5, 1.2, 1.01, 1.55, "holds, weaker"),
        (1.5, 1.03, 1.01, 1.05, "holds, weaker"),
        # the other direction is judged alike
        (0.5, 0.5, 0.4, 0.6, "holds"),
        (0.5, 0.2, 0.1, 0.26, "holds"),
        (0.5, 0.1, 0.05, 0.24, "holds, much stronger"),
        (0.5, 0.8, 0.75, 0.85, "holds, weaker"),
        # no effect of any size that matters, even where it is real
        (1.5, 1.0, 0.99, 1.01, "gone"),
        (1.5, 1.01, 1.005, 1.015, "gone"),
        (0.5, 1.0, 0.99, 1.01, "gone"),
        # a ratio on the margin is inside
        (1.5, 1.02, 1.02, 1.02, "gone"),
        (1 / 1.5, 1 / 1.02, 1 / 1.02, 1 / 1.02, "gone"),
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
        (1.01, 1.05, 1.02, 1.06, "holds"),
        (1.01, 1.05, 1.04, 1.06, "holds, much stronger"),
        (1.01, 0.95, 0.94, 0.96, "reversed"),
    ],
)
def test_agreement(
    published: float, ratio: float | None, low: float | None, high: float | None, expected: str
) -> None:
    assert agreement(published, ratio, low, high, MARGIN) == expected


@pytest.mark.parametrize(
    ("threshold", "ratio", "low", "high", "expected"),
    [
        # the whole interval is past it, or on it
        (0.1, 0.05, 0.04, 0.06, "holds"),
        (0.1, 0.1, 0.1, 0.1, "holds"),
        (10.0, 12.0, 10.0, 14.0, "holds"),
        # wholly short of it, on the claim's side: half as large on the log scale is not enough
        (0.1, 0.251, 0.251, 0.251, "holds, weaker"),
        (0.1, 0.12, 0.11, 0.13, "holds, weaker"),
        (10.0, 9.0, 8.0, 9.9, "holds, weaker"),
        # straddles the threshold, or 1
        (0.1, 0.09, 0.05, 0.11, "inconclusive"),
        (0.1, 0.11, 0.1, 0.13, "inconclusive"),
        (0.1, 0.5, 0.2, 1.2, "inconclusive"),
        # as of a direction
        (0.1, 1.0, 0.99, 1.01, "gone"),
        (0.1, 1.2, 1.1, 1.3, "reversed"),
        (0.1, None, None, None, "inconclusive"),
    ],
)
def test_a_named_threshold_is_what_the_interval_must_be_past(
    threshold: float, ratio: float | None, low: float | None, high: float | None, expected: str
) -> None:
    assert agreement(threshold, ratio, low, high, MARGIN, is_threshold=True) == expected


@pytest.mark.parametrize(
    ("published", "ratio", "expected"),
    [
        (None, 9.0, "holds"),  # words alone name no size
        (1.8, 3.2, "holds"),
        (1.8, 3.3, "holds, much stronger"),
        (0.6, 9.0, "holds"),  # at this size the post's ratio is on the other side of 1
    ],
)
def test_a_threshold_is_held_much_stronger_by_the_published_ratio_alone(
    published: float | None, ratio: float, expected: str
) -> None:
    how: dict[str, Any] = {"is_threshold": True, "published": published}
    assert agreement(1.5, ratio, ratio, ratio, MARGIN, **how) == expected
    if published:
        how["published"] = 1 / published
    assert agreement(1 / 1.5, 1 / ratio, 1 / ratio, 1 / ratio, MARGIN, **how) == expected


@pytest.mark.parametrize("published", [0.96429, 1 / 0.96429])
def test_what_the_post_calls_alike_may_be_as_far_apart_here(published: float) -> None:
    def verdict(low: float, high: float, published: float | None = published) -> str:
        return agreement(1.0, math.sqrt(low * high), low, high, MARGIN, published=published)

    assert verdict(0.955, 0.975) == verdict(1.02, 1.055) == "holds"  # the post's own figure
    assert verdict(0.955, 0.975, None) == "gone"
    assert verdict(0.94, 0.95) == "inconclusive"
    assert verdict(0.92, 0.94) == verdict(1.06, 1.1) == "gone"


@pytest.mark.parametrize("bad", [0.0, -1.5])
def test_what_is_no_ratio_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        agreement(bad, 1.0, 0.9, 1.1, MARGIN)


ratios = st.floats(0.1, 10)


@settings(deadline=None)
@given(
    ratios,
    st.lists(ratios, min_size=3, max_size=3).map(sorted),
    st.sampled_from([0.02, 0.3]),
    st.booleans(),
)
def test_exchanging_the_arms_changes_no_verdict(
    published: float, interval: list[float], margin: float, is_threshold: bool
) -> None:
    low, ratio, high = interval
    here, there = (
        agreement(*ratios, margin, is_threshold=is_threshold)
        for ratios in (
            (published, ratio, low, high),
            (1 / published, 1 / ratio, 1 / high, 1 / low),
        )
    )
    assert here == there


@settings(deadline=None)
@given(ratios, st.lists(ratios, min_size=3, max_size=3).map(sorted))
def test_a_verdict_is_only_given_for_an_interval_that_supports_it(
    published: float, interval: list[float]
) -> None:
    low, ratio, high = interval
    verdict = agreement(published, ratio, low, high, MARGIN)
    if verdict in (*HOLDS, "reversed") and abs(published - 1) > 1e-9:
        assert not low <= 1 <= high
        assert ((ratio > 1) == (published > 1)) == (verdict != "reversed")
    if verdict == "gone" and abs(published - 1) > 1e-9:
        assert 1 / 1.0201 <= low <= high <= 1.0201


# ---- claims


def effects(**changes: Any) -> pl.DataFrame:
    row = {
        **{"step": "insert", "metric": "cpu_s", "baseline": "heap", "candidate": "tree"},
        **{"ratio": 1.5, "low": 1.4, "high": 1.6, "margin": MARGIN, "level": 0.95},
        **{"p_value": 2 / 2**10, "blocks": 10, "blocks_needed": None, "verdict": "slower"},
        "log_ratios": LARGE,
    }
    types = {"blocks_needed": pl.Int64(), "log_ratios": pl.List(pl.Float64())}
    return pl.DataFrame([row | changes], schema_overrides=types)


LARGE = [0.40, 0.41, 0.39, 0.42, 0.38, 0.40]
"""Log-ratios of six blocks that all agree."""

SMALL = [0.1, -0.04, 0.2, -0.1, 0.15, 0.12]
"""Log-ratios of six blocks of which two disagree."""

TOO_FEW: dict[str, Any] = {"low": None, "high": None, "p_value": None, "blocks": 4} | {
    "log_ratios": LARGE[:4]
}


def verdict(claim: Claim, table: pl.DataFrame, **options: Any) -> str:
    return str(judge([claim], table, **options)["verdict"].item())


def test_a_claim_is_judged_by_the_row_it_names() -> None:
    table = pl.concat([effects(step="vacuum", ratio=0.5), effects()])
    found = judge([SLOWER], table)
    assert found.columns == [
        *("claim", "text", "source", "kind", "published_ratio"),
        *("metric", "ratio", "low", "high", "beside", "blocks", "margin", "p_family", "verdict"),
        *("blocks_needed", "baseline", "candidate", "aa", "aa_low", "aa_high"),
        *("commit", "stood_in", "stood_in_low", "stood_in_high", "stood_in_verdict"),
    ]
    assert found[:, :18].row(0) == (
        *("insert", "Inserting gets slower.", "table 2", "direction", 1.5),
        *("cpu_s", 1.5, 1.4, 1.6, None, 10, 0.02, 2 / 2**6, "holds"),
        *(None, "heap", "tree", None),
    )


def test_claims_keep_their_order() -> None:
    claims = [replace(SLOWER, id=name) for name in ("c", "a", "b")]
    assert judge(claims, effects())["claim"].to_list() == ["c", "a", "b"]
    assert judge([], effects()).is_empty()


def test_a_claim_that_two_are_alike_is_judged_as_such_whatever_its_figures() -> None:
    alike = replace(SLOWER, direction="alike", kind="alike", published_ratio=1.04)
    equal = effects(verdict="equivalent", ratio=1.0, low=0.99, high=1.01)
    assert verdict(alike, equal) == "holds"
    assert verdict(alike, effects()) == "gone"
    straddling = effects(ratio=1.1, low=1.01, high=1.2)
    assert verdict(alike, straddling) == "inconclusive"
    assert judge([alike], equal)["published_ratio"].item() == 1.04


@pytest.mark.parametrize("kind", ["threshold", "count"])
def test_a_claim_that_names_a_threshold_is_judged_by_it(kind: Kind) -> None:
    double = replace(SLOWER, kind=kind, threshold=2.0, published_ratio=None)
    assert verdict(double, effects()) == "holds, weaker"
    assert verdict(double, effects(ratio=2.2, low=2.1, high=2.3)) == "holds"
    assert verdict(replace(double, kind="direction", threshold=None, published_ratio=2.0),
                   effects(low=1.42)) == "holds"  # fmt: skip


def test_cpu_time_judges_and_wall_time_stands_beside_it() -> None:
    both = pl.concat([effects(metric="duration_s", ratio=1.3, low=1.2, high=1.4), effects()])
    columns = ["metric", "ratio", "beside"]
    assert judge([SLOWER], both).select(columns).row(0) == ("cpu_s", 1.5, 1.3)
    by_time = replace(SLOWER, judged_by="duration_s")
    assert judge([by_time], both).select(columns).row(0) == ("duration_s", 1.3, 1.5)


def test_without_cpu_time_wall_time_judges_and_without_a_count_nothing_does() -> None:
    timed = effects(metric="duration_s")
    columns = ["metric", "ratio", "beside", "verdict"]
    assert judge([SLOWER], timed).select(columns).row(0) == ("duration_s", 1.5, None, "holds")
    counted = replace(SLOWER, judged_by="buffers_read", kind="count")
    by_time = replace(SLOWER, judged_by="duration_s")
    for claim, table in ((counted, timed), (by_time, effects())):
        assert verdict(claim, table) == f"not tested: {NO_SUCH}"


def test_claims_and_effects_that_do_not_fit_each_other_are_refused() -> None:
    typing = replace(SLOWER, comparison={"candidat": "patched"})
    with pytest.raises(StudyError, match="candidat, which is no column"):
        verdict(typing, effects())
    for name, value in (("candidate", "hash"), ("iteration", 2)):
        both = [effects(iteration=1), effects(**{"iteration": 1, name: value})]
        with pytest.raises(StudyError, match=f"'insert' fits 2 .* differ in {name}:"):
            verdict(SLOWER, pl.concat(both))
    with pytest.raises(StudyError, match="do not say their metric"):
        verdict(SLOWER, effects().drop("metric"))
    with pytest.raises(StudyError, match="'isnert', which is no claim; the claims are: insert"):
        verdict(SLOWER, effects(), conditions={"isnert": None})


def test_untested_claims_say_why() -> None:
    patch = replace(SLOWER, not_tested="it needs the patch")
    assert verdict(patch, effects()) == "not tested: it needs the patch"
    arm = replace(SLOWER, comparison={"candidate": "patched"})
    reasons = {"patched": "the extension is not installed"}
    assert verdict(arm, effects(), not_run=reasons) == "not tested: the extension is not installed"
    assert verdict(arm, effects()) == f"not tested: {NO_SUCH}"
    away = {"files": "out of reach"}
    cold = replace(arm, requires=("build", "files"))
    assert verdict(cold, effects(), not_run=reasons | away) == "not tested: out of reach"
    met = replace(SLOWER, requires=("files",))
    assert verdict(met, effects(), not_run=reasons) == "holds"
    assert verdict(met, effects(), not_run=away) == "not judged: out of reach"
    words = replace(SLOWER, published_ratio=None)
    assert verdict(words, effects()) == "not tested: the post gives no figure"
    words = replace(words, is_side=True)
    assert verdict(words, effects()) == "holds"
    assert verdict(words, effects(ratio=1.2, low=0.9, high=1.5)) == "inconclusive"
    assert verdict(words, effects(ratio=1.0, low=0.999, high=1.001)) == "gone"
    assert verdict(words, effects(ratio=0.8, low=0.7, high=0.9)) == "reversed"
    zero = effects(verdict="not comparable", ratio=None, **TOO_FEW)
    assert verdict(SLOWER, zero) == "not tested: there is no ratio of these values"
    for other_way in (1.0, 0.9):
        small = replace(SLOWER, published_ratio=other_way)
        assert verdict(small, effects()).startswith("not tested: at this size")


# ---- validity before verdicts


def test_a_claim_whose_condition_is_not_met_is_not_judged_and_keeps_its_figures() -> None:
    found = judge([SLOWER], effects(), conditions={"insert": "the table fits into memory"})
    assert found.select("verdict", "ratio", "p_family").row(0) == (
        *("not judged: the table fits into memory", 1.5, None),
    )
    assert verdict(SLOWER, effects(), conditions={"insert": None}) == "holds"


def test_what_was_not_measured_is_not_tested_whatever_its_condition() -> None:
    arm = replace(SLOWER, comparison={"candidate": "patched"})
    told = verdict(arm, effects(), conditions={"insert": "the table fits into memory"})
    assert told == f"not tested: {NO_SUCH}"
    told = verdict(arm, effects(), not_run={"insert": "no disk was made slow"})
    assert told == "not tested: no disk was made slow"


def test_two_copies_that_differ_shut_the_gate() -> None:
    found = verdict(SLOWER, effects(verdict="not valid"))
    assert found == f"not judged: {COPIES_DIFFER} in this step"


@pytest.mark.parametrize(
    ("low", "apart", "noise", "expected"),
    [
        (1.15, 1.015, 1.02, "holds, perhaps weaker"),  # within the margin
        (1.15, 1.10, 1.02, "holds, perhaps weaker"),  # 1.4 to 1.6, so moved, is still half of 1.5
        (1.15, 1.20, 1.02, f"not judged: {COPIES_DIFFER} by 20 %"),
        (1.15, 1 / 1.20, 1.02, f"not judged: {COPIES_DIFFER} by 20 %"),
        (1.15, 1.05, 1.31, "holds, perhaps weaker"),  # noise is not counted twice
        (0.9, 1.5, 1.07, "inconclusive"),  # an open verdict hangs on no gate
    ],
)
def test_copies_that_differ_by_what_a_verdict_hangs_on_shut_the_gate(
    low: float, apart: float, noise: float, expected: str
) -> None:
    gate = {"aa": apart, "aa_low": apart / noise, "aa_high": apart * noise}
    assert verdict(SLOWER, effects(low=low, **gate)).startswith(expected)


# ---- one family


def family(*log_ratios: list[float]) -> pl.DataFrame:
    """An effect for each, evident on its own unless it has too few blocks: steps 0, 1, …"""
    return pl.concat(
        [
            effects(step=str(n), p_value=2 / 2**6, blocks=6, log_ratios=d)
            if len(d) == 6
            else effects(step=str(n), verdict="too few blocks", **TOO_FEW)
            for n, d in enumerate(log_ratios)
        ],
        how="vertical_relaxed",
    )


def claims_of(count: int, **changes: Any) -> list[Claim]:
    return [
        replace(SLOWER, id=str(n), comparison={"step": str(n)}, **changes) for n in range(count)
    ]


def test_six_blocks_that_agree_carry_any_number_of_claims() -> None:
    for count in (1, 2, 89):
        found = judge(claims_of(count), family(*[LARGE] * count))
        assert found["p_family"].to_list() == [2 / 2**6] * count
        assert found["verdict"].unique().to_list() == ["holds"]


def test_a_claim_that_is_evident_on_its_own_may_not_be_among_all() -> None:
    found = judge(claims_of(2), family(LARGE, SMALL))
    (large, small) = found["p_family"]
    assert large == 2 / 2**6
    assert small > 0.05
    assert found["verdict"].to_list() == ["holds", NOT_AMONG_ALL]
    assert found["blocks_needed"][1] > 6


def test_a_reversal_must_remain_as_well_and_equivalence_need_not() -> None:
    faster = claims_of(2, direction="faster", published_ratio=0.5)
    assert judge(faster, family(LARGE, LARGE))["verdict"].to_list() == ["reversed"] * 2
    slower = family(SMALL, SMALL)
    assert judge(faster, slower)["verdict"].str.starts_with("inconclusive: evident").all()
    equal = slower.with_columns(ratio=1.0, low=0.99, high=1.01)
    assert judge(faster, equal)["verdict"].to_list() == ["gone", "gone"]


def test_a_claim_with_too_few_blocks_or_not_tested_has_no_p_value() -> None:
    table = family(LARGE, LARGE[:4])
    assert judge(claims_of(2), table)["p_family"].to_list() == [2 / 2**6, None]
    assert judge(claims_of(2), table.head(1))["p_family"].to_list() == [2 / 2**6, None]
    unmet = judge(claims_of(2), family(LARGE, LARGE), conditions={"1": "a plan of another kind"})
    assert unmet["p_family"].to_list() == [2 / 2**6, None]
    shut = pl.concat([effects(step="0"), effects(step="1", verdict="not valid")])
    assert judge(claims_of(2), shut)["p_family"].to_list() == [2 / 2**6, None]


def test_only_tests_of_a_difference_are_the_family() -> None:
    one = claims_of(2)[0]
    for kind in get_args(Kind):
        other = replace(claims_of(2)[1], kind=kind, threshold=1.2)
        p_family = judge([one, other], family(LARGE, LARGE))["p_family"].to_list()
        assert p_family == ([2 / 2**6] * 2 if kind in FAMILY else [2 / 2**6, None])


def test_a_claim_is_judged_by_its_commit_where_the_run_has_it() -> None:
    compared = {"step": "insert", "candidate": "stand-in"}
    claim = replace(SLOWER, comparison=compared, requires=("extension",))
    compared = compared | {"candidate": "after"}
    of_commit = replace(claim, comparison=compared, requires=(), commit="568d4138c6")
    both = replace(claim, by_commit=of_commit)
    stand_in = effects(candidate="stand-in", ratio=1.1, low=1.05, high=1.15)
    commit = effects(candidate="after", ratio=1.6, low=1.5, high=1.7)
    columns = ("verdict", "ratio", "commit", "stood_in")
    lacking = {"extension": "no compiler"}
    without = judge([both], stand_in).select(columns).row(0)
    assert without == (judge([claim], stand_in)["verdict"][0], 1.1, None, None)
    found = judge([both], pl.concat([stand_in, commit]), not_run=lacking)
    assert found.select(columns).row(0) == ("holds", 1.6, "568d4138c6", 1.1)
    assert found["stood_in_low"][0] < 1.1 < found["stood_in_high"][0]
    alone = judge([both], commit, not_run=lacking).select(columns).row(0)
    assert alone == ("holds", 1.6, "568d4138c6", None)
    (neither,) = judge([both], effects().clear(), not_run=lacking)["verdict"]
    assert neither == "not tested: no compiler"
