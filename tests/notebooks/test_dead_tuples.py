"""What stands beside ``dead_tuples.ipynb``: its reasons, counts and watching, by known truths."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgapps.builds.served import NO_REPOSITORY
from pgstudies.analysis.agreement import judge
from pgstudies.analysis.claims import claims, origins
from pgstudies.notebook import Study
from pgstudies.rooms import study_module
from tests import made_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pgstudies as pg

ARMS = study_module("dead_tuples", "arms")
READING = study_module("dead_tuples", "reading")
WATCH = study_module("dead_tuples", "watch")
MB = 2**20
COMMITS = list(ARMS.COMMITS)


def arms(**other: Any) -> dict[str, pg.Arm]:
    plain: dict[str, Any] = {"releases": [], "dense_pages": 1_000_000, "dense_hash": False}
    plain |= {"real_table": False, "repo": ""}
    return {arm.name: arm for arm in ARMS.arms(**plain | other)}


def test_structures_come_before_vacuum_and_only_they_need_the_extension() -> None:
    found = arms()
    assert list(found) == [*ARMS.STRUCTURES, "VACUUM", *COMMITS]
    assert [n for n, arm in found.items() if arm.extension is None] == ["VACUUM", *COMMITS]
    released = list(arms(releases=["16", "9.6"]))[len(ARMS.STRUCTURES) :]
    assert released == ["VACUUM", "VACUUM, 16", "VACUUM, 9.6", *COMMITS]
    states = {real: {arm.state for arm in arms(real_table=real).values()} for real in (True, False)}
    assert states == {True: {"a table", "dead rows"}, False: {"nothing", "dead rows"}}


def test_without_a_clone_the_commits_are_not_run() -> None:
    found = [arms()[name] for name in COMMITS]
    assert [arm.not_run for arm in found] == 2 * [NO_REPOSITORY]
    assert [arm.server for arm in found] == ["commit-d5d2205c8d", "commit-667e65aac3"]
    assert {arm.state for arm in found} == {"dead rows"}


def test_only_the_claim_of_vacuum_is_judged_by_the_commit() -> None:
    asked = claims("dead_tuples", places=origins()["dead_tuples"].places)
    (judging,) = [claim.by_commit for claim in asked if claim.by_commit]
    assert judging.id == "vacuum"
    assert judging.commit == ARMS.COMMITS["VACUUM, after"][0]
    assert [judging.comparison[side] for side in ("baseline", "candidate")] == COMMITS
    assert judging.requires == ()


def test_structures_take_memory_in_proportion_to_the_posts_dense_case() -> None:
    assert {arm.memory_bytes for arm in arms(dense_pages=500_000).values()} >= {520 * MB, 280 * MB}
    assert arms()["hash"].memory_bytes == 0
    assert arms(dense_hash=True)["hash"].memory_bytes == 3720 * MB


def samples(*rows: tuple[int, str, str, str, float]) -> pl.DataFrame:
    """Values by block, arm, case and metric."""
    texts = dict.fromkeys(["arm", "case", "metric"], pl.String())
    schema = {"block": pl.Int64(), **texts, "value": pl.Float64()}
    return pl.DataFrame(rows, schema=schema, orient="row")


def both(before: float | None, *, scans: float = 1) -> pl.DataFrame:
    """The VACUUM of a release before 17, which allocated so much, and today's."""
    rows = [("VACUUM, 16", scans, before), ("VACUUM", 1.0, float(MB))]
    floats = dict.fromkeys(["index_scans", "allocated_bytes"], pl.Float64())
    return pl.DataFrame(rows, schema={"arm": pl.String(), **floats}, orient="row")


HELD = {"VACUUM": 2, "VACUUM, 16": 80, "VACUUM, before": 80, "VACUUM, after": 4}
"""MB that VACUUM allocates."""


def study_of(*names: str, version: int = 180000) -> Study:
    """A run of six blocks of these VACUUMs, each with one pass over the index."""
    where: dict[str, Any] = {"step": "vacuum", "case": "every 2", "iteration": 65_536}
    held = {name: [float(HELD[name] * MB)] * 6 for name in names}
    once = {name: [1.0] * 6 for name in names}
    parts = [
        made_up.samples(held, "bytes", metric="allocated_bytes", **where),
        made_up.samples(held, "bytes", metric="used_bytes", **where),
        made_up.samples(once, "scans", metric="index_scans", **where),
    ]
    used = {"dead": [2], "memory_kb": [65_536], "releases": ["16"], "rows": 1_000_000}
    record: Any = SimpleNamespace(
        measured=pl.concat(parts),
        parameters=used,
        info={"server": {"version": version}},
        arms=pl.DataFrame({"name": [*names]}),
    )
    study = Study("dead_tuples", {})
    study._record = record
    return study


def verdict_of(study: Study) -> dict[str, Any]:
    """That on VACUUM's memory."""
    asked = claims("dead_tuples", places={"densest": 2, "before": "VACUUM, 16"})
    each = READING.each_vacuum(READING.of_vacuum(study.samples))
    effects, reason = READING.judged_vacuum(study, each)
    found = pl.concat(effects, how="diagonal_relaxed")
    rows = judge(asked, found, conditions={"vacuum": reason})
    return rows.row(by_predicate=pl.col("claim") == "vacuum", named=True)


def test_the_commit_judges_where_it_was_measured_and_the_releases_stand_beside_it() -> None:
    study = study_of("VACUUM", "VACUUM, 16", *COMMITS)
    found = verdict_of(study)
    assert (found["commit"], found["verdict"]) == ("667e65aac3", "holds")
    assert [found["baseline"], found["candidate"]] == COMMITS
    assert (found["ratio"], found["stood_in"]) == (pytest.approx(1 / 20), pytest.approx(1 / 40))
    each = READING.each_vacuum(READING.of_vacuum(study.samples))
    table = READING.passes_table(READING.passes(each, study.record.arms["name"]))
    assert table["arm"].to_list() == ["VACUUM", "VACUUM, 16", *COMMITS]


def test_without_the_commit_the_releases_judge() -> None:
    found = verdict_of(study_of("VACUUM", "VACUUM, 16"))
    assert (found["commit"], found["ratio"]) == (None, pytest.approx(1 / 40))


def test_the_commit_judges_whatever_the_server_of_the_run_is() -> None:
    found = verdict_of(study_of("VACUUM", "VACUUM, 16", *COMMITS, version=160000))
    assert (found["commit"], found["verdict"], found["stood_in"]) == ("667e65aac3", "holds", None)
    found = verdict_of(study_of("VACUUM", "VACUUM, 16", version=160000))
    assert found["verdict"] == "not judged: the server is older than 17, so it has the array itself"


@pytest.mark.parametrize(
    ("columns", "query"),
    [
        (["max_dead_tuple_bytes", "dead_tuple_bytes"], "dead_tuple_bytes"),
        (["max_dead_tuples", "num_dead_tuples"], "num_dead_tuples"),
        ([], None),
    ],
)
def test_memory_is_asked_by_the_columns_that_the_view_has(
    columns: list[str], query: str | None
) -> None:
    rows = [("pid",), *((name,) for name in columns)]
    trial = SimpleNamespace(execute=lambda _: SimpleNamespace(fetchall=lambda: rows))
    assert WATCH.memory_query(trial) == (query and WATCH.PROGRESS[query])


@pytest.mark.parametrize(
    ("index_scans", "said"),
    [
        (3, ["finished vacuuming", "table: index scans: 3\npages: 0 removed"]),
        (2, ['scanned index "t_i" to remove', 'scanned index "t_i" to', 'scanned index "u_i"']),
        (0, ["nothing to do"]),
    ],
)
def test_passes_over_the_index_are_counted_as_either_release_says_them(
    index_scans: int, said: list[str]
) -> None:
    assert WATCH.index_scans(said, "t_i") == index_scans


def test_the_most_of_each_column_is_kept_and_the_watcher_ends() -> None:
    answers = iter([[], [(3, 10)], [(7, 8)], [(5, 9)]])
    asked = threading.Event()

    def execute(_: str, **__: bool) -> Any:
        rows = next(answers, None)
        if rows is None:
            asked.set()
        return SimpleNamespace(fetchall=lambda: rows or [])

    @contextlib.contextmanager
    def connect() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(execute=execute)

    threads = threading.active_count()
    with WATCH.highest(SimpleNamespace(connect=connect), "SELECT", ("used", "held")) as most:
        assert asked.wait(60)
    assert most == {"used": 7, "held": 10}
    with WATCH.highest(SimpleNamespace(connect=connect), None, ("used", "held")) as most:
        pass
    assert most == {}
    assert threading.active_count() == threads


def test_notices_are_kept_while_the_block_runs_even_where_it_fails() -> None:
    handlers: list[Any] = []
    connection = SimpleNamespace(
        add_notice_handler=handlers.append, remove_notice_handler=handlers.remove
    )
    heard: list[str] = []

    def fail() -> None:
        with WATCH.notices(SimpleNamespace(connection=connection)) as said:
            handlers[0](SimpleNamespace(message_primary="INFO", message_detail="index scans: 1"))
            heard.extend(said)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert heard == ["INFO index scans: 1"]
    assert handlers == []


def test_releases_are_compared_as_numbers() -> None:
    assert READING.newest_before_17(["9.6", "10", "17", "9.3"]) == "VACUUM, 10"
    assert READING.newest_before_17(["17", "18"]) == "VACUUM, before 17"


def test_each_reason_speaks_where_its_condition_fails_and_is_silent_elsewhere() -> None:
    def reason(rows: pl.DataFrame, version: int = 180000) -> Any:
        return READING.reason_no_vacuum(rows, "VACUUM, 16", version)

    assert reason(both(64 * MB)) is None
    assert reason(both(None)) is None
    assert reason(both(64 * MB).clear()) is None
    assert reason(both(64 * MB), 160000).startswith("the server is older than 17")
    assert reason(both(64 * MB, scans=2)) == "the array did not hold all dead rows at once"
    assert reason(both(5 * MB)).startswith("the table is so small")


def test_lookups_have_to_hit_as_often_as_expected_in_every_block() -> None:
    expected = samples((1, "a", "dense", "expected", 5), (2, "a", "dense", "expected", 5))
    turns = samples((1, "a", "dense", "hits", 2), (1, "a", "dense", "hits", 3))
    right, wrong = (samples((2, "a", "dense", "hits", n)) for n in (5, 4))
    assert READING.all_found(pl.concat([expected, turns, right])) is True
    assert READING.all_found(pl.concat([expected, turns, wrong])) is False
    assert READING.all_found(pl.concat([expected, turns])) is False
    assert READING.all_found(expected.clear()) is None


def test_the_smallest_is_that_of_its_pattern() -> None:
    size_of = {("dense", "radix"): 0.4, ("sparse", "radix"): 12.0, ("sparse", "array"): 6.0}
    assert READING.smallest(size_of, "sparse") == "array"
    assert READING.smallest(size_of, "real") is None


def test_little_memory_is_judged_only_where_the_array_would_be_large() -> None:
    dead = 100_000
    assert READING.small_enough({"used_bytes": 3 * dead - 1}, dead) is True
    assert READING.small_enough({"used_bytes": 3 * dead}, dead) is False
    assert READING.small_enough({"used_bytes": None}, dead) is None
    assert READING.small_enough({"used_bytes": 1}, 2**18 // 6) is None
    assert READING.small_enough(None, dead) is None


def test_the_vacuum_of_the_run_is_that_of_its_server_since_17() -> None:
    rows = [("VACUUM, 16", 2, 64, 1.0), ("VACUUM", 2, 64, 2.0), ("VACUUM", 10, 64, 3.0)]
    columns = ["arm", "rows_dead", "memory_kb", "index_scans"]
    passes = pl.DataFrame(rows, schema=columns, orient="row")
    assert READING.own_vacuum(passes, 2, 64, 180000)["index_scans"] == 2
    assert READING.own_vacuum(passes, 2, 64, 160000) is None
    assert READING.own_vacuum(passes, 2, 128, 180000) is None


def test_the_post_is_compared_with_its_own_array() -> None:
    rows = [("dense", "array", 90.0, 1.0, 14), ("dense", "radix", 10.0, 2.0, 1)]
    columns = ["case", "structure", "lookup_ms", "load_ms", "size_bytes"]
    published = pl.DataFrame(rows, schema=columns, orient="row")
    ratios = {
        (row["step"], row["metric"], row["candidate"]): row["published_ratio"]
        for row in READING.published_ratios(published).iter_rows(named=True)
    }
    assert ratios == {
        ("lookup", "cpu_s", "radix"): pytest.approx(1 / 9),
        ("load", "cpu_s", "radix"): 2,
        ("load", "size", "radix"): pytest.approx(1 / 14),
    }
