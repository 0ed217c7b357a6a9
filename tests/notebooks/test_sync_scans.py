"""What the page of ``sync_scans`` leaves to its modules: the arms there are, and what is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import pgstudies as pg

ARMS = pg.beside("sync_scans", "arms")
READING = pg.beside("sync_scans", "reading")
WATCH = pg.beside("sync_scans", "watch")
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
    assert told[3] == ("walk", "block", 3, "block number", where)


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


def test_each_counter_and_each_half_of_a_pair_has_a_column() -> None:
    scanned = samples(
        ("on", "scan", 2, "read_bytes", 125.0), ("on", "scan", 2, "disk_bytes", 150.0)
    )
    counted = READING.by_counter(scanned, IN_TABLES).row(0, named=True)
    assert counted == {
        **{"case": "direct", "arm": "on", "scans": 2},
        **{"processes": 1.25, "whole disk": 1.5, "pg_stat_io": None},
    }
    behind = samples(
        ("behind", "behind", 50, "read_bytes", 120.0),
        ("behind", "behind", 50, "read_bytes", 140.0),
        ("behind", "behind", 50, "leader_s", 3.0),
        ("behind", "behind", 0, "leader_s", 4.0),
    )
    assert READING.with_both_times(behind, IN_TABLES).rows() == [
        (0.0, None, 4.0, None),
        (0.5, 1.3, 3.0, None),
    ]


def test_scans_begin_at_a_set_of_blocks_for_each_arm() -> None:
    began = [("off", "walk", n, "began_at", 0.0) for n in (2, 3)]
    began += [("on", "walk", 2, "began_at", 64.0), ("on", "walk", 2, "apart", 5.0)]
    assert READING.beginnings(samples(*began)) == {"off": {0.0}, "on": {64.0}}


def path_of(*blocks: int, after_s: float = 0) -> list[tuple[datetime, int]]:
    """A scan that is at these blocks, a second apart."""
    return [(BEGIN + timedelta(seconds=after_s + n), block) for n, block in enumerate(blocks)]


def test_a_distance_is_the_shorter_way_round_while_both_are_at_work() -> None:
    one = path_of(10, 20, 30, 40)
    assert WATCH.distances(one, path_of(15, 25, after_s=1), pages=100) == [-5, -5]
    assert WATCH.distances(one, path_of(95, 5, after_s=0), pages=100) == [-15, -15]
    assert WATCH.distances(one, path_of(1, after_s=60), pages=100) == []


def test_distances_are_recorded_as_a_median_the_most_and_the_share_that_is_near() -> None:
    told: dict[str, float] = {}

    def record(*what: Any, **_: Any) -> None:
        told[what[1]] = what[2]

    paths_of_two = [path_of(0, 100, 200, 300), path_of(0, 90, 100, 100)]
    WATCH.note_distances(SimpleNamespace(record=record), "walk", "slow", paths_of_two, pages=1000)
    assert told == {
        "began_at": 0,
        "began_ahead": 0,
        "apart": 55,
        "apart_most": 200,
        "together": 0.5,
    }


@pytest.mark.parametrize("lag", [0, 64, 1000])
def test_leader_and_follower_each_count_every_block_once(lag: int) -> None:
    counted: dict[str, list[int]] = {"leader": [], "follower": []}
    work = WATCH.leader_and_follower(
        lag, lambda session, begin, end: counted[session].extend(range(begin, end)), pages=640
    )
    work("leader", 0)
    work("follower", 1)
    assert counted["leader"] == list(range(640))
    assert sorted(counted["follower"]) == list(range(640))
    assert counted["follower"][0] == (640 - lag) % 640


def test_each_reason_speaks_where_its_condition_fails_and_is_silent_elsewhere() -> None:
    assert (
        READING.reason_no_chance(None, 1, 4)
        == "memory and disk could not be made small and slow here"
    )
    assert "read only 1.5 tables" in READING.reason_no_chance(1.5, 1, 4)
    assert "4 read 3.5 tables, 4.0 without" in READING.reason_no_chance(4, 3.5, 4)
    assert READING.reason_no_chance(4, 1.8, 4) is None
    assert READING.reason_few(4, 0.25) == "not at this size: 4 scans gain at most 2.3 times"
    assert READING.reason_few(8, 0.25) is None
    assert "8 MB ahead, and two such windows are 16 %" in READING.reason_small(
        100 * 2**20, 8 * 2**20, 0.1
    )
    assert READING.reason_small(400 * 2**20, 8 * 2**20, 0.1) is None
    assert (
        READING.reason_parted(4, 2.5, 0.25)
        == "scans lost step here: 4 read 2.5 tables, 1.8 if none does"
    )
    assert READING.reason_parted(4, 2.0, 0.25) is None
    wanted = "5 scans at a time may read 80 MB ahead, and an eighth of the table is 44 MB"
    assert wanted in READING.reason_crowded(352 * 2**20, 8 * 2**20, 8, 0.25)
    assert READING.reason_crowded(352 * 2**20, 2**20, 8, 0.25) is None
    assert READING.reason_crowded(640 * 2**20, 8 * 2**20, 20, 0.25) is None
    assert READING.reason_crowded(512 * 2**20, 8 * 2**20, 4, 0.25) is None
    took = pl.DataFrame({"makespan_s": [1.0], "read_bytes": [1e6]})
    assert "50 % of the time" in READING.reason_no_cores(took.with_columns(makespan_s=2.0), 1e6)
    assert READING.reason_no_cores(took, 1e6) is None
    assert READING.reason_no_cores(took.clear(), 1e6) is None
