"""What is kept of commits, and the history drawn from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import typer

from pgapps.builds.builder import Builder
from pgapps.commits.bisect import bisect
from pgapps.commits.history import (
    breaks_of,
    commit_histories,
    history_chart,
    history_text,
    lines_of,
    release_histories,
    steps_in_words,
    steps_of,
    steps_table,
)
from pgapps.commits.history_command import history as command
from pgapps.commits.record import CommitRecord
from pgservers.errors import StudyError
from pgstudies.charts.tables import table_html
from pgstudies.records.reading import list_records, read_record
from tests.commits.conftest import Scripted
from tests.counting.test_points import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pgapps.builds.repository import Repository
    from pgstudies.records.reading import Record

UNIT = "one session started"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    monkeypatch.setattr("pgapps.counting.counter.Counter", Scripted)
    monkeypatch.setattr("pgapps.commits.strategies.Counter", Scripted)
    return tmp_path / "records"


def table(cost: float) -> pl.DataFrame:
    rows = [("", cost, 0.0, None, 0.0), ("scan", cost, cost, None, 1.0)]
    return pl.DataFrame(
        rows, schema=["function", "inclusive", "own", "again", "share"], orient="row"
    )


def counted(*points: tuple[str, str, float]) -> pl.DataFrame:
    """The lines of a record of these points: name, build, cost."""
    with CommitRecord("history", {"points": [name for name, _, _ in points]}, built="") as kept:
        for name, built, cost in points:
            version = f"PostgreSQL {name}.1"
            kept.add(name, {"a": table(cost)}, description="", built=built, version_text=version)
        path = kept.finish()
    return lines_of(read_record(path))


def newest() -> Record:
    """The history that was recorded last."""
    return read_record(list_records("history")["path"][-1])


def test_builds_are_kept_by_what_the_compiler_says_of_itself(
    history: Callable[..., Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, kept = history([1]), []
    for version in ("14.2.0", "16.2.0", "14.2.0"):
        said = f"cc (GCC) {version}"
        monkeypatch.setattr("pgapps.builds.builder.compiler_version", lambda _, said=said: said)
        builder = Builder(repository)
        with repository.held():
            place = builder.build(repository.commit("HEAD").sha)
        kept.append((place, builder.how, builder.built))
    first, other, again = kept
    assert first[0] != other[0]
    assert again == (first[0], "gcc 14.2.0, -O2", 0)
    assert other[1:] == ("gcc 16.2.0, -O2", 1)


def test_a_step_is_a_level_that_changes_by_more_than_a_thousandth() -> None:
    lines = counted(
        ("15", "gcc", 1000), ("16", "gcc", 1000.9), ("17", "gcc", 900), ("18", "gcc", 990)
    )
    steps = steps_of(lines)
    assert steps.select("from", "to", "before", "after").rows() == [
        ("16.1", "17.1", 1000.9, 900.0),
        ("17.1", "18.1", 900.0, 990.0),
    ]
    assert steps["range"][0].endswith("/REL_16_1...REL_17_1")


def test_a_line_is_broken_where_the_build_changes_and_that_is_told() -> None:
    points = [("9.6", "gcc -O2", 1000), ("10", "gcc -Os", 1500), ("11", "gcc -O2", 1000)]
    lines = counted(*points)
    assert steps_of(lines).is_empty()
    assert lines["line"].to_list() == ["gcc -O2", "gcc -Os", "gcc -O2 (again, 11)"]
    assert breaks_of(lines).rows() == [
        ("9.6.1", "10.1", "gcc -O2", "gcc -Os"),
        ("10.1", "11.1", "gcc -Os", "gcc -O2"),
    ]
    assert "Not compared: 9.6.1 -> 10.1, built by gcc -O2 and gcc -Os." in history_text(lines)


def test_steps_are_shown_with_a_link_to_what_lies_between() -> None:
    steps = steps_of(counted(("17", "gcc", 10), ("18", "gcc", 12)))
    shown = table_html(steps_table(steps))
    assert '/compare/REL_17_1...REL_18_1">17.1 to 18.1</a>' in shown
    minor, major, step = steps_in_words(steps).data.split("\n\n")
    assert "no count" in minor
    assert "one count" in major
    link = "[17.1 to 18.1](https://github.com/postgres/postgres/compare/REL_17_1...REL_18_1)"
    assert link in step
    assert "a: 20.0 % more instructions (10, then 12)" in step
    hostile = pl.DataFrame({"x": [{"text": "<b>", "href": '">'}]})
    assert "<b>" not in table_html(hostile)


def test_the_steps_between_minor_releases_are_told_apart() -> None:
    told = steps_in_words(steps_of(lines_of(release_histories()[0]))).data
    minor, major = told.split("**Between major releases**")
    assert "17.10 to 17.11" in minor
    assert "14.24 to 15.19" in major
    assert (minor.count("\n- "), major.count("\n- ")) == (3, 3)


def test_the_reference_record_of_releases_has_a_history() -> None:
    record = release_histories()[-1]
    lines = lines_of(record)
    points = lines["point"].unique(maintain_order=True).to_list()
    majors = {p.rpartition(".")[0] for p in points}
    assert {"9.3", "9.6", *map(str, range(10, 19))} <= majors
    to_18 = pl.col("unit") == "one session started", pl.col("to").str.starts_with("18.")
    step = steps_of(lines).filter(*to_18)
    assert step["percent"][0] == pytest.approx(13.53, abs=0.05)
    assert breaks_of(lines).height >= 2
    assert history_chart(lines).to_dict()["description"]


def test_of_an_interrupted_record_nothing_is_counted_again() -> None:
    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        CommitRecord("bisect", {"a": 1}, built="gcc") as kept,
    ):
        kept.add("one", {"a": table(5)}, description="")
        kept.skip("two", "", "it does not build")
        raise KeyboardInterrupt
    assert list_records("bisect")["status"].to_list() == ["interrupted"]
    with CommitRecord("bisect", {"a": 2}, built="gcc") as other:
        assert not other.levels
    with CommitRecord("bisect", {"a": 1}, built="gcc") as again:
        assert again.levels == {("one", "a"): 5.0}
        assert again.has("one")
        assert not again.has("two")  # it is tried again: something may have been installed
        again.add("two", {"a": table(6)}, description="")
        path = again.finish(["two", "one"])
    assert [arm["name"] for arm in read_record(path).info["arms"]] == ["two", "one"]
    with CommitRecord("bisect", {"a": 1}, built="gcc") as done:
        assert done.path == path


def test_a_record_without_a_count_is_not_kept() -> None:
    with pytest.raises(StudyError), CommitRecord("bisect", {"a": 1}, built="gcc"):
        raise StudyError("the ends cannot be built")
    assert list_records("bisect").is_empty()


def test_a_bisection_is_a_record_and_told_again_without_a_build(
    history: Callable[..., Repository],
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = history([1000.0, 1000.0, None, 1000.0, 1100.0, 1100.0]).source
    bisect(repo=source, good="v0", bad="v5", unit=UNIT)
    out = capsys.readouterr().out
    assert "Commit 4" in out
    (path,) = list_records("bisect")["path"]
    info: dict[str, Any] = {**read_record(path).info}
    assert info["answer"] == out.rstrip("\n")
    (step,) = info["steps"]
    assert (step["commit"]["subject"], step["before"], step["after"]) == ("Commit 4", 1000, 1100)
    bisect(repo=source, good="v0", bad="v5", unit=UNIT)
    again = capsys.readouterr()
    assert again.out == out
    assert "0 built" in again.err
    assert list_records("bisect").height == 1


def test_ctrl_c_in_a_bisection_keeps_what_is_counted(
    history: Callable[..., Repository],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = history([1000.0] * 4 + [1100.0] * 4).source
    real, seen = Scripted.count, []

    def count(self: Scripted, *what: Any, **how: Any) -> pl.DataFrame:
        seen.append(self)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(self, *what, **how)

    monkeypatch.setattr(Scripted, "count", count)
    with pytest.raises(typer.Exit) as ended:
        bisect(repo=source, good="v0", bad="v7", unit=UNIT)
    assert ended.value.exit_code == 130
    (path,) = list_records("bisect")["path"]
    assert len(read_record(path).info["timeline"]) == 2
    bisect(repo=source, good="v0", bad="v7", unit=UNIT)
    assert "Commit 4" in capsys.readouterr().out
    assert list_records("bisect")["status"].to_list() == ["complete"]


def costs_of(record: Record) -> Sequence[float]:
    return lines_of(record)["instructions"].to_list()


def moved() -> list[tuple[str, str]]:
    """The commits between which a count of the newest history changes."""
    return steps_of(lines_of(newest())).select("from", "to").rows()


def test_a_history_of_commits_is_counted_and_its_largest_step_narrowed(
    history: Callable[..., Repository], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    costs = [1000.0, 1000.0, None, 1100.0, 1100.0, None, 1100.0, 1210.0]
    source = history(costs).source
    chart = tmp_path / "history.svg"
    command(repo=source, since="v0", every=2, unit=[UNIT], narrow=1, chart=chart)
    out = capsys.readouterr().out
    assert "1 units at 4 points: 2 steps of more than 0.1 %." in out
    assert "Commit 3" in out
    assert "Commit 7" not in out
    _, _, proposed = out.partition("To time what changed:\n")
    pairs = [(line.split()[5], line.split()[7]) for line in proposed.splitlines()[:2]]
    assert pairs == [(before[:10], after[:10]) for before, after in moved()]
    assert "--study mvcc_catalog" in proposed
    assert chart.read_text().startswith("<svg")
    assert costs_of(newest()) == [1000, 1100, 1100, 1210]
    assert newest().info["status"] == "complete"
    assert [bool(arm["not_run"]) for arm in newest().info["arms"]] == [False, True, *[False] * 3]
    assert [newest().path] == [r.path for r in commit_histories()]


def test_builds_in_directories_are_points_in_the_order_of_their_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scripted, "version_text", property(version_told))
    costs = {"20devel": "1300", "19beta10": "1100", "19beta2": "1000"}
    given = [str(programs(tmp_path / name, name, changed=costs[name])) for name in costs]
    command(releases=",".join(given), unit=[UNIT])
    assert "1 units at 3 points: 2 steps" in capsys.readouterr().out
    lines = lines_of(newest())
    assert lines["point"].to_list() == ["19beta2", "19beta10", "20devel"]
    assert lines["built"].unique().to_list() == ["gcc 14.2.0, -O2"]
    assert [r.rpartition("/")[2] for r in steps_of(lines)["range"]] == [
        "REL_19_BETA10...master",
        "REL_19_BETA2...REL_19_BETA10",
    ]
    program = tmp_path / "20devel" / "bin" / "postgres"
    program.write_text(program.read_text().replace("1300", "1400"))
    command(releases=",".join(given), unit=[UNIT])  # it was built anew, and is counted
    assert costs_of(newest()) == [1000, 1100, 1400]


def version_told(counter: Scripted) -> str:
    program = counter._server / "bin" / "postgres"
    return f"PostgreSQL {program.read_text().splitlines()[1].split()[-1].strip(chr(39))}"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "Give either"),
        ({"since": "v0"}, "Give either"),
        ({"releases": "17", "narrow": 1}, "no commits to bisect"),
        ({"releases": "17,5"}, "5"),
    ],
)
def test_a_wrong_request_is_told(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StudyError, match=sentence):
        command(**options)


def test_nothing_counted_is_an_error(history: Callable[..., Repository]) -> None:
    source = history([None, None]).source
    with pytest.raises(StudyError, match="Nothing could be counted"):
        command(repo=source, since="v0", every=1, unit=[UNIT])
