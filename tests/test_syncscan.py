"""Which tables are scanned in step, and the block at which a scan that joins begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_table

from pgstudies.errors import StudyError
from pgstudies.syncscan import block_of, reason_not_in_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from pgstudies.owned import OwnedServer

BUFFERS = 512  # shared buffers, so that 129 blocks are the fewest
REPORTED = 16  # blocks between two notes that a scan leaves of its place


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
    return block_of(row[0])


def test_one_block_more_than_a_quarter_of_the_buffers_is_enough(
    session: psycopg.Connection[Any],
) -> None:
    assert reason_not_in_step(session, "enough") is None
    reason = reason_not_in_step(session, "too_small")
    assert reason is not None
    assert "128 blocks" in reason
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
    assert block_of("(70,3)") == 70
