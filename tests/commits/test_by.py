"""Bisecting by a query's plan and by a script's time, both known of every commit."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgapps.commits.bisect import By, bisect
from pgapps.commits.strategies import LOOKS
from pgapps.counting.units import Unit
from pgservers.errors import StudyError
from pgstudies.records.reading import list_records, read_record
from tests.commits.conftest import cost_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgapps.builds.repository import Repository

PLANS = {
    1: ["Seq Scan on t"],
    2: ["Index Scan using t_i on t", "  Index Cond: (i = 1)"],
    3: ["Bitmap Heap Scan on t"],
}


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))


@pytest.fixture
def shop(tmp_path: Path) -> str:
    home = tmp_path / "shop"
    home.mkdir()
    (home / "schema.sql").write_text("CREATE TABLE t (i int);\n")
    (home / "find.sql").write_text("SELECT * FROM t WHERE i = 1;\n")
    (home / "count.sql").write_text("SELECT count(*) FROM t;\n")
    return str(home)


class Planning:
    """A server that is a file with the number of its plan."""

    version_text = "PostgreSQL 18.6"

    def __init__(self, build: str, **_: Any) -> None:
        self._plan = PLANS[round(cost_of(Path(build)))]

    def __enter__(self) -> Planning:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self) -> Any:
        return nullcontext(self)

    def execute(self, statement: bytes) -> Any:
        assert statement == b"EXPLAIN (COSTS OFF) SELECT 1"
        return SimpleNamespace(fetchall=lambda: [(line,) for line in self._plan])


def test_the_commit_that_changes_a_plan_is_found_with_both_plans(
    history: Callable[..., Repository],
    shop: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def statement(parameters: dict[str, Any], step: str) -> Unit:
        assert (parameters, step) == ({"directory": shop}, "find")
        return Unit("find", ("",), (1, 3), load=lambda _: None, query="SELECT 1")

    monkeypatch.setattr("pgapps.commits.strategies.serve", Planning)
    monkeypatch.setattr("pgapps.commits.strategies.statement_named", statement)
    source = history([1, 1, 1, 3, 3, 2, 2, 2]).source
    bisect(repo=source, good="v0", bad="v7", workload=shop, step="find", by=By.PLAN)
    said = capsys.readouterr().out
    places = ["Commit 3", "    Seq Scan", "    Bitmap Heap", "Commit 5", "    Index Scan using t_i"]
    assert sorted(places, key=said.index) == places
    assert "find: another plan" in said
    assert "callgrind" not in said
    (path,) = list_records("bisect")["path"]
    assert set(read_record(path).samples["metric"]) == {"shape"}
    bisect(repo=source, good="v0", bad="v7", workload=shop, step="find", by=By.PLAN)
    assert capsys.readouterr().out == said


def timed(ratios: dict[str, float], asked: list[tuple[str, int]]) -> Callable[..., Any]:
    """A comparison whose intervals are 1 / (blocks) wide to either side of a build's own time."""

    def measured(request: Any, fitted: Any) -> Iterator[Any]:
        builds = [cost_of(Path(side.server)) for side in (request.baseline, request.candidate)]
        asked.append((str(builds[1]), fitted.blocks))
        ratios["now"], ratios["wide"] = builds[1] / builds[0], 1.0 / fitted.blocks
        yield SimpleNamespace(infos=[{"servers": {}}])

    return measured


def test_the_commit_that_makes_a_script_slower_is_found_with_as_many_blocks_as_it_takes(
    history: Callable[..., Repository],
    shop: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ratios: dict[str, float] = {}
    asked: list[tuple[str, int]] = []

    def effects(*_: Any, **__: Any) -> pl.DataFrame:
        now, wide = ratios["now"], ratios["wide"]
        row = {"ratio": now, "low": now * math.exp(-wide), "high": now * math.exp(wide)}
        return pl.DataFrame([{"step": "find", "case": ""} | row])

    monkeypatch.setattr("pgapps.commits.strategies.measured_blocks", timed(ratios, asked))
    monkeypatch.setattr("pgapps.commits.strategies.compared_effects", effects)
    repository = history([100, 101, 100, 99, 120, 121, 119, 120])
    ends: dict[str, Any] = {"repo": repository.source, "good": "v0", "bad": "v7"}
    bisect(**ends, workload=shop, step="find", by=By.TIME)
    said = capsys.readouterr().out
    assert "Commit 4" in said
    assert "find: +21.2 % time" in said or "find: +20.0 % time" in said
    assert {blocks for _, blocks in asked} <= set(LOOKS)
    assert max(blocks for _, blocks in asked) < LOOKS[-1]
    before = len(asked)
    bisect(**ends, workload=shop, step="find", by=By.TIME)
    assert (capsys.readouterr().out, len(asked)) == (said, before)


def test_ends_that_no_number_of_blocks_tells_apart_are_told(
    history: Callable[..., Repository], shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios: dict[str, float] = {}
    row = {"step": "find", "case": "", "ratio": 1.001, "low": 0.99, "high": 1.01}
    monkeypatch.setattr("pgapps.commits.strategies.measured_blocks", timed(ratios, []))
    monkeypatch.setattr(
        "pgapps.commits.strategies.compared_effects", lambda *_, **__: pl.DataFrame([row])
    )
    source = history([100, 100.1]).source
    with pytest.raises(
        StudyError, match=r"v1 cannot be measured: 27 blocks do not decide .* than 1.000"
    ):
        bisect(repo=source, good="v0", bad="v1", workload=shop, step="find", by=By.TIME)


def test_a_mix_by_pgbenchs_own_command_line_is_timed_as_one(
    history: Callable[..., Repository], shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def measured(request: Any, _: Any) -> Iterator[Any]:
        asked.append((request.parameters, request.case))
        yield SimpleNamespace(infos=[{"servers": {}}])

    mix = "find@3, count@1"
    row = {"step": mix, "case": "", "ratio": 1.2, "low": 1.1, "high": 1.3}
    monkeypatch.setattr("pgapps.commits.strategies.measured_blocks", measured)
    monkeypatch.setattr(
        "pgapps.commits.strategies.compared_effects", lambda *_, **__: pl.DataFrame([row])
    )
    ends: dict[str, Any] = {"repo": history([100, 120]).source, "good": "v0", "bad": "v1"}
    line = f"-f {shop}/find.sql@3 -f count.sql@1 -D x=1,2 -c 2 -T 60"
    bisect(**ends, workload=shop, pgbench=line, by=By.TIME)
    given = {
        "protocol": "simple",
        "mix": ["find@3", "count@1"],
        "define": ["x=1,2"],
        "clients": 2,
        "directory": shop,
    }
    assert asked == [(given, mix)] * len(asked)
    assert asked
    (path,) = list_records("bisect")["path"]
    kept = read_record(path).parameters
    assert (kept["mix"], kept["define"]) == (given["mix"], given["define"])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"pgbench": "-C"}, "pgbench's -C cannot be used in a comparison"),
        ({}, "--unit UNIT, or --workload DIR --step STEP"),
        ({"unit": "x", "workload": "shop"}, "--unit UNIT, or --workload DIR --step STEP"),
        (
            {"unit": "one session started", "by": By.PLAN},
            "--by plan is for a statement of your own",
        ),
        ({"workload": "nowhere", "by": By.TIME}, "There is no workload in"),
    ],
)
def test_what_is_not_enough_to_go_by_is_told(
    asked: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match=told):
        bisect(repo=tmp_path, good="v0", bad="v1", **asked)


def test_a_script_that_is_not_there_lists_those_that_are(shop: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"no script is 'upsert'.  There are:\n  count\n  find"):
        bisect(repo=tmp_path, good="v0", bad="v1", workload=shop, step="upsert", by=By.TIME)
