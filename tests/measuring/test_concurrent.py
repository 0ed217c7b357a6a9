"""Several sessions at once: each after its delay, with its settings, and their reads counted."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgservers.errors import CannotRun
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.concurrent import concurrently
from pgstudies.measuring.trial import Trial
from tests.made_up import rows_of
from tests.servers_at_hand import make_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.servers.managed import ManagedServer


PAGES = 1000


@pytest.fixture
def managed(managed_on_disk: ManagedServer) -> ManagedServer:
    return managed_on_disk


@pytest.fixture
def trial(managed: ManagedServer) -> Iterator[Trial]:
    def build() -> None:
        with managed.connect() as connection:
            make_table(connection, "large", PAGES)

    managed.restore("for sessions", build)
    with Trial(managed, Arm("plain"), block=1) as trial:
        yield trial


def metrics(trial: Trial) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in rows_of(trial)}


def test_each_session_begins_after_its_delay(trial: Trial) -> None:
    spans = concurrently(trial, "wait", lambda *_: time.sleep(0.01), delays=[0.0, 0.6, 0.3])
    begun = [span.began_s for span in spans]
    assert begun[0] < begun[2] < begun[1]
    assert begun[2] >= 0.3
    assert begun[1] >= 0.6
    found = metrics(trial)
    assert found["duration_s"] == pytest.approx(sum(s.duration_s for s in spans) / 3)
    assert found["longest_s"] == max(s.duration_s for s in spans)
    assert found["makespan_s"] == max(s.ended_s for s in spans) - min(begun)


def test_they_work_at_once_each_under_its_number_and_with_the_settings(trial: Trial) -> None:
    together = threading.Barrier(3, timeout=20)
    seen: list[Any] = []

    def work(session: psycopg.Connection[Any], number: int) -> None:
        together.wait()
        seen.append((number, *session.execute("SHOW synchronize_seqscans").fetchall()))

    concurrently(trial, "ask", work, delays=[0.0] * 3, settings={"synchronize_seqscans": "off"})
    assert sorted(seen) == [(number, ("off",)) for number in range(3)]


def test_bytes_read_are_those_of_all_sessions(trial: Trial) -> None:
    assert trial.make_cold("large", step="count")

    def count(session: psycopg.Connection[Any], number: int) -> None:
        session.execute(
            "SELECT sum(length(d)) FROM large WHERE ctid >= %s::tid AND ctid < %s::tid",
            [f"({number * PAGES // 2},0)", f"({(number + 1) * PAGES // 2},0)"],
        )

    concurrently(trial, "count", count, delays=[0.0, 0.0])
    assert metrics(trial)["read_bytes"] >= 0.95 * PAGES * 8192


def test_an_error_in_one_of_them_is_raised_and_nothing_is_recorded(trial: Trial) -> None:
    def work(session: psycopg.Connection[Any], number: int) -> None:
        session.execute("SELECT 1 / %s::int", [number])

    with pytest.raises(psycopg.errors.DivisionByZero):
        concurrently(trial, "divide", work, delays=[0.0, 0.0])
    assert trial.rows == []


def test_more_than_the_server_takes_is_refused_with_the_number_that_fits(trial: Trial) -> None:
    with pytest.raises(CannotRun, match=r"500 sessions do not fit: .*max_connections"):
        concurrently(trial, "many", lambda *_: None, delays=[0.0] * 500)


def test_on_a_server_that_is_not_ours_no_device_is_seen(elsewhere: Trial) -> None:
    concurrently(elsewhere, "one", lambda c, _: c.execute("SELECT 1"), delays=[0.0, 0.0])
    assert "duration_s" in metrics(elsewhere)
    assert "read_bytes" not in metrics(elsewhere)
