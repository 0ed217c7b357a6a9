"""What sessions wait for, sampled while they do it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pgapps.compare.observing import (
    MOST_SHOWN,
    WAIT,
    ObservedTrial,
    PlansAndResults,
    Waits,
    different_rows,
    digest,
    waits_of,
)
from pgservers.servers.facts import examined, identity
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.trial import Trial
from tests.made_up import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer


@pytest.fixture
def waits(managed: ManagedServer) -> Iterator[Waits]:
    """A sampler of the server's waits."""
    found = waits_of(managed)
    assert found is not None
    yield found
    found.close()


def metrics_of(trial: Trial) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in rows_of(trial)}


def test_a_statement_that_sleeps_waits_for_its_sleep(managed: ManagedServer) -> None:
    seen = PlansAndResults()
    with ObservedTrial(managed, Arm("plain"), block=1, seen=seen) as trial:
        trial.timed("sleep", "SELECT pg_sleep(2)")
        once = metrics_of(trial)
        trial.repeated("sleep", "SELECT pg_sleep(0.01)", 100)
    for metrics, within in ((once, 0.5), (metrics_of(trial), 0.8)):
        waited, took_s = metrics[f"{WAIT}Timeout: PgSleep"], metrics["duration_s"]
        assert waited == pytest.approx(took_s, rel=within)
    assert seen.plans == {"sleep": "Result"}


def test_a_sample_is_taken_once_and_only_in_a_turn(managed: ManagedServer, waits: Waits) -> None:
    with managed.connect() as connection:
        waits.turn()
        with waits:
            connection.execute("SELECT pg_sleep(0.5)")
        waits.turn()
        assert waits.take(0.5)
        assert waits.take(0.5) == {}
        connection.execute("SELECT pg_sleep(0.5)")
        waits.turn()
    assert waits.take(0.5) == {}
    waits.close()  # and once more at the test's end


def test_a_server_that_ends_ends_the_sampling(managed: ManagedServer, waits: Waits) -> None:
    with waits:
        managed.restart()
        time.sleep(0.2)


def test_sampling_is_not_counted_as_the_statement(managed: ManagedServer) -> None:
    """The view of the sessions reads catalogs; a statement that sleeps reads nothing."""
    with ObservedTrial(managed, Arm("plain"), block=1, seen=PlansAndResults()) as trial:
        for iteration in range(2):
            trial.timed("sleep", "SELECT pg_sleep(0.5)", iteration=iteration)
    assert metrics_of(trial)["buffers_hit"] == 0  # of the last iteration


def test_a_trial_of_a_study_samples_nothing(managed: ManagedServer) -> None:
    with Trial(managed, Arm("plain"), block=1) as trial:
        trial.timed("sleep", "SELECT pg_sleep(0.2)")
    metrics = metrics_of(trial)
    assert "result" not in metrics
    assert not any(metric.startswith(WAIT) for metric in metrics)


def test_equal_results_have_equal_digests_whatever_their_order(managed: ManagedServer) -> None:
    with managed.connect() as connection:
        up, down, other = (
            connection.execute(f"SELECT i FROM generate_series(1, {last}) i ORDER BY i {order}")
            for last, order in ((3, "ASC"), (3, "DESC"), (4, "ASC"))
        )
        assert digest(up) == digest(down) != digest(other)
        assert len(up.fetchall()) == 3  # it can still be read
        assert digest(connection.execute("CREATE TEMP TABLE t AS SELECT 1")) == 1
        assert digest(connection.execute("SELECT 1 WHERE false")) != digest(other)


def test_the_statements_of_a_script_change_nothing_and_what_they_set_holds(
    managed: ManagedServer,
) -> None:
    seen = PlansAndResults()
    statements = {
        "broken": "SELECT nothing",
        "set": "SET enable_seqscan = off",
        "insert": "INSERT INTO kept SELECT 1",
        "with": "WITH new AS (INSERT INTO kept VALUES (2) RETURNING i) SELECT i FROM new",
        "read": "SELECT i, current_setting('enable_seqscan') FROM kept -- where i is",
        "none": "SELECT i FROM kept WHERE i > 9",
    }
    with managed.connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT i FROM generate_series(1, 2) i")
        found = seen.keep_statements(connection, "step", statements)
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (2,)
        assert connection.execute("SHOW enable_seqscan").fetchone() == ("on",)
        connection.execute("DROP TABLE kept")
    assert seen.rows == {"step, read": ["(1, 'off')", "(2, 'off')"], "step, none": []}
    assert set(found) == {"read", "none"}
    assert "step, insert" in seen.plans


def test_of_rows_that_differ_a_few_of_both_results_are_shown() -> None:
    assert different_rows(["a", "b", "b"], ["b", "a", "b"]) == []
    assert different_rows(["a", "b", "b"], ["b", "c"]) == [(0, "a"), (0, "b"), (1, "c")]
    many = different_rows([f"{i:02}" for i in range(30)], [])
    assert many == [(0, f"{i:02}") for i in range(MOST_SHOWN)]


def test_what_cannot_be_explained_has_no_plan(managed: ManagedServer) -> None:
    seen = PlansAndResults()
    with ObservedTrial(managed, Arm("plain"), block=1, seen=seen) as trial:
        seen.keep_plan(trial.connection, "vacuum", "VACUUM")
        seen.keep_plan(trial.connection, "wrong", "SELECT nothing")
        seen.keep_plan(trial.connection, "bound", "SELECT %s::int", [1])
        trial.ran("script", "warm", "\\set k random(1, 9)\nSELECT :k, ':k', 1::text;", {})
    assert seen.plans == {"bound": "Result", "script, warm": "Result"}


def test_a_server_tells_settings_build_and_assertions(managed: ManagedServer) -> None:
    found = examined(managed)
    assert found["settings"]["fsync"] == ["off", "command line"]
    assert found["assertions"] in {"on", "off"}
    assert "-O" in found["cflags"]
    assert len(identity(managed)) == 16


def test_a_link_to_nothing_beside_a_build_is_no_part_of_it(tmp_path: Path) -> None:
    """Builds of 9.3 have one."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "bin" / "postgres").write_bytes(b"program")
    server: Any = SimpleNamespace(binaries=SimpleNamespace(bindir=tmp_path / "bin"))
    without = identity(server)
    (tmp_path / "lib" / "termcap.so").symlink_to("gone.so")
    assert identity(server) == without
    (tmp_path / "lib" / "gone.so").write_bytes(b"library")
    assert identity(server) != without
