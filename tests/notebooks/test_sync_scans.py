"""What the page of ``sync_scans`` leaves to its modules: arms, charts, scans in step, the disk."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import pgstudies as pg
from pgapps.builds.served import NO_REPOSITORY
from pgapps.markup import chart_markup
from pgservers.errors import CannotRun, StudyError
from pgservers.host import disks
from pgservers.host.disks import scheduler_of
from pgservers.servers.serve import serve
from pgstudies.analysis.agreement import judge
from pgstudies.analysis.claims import claims, origins
from pgstudies.rooms import study_module
from tests import made_up
from tests.servers_at_hand import BUILDER, dsn_of, make_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

    from pgservers.servers.managed import ManagedServer

ARMS = study_module("sync_scans", "arms")
CHARTS = study_module("sync_scans", "charts")
DISK = study_module("sync_scans", "disk")
READING = study_module("sync_scans", "reading")
WATCH = study_module("sync_scans", "watch")
BEGIN = datetime(2026, 11, 22, tzinfo=UTC)
IN_TABLES = pl.col("value") / 100
COMMITS = list(ARMS.COMMITS)


def arms_of(**asked: Any) -> dict[str, pg.Arm]:
    plain = {"scans": [2, 8], "machines": ["small and slow"], "table_mb": 128, "repo": ""}
    memory = {"window": 0, "small_bytes": 16 * 2**20}
    ways = {"io_methods": ["worker"], "concurrencies": [16], "combine_kb": [128]}
    more: dict[str, Any] = {"offsets": [], "releases": [], "schedulers": [], "limits": "kernel"}
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
    assert list(arms_of()) == ["off", "on", "on, small ring", *COMMITS]
    assert list(arms_of(offsets=[0.0]))[3:-3] == ["behind"]
    assert arms_of()["on, small ring"].options["counts"] == [2]
    direct = arms_of(machines=["cold", "direct"])
    assert list(direct)[3:-3] == ["no ring", "direct, off", "direct", "direct, worker 16×128"]
    assert direct["direct, worker 16×128"].settings["debug_io_direct"] == "data"
    assert list(arms_of(schedulers=["bfq"]))[3:-3] == ["off, bfq", "on, bfq"]


def test_without_a_clone_the_commits_are_not_run() -> None:
    known = arms_of(table_mb=128, scans=[8])
    found = [known[name] for name in COMMITS]
    assert [arm.not_run for arm in found] == 3 * [NO_REPOSITORY]
    servers = ["commit-0a6f2ee84d", "commit-6d6d14b6d5", "commit-a04a423599"]
    assert [arm.server for arm in found] == servers
    # Their servers know no other settings, and refuse an arm's that they do not know.
    assert [arm.settings for arm in found] == 3 * [{"shared_buffers": "4MB"}]


@pytest.mark.parametrize(
    ("arm", "buffers", "asked"),
    [
        # of the commits, with room for a ring of each scan
        ("none", "2MB", {"table_mb": 32, "scans": [6]}),
        ("none", "5MB", {"table_mb": 32, "scans": [20]}),
        # a table smaller than a quarter of them has no ring
        ("no ring", "500MB", {"table_mb": 100, "machines": ["cold"]}),
        ("behind", "25MB", {"table_mb": 100, "offsets": [0.5]}),
    ],
)
def test_shared_buffers_have_the_ring_that_an_arm_is_about(
    arm: str, buffers: str, asked: dict[str, Any]
) -> None:
    assert arms_of(**asked)[arm].settings["shared_buffers"] == buffers


def test_commits_scan_a_modelled_drive_where_they_judge() -> None:
    drives = {
        name: [case for case in ("cfq", "first come") if ARMS.has_drive(arm, case)]
        for name, arm in arms_of().items()
    }
    every = ["cfq", "first come"]
    of_post = {"off": every, "on": every, "on, small ring": []}
    assert drives == of_post | {"none": ["cfq"], "ring": [], "ring and synchronized": ["cfq"]}


def test_claims_that_commits_judge_name_arms_that_there_are() -> None:
    asked = claims("sync_scans", places=origins()["sync_scans"].places)
    judging = {claim.id: claim.by_commit for claim in asked if claim.by_commit}
    assert list(judging) == ["as if alone", "twice as good", "not ideal", "many scans"]
    for claim in judging.values():
        assert claim.commit == ARMS.COMMITS["ring and synchronized"][0]
        arms = {claim.comparison.get(side) for side in ("arm", "baseline", "candidate")}
        assert "ring and synchronized" in arms
        assert arms <= {*ARMS.JUDGING, "1", "4", "20", None}


def test_a_modelled_disk_has_no_io_scheduler() -> None:
    assert arms_of(schedulers=["bfq"])["on, bfq"].not_run is None
    reason = arms_of(schedulers=["bfq"], limits="modelled")["on, bfq"].not_run
    assert "no I/O scheduler" in str(reason)


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
    ideal = READING.ideal(pl.DataFrame({"case": ["cold", "direct"]}), 5, 0.25)
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
    began = {"began_at": 0, "began_ahead": 0}
    assert told == began | {"apart": 55, "apart_most": 200, "together": 0.5}


@pytest.mark.parametrize("lag", [0, 64, 1000])
def test_leader_and_follower_each_count_every_block_once(lag: int) -> None:
    counted: dict[str, list[int]] = {"leader": [], "follower": []}

    def count(session: str, begin: int, end: int) -> None:
        counted[session].extend(range(begin, end))

    work = WATCH.leader_and_follower(lag, count, pages=640)
    work("leader", 0)
    work("follower", 1)
    assert counted["leader"] == list(range(640))
    assert sorted(counted["follower"]) == list(range(640))
    assert counted["follower"][0] == (640 - lag) % 640


def test_each_reason_speaks_where_its_condition_fails_and_is_silent_elsewhere() -> None:
    assert "could not be made small and slow" in READING.reason_no_chance(None, 4)
    assert "read only 1.5 tables" in READING.reason_no_chance(1.5, 4)
    assert READING.reason_no_chance(4, 4) is None
    assert "4 scans gain at most 2.3 times" in READING.reason_few(4, 0.25)
    assert READING.reason_few(8, 0.25) is None
    reason = READING.reason_small(100 * 2**20, 8 * 2**20, 0.1)
    assert "8 MB ahead, and two such windows are 16 %" in reason
    assert READING.reason_small(400 * 2**20, 8 * 2**20, 0.1) is None
    took = pl.DataFrame({"makespan_s": [1.0], "read_bytes": [1e6]})
    assert "50 % of the time" in READING.reason_no_cores(took.with_columns(makespan_s=2.0), 1e6)
    assert READING.reason_no_cores(took, 1e6) is None
    assert READING.reason_no_cores(took.clear(), 1e6) is None


def test_scans_on_a_drive_are_compared_block_by_block() -> None:
    rows = [("on", 1, 2.0), ("off", 4, 8.0), ("on", 4, 4.0)]
    rows += [("on", 1, 2.0), ("off", 4, 12.0), ("on", 4, 4.0), ("on", 2, 99.0)]
    timed = pl.DataFrame(rows, schema=["arm", "iteration", "value"], orient="row").with_columns(
        case=pl.lit("cfq"), block=pl.Series([1, 1, 1, 2, 2, 2, 2])
    )
    assert READING.on_drives(timed, 4).row(0, named=True) == {
        **{"case": "cfq", "lone": 2.0, "off": 10.0, "on": 4.0, "blocks": 2},
        **{"gain": 2.5, "least": 2.0, "most": 3.0, "hindered": 2.0, "gain is": "1.5 to 3"},
    }


LONE = dict.fromkeys(["off", "on", *COMMITS], 2.0)
PAIR = {"off": 4.0, "on": 2.0, "none": 6.0, "ring": 5.0, "ring and synchronized": 2.0}
TABLE_PAGES = 100


def record_of(*arms: str) -> Any:
    """A record of six blocks of these arms, alone and two at a time: half a table a second."""
    parts = []
    for scans, seconds in ((1, LONE), (2, PAIR)):
        took = {arm: [seconds[arm]] * 6 for arm in arms}
        read = {arm: [seconds[arm] * 8192 * TABLE_PAGES / 2] * 6 for arm in arms}
        where: dict[str, Any] = {"case": "small and slow", "step": "scan", "iteration": scans}
        parts.append(made_up.samples(took, **where))
        parts.append(made_up.samples(read, "bytes", metric="read_bytes", **where))
    measured = pl.concat(parts)
    size = made_up.samples({"off": [float(TABLE_PAGES)]}, "pages", step="load", metric="pages")
    return SimpleNamespace(
        samples=pl.concat([size, measured]),
        measured=measured,
        parameters={"scans": [2], "stagger": 0.25, "read_mb": 250},
        arms=pl.DataFrame({"name": [*arms]}),
        repeat=None,
        info={"limits": "modelled", "host": {}},
    )


def run_of(record: Any) -> Any:
    return READING.run_of(SimpleNamespace(record=record, samples=record.measured))


def of_commits(run: Any) -> list[pl.DataFrame]:
    rounds = READING.rounds_of(run).filter(READING.OF_COMMIT)
    found: list[pl.DataFrame] = READING.against(rounds, "none")
    return found


def verdicts_of(record: Any) -> dict[str, dict[str, Any]]:
    run = run_of(record)
    rounds = READING.rounds_of(run)
    effects = pg.paired_effects(rounds.filter(run.of_post), baseline="off", by=READING.SAME)
    slowdown = READING.slowdown(run.scanned.filter(metric="duration_s"), READING.ALIKE)
    judged = READING.judged(run, rounds, slowdown, [effects, *of_commits(run)])
    places = {"slow": run.slow, "most": run.most, "ring": run.crowd}
    tables = READING.by_count(run.scanned, run.in_tables)
    rows = judge(
        claims("sync_scans", places=places),
        pl.concat(judged, how="diagonal_relaxed"),
        conditions=READING.conditions(record, run, tables),
    )
    return {row["claim"]: row for row in rows.iter_rows(named=True)}


def test_the_commits_judge_where_they_were_measured() -> None:
    record = record_of("off", "on", *COMMITS)
    run, found = run_of(record), verdicts_of(record)
    many = found["many scans"]
    assert (many["baseline"], many["candidate"]) == ("none", "ring and synchronized")
    assert many["commit"] == "a04a423599"
    assert (many["ratio"], many["stood_in"]) == (pytest.approx(1 / 3), pytest.approx(0.5))
    assert found["as if alone"]["commit"] == "a04a423599"
    assert found["as if alone"]["ratio"] == pytest.approx(1)
    assert found["with the ring"]["commit"] is None
    tables = READING.by_count(run.scanned, run.in_tables)
    assert READING.tables_of(tables, run.judging[0], 2) == pytest.approx(3)
    table, effects = READING.commits(run, of_commits(run))
    assert {*table.columns} == {"what", "scans", *COMMITS}
    assert effects["candidate"].to_list() == ["ring", "ring and synchronized"]


def test_without_the_commits_two_settings_of_one_server_judge() -> None:
    record = record_of("off", "on")
    many = verdicts_of(record)["many scans"]
    assert (many["commit"], many["baseline"], many["ratio"]) == (None, "off", pytest.approx(0.5))
    assert READING.commits(run_of(record), []) == []


def test_what_an_offset_saves_is_measured_and_not_judged() -> None:
    def read(offset: int, tables: float) -> pl.DataFrame:
        where: dict[str, Any] = {"case": "direct", "step": "behind", "iteration": offset}
        return made_up.samples({"behind": [tables] * 6}, "bytes", metric="read_bytes", **where)

    assert READING.saved_by_offset(read(50, 1.38), 0.1) == []
    (saved,) = READING.saved_by_offset(pl.concat([read(0, 1.5), read(50, 1.38)]), 0.1)
    assert saved.select("baseline", "candidate").rows() == [(0, 50)]
    assert saved["ratio"].to_list() == [pytest.approx(0.92)]
    asked = claims("sync_scans", places=origins()["sync_scans"].places)
    offset = [claim for claim in asked if claim.id == "offset"]
    named = saved.with_columns(pl.col("baseline", "candidate").cast(pl.String))
    (row,) = judge(offset, named, conditions={"offset": READING.NO_RATIO}).iter_rows(named=True)
    assert row["verdict"].startswith("not judged: what an offset saves depends on the ratio")
    assert row["ratio"] == pytest.approx(0.92)


def test_a_scheduler_is_judged_only_where_it_hinders() -> None:
    drives = pl.DataFrame({"case": ["cfq", "first come"], "hindered": [1.05, 2.0]})
    assert "does not hinder scans in step: 1.05 times" in READING.reason_not_hindered(drives)
    assert READING.reason_not_hindered(drives.with_columns(hindered=1.9)) is None
    assert "models no drive of 2007" in READING.reason_not_hindered(drives.clear())


def test_a_drive_in_a_map_differs_in_one_figure() -> None:
    cfq = DISK.drives(["cfq"])["cfq"]
    assert cfq["seek_s"] * DISK.LAPSE == pytest.approx(0.01267, abs=1e-5)
    assert cfq["scheduler"].slice_s * DISK.LAPSE == pytest.approx(0.1)
    assert DISK.drives(["first come"])["first come"]["scheduler"] is None
    for drive in DISK.mapped().values():
        flat = [{**vars(one.pop("scheduler")), **one} for one in (dict(drive), dict(cfq))]
        assert sum(flat[0][key] != flat[1][key] for key in flat[1]) == 1


def test_where_nothing_can_be_limited_the_other_machines_are_played_or_a_warm_one() -> None:
    left_out: list[tuple[str, ...]] = []
    without = SimpleNamespace(capabilities=SimpleNamespace(reason=lambda _: "not here"))
    trial = SimpleNamespace(server=without, leave_out=lambda *what: left_out.append(what))
    how: dict[str, Any] = {"table_mb": 32, "read_mb": 250, "limits": "modelled"}
    for names, played in ((["cold", "small and slow"], ["cold"]), (["small memory"], ["warm"])):
        machines = DISK.Machines(names, drives_of=["cfq"], maps=0, **how)
        assert machines.here(trial) == played
    cases = ["small and slow", "small memory"]
    assert left_out == [("scan", case, "not here") for case in cases]
    assert machines.small_bytes == 4 * 2**20 + 4 * 128 * 1024
    assert [machines.is_modelled(case) for case in ("cfq", "small memory", "cold")] == [1, 1, 0]


@pytest.mark.parametrize(("sync", "blocks"), [("on", 3), ("off", 1)])
def test_scans_out_of_step_tell_where_they_are_in_one_block(sync: str, blocks: int) -> None:
    arm = SimpleNamespace(copy_of=None, options={"sync": sync})
    trials = [SimpleNamespace(arm=arm, for_claims=True, block=n) for n in range(1, 6)]
    assert sum(WATCH.is_wanted(trial, 3) for trial in trials) == blocks
    assert not any(WATCH.is_wanted(trial, 0) for trial in trials)


# Scans in step

BUFFERS = 512  # shared buffers, so that 129 pages are the fewest
REPORTED = 16  # pages between two notes that a scan leaves of its place


@pytest.fixture
def session(managed_on_disk: ManagedServer) -> Iterator[psycopg.Connection[Any]]:
    managed = managed_on_disk

    def build() -> None:
        with managed.connect() as connection:
            for name, rows in (("enough", 129), ("too_small", 128), ("large", 1000)):
                make_table(connection, name, rows)
            connection.execute("CREATE VIEW no_table AS SELECT * FROM large")

    settings = {"shared_buffers": f"{8 * BUFFERS}kB", "max_parallel_workers_per_gather": "0"}
    managed.restore("for scans", build, settings)
    with managed.connect() as connection:
        yield connection


def first_block(session: psycopg.Connection[Any], table: str) -> int:
    """The block at which a scan that begins now begins."""
    row = session.execute(f"SELECT ctid::text FROM {table} LIMIT 1").fetchone()
    assert row
    block: int = WATCH.page_of(row[0])
    return block


def test_one_block_more_than_a_quarter_of_the_buffers_is_enough(
    session: psycopg.Connection[Any],
) -> None:
    assert WATCH.reason_not_in_step(session, "enough") is None
    reason = str(WATCH.reason_not_in_step(session, "too_small"))
    assert all(part in reason for part in ("128 pages", "from 129 on", "a table of 2 MB"))


@pytest.mark.parametrize(("table", "begins"), [("enough", True), ("too_small", False)])
def test_the_server_agrees(
    managed_on_disk: ManagedServer, session: psycopg.Connection[Any], table: str, begins: bool
) -> None:
    session.execute(f"BEGIN; DECLARE here CURSOR FOR SELECT i FROM {table}")
    session.execute("MOVE 100 FROM here")
    with managed_on_disk.connect() as other:
        assert (first_block(other, table) > 0) == begins
        other.execute("SET synchronize_seqscans = off")
        assert first_block(other, table) == 0
        assert "synchronize_seqscans is off" in str(WATCH.reason_not_in_step(other, "large"))


@pytest.mark.parametrize("place", [300, 700])
def test_a_scan_begins_at_the_block_noted_last(
    managed_on_disk: ManagedServer, session: psycopg.Connection[Any], place: int
) -> None:
    # Without look-ahead the place noted is the one that is read.
    session.execute("SET effective_io_concurrency = 0; SET io_combine_limit = 1")
    session.execute("BEGIN; DECLARE here CURSOR FOR SELECT i FROM large")
    session.execute(f"MOVE {place + 1} FROM here")
    with managed_on_disk.connect() as other:
        assert place - REPORTED <= first_block(other, "large") <= place + REPORTED


def test_temporary_tables_and_what_is_no_table_are_not_scanned_in_step(
    session: psycopg.Connection[Any],
) -> None:
    session.execute("CREATE TEMP TABLE own AS SELECT * FROM large")
    assert "temporary table" in str(WATCH.reason_not_in_step(session, "own"))
    assert "no_table is no table" in str(WATCH.reason_not_in_step(session, "no_table"))
    with pytest.raises(StudyError, match="no table nowhere"):
        WATCH.reason_not_in_step(session, "nowhere")


# The disk


@pytest.fixture
def disk(managed: ManagedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that stand for the kernel's: the real disk's scheduler is everybody's."""
    device = managed.data_directory.stat().st_dev
    disk = tmp_path / f"{os.major(device)}:{os.minor(device)}"
    (disk / "queue").mkdir(parents=True)
    (disk / "queue" / "scheduler").write_text("none [mq-deadline] kyber\n")
    (disk / "stat").write_text("  500  3  4096  77  1 2 3 4 0 5 6\n")
    monkeypatch.setattr(disks, "DEVICES", tmp_path)
    return disk


def test_what_is_read_and_read_ahead_is_told_in_bytes(managed: ManagedServer, disk: Path) -> None:
    assert disks.find_disk(managed.data_directory) == disk
    assert DISK.disk_read_bytes(managed.data_directory) == 4096 * 512
    (disk / "queue" / "read_ahead_kb").write_text("128\n")
    assert DISK.read_ahead_bytes(managed.data_directory) == 131_072


def test_what_is_on_no_disk_has_read_nothing(
    managed: ManagedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "DEVICES", tmp_path)
    assert DISK.disk_read_bytes(managed.data_directory) is None
    assert DISK.read_ahead_bytes(managed.data_directory) is None
    with pytest.raises(CannotRun, match="not on a disk whose"), DISK.scheduled(managed, "none"):
        pass


def test_a_scheduler_is_put_back_whatever_happens(managed: ManagedServer, disk: Path) -> None:
    file, seen = disk / "queue" / "scheduler", ""
    with contextlib.suppress(KeyboardInterrupt), DISK.scheduled(managed, "kyber"):
        seen = file.read_text()
        raise KeyboardInterrupt
    assert seen == "kyber"
    assert file.read_text() == "mq-deadline"


def test_a_scheduler_the_kernel_refuses_is_answered_with_those_it_has(
    managed: ManagedServer, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(type(disk), "write_text", refuse)
    wanted = "no I/O scheduler cfq, but none mq-deadline kyber"
    with pytest.raises(CannotRun, match=wanted), DISK.scheduled(managed, "cfq"):
        pass


def test_a_word_that_is_no_scheduler_is_not_written(managed: ManagedServer, disk: Path) -> None:
    refused = pytest.raises(CannotRun, match="no name of an I/O scheduler")
    with refused, DISK.scheduled(managed, "a b"):
        pass
    assert scheduler_of(disk) == "mq-deadline"


def test_the_disk_of_others_is_left_alone(stranger: ManagedServer) -> None:
    refused = pytest.raises(CannotRun, match="external server")
    with serve(dsn_of(stranger, BUILDER)) as server, refused, DISK.scheduled(server, "none"):
        pass


# The chart of scans

PATHS = pl.DataFrame(
    {
        "what": ["on"] * 5 + ["off"],
        "scan": [1, 1, 2, 2, 2, 1],
        "seconds": [0.0, 1.0, 0.5, 1.0, 1.5, 0.0],
        "page": [0, 90, 45, 99, 10, 0],
    }
)


def drawn(**more: object) -> Any:
    options: Any = {"pages": 100, "description": "Scans."} | more
    return CHARTS.scan_chart(PATHS, **options).to_dict()


def laps(found: Any) -> dict[tuple[str, int, int], int]:
    (data,) = found["datasets"].values()
    return {(row["what"], row["scan"], row["page"]): row["lap"] for row in data}


def test_scans_are_drawn_over_the_whole_table_and_one_that_wraps_begins_another_line() -> None:
    spec = drawn(step="what")
    assert laps(spec) == {
        ("on", 1, 0): 0, ("on", 1, 90): 0,
        ("on", 2, 45): 0, ("on", 2, 99): 0, ("on", 2, 10): 1,
        ("off", 1, 0): 0,
    }  # fmt: skip
    # Earlier scans are wider, so that all can be seen.
    assert [layer["mark"].get("strokeWidth") for layer in spec["layer"]] == [4, 2, None]
    (chosen,) = [p for p in spec["params"] if "value" in p]
    assert chosen["bind"]["options"] == ["on", "off"]
    later = drawn(step="what", until=4)
    for found, seconds in ((spec, [0, 1.5]), (later, [0, 4])):
        axes = found["layer"][0]["encoding"]
        assert [axes[axis]["scale"]["domain"] for axis in "xy"] == [seconds, [0, 100]]


def test_of_many_places_some_are_drawn() -> None:
    places = pl.DataFrame({"scan": 1, "seconds": range(10_000), "page": 5})
    (data,) = CHARTS.scan_chart(places, pages=9, description="One.").to_dict()["datasets"].values()
    assert [row["seconds"] for row in data[:3]] == [0, 3, 6]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(StudyError, match="scan_chart needs the column 'scan'"):
        CHARTS.scan_chart(PATHS.drop("scan"), pages=100, description="Scans.")


def test_the_still_picture_has_no_marks_that_only_serve_tooltips() -> None:
    spec = CHARTS.scan_chart(PATHS, pages=100, description="One.").to_dict()
    picture, _, live = chart_markup(spec).partition('<script type="application/json">')
    assert 'opacity="0"' not in picture
    assert '"opacity":{"value":0}' in live
