"""The arms of the counted releases, and what their page reads from a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgservers.errors import StudyError
from pgstudies.records.reading import Record
from pgstudies.rooms import study_module
from tests import made_up

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ARMS = study_module("releases", "arms")
COUNT = study_module("releases", "count")
READING = study_module("releases", "reading")


def counts(of_arms: Mapping[str, Mapping[int, float]], again: float | None = None) -> pl.DataFrame:
    """Instructions of one unit by arm and number of transactions open."""
    rows = [
        (arm, "one start", number, 0, instructions, again)
        for arm, numbers in of_arms.items()
        for number, instructions in numbers.items()
    ]
    schema: dict[str, Any] = {"arm": pl.String(), "unit": pl.String()}
    schema |= dict.fromkeys(["open", "nested"], pl.Int64())
    schema |= dict.fromkeys(["instructions", "again"], pl.Float64())
    return pl.DataFrame(rows, schema=schema, orient="row")


def functions(**own: Mapping[str, float]) -> pl.DataFrame:
    rows = [
        (arm, "one start", 0, 0, function, 2 * number, number)
        for arm, numbers in own.items()
        for function, number in numbers.items()
    ]
    columns = ["arm", "unit", "open", "nested", "function", "inclusive", "own"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def test_a_server_of_the_readers_comes_last_or_stands_in_for_releases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def names(server: str, releases: list[str]) -> list[Any]:
        return [arm.name for arm in ARMS.arms(server=server, releases=releases)]

    why = {"9.3": None, "9.6": "no network"}
    monkeypatch.setattr("pgapps.counting.points.reason_not_available", why.get)
    assert names("", ["9.3", "9.6"]) == ["9.3", "9.6"]
    assert names("embedded", ["9.3"]) == ["9.3", "this server"]
    assert names("", ["9.6"]) == ["9.6", "this server"]
    assert names("", []) == ["this server"]
    first, own = ARMS.arms(server="embedded", releases=["9.6"])
    assert (first.server, first.not_run) == ("9.6", "no network")
    assert first.options["built"] == first.description
    assert (own.server, own.not_run, own.options) == (None, None, {"built": None})


def test_units_are_chosen_by_their_names_or_their_studies_and_an_unknown_one_is_told() -> None:
    (one,) = COUNT.chosen("one session started")
    assert COUNT.in_a_table([one])["study"].to_list() == [one.study]
    both = COUNT.chosen("one session started, sync_scans")
    assert {unit.study for unit in both} == {one.study, "sync_scans"}
    assert len(COUNT.chosen("all")) > len(both)
    with pytest.raises(StudyError, match=r"^There is no unit 'two sessions started'; the units"):
        COUNT.chosen("one session started, two sessions started")


def test_counts_stand_by_arm_and_number_open_without_the_second_copy() -> None:
    both = counts({"13": {0: 3000, 250: 6000}, "copy": {0: 1}, "9.3": {250: 4000, 0: 2000}})
    shown = READING.by_transactions(both, ["9.3", "13"])
    assert shown.select("arm", "transactions", "thousands").rows() == [
        *(("9.3", "0 open", 2.0), ("9.3", "250 open", 4.0)),
        *(("13", "0 open", 3.0), ("13", "250 open", 6.0)),
    ]
    growth = READING.growth_of(shown)
    assert growth.select("arm", "growth").rows() == [("9.3", 2.0), ("13", 2.0)]
    table = READING.of_arms(growth, ["9.3", "12", "13"], "growth")
    assert table.rows() == [("one start", "250 open", 2.0, None, 2.0)]


def test_two_counts_differ_on_the_same_state_or_on_one_made_anew() -> None:
    both = counts({"9.3": {0: 1000}, "copy": {0: 1010}}, again=990.0)
    found = READING.differing(both, "9.3", "copy")
    of_pairs = {pairs: part["off"].to_list() for (pairs,), part in found.group_by("pairs")}
    assert of_pairs["made anew"] == pytest.approx([0.01])
    assert of_pairs["same state"] == pytest.approx([0.01, 20 / 1010])
    assert READING.differing(counts({"9.3": {0: 1000}}), "9.3", None).is_empty()


def test_a_step_names_what_moved_and_whether_it_can_be_the_compilers() -> None:
    of_arms = counts({"9.3": {0: 1000}, "13": {0: 1500}, "14": {0: 1200}})
    moved = functions(**{"9.3": {"read": 900.0}, "13": {"read": 1000.0, "sort": 400.0}})
    built = {"9.3": "gcc 4", "13": "gcc 12", "14": "gcc 12"}
    steps = READING.steps(of_arms, moved, ["9.3", "13", "14", "15"], built)
    assert [(row["from"], row["to"], row["ratio"]) for row in steps] == [
        *(("9.3", "13", 1.5), ("13", "14", 0.8))
    ]
    assert steps[0]["moved most"] == "sort +400, read +100"
    assert [row["the compiler's"] for row in steps] == ["can be", "no: the same"]
    assert READING.largest(steps)["to"].to_list() == ["14"]
    assert READING.largest_in_words(steps).data.splitlines()[2:] == [
        *("*Less work*", "", "- **13 to 14**, one start: 20 % fewer instructions"),
    ]
    kinds = [{**steps[1], "unit": f"one start ({n})", "ratio": 1 + n} for n in (0.1, 0.3)]
    assert "- **13 to 14**, one start, 2 kinds: 10 to 30 % more instructions" in (
        READING.largest_in_words(kinds).data
    )
    assert READING.largest_in_words(steps[:1]).data == ""


def test_the_heaviest_functions_are_those_of_the_newest_release_counted() -> None:
    own = {f"f{number}": float(number) for number in range(1, 13)}
    of_arms = counts({"9.3": {0: 50}, "13": {0: 100}})
    found = READING.heaviest(of_arms, functions(**{"9.3": own, "13": own}), ["9.3", "13"])
    assert found["function"].to_list() == [f"f{number}" for number in range(12, 2, -1)]
    assert found["percent"][0] == 12.0


def test_what_was_counted_later_stands_by_itself_once(tmp_path: Path) -> None:
    def record(name: str, arm: str, **counted: float) -> Record:
        rows = [
            made_up.samples({arm: [n]}, "instructions", metric="instructions", iteration=1, step=u)
            for u, n in counted.items()
        ]
        info = made_up.info("releases", arms=made_up.arms_of(arm))
        return Record(tmp_path / name, info, pl.concat(rows))

    page = counts({"18": {0: 1000}})
    newest = record("newest", "18", **{"one start": 900, "one probe": 5000})
    older = record("older", "18", **{"one probe": 6000})
    found = READING.counted_later(page, [newest, older])
    assert found.columns == ["unit", "transactions", "release", "thousands", "record"]
    assert found.rows() == [("one probe", "0 open", "18", 5.0, "newest")]
    assert READING.counted_later(page, []).is_empty()
