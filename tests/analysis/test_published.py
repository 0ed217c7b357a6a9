"""Published numbers: files and descriptor hold together, and what notebooks ask for is there."""

import csv
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pgservers import paths
from pgservers.errors import StudyError
from pgstudies.analysis.published import TYPES, published
from pgstudies.rooms import find_room, rooms
from tests.made_up import copied_rooms

SOURCES = {name: found for name, room in rooms().items() if (found := room.read("published.toml"))}
TABLES = [
    pytest.param(study, name, table, id=f"{study}-{name}")
    for study, source in SOURCES.items()
    for name, table in source["tables"].items()
]


@pytest.mark.parametrize(("study", "name", "table"), TABLES)
class TestEachTable:
    def test_columns_are_those_of_the_file(
        self, study: str, name: str, table: dict[str, Any]
    ) -> None:
        with (find_room(study).directory / table["file"]).open(newline="") as file:
            header = next(csv.reader(file))
        assert header == [column["name"] for column in table["columns"]], (study, name)

    def test_every_value_has_the_type_described(
        self, study: str, name: str, table: dict[str, Any]
    ) -> None:
        frame = published(study, name)
        assert frame.dtypes == [TYPES[column["type"]] for column in table["columns"]]
        as_text = pl.read_csv(find_room(study).directory / table["file"], infer_schema=False)
        assert frame.null_count().row(0) == as_text.null_count().row(0)

    def test_every_column_is_explained_and_every_measured_number_has_a_unit(
        self, study: str, name: str, table: dict[str, Any]
    ) -> None:
        assert table["description"], (study, name)
        assert all(column["meaning"] for column in table["columns"])
        assert all(column["unit"] for column in table["columns"] if column["type"] == "number")


def test_every_file_is_described_once() -> None:
    for study, source in SOURCES.items():
        described = [table["file"] for table in source["tables"].values()]
        there = [file.name for file in find_room(study).directory.glob("*.csv")]
        assert sorted(described) == sorted(there)


@pytest.mark.parametrize("study", SOURCES)
def test_every_study_names_its_source(study: str) -> None:
    source = SOURCES[study]
    assert source["author"]
    assert source["title"]
    assert source["licence"]
    assert re.fullmatch(r"\d{4}(-\d\d(-\d\d)?)?", source["date"])
    assert re.match(r"https?://", source.get("url", "https://"))


def test_cluster_order_has_every_timing_of_the_post() -> None:
    timings = published("cluster_order")
    assert timings.height == 110
    assert timings.group_by("arm").len().sort("arm").rows() == [("head", 55), ("patched", 55)]
    first_range = pl.col("iteration").eq(1) & pl.col("step").eq("select range")
    assert timings.filter(first_range).height == 2


def test_range_starts_follow_from_the_generator_of_the_c_library() -> None:
    assert published("cluster_order", "range_starts")["range_start"].to_list() == _range_starts(10)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("arm,sorts\na,1\n", "integer", "has the columns arm, sorts, and published.toml"),
        ("arm,pages\na,many\n", "integer", "describes it: could not parse"),
        ("arm,pages\na,1\n", "count", "table 't': columns 'pages', type must be one of integer"),
        (None, "integer", "describes it: .* No such file"),
    ],
)
def test_a_file_that_is_not_as_described_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, kind: str, said: str
) -> None:
    rooms = copied_rooms(tmp_path, "well")
    if text is not None:
        (rooms / "well" / "mine.csv").write_text(text)
    (rooms / "well" / "published.toml").write_text(
        '[tables.t]\nfile = "mine.csv"\ncolumns = [{ name = "arm", type = "text" }, '
        f'{{ name = "pages", type = "{kind}" }}]\n'
    )
    monkeypatch.setattr(paths, "NOTEBOOKS", (rooms,))
    with pytest.raises(StudyError, match=said):
        published("well")


def test_unknown_table_is_answered_with_those_known() -> None:
    with pytest.raises(StudyError, match="timings, range_starts"):
        published("cluster_order", "starts")


def _range_starts(count: int) -> list[int]:
    """The post's formula on what random() of glibc draws without a seed."""
    state = [1]
    for i in range(1, 31):
        state.append(16807 * state[i - 1] % 2147483647)
    state += [state[i - 31] for i in range(31, 34)]
    for i in range(34, 344 + count):
        state.append((state[i - 31] + state[i - 3]) % 2**32)
    draws = [value >> 1 for value in state[344:]]
    return [int(draw * (1_000_000 - 1000) / 0x7FFFFFFF) for draw in draws]
