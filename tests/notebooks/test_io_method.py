"""What the page of ``io_method`` leaves to its modules: its arms, and what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgservers.errors import StudyError
from pgstudies.rooms import study_module

if TYPE_CHECKING:
    import pgstudies as pg

ARMS = study_module("io_method", "arms")
READING = study_module("io_method", "reading")
WATCH = study_module("io_method", "watch")


def arms_of(**asked: Any) -> dict[str, pg.Arm]:
    none: dict[str, Any] = {"workers": [], "few_buffers_mb": [], "concurrencies": []}
    more: dict[str, Any] = {"combine_kb": [], "releases": [], "without_checksums": False}
    more |= {"connections": [1, 4], "table_mb": 36, "buffers_mb": 128}
    return {arm.name: arm for arm in ARMS.arms(**none | more | asked)}


def test_sync_is_the_baseline_and_three_workers_the_default() -> None:
    arms = arms_of(workers=[1, 32])
    assert list(arms) == ["sync", "worker", "worker, 1", "worker, 32", "io_uring"]
    assert "io_workers" not in arms["worker"].settings
    assert arms["worker, 32"].settings == {"io_method": "worker", "io_workers": "32"}
    assert arms["worker, 1"].description.startswith("1 worker in")
    assert arms["io_uring"].options["cases"] == ("cached",)


def test_few_buffers_are_measured_both_ways() -> None:
    arms = arms_of(few_buffers_mb=[16])
    both = [arms[name].settings for name in ("sync, 16 MB", "worker, 16 MB")]
    assert [s["io_method"] for s in both] == ["sync", "worker"]
    assert all(s["shared_buffers"] == "16MB" for s in both)


def test_clusters_without_checksums_are_another_state_read_both_ways() -> None:
    arms = arms_of(without_checksums=True)
    both = [arms[f"{method}, no checksums"] for method in ("sync", "worker")]
    assert {arm.state for arm in both} == {ARMS.NO_CHECKSUMS}
    assert [arm.settings["io_method"] for arm in both] == ["sync", "worker"]
    assert arms["sync"].state != ARMS.NO_CHECKSUMS


def test_the_kernels_cache_holds_the_tables_of_every_arm_that_is_up() -> None:
    assert {arm.memory_bytes for arm in arms_of(workers=[1]).values()} == {4 * 36 * 2**20}


def test_a_table_that_stays_in_shared_buffers_is_refused() -> None:
    with pytest.raises(StudyError, match=r"stays in them: give table_mb more than 36\.$"):
        arms_of(buffers_mb=144)


def test_a_larger_read_needs_the_servers_leave() -> None:
    (arm,) = (arm for name, arm in arms_of(combine_kb=[1024]).items() if "combine" in name)
    assert arm.settings["io_combine_limit"] == arm.settings["io_max_combine_limit"] == "1024kB"


def test_a_release_before_18_has_one_way_to_read() -> None:
    arms = arms_of(releases=["17", "18"])
    assert arms["17"].settings == {}
    assert arms["18, sync"].settings == {"io_method": "sync"}
    assert (arms["17"].server, arms["18, worker"].server) == ("17", "18")


def watched(arm: str, iteration: int, **metrics: float) -> list[dict[str, Any]]:
    place = {"arm": arm, "iteration": iteration, "step": "watched scan", "case": "cached"}
    return [place | {"metric": name, "value": value} for name, value in metrics.items()]


SAMPLES = pl.DataFrame(
    [
        *watched("sync", 1, scan_s=0.010, sleeps=2.0, reads=400.0),
        *watched("worker", 1, scan_s=0.030, sleeps=202.0, reads=400.0),
        *watched("sync", 4, scan_s=0.020, sleeps=50.0, reads=400.0),
        {"arm": "sync", "iteration": 0, "step": "wake-up", "case": "", "metric": "other_core_s"}
        | {"value": 20e-6},
    ]
)


def test_two_wake_ups_are_foreseen_for_every_sleep() -> None:
    table = READING.closer(SAMPLES, ["sync", "worker"])
    assert table["arm"].to_list() == ["sync", "worker", "sync"]
    assert table["ms"].to_list() == [10.0, 30.0, 20.0]
    assert table["foreseen, ms"].to_list() == pytest.approx([10.0, 10 + 200 * 0.04, 20.0])


def test_workers_are_compared_at_equal_shared_buffers() -> None:
    place = {"case": "cached", "iteration": 4, "step": "scan", "metric": "duration_s", "unit": "s"}
    seconds = {"sync": 1.0, "worker": 1.2, "sync, 16 MB": 1.0, "worker, 16 MB": 4.0}
    values = pl.DataFrame(
        [
            place | {"block": block, "arm": arm, "position": 1, "copy_of": None, "value": value}
            for block in range(1, 7)
            for arm, value in seconds.items()
        ],
        schema_overrides={"copy_of": pl.String()},
    )
    table = READING.by_buffers(values, 128, [16, 64])
    assert table["MB"].to_list() == [16, 128]
    assert table["ratio"].to_list() == pytest.approx([4.0, 1.2])


def test_what_was_not_watched_is_unknown() -> None:
    table = READING.closer(SAMPLES.filter(pl.col("metric") == "scan_s"), ["sync", "worker"])
    assert table["sleeps"].to_list() == [None] * 3
    assert READING.counted(SAMPLES.clear(), "sleeps", []) == {}


def test_counts_are_of_the_fewest_shared_buffers() -> None:
    few = pl.DataFrame(
        [*watched("sync, 16 MB", 1, sleeps=1.0), *watched("sync, 8 MB", 1, sleeps=3.0)]
    )
    samples = pl.concat([SAMPLES, few])
    assert READING.counted(samples, "sleeps", []) == {"sync": 26.0, "worker": 202.0}
    assert READING.counted(samples, "sleeps", [16, 8]) == {"sync": 3.0}


@pytest.mark.parametrize(
    ("step", "case", "iteration", "words"),
    [
        ("scan", "cached", 1, "scans in cache, 1 connection"),
        ("scan", "cached", 4, "scans in cache, 4 connections"),
        ("scan", "network, 5 ms", 1, "cold scan, network, 5 ms"),
        ("lookup", "network, 0.5 ms", 1, "lookups, network, 0.5 ms"),
    ],
)
def test_a_step_says_where_the_data_is(step: str, case: str, iteration: int, words: str) -> None:
    table = pl.DataFrame({"step": [step], "case": [case], "iteration": [iteration]})
    assert READING.named(table)["step"].to_list() == [words]
    if case != "cached":
        assert case in {READING.network(5.0), READING.network(0.5)}


def test_what_a_verdict_speaks_for_is_said_by_connections_to_a_core() -> None:
    rows = [
        ("worker", "cached", "scan", 4, "slower"),
        ("worker", "cached", "vacuum", 1, "equivalent"),
        ("worker", "network, 5 ms", "scan", 1, "faster"),
        ("worker", "network, 5 ms", "lookup", 1, "inconclusive"),
        ("worker, 8", "cached", "scan", 4, "slower"),
    ]
    columns = ["candidate", "case", "step", "iteration", "verdict"]
    found = READING.which(pl.DataFrame(rows, schema=columns, orient="row"), cores=2)
    assert found.select("step", "candidate").rows() == [
        ("cached: scan, 2.0 to a core", "sync"),
        ("cached: VACUUM, 0.5 to a core", "either"),
        ("network 5 ms: lookup, 0.5 to a core", "not decided"),
        ("network 5 ms: scan, 0.5 to a core", "worker"),
    ]
    assert set(found["candidate"]) <= set(READING.CHOICES)


@pytest.mark.parametrize(
    ("crowd", "cores", "read", "said"),
    [(4, 2, 0, None), (2, 1, 0, None), (2, 2, 0, "2 connections on 2"), (4, 2, 2**21, "50%")],
)
def test_few_connections_and_tables_that_do_not_fit_are_not_the_mails(
    crowd: int, cores: int, read: float, said: str | None
) -> None:
    row = {"step": "scan", "case": "cached", "metric": "read_bytes", "iteration": 4, "value": read}
    found = READING.unlike_the_mail(pl.DataFrame([row]), {"table_mb": 1}, crowd, cores)
    assert found is None if said is None else said in found
    # What is not counted leaves the condition to the connections.
    assert READING.unlike_the_mail(SAMPLES, {"table_mb": 1}, 4, 2) is None


def test_reads_under_way_are_told_by_mean_and_most() -> None:
    assert WATCH.in_flight([1, 2, 9]) == {"in_flight_mean": 4.0, "in_flight_most": 9.0}
    assert WATCH.in_flight([]) == {}


def test_numbers_of_cores_stand_side_by_side() -> None:
    columns = ["text", "cores", "ratio", "low", "high", "verdict"]
    rows = [("slow", 1, None, None, None, "not tested: why"), ("slow", 2, 1.2, 1.1, 1.3, "holds")]
    table = READING.side_by_side(pl.DataFrame(rows, schema=columns, orient="row"))
    assert table.to_dicts() == [
        {"text": "slow", "1 core": "not tested: why", "2 cores": "1.2 (1.1 to 1.3), holds"}
    ]


def test_wake_ups_are_told_in_microseconds() -> None:
    rows = [("same_core_s", 3e-6), ("same_core_s", 5e-6), ("other_core_s", 29e-6)]
    samples = pl.DataFrame(rows, schema=["metric", "value"], orient="row")
    table = READING.wake_ups(samples.with_columns(step=pl.lit("wake-up")))
    assert table.rows() == [("same core", 4.0, 3.0, 5.0), ("other core", 29.0, 29.0, 29.0)]


def test_counts_are_alike_within_a_tenth() -> None:
    assert READING.alike(95, 100)
    assert not READING.alike(80, 100)
    assert READING.tenth(None) is None
    assert READING.tenth(50.0) == 5.0
