"""What an upgrade changes: in sentences, by class of work, and in time where builds are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgapps.scorecard.advice import (
    WORTH_A_SENTENCE,
    advice,
    advice_text,
    counted_ahead,
    counted_between,
    counted_in_words,
    finding,
    newest_first,
    question_of,
    release_before,
    to_try,
)
from pgservers.errors import StudyError
from pgstudies.records.counts import INSTRUCTIONS, fullest_counts
from pgstudies.records.reading import Record
from pgstudies.rooms import study_module
from tests import made_up

if TYPE_CHECKING:
    from pathlib import Path

BY_RELEASE = study_module("today", "by_release")

UNITS = pl.DataFrame(
    [
        ("one en_US session", 0, 0, 1000.0, 1210.0, 1.21),
        ("one en_US session", 250, 0, 1000.0, 1170.0, 1.17),
        ("one en_US session", 2000, 0, 1000.0, 1090.0, 1.09),
        ("one en_US session", 250, 8, 1000.0, 850.0, 0.85),
        ("one probe", 0, 0, 100.0, 95.0, 0.95),
    ],
    schema=["unit", "open", "nested", "before", "after", "ratio"],
    orient="row",
)


def test_every_change_above_a_tenth_is_in_a_sentence() -> None:
    assert counted_in_words(UNITS) == [
        "One en_US session: 21 % more instructions (1,000, then 1,210); "
        "17 % more with open transactions; "
        "15 % fewer with open transactions that have subtransactions."
    ]
    units = counted_between("14", "18")
    far = units.filter((pl.col("ratio") - 1).abs() > WORTH_A_SENTENCE)
    told = counted_in_words(units)
    names = far["unit"].unique().to_list()
    assert len(told) == len(names)
    assert all(any(t.lower().startswith(f"{n}:".lower()) for t in told) for n in names)


def test_what_subtransactions_do_not_change_is_told_once_and_a_range_from_the_least() -> None:
    alike = UNITS.filter(pl.col("open") == 250).with_columns(ratio=pl.lit(1.3))
    (sentence,) = counted_in_words(alike)
    assert "30 % more instructions with open transactions, whether or not" in sentence
    ratios = [0.88, 0.8, 1.095, 1.3]
    several = UNITS.head(4).with_columns(open=pl.lit(9), nested=pl.lit(0), ratio=pl.Series(ratios))
    (sentence,) = counted_in_words(several)
    assert "12 to 20 % fewer and 30 % more instructions with open transactions" in sentence


def test_the_release_before_is_the_one_counted_before() -> None:
    assert (release_before("18"), release_before("9.6")) == ("17", "9.3")
    with pytest.raises(StudyError, match=r"No release before 9\.3 was counted"):
        release_before("9.3")


def test_every_release_is_relative_to_the_one_you_run_and_the_newest_is_first() -> None:
    table = BY_RELEASE.counted_by_release("14")
    assert table.columns[:2] == ["work", "units"]
    releases = [*map(float, table.columns[2:])]
    assert releases == sorted(releases, reverse=True)
    assert set(table["14"]) == {1.0}
    started = table.filter(work="one session started")
    alone = counted_between("14", "18").filter(unit="one session started", open=0)
    assert started["18"].item() == pytest.approx(alone["ratio"].item())
    with pytest.raises(StudyError, match=r"^8\.2 was not counted; there is .*-p releases="):
        BY_RELEASE.counted_by_release("8.2")


def test_a_directory_is_told_by_what_was_counted_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "pg; of mine"
    names = {"18": (1000, "18"), "19rc1": (1300, str(place)), "19.0": (1200, "/elsewhere")}
    counts = [
        made_up.samples({n: [c]}, INSTRUCTIONS, metric=INSTRUCTIONS, iteration=1, step="one probe")
        for n, (c, _) in names.items()
    ]
    arms = [made_up.arms_of(n)[0] | {"server": at} for n, (_, at) in names.items()]
    own = Record(tmp_path, made_up.info("releases", arms=arms), pl.concat(counts))
    reference = fullest_counts()
    monkeypatch.setattr("pgapps.scorecard.advice.counted_records", lambda: [own, reference])
    for word in (f"{place}/", f"{place}/bin/..", "19rc1"):
        text = advice_text("18", word)
        assert text.startswith("From release 18 to 19rc1\n")
        assert "One probe: 30 % more instructions (1,000, then 1,300)." in text
        assert f"  pgstudies compare --baseline 18 --candidate '{place}' --minutes 30\n" in text
    with pytest.raises(StudyError, match=f"^{tmp_path}/other was not counted"):
        advice_text("18", f"{tmp_path}/other")
    with pytest.raises(StudyError, match=r"19rc1 is not newer than 19\.0"):
        advice_text("19.0", "19rc1")
    assert [counted_ahead(after) for after in ("17", "18", "19")] == [("18", "19.0")] * 2 + [None]
    monkeypatch.setattr("pgapps.scorecard.advice.counted_records", lambda: [reference])
    assert counted_ahead("18") is None


def test_times_are_of_releases_that_were_built_alike() -> None:
    table = BY_RELEASE.timed_by_release("14")
    assert {"18", "13"} <= set(table.columns)
    assert not {"9.3", "9.6"} & set(table.columns)  # of another compiler
    assert table["18"].str.contains(r"^\d\.\d+ \(\d\.\d+–\d\.\d+\)$").all()
    assert BY_RELEASE.timed_by_release("11").is_empty()


ROW: dict[str, Any] = {
    **{"study": "io_method", "claim": "network", "metric": "duration_s"},
    **{"baseline": "sync", "candidate": "worker"},
    **{"before": 17.0, "after": 18.0, "ratio": 1.15, "low": 1.13, "high": 1.16},
}


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ((1.15, 1.13, 1.16), "15.0 % more (13.0 to 16.0 % more)"),
        ((0.858, 0.862, 0.854), "14.2 % less (13.8 to 14.6 % less)"),
        ((1.0, 0.98, 1.03), "the same (2.00 % less to 3.00 % more)"),
        ((2.24, 2.22, 2.26), "2.24 times as much (2.22 to 2.26 times as much)"),
        ((0.25, 0.25, 0.25), "75.0 % less (in every block)"),
        ((0.25, None, None), "75.0 % less (no interval)"),
    ],
)
def test_a_finding_has_its_direction_its_size_and_its_interval(
    figures: tuple[float | None, ...], words: str
) -> None:
    row = ROW | dict(zip(("ratio", "low", "high"), figures, strict=True))
    assert finding(row) == f"worker against sync: {words}, by wall time"


def test_a_finding_is_tried_by_a_command_that_fits_what_it_compares() -> None:
    assert to_try(ROW) == "pgstudies run io_method --server DIRECTORY"
    cached = ROW | {"study": "hash_index", "claim": "hash as btree"}
    assert to_try(cached) == "pgstudies run hash_index --server postgresql://me@host/database"
    releases = ROW | {"baseline": "17.11", "candidate": "18.6", "study": "mvcc_catalog"}
    told = "pgstudies compare --baseline 17 --candidate 18 --study mvcc_catalog"
    assert to_try(releases) == told


def test_findings_are_under_what_somebody_asks_and_those_of_the_newest_release_first() -> None:
    after = newest_first(advice().drop_nulls("before"))["after"].to_list()
    assert after == sorted(after, reverse=True)
    text = advice_text("14", "18")
    assert "\nI set io_method\n" in text
    assert "\nI have many open transactions\n" in advice_text("9.3", "18")
    assert "\nI think about a hash index\n" in text
    assert "\n    pgstudies run io_method --server" in text
    assert question_of("BRIN") == "BRIN"
