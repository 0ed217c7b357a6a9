"""What the page of ``sync_scans`` leaves to its modules: the arms there are, and what is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import pgstudies as pg

ARMS = pg.beside("sync_scans_arms")
READING = pg.beside("sync_scans_reading")
WATCH = pg.beside("sync_scans_watch")
BEGIN = datetime(2026, 11, 22, tzinfo=UTC)
IN_TABLES = pl.col("value") / 100


def arms_of(**asked: Any) -> dict[str, pg.Arm]:
    plain = {"scans": [2, 8], "machines": ["small and slow"], "table_mb": 128}
    memory = {"window": 0, "small_bytes": 16 * 2**20}
    ways = {"io_methods": ["sync"], "concurrencies": [16], "combine_kb": [128]}
    more: dict[str, Any] = {"releases": [], "schedulers": []}
    return {arm.name: arm for arm in ARMS.arms(**(plain | memory | ways | more | asked))}


def samples(*rows: tuple[str, str, int, str, float]) -> pl.DataFrame:
    """Samples of one arm on one machine: arm, step, iteration, metric and value of each."""
    columns = ["arm", "step", "iteration", "metric", "value"]
    return pl.DataFrame(rows, schema=columns, orient="row").with_columns(case=pl.lit("direct"))


@pytest.mark.parametrize(("scans", "most"), [([2, 4, 8], 4), ([2, 3], 3), ([8, 20], 8)])
def test_a_crowd_is_four_scans_or_the_next_number_there_is(scans: list[int], most: int) -> None:
    assert ARMS.crowd(scans) == most


def test_small_memory_is_too_small_when_scans_by_themselves_would_fill_it() -> None:
    assert ARMS.reason_too_small(4, 2 * 2**20, 16 * 2**20) is None
    reason = ARMS.reason_too_small(4, 8 * 2**20, 16 * 2**20)
    assert reason.startswith("the kernel reads 8 MB ahead for each scan, and 4 scans that read")
    assert arms_of(window=8 * 2**20)["on, small ring"].not_run is not None
    assert arms_of()["on, small ring"].not_run is None


def test_arms_beyond_the_post_come_only_where_they_are_asked_for() -> None:
    assert list(arms_of()) == ["off", "on", "on, small ring", "behind"]
    assert arms_of()["on, small ring"].options["counts"] == [2]
    direct = arms_of(machines=["cold", "direct"])
    assert list(direct)[4:] == ["no ring", "direct, off", "direct", "direct, sync 16×128"]
    assert direct["direct, sync 16×128"].settings["debug_io_direct"] == "data"
    assert list(arms_of(schedulers=["bfq"]))[4:] == ["off, bfq", "on, bfq"]


def test_a_table_smaller_than_a_quarter_of_shared_buffers_has_no_ring() -> None:
    no_ring = arms_of(machines=["cold"], table_mb=100)["no ring"]
    assert no_ring.settings["shared_buffers"] == "500MB"
    assert arms_of(table_mb=100)["behind"].settings["shared_buffers"] == "25MB"


def test_a_picture_has_about_150_positions_of_a_scan() -> None:
    told: list[tuple[Any, ...]] = []

    def record(*what: Any, **where: Any) -> None:
        told.append((*what, where))

    path = [(BEGIN + timedelta(seconds=n), n) for n in range(450)]
    WATCH.note_places(SimpleNamespace(record=record), "walk", "direct", [path[:2], path])
    assert len(told) == 2 + 150
    where = {"iteration": 2, "case": "direct", "at": path[3][0]}
    assert told[3] == ("walk", "block", 3, "page number", where)


def test_where_nothing_is_lost_scans_read_one_table_and_the_staggers() -> None:
    ideal = READING.ideal(["cold", "direct"], most=5, stagger=0.25)
    assert ideal["tables"].to_list() == [1.0, 1.0, 1.0, 2.0]


def test_scans_begun_at_other_distances_have_another_ideal() -> None:
    steps = ("scan", "stagger 0.5", "random stagger")
    rows = [("on", step, 3, "read_bytes", 150.0) for step in steps]
    rows += [("on", step, 3, "duration_s", 7.0) for step in steps]
    rows += [("on", "scan", 2, "read_bytes", 900.0), ("on", "walk", 3, "read_bytes", 900.0)]
    found = READING.by_stagger(samples(*rows), IN_TABLES, count=3, usual=0.25)
    assert found.select("stagger", "tables", "ideal", "seconds per scan").rows() == [
        ("0.25", 1.5, 1.5, 7.0),
        ("0.5", 1.5, 2.0, 7.0),
        ("random", 1.5, 1.5, 7.0),
    ]


def test_walking_is_compared_with_counting_where_both_are_known() -> None:
    rows = [("on", "walk", 2, "duration_s", 3.0), ("on", "scan", 2, "duration_s", 2.0)]
    assert READING.walking_cost(samples(*rows)).is_empty()
    rows += [("on", "walk", 2, "read_bytes", 100.0), ("on", "scan", 2, "read_bytes", 200.0)]
    rows += [("off", "walk", 2, "read_bytes", 100.0)]
    assert READING.walking_cost(samples(*rows)).rows() == [("direct", "on", 2, 1.5, 0.5)]


def test_pairs_tell_what_counting_and_walking_scans_read_and_how_far_apart_they_were() -> None:
    pairs = samples(
        ("on", "scan", 2, "read_bytes", 100.0),
        ("on", "scan", 2, "read_bytes", 150.0),
        ("on", "walk", 2, "read_bytes", 180.0),
        ("on", "walk", 2, "apart", 640.0),
        ("off", "scan", 2, "read_bytes", 200.0),
    )
    found = READING.of_pairs(pairs, IN_TABLES).sort("arm", descending=True)
    told = found.select("arm", "tables", "least", "most", "blocks", "walking", "apart").rows()
    assert told == [("on", 1.25, 1.0, 1.5, 2, 1.8, 640.0), ("off", 2.0, 2.0, 2.0, 1, None, None)]


def test_scans_begin_at_a_set_of_blocks_for_each_arm() -> None:
    began = [("off", "walk", n, "began_at", 0.0) for n in (2, 3)]
    began += [("on", "walk", 2, "began_at", 64.0), ("on", "walk", 2, "apart", 5.0)]
    assert READING.beginnings(samples(*began)) == {"off": {0.0}, "on": {64.0}}
