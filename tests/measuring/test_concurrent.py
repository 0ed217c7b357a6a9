"""Several sessions at once: each after its delay, with its settings, and their reads counted."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgstudies.errors import CannotRun, StudyError
from pgstudies.measuring._concurrent import concurrently, page_of, reason_not_in_step
from pgstudies.measuring._design import Arm
from pgstudies.measuring._trial import Trial
from tests.servers_at_hand import make_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgstudies.servers.owned import OwnedServer


PAGES = 1000


@pytest.fixture
def owned(owned_on_disk: OwnedServer) -> OwnedServer:
    return owned_on_disk


@pytest.fixture
def trial(owned: OwnedServer) -> Iterator[Trial]:
    def build() -> None:
        with owned.connect() as connection:
            make_table(connection, "large", PAGES)

    owned.restore("for sessions", build)
    with Trial(owned, Arm("plain"), block=1) as trial:
        yield trial


def metrics(trial: Trial) -> dict[str, float]:
    return {row[8]: row[9] for row in trial.rows}


def test_each_session_begins_after_its_delay(trial: Trial) -> None:
    spans = concurrently(trial, "wait", lambda *_: time.sleep(0.01), delays=[0.0, 0.2, 0.1])
    begun = [span.began_s for span in spans]
    assert begun[0] < 0.1 <= begun[2] < begun[1]
    assert begun[1] >= 0.2
    found = metrics(trial)
    assert found["duration_s"] == pytest.approx(sum(s.duration_s for s in spans) / 3)
    assert found["longest_s"] == max(s.duration_s for s in spans)
    assert found["makespan_s"] == max(s.ended_s for s in spans) - min(begun)


def test_they_work_at_the_same_time_each_under_its_number(trial: Trial) -> None:
    together = threading.Barrier(3, timeout=20)
    numbers: list[int] = []

    def work(_: Any, number: int) -> None:
        together.wait()
        numbers.append(number)

    concurrently(trial, "meet", work, delays=[0.0] * 3)
    assert sorted(numbers) == [0, 1, 2]


def test_every_session_has_the_settings(trial: Trial) -> None:
    seen: list[Any] = []

    def work(session: psycopg.Connection[Any], _: int) -> None:
        seen.append(session.execute("SHOW synchronize_seqscans").fetchone())

    concurrently(trial, "ask", work, delays=[0, 0], settings={"synchronize_seqscans": "off"})
    assert seen == [("off",), ("off",)]


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


def test_on_a_server_that_is_not_ours_there_is_time_and_nothing_of_the_device(
    elsewhere: Trial,
) -> None:
    concurrently(elsewhere, "one", lambda c, _: c.execute("SELECT 1"), delays=[0.0, 0.0])
    assert "duration_s" in metrics(elsewhere)
    assert "read_bytes" not in metrics(elsewhere)


BUFFERS = 512  # shared buffers, so that 129 pages are the fewest
REPORTED = 16  # pages between two notes that a scan leaves of its place


@pytest.fixture
def session(owned: OwnedServer) -> Iterator[psycopg.Connection[Any]]:
    def build() -> None:
        with owned.connect() as connection:
            for name, rows in (("enough", 129), ("too_small", 128), ("large", 1000)):
                make_table(connection, name, rows)
            connection.execute("CREATE VIEW no_table AS SELECT * FROM large")

    settings = {"shared_buffers": f"{8 * BUFFERS}kB", "max_parallel_workers_per_gather": "0"}
    owned.restore("for scans", build, settings)
    with owned.connect() as connection:
        yield connection


def first_block(session: psycopg.Connection[Any], table: str) -> int:
    """The block at which a scan that begins now begins."""
    row = session.execute(f"SELECT ctid::text FROM {table} LIMIT 1").fetchone()
    assert row
    return page_of(row[0])


def test_one_block_more_than_a_quarter_of_the_buffers_is_enough(
    session: psycopg.Connection[Any],
) -> None:
    assert reason_not_in_step(session, "enough") is None
    reason = reason_not_in_step(session, "too_small")
    assert reason is not None
    assert "128 pages" in reason
    assert "from 129 on" in reason
    assert "a table of 2 MB" in reason


@pytest.mark.parametrize(("table", "begins"), [("enough", True), ("too_small", False)])
def test_the_server_agrees(
    owned: OwnedServer, session: psycopg.Connection[Any], table: str, begins: bool
) -> None:
    session.execute(f"BEGIN; DECLARE here CURSOR FOR SELECT i FROM {table}")
    session.execute("MOVE 100 FROM here")
    with owned.connect() as other:
        assert (first_block(other, table) > 0) == begins
        other.execute("SET synchronize_seqscans = off")
        assert first_block(other, table) == 0
        assert "synchronize_seqscans is off" in str(reason_not_in_step(other, "large"))


@pytest.mark.parametrize("place", [300, 700])
def test_a_scan_begins_at_the_block_noted_last(
    owned: OwnedServer, session: psycopg.Connection[Any], place: int
) -> None:
    # Without look-ahead the place noted is the one that is read.
    session.execute("SET effective_io_concurrency = 0; SET io_combine_limit = 1")
    session.execute("BEGIN; DECLARE here CURSOR FOR SELECT i FROM large")
    session.execute(f"MOVE {place + 1} FROM here")
    with owned.connect() as other:
        assert place - REPORTED <= first_block(other, "large") <= place + REPORTED


def test_a_temporary_table_is_not_scanned_in_step(session: psycopg.Connection[Any]) -> None:
    session.execute("CREATE TEMP TABLE own AS SELECT * FROM large")
    assert "temporary table" in str(reason_not_in_step(session, "own"))


def test_what_is_no_table_or_not_there_is_told(session: psycopg.Connection[Any]) -> None:
    assert "no_table is no table" in str(reason_not_in_step(session, "no_table"))
    with pytest.raises(StudyError, match="no table nowhere"):
        reason_not_in_step(session, "nowhere")


def test_the_block_is_the_first_number_of_a_ctid() -> None:
    assert page_of("(70,3)") == 70
