"""Counts of instructions in a record: kept, read back, and set beside each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgapps.counting.by_function import count_samples, functions_counted, moved
from pgapps.counting.units import units
from pgservers import paths
from pgstudies.analysis.agreement import Claim, counted_effects, judge
from pgstudies.analysis.claims import all_claims
from pgstudies.analysis.effects import paired_effects
from pgstudies.analysis.pairing import block_values
from pgstudies.analysis.tables import verdict_table
from pgstudies.records.counts import claims_counted, counted_since, open_case, units_counted
from pgstudies.records.reading import Record, find_record, read_record
from pgstudies.records.writing import write_whole
from pgstudies.rooms import rooms
from tests import made_up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("private")

COUNTS = pl.DataFrame(
    [
        ("", 1000.0, 1000.0, 1000.5, 1.0),
        ("sort", 990.0, 700.0, 990.0, 0.7),
        ("std::less", 290.0, 290.0, 290.0, 0.29),
        ("rare", 1.0, 1.0, 1.0, 0.001),
    ],
    schema=["function", "inclusive", "own", "again", "share"],
    orient="row",
)


def samples_of(
    arm: str, unit: str, number: int, counts: pl.DataFrame, nested: int = 0
) -> pl.DataFrame:
    where: dict[str, Any] = {"step": unit, "case": open_case(number, nested)}
    return pl.concat(
        made_up.samples({arm: [value]}, "instructions", metric=metric, iteration=i, **where)
        for metric, i, value in count_samples(counts)
    )


def record_of(path: Path, *parts: pl.DataFrame) -> Record:
    return Record(path, made_up.info("releases"), pl.concat(parts))


def scaled(factor: float) -> pl.DataFrame:
    return COUNTS.with_columns(pl.col("inclusive", "own", "again") * factor)


def test_what_is_kept_is_read_back(tmp_path: Path) -> None:
    parts = [samples_of("18", "one thing", n, scaled(1 + n)) for n in (0, 250)]
    parts.append(samples_of("18", "one thing", 250, scaled(2), nested=8))
    record = record_of(tmp_path, *parts)
    assert units_counted(record).rows() == [
        ("18", "one thing", 0, 0, 1000.0, 1000.5),
        ("18", "one thing", 250, 0, 251_000.0, 251_125.5),
        ("18", "one thing", 250, 8, 2000.0, 2001.0),
    ]
    found = functions_counted(record).filter(pl.col("open") == 0)
    of_functions = found.drop("arm", "unit", "open", "nested").rows()
    assert of_functions == [("sort", 990.0, 700.0), ("std::less", 290.0, 290.0)]
    once = COUNTS.with_columns(again=pl.lit(None, pl.Float64()))
    record = record_of(tmp_path, samples_of("18", "one thing", 0, once))
    assert units_counted(record)["again"].to_list() == [None]


def test_functions_that_moved_most_come_first_and_new_ones_count_from_0() -> None:
    before = pl.DataFrame({"function": ["a", "b", "gone"], "own": [10.0, 50.0, 5.0]})
    after = pl.DataFrame({"function": ["a", "b", "new"], "own": [11.0, 20.0, 7.0]})
    found = moved(before, after)
    assert found.rows() == [
        ("b", 50.0, 20.0, -30.0),
        ("new", 0.0, 7.0, 7.0),
        ("gone", 5.0, 0.0, -5.0),
        ("a", 10.0, 11.0, 1.0),
    ]
    assert moved(before, after, top=1)["function"].to_list() == ["b"]


def test_every_claim_that_is_counted_is_one_and_rests_on_units_there_are() -> None:
    known = all_claims()
    assert known["claim"].is_unique().all()
    places = set(known.select("study", "claim").iter_rows())
    names = {unit.name for unit in units()}
    for study, room in rooms().items():
        for ratio in room.read("units.toml").get("ratio", []):
            assert (study, ratio["id"]) in places
            assert {place[1] for place in [*ratio["over"], *ratio["under"]]} <= names


def test_a_verdict_stands_beside_the_ratio_of_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {("9.3", 250): 1, ("9.3", 2000): 1, ("9.6", 250): 2, ("9.6", 2000): 5}

    def dropped(power: int) -> pl.DataFrame:
        return pl.concat(
            samples_of(arm, "one function dropped", n, scaled(factor**power))
            for (arm, n), factor in counts.items()
        )

    monkeypatch.setattr("pgservers.paths.REFERENCE_RECORDS", tmp_path / "none")
    assert claims_counted().is_empty()
    info = made_up.info("releases")
    path = paths.records_dir() / "releases" / "20261122T100000Z-here-abc"
    path.parent.mkdir(parents=True)
    write_whole(path, info, dropped(1))
    counted = claims_counted()
    (drop,) = counted.rows(named=True)
    assert (drop["claim"], drop["by_commit"], drop["record"]) == ("drop", False, path.name)
    # The second count is half an instruction in a thousand more, in all alike.
    assert [drop[name] for name in ("ratio", "low", "high")] == pytest.approx([2.5] * 3)

    # A newer record of another unit takes nothing away, and one of the same is the one that tells.
    newer = path.with_name("20261123T100000Z-here-abd")
    later = {"started_at": "2026-11-23T10:00:00+00:00"}
    write_whole(newer, info | later, samples_of("9.6", "one session started", 0, scaled(9)))
    assert claims_counted().equals(counted)
    newest = path.with_name("20261124T100000Z-here-abe")
    write_whole(newest, info | {"started_at": "2026-11-24T10:00:00+00:00"}, dropped(2))
    row = claims_counted().row(0, named=True)
    assert (row["record"], row["ratio"]) == (newest.name, pytest.approx(6.25))

    def shown(ratio: float) -> dict[str, Any]:
        values = {"9.3": [1.0] * 8, "9.6": [ratio] * 8}
        samples = made_up.samples(values, metric="cpu_s", step="drop")
        by = ["step", "metric"]
        effects = paired_effects(block_values(samples, by=by), baseline="9.3", by=by)
        claim = Claim("drop", "It is.", "a post", "slower", 1.4, "cpu_s", {"candidate": "9.6"})
        return verdict_table(judge([claim], effects), counted).row(0, named=True)

    row = shown(2.4)
    assert (row["instructions"], row["counted_in"], row["remark"]) == (2.5, path.name, None)
    assert "1.40 of the baseline's, as it would be by more" in shown(3.5)["remark"]
    assert "0.56 of the baseline's, as it would be by fewer" in shown(1.4)["remark"]


def test_a_claim_about_instructions_is_judged_by_counts_and_by_those_of_the_commit_first() -> None:
    where: dict[str, Any] = {"what": "start", "since": 250, "baseline": "9.3"}
    claim = Claim(
        "start", "It is.", "a post", "slower", 1.06, "instructions",
        where | {"candidate": "9.6"}, kind="count", requires=("9.3",),
    )  # fmt: skip
    of_commit = replace(
        claim, comparison=where | {"candidate": "after"}, requires=(), commit="568d4138c6"
    )
    claim = replace(claim, by_commit=of_commit)
    schema = ["claim", "by_commit", "ratio", "low", "high", "record"]
    releases = ("start", False, 1.05, 1.05, 1.05, "a")
    counted = pl.DataFrame([releases], schema=schema, orient="row")
    values = {"9.3": [1.0] * 8, "9.6": [0.9] * 8}
    samples = made_up.samples(values, metric="cpu_s", step="start")
    by = ["what", "metric", "since"]
    rounds = block_values(samples.with_columns(what="step", since=250), by=by)
    effects = paired_effects(rounds, baseline="9.3", by=by)

    def judged(counts: pl.DataFrame) -> dict[str, Any]:
        found = counted_effects([claim], counts)
        together = pl.concat([effects, found], how="diagonal_relaxed")
        return judge([claim], together).row(0, named=True)

    row = judged(counted)
    assert (row["verdict"], row["ratio"], row["metric"]) == ("holds", 1.05, "instructions")
    assert (row["commit"], row["blocks"], row["beside"]) == (None, None, pytest.approx(0.9))
    commits = pl.DataFrame([("start", True, 1.08, 1.08, 1.08, "b")], schema=schema, orient="row")
    row = judged(pl.concat([counted, commits]))
    assert (row["verdict"], row["ratio"], row["commit"]) == ("holds", 1.08, "568d4138c6")
    assert row["stood_in"] == 1.05
    none = judge([claim], effects).row(0, named=True)
    assert none["verdict"] == "not tested: its instructions were not counted"


def test_a_later_count_of_little_is_found_beside_the_fullest_and_not_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgservers.paths.REFERENCE_RECORDS", tmp_path / "none")
    home = paths.records_dir() / "releases"
    home.mkdir(parents=True)
    full, later = home / "20261122T100000Z-here-abc", home / "20261123T100000Z-here-abd"
    for path, units_of in ((full, ("one", "two")), (later, ("three",))):
        at = f"{path.name[:4]}-11-{path.name[6:8]}T10:00:00+00:00"
        info = made_up.info("releases", started_at=at)
        write_whole(path, info, pl.concat(samples_of("18", u, 0, COUNTS) for u in units_of))
    assert find_record("releases", home.parent) == full
    record = read_record(full)
    assert [r.path for r in counted_since(record)] == [later]
    assert counted_since(read_record(later)) == []
