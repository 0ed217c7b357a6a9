"""Several runs of one version judge as the blocks of one run do; fewer, and others, do not."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from book.bench.runs import LUCKS, missed
from pgapps.scorecard.judging import write_verdicts
from pgapps.scorecard.runs import judged_together, of_all_runs
from pgservers import paths
from pgstudies.analysis.agreement import COPIES_DIFFER, HOLDS, NOT_AMONG_ALL, NOT_JUDGED, judge
from pgstudies.analysis.intervals import hodges_lehmann
from pgstudies.charts.outcomes import runs_text, usual_runs
from pgstudies.records.reading import alike_before
from pgstudies.records.verdicts import VERDICTS, read_verdicts
from tests.made_up import SWEPT, swept_info, swept_record

if TYPE_CHECKING:
    from pathlib import Path


SCHEMA = judge([], pl.DataFrame()).schema
SIX = (2.0, 2.2, 1.9, 2.1, 2.3, 1.8)
CODE = {"procedure": "0123"}


@pytest.fixture(autouse=True)
def _rules(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[dict[str, Any]] = [{"id": "claim"}, {"id": "threshold", "threshold": 1.5}]
    rules = [rule | {"direction": "more"} for rule in known]
    monkeypatch.setattr("pgapps.scorecard.runs.rules", lambda _: rules)


def row(ratio: float | None, claim: str = "claim", **told: Any) -> dict[str, Any]:
    """A row of ``judge`` of one run."""
    usual: dict[str, Any] = {"kind": "direction", "published_ratio": 2.0, "metric": "cpu_s"}
    usual |= {"blocks": 8, "margin": 0.02, "p_family": 0.01, "verdict": "holds", "blocks_needed": 9}
    interval = {"low": ratio and ratio / 1.01, "high": ratio and ratio * 1.01}
    return {"claim": claim, "text": "A claim.", "ratio": ratio, **interval} | usual | told


def table(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([*rows], schema=SCHEMA)


def together(*rows: dict[str, Any]) -> Any:
    """The one claim by runs of which each has one of these rows."""
    (found,) = judged_together("swept", [table(each) for each in rows])
    return found


def test_six_runs_judge_from_the_lowest_to_the_highest() -> None:
    found = together(*map(row, SIX))
    assert (found["low"], found["high"]) == pytest.approx((1.8, 2.3))
    assert found["ratio"] == pytest.approx(math.exp(hodges_lehmann(np.log(SIX))))
    assert (found["runs"], found["blocks"], found["verdict"]) == (6, 8, "holds")
    assert (found["p_family"], found["blocks_needed"]) == (1 / 32, None)
    one_off = together(*map(row, (0.9, *SIX[1:])))
    assert one_off["low"] == pytest.approx(0.9)
    assert one_off["verdict"] == "inconclusive"


def test_five_runs_leave_the_first_ones_verdict() -> None:
    (first,) = table(row(2.0)).to_dicts()
    assert together(*map(row, SIX[:5])) == first | {"runs": 5}
    assert together(row(2.0)) == first | {"runs": 1}


def test_what_one_of_many_claims_has_by_chance_is_not_evident() -> None:
    strengths = np.log([1.03, 1.03, 1.04, 1.05, 1.06, 1.1])
    signs = itertools.islice(itertools.product((1, -1), repeat=5), 18)
    ratios = np.exp([strengths * (1, *sign) for sign in signs])
    runs = [
        table(*(row(r, f"claim {n}", published_ratio=1.1) for n, r in enumerate(run.tolist())))
        for run in ratios.T
    ]
    (alone,) = judged_together("swept", [run.head(1) for run in runs])
    assert alone["verdict"] in HOLDS
    found = judged_together("swept", runs)
    assert (found[0]["p_family"], found[0]["verdict"]) == (18 / 32, NOT_AMONG_ALL)
    assert all(each["verdict"].startswith("inconclusive") for each in found)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.06, 1.1, 1.05, 1.2, 1.1, 1.07), "holds"),
        ((0.98, 1.1, 1.05, 1.2, 1.1, 1.07), "inconclusive"),
        ((0.995, 1.01, 1.0, 0.99, 1.01, 1.0), "gone"),
        ((0.5, 0.6, 0.55, 0.5, 0.6, 0.52), "reversed"),
    ],
)
def test_a_direction_alone_is_judged_by_all_runs(ratios: tuple[float, ...], verdict: str) -> None:
    found = together(*(row(ratio, published_ratio=None) for ratio in ratios))
    assert found["verdict"] == verdict


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.6, 1.7, 1.8, 1.9, 1.7, 1.65), "holds"),
        ((1.4, 1.7, 1.8, 1.9, 1.7, 1.65), "inconclusive"),
        ((1.4, 1.3, 1.2, 1.3, 1.25, 1.35), "holds, weaker"),
    ],
)
def test_a_threshold_is_passed_by_all_runs(ratios: tuple[float, ...], verdict: str) -> None:
    found = together(*(row(ratio, "threshold", kind="threshold") for ratio in ratios))
    assert (found["verdict"], found["p_family"]) == (verdict, 1 / 32)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((0.995, 1.0, 1.005, 1.01, 0.99, 1.002), "holds"),
        ((0.995, 1.0, 1.005, 1.03, 0.99, 1.002), "inconclusive"),
        ((1.04, 1.05, 1.06, 1.04, 1.05, 1.06), "gone"),
    ],
)
def test_what_is_alike_is_within_the_margin_in_all_runs(
    ratios: tuple[float, ...], verdict: str
) -> None:
    found = together(*(row(ratio, kind="alike", published_ratio=1.0) for ratio in ratios))
    assert (found["verdict"], found["p_family"]) == (verdict, None)


@pytest.mark.parametrize(
    "other",
    [
        row(None, verdict="not tested: no compiler"),
        row(9.0, verdict="not judged: the plan is another"),
        row(9.0, metric="duration_s"),
        row(9.0, commit="abc"),
        row(9.0, "another claim"),
    ],
)
def test_a_run_that_lacks_the_claim_is_none_of_its_numbers(other: dict[str, Any]) -> None:
    six = [row(ratio) for ratio in SIX]
    found = together(*six, other)
    assert (found["runs"], found["high"]) == (6, pytest.approx(2.3))
    five = together(*six[:5], other)
    assert (five["runs"], five["high"]) == (5, pytest.approx(2.02))


def test_the_newest_run_may_lack_what_six_others_have() -> None:
    lacking = row(None, verdict="not tested: no compiler")
    found = together(lacking, *map(row, SIX))
    assert (found["runs"], found["verdict"]) == (6, "holds")
    assert together(lacking)["runs"] is None


def test_counts_that_every_run_repeats_have_no_width() -> None:
    found = together(*[row(2.0, kind="count")] * 6)
    assert found["low"] == found["ratio"] == found["high"] == pytest.approx(2.0)
    assert found["verdict"] == "holds"


def test_copies_are_judged_by_all_runs_too() -> None:
    apart: dict[str, Any] = {"aa": 3.0, "aa_low": 2.9, "aa_high": 3.1}
    found = together(*(row(ratio, **apart) for ratio in SIX))
    assert found["verdict"].startswith(f"{NOT_JUDGED}: {COPIES_DIFFER} by")
    shut: dict[str, Any] = {"verdict": f"{NOT_JUDGED}: {COPIES_DIFFER} by 5 % in this step"}
    aa = itertools.cycle((0.95, 1.05))
    copies = ({"aa": x, "aa_low": x - 0.01, "aa_high": x + 0.01} for x in aa)
    found = together(*(row(ratio, **shut | next(copies)) for ratio in SIX))
    assert (found["runs"], found["verdict"]) == (6, "holds")
    assert (found["aa_low"], found["aa_high"]) == pytest.approx((0.95, 1.05))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "own"))
    monkeypatch.setattr(paths, "REFERENCE_RECORDS", tmp_path / "reference")
    return tmp_path


def reference(place: Path, day: int, ratio: float, **told: Any) -> Path:
    """A reference record, with its verdicts; of one version unless ``told`` changes that."""
    session = {"started_at": "2026-01-01T00:00:00+00:00", "boot_id": f"boot {day}"}
    usual: dict[str, Any] = {"code": CODE, "sessions": [session]}
    name = f"202601{day:02}T000000Z-a"
    path = swept_record(place / "reference" / "swept", "db0", name=name, **(usual | told))
    write_verdicts(path / VERDICTS, table(row(ratio)), "abc")
    return path


def found_by(record: Path) -> tuple[Any, ...]:
    """How many runs judge with a record, and the upper end of their interval."""
    found = of_all_runs("swept", record, read_verdicts(record / VERDICTS))
    return found.select("runs", "high").row(0)


@pytest.mark.parametrize(
    "other",
    [
        {"code": {"procedure": "4567"}},
        {"code": CODE | {"hash_2008": "89ab"}},
        {"code": {}},
        {"git": {"dirty": True}},
        {"status": "interrupted"},
        {"profile": "standard"},
        {"parameters": SWEPT | {"blocks": 6, "sizes": [9]}},
        {"settings": {"jit": "off"}},
        {"server": {"version": 170004}},
        {"cores": 2},
    ],
)
def test_a_run_of_another_version_judges_nothing(place: Path, other: dict[str, Any]) -> None:
    apart = reference(place, 1, 9.0, **other)
    for day, ratio in enumerate(SIX, start=2):
        newest = reference(place, day, ratio)
    assert found_by(newest) == (6, pytest.approx(2.3))
    assert found_by(apart) == (1, pytest.approx(9.0 * 1.01))


def test_of_the_runs_of_one_boot_the_newest_counts(place: Path) -> None:
    same: dict[str, Any] = {"sessions": [{"started_at": "2026-01-01T00:00:00Z", "boot_id": "a"}]}
    reference(place, 1, 9.0, **same)
    reference(place, 2, SIX[0], **same)
    for day, ratio in enumerate(SIX[1:], start=3):
        newest = reference(place, day, ratio, parameters=SWEPT | {"blocks": 8, "seed": day})
    assert found_by(newest) == (6, pytest.approx(2.3))
    assert found_by(reference(place, 8, 1.9, **same))[0] == 6


def test_runs_are_told_in_words_up_to_five_and_once_for_most_claims() -> None:
    assert [runs_text(n) for n in (None, 1, 2, 5, 6)] == [
        *("", "one run", "two runs", "five runs", "6 runs"),
    ]
    assert runs_text(6, usual=6) == ""
    assert usual_runs(pl.DataFrame({"runs": [None, 6, None, 5, 6, None]})) == 6
    assert usual_runs(pl.DataFrame({"runs": [None]}, schema={"runs": pl.Int64()})) is None


@pytest.mark.parametrize(("luck", "how"), LUCKS[:-1])
def test_intervals_and_studies_of_six_runs_keep_their_level(luck: float, how: str) -> None:
    found = missed(6, 200, luck, how)
    assert found.intervals <= 0.08  # 1 in 32; those of one study depend on each other
    assert found.studies <= 0.1


def test_luck_that_comes_with_the_boot_asks_for_a_boot_for_each_run() -> None:
    assert missed(6, 200, *LUCKS[-1]).intervals > 0.15  # three signs agree in one of four studies


def test_a_run_knows_which_complete_runs_alike_there_were(place: Path) -> None:
    swept_record(place / "own" / "swept", "db1", name="own", blocks=6)
    swept_record(place / "reference" / "swept", "db2", name="reference", blocks=2)
    swept_record(place / "own" / "swept", "db1", name="stopped", status="interrupted")
    other = SWEPT | {"blocks": 6, "sizes": [9]}
    swept_record(place / "own" / "swept", "db1", name="larger", parameters=other)
    assert alike_before("swept", swept_info("db3", 4)) == ["own", "reference"]
