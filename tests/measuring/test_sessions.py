"""Many sessions at once: their open transactions are in every snapshot, and then they are gone."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest

from pgstudies.errors import CannotRun, ServerError
from pgstudies.measuring import _sessions as sessions
from pgstudies.measuring._sessions import (
    conninfo,
    end_sessions,
    hold_transactions,
    open_xids,
    prepare_transactions,
    reason_no_room,
    room_for_sessions,
)
from pgstudies.servers._serve import serve
from tests.servers_at_hand import BUILDER, dsn_of

if TYPE_CHECKING:
    from pathlib import Path

    from pgstudies.servers.owned import OwnedServer


def idle_in_transaction(server: OwnedServer) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    with server.connect() as connection:
        (count,) = connection.execute(query).fetchone() or (0,)
    return int(count)


@pytest.mark.parametrize("count", [0, 1, 70])
def test_a_snapshot_lists_every_transaction_held_and_none_afterwards(
    owned: OwnedServer, count: int
) -> None:
    processes = len(owned.session_pids())
    with hold_transactions(owned, count) as held:
        assert held == count
        assert idle_in_transaction(owned) == count
    assert len(owned.session_pids()) <= processes
    assert idle_in_transaction(owned) == 0


def test_prepared_transactions_are_in_every_snapshot_after_a_restart_too() -> None:
    with serve("embedded", settings={"max_prepared_transactions": "30"}) as server:
        server.restore("prepared", lambda: prepare_transactions(server, 30))
        assert open_xids(server) == 30
        with pytest.raises(psycopg.OperationalError, match="maximum number of prepared trans"):
            server.restore("more", lambda: prepare_transactions(server, 31))


def test_an_error_meanwhile_leaves_no_session_behind(owned: OwnedServer) -> None:
    processes = len(owned.session_pids())
    with pytest.raises(KeyboardInterrupt), hold_transactions(owned, 5):
        raise KeyboardInterrupt
    assert len(owned.session_pids()) <= processes


def test_more_than_the_server_takes_is_refused_with_the_number_that_fits(
    owned: OwnedServer,
) -> None:
    room = room_for_sessions(owned)
    assert 50 < room < 100
    with (
        pytest.raises(CannotRun, match=f"200 sessions do not fit.* {room} connections"),
        hold_transactions(owned, 200),
    ):
        pass
    with hold_transactions(owned, room) as held:
        assert held == room


def test_a_session_refused_while_others_are_opened_is_an_error_and_closes_those(
    owned: OwnedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "reason_no_room", lambda *_: None)
    processes = len(owned.session_pids())
    with (
        pytest.raises(ServerError, match=r"Only \d+ of 150 sessions could be opened: .*clients"),
        hold_transactions(owned, 150),
    ):
        pass
    assert len(owned.session_pids()) <= processes


def test_sessions_of_somebody_elses_server_are_those_of_the_role(stranger: OwnedServer) -> None:
    with serve(dsn_of(stranger, BUILDER)) as server, hold_transactions(server, 5) as held:
        assert held == 5
        with stranger.connect() as connection:
            query = """
                SELECT count(*) FROM pg_stat_activity
                WHERE usename = %s AND backend_xid IS NOT NULL
            """
            assert connection.execute(query, [BUILDER]).fetchone() == (5,)
    assert idle_in_transaction(stranger) == 0


def test_open_files_limit_the_room(owned: OwnedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (150, 150))
    assert room_for_sessions() < 50
    assert "ulimit -n" in str(reason_no_room(owned, 10_000))


def test_semaphores_limit_the_room_for_servers_before_10(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits, used = tmp_path / "sem", tmp_path / "used"
    limits.write_text("32000\t1024000000\t500\t12\n")
    used.write_text("key semid perms nsems\n 1 0 600 17\n 2 1 600 17\n")
    monkeypatch.setattr(sessions, "_SEMAPHORE_LIMITS", limits)
    monkeypatch.setattr(sessions, "_SEMAPHORES_USED", used)
    assert room_for_sessions(oldest=90300) == (12 - 2) * 16 - 50
    assert room_for_sessions(oldest=100000) > (12 - 2) * 16 - 50


def test_half_of_what_is_free_on_a_server_of_others_is_left_to_them(stranger: OwnedServer) -> None:
    with serve(dsn_of(stranger, BUILDER)) as server:
        taken = room_for_sessions(server)
        assert 20 < taken <= (100 - 3) // 2
        with hold_transactions(server, taken), stranger.connect() as connection:
            query = (
                "SELECT 97 - count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            )
            (left,) = connection.execute(query).fetchone() or (0,)
            assert left >= taken
        reason = str(reason_no_room(server, taken + 1))
        assert f"of which {taken}, half of them, may be used" in reason


def test_the_address_is_enough_for_another_client(owned: OwnedServer) -> None:
    with psycopg.connect(conninfo(owned)) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("pgstudies",)


def test_a_session_that_is_broken_already_does_not_keep_others_from_ending(
    owned: OwnedServer,
) -> None:
    owned.restore("empty", lambda: None)
    broken, other = owned.connect(), owned.connect()
    pid = other.info.backend_pid
    broken.close()
    end_sessions(owned, [broken, other])
    assert other.closed
    assert not psutil.pid_exists(pid)
