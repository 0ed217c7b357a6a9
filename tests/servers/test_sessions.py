"""Many sessions at once: how many fit, what they leave prepared, and that they end."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest

from pgservers.errors import ServerError
from pgservers.servers.serve import serve
from pgservers.sessions import (
    end_sessions,
    open_xids,
    prepare_transactions,
    reason_no_room,
    room_for_sessions,
    wait_until_gone,
)

if TYPE_CHECKING:
    from pgservers.servers.managed import ManagedServer


def test_prepared_transactions_are_in_every_snapshot_after_a_restart_too() -> None:
    with serve("embedded", settings={"max_prepared_transactions": "30"}) as server:
        server.restore("prepared", lambda: prepare_transactions(server, 30))
        assert open_xids(server) == 30
        with pytest.raises(ServerError, match="holds 30 open transactions, not the 31"):
            open_xids(server, 31)
        with pytest.raises(psycopg.OperationalError, match="maximum number of prepared trans"):
            server.restore("more", lambda: prepare_transactions(server, 31))


def test_open_files_limit_the_room(managed: ManagedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    real, files = resource.getrlimit, resource.RLIMIT_NOFILE
    few = (150, 150)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: few if kind == files else real(kind))
    assert room_for_sessions() < 50
    assert "ulimit -n" in str(reason_no_room(managed, 10_000))


def test_a_session_that_is_broken_already_does_not_keep_others_from_ending(
    managed: ManagedServer,
) -> None:
    managed.restore("empty", lambda: None)
    broken, other = managed.connect(), managed.connect()
    pid = other.info.backend_pid
    broken.close()
    end_sessions(managed, [broken, other])
    assert other.closed
    assert not psutil.pid_exists(pid)


def test_processes_that_stay_are_waited_for(
    managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgservers.sessions._END_TIMEOUT_S", 0.0)
    managed.restore("empty", lambda: None)
    with managed.connect() as session:
        pid = session.info.backend_pid
        with pytest.raises(ServerError, match="still there after"):
            wait_until_gone(managed, [pid])


def test_a_statement_that_was_just_sent_is_ended_without_a_warning(
    managed: ManagedServer, caplog: pytest.LogCaptureFixture
) -> None:
    managed.restore("empty", lambda: None)
    with suppress(KeyboardInterrupt), managed.connect() as session:
        pid = session.info.backend_pid
        session.pgconn.send_query(b"select pg_sleep(600)")  # Ctrl-C comes before psycopg waits
        raise KeyboardInterrupt
    wait_until_gone(managed, [pid])
    assert caplog.messages == []
