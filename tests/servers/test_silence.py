"""Servers of others that are silent, go on for ever, or lie: one sentence, within a limit."""

from __future__ import annotations

import queue
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import psycopg
import pytest

from pgservers import foreign
from pgservers.addresses import Address
from pgservers.errors import ServerError
from pgservers.servers.dsn import DsnServer
from pgservers.servers.foreign_sessions import foreign_session
from pgservers.servers.serve import require_server
from tests.silent_servers import (
    SILENT,
    STARTED,
    answer,
    endless_rows,
    lying,
    pooler,
    row,
    serving,
    silent_at_the_first_query,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgservers.foreign import ForeignSession
    from tests.silent_servers import Line


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")  # libpq's least


def session(address: str) -> ForeignSession:
    return foreign_session(Address.parse(address).parts, "there")


def begin(line: Line) -> dict[str, str]:
    """Let a session in, and answer its first query as it must be; returns what it asked for."""
    asked = line.startup()
    line.send(STARTED)
    line.query()
    line.send(answer(1, row("")))
    return asked


@pytest.mark.parametrize("behaviour", SILENT)
def test_a_server_that_does_not_answer_is_given_up(behaviour: Callable[[Line], None]) -> None:
    with serving(behaviour) as address, pytest.raises(ServerError, match="not answer in time"):
        session(address)


def test_psycopg_alone_waits_for_a_first_answer_for_ever() -> None:
    ended = threading.Event()

    def ask(address: str) -> None:
        try:
            psycopg.connect(address, connect_timeout=2).execute("SELECT 1")
        except psycopg.Error:
            ended.set()

    with serving(silent_at_the_first_query) as address:
        threading.Thread(target=ask, args=[address], daemon=True).start()
        assert not ended.wait(5)
    assert ended.wait(60)


@pytest.mark.parametrize("behaviour", [silent_at_the_first_query, endless_rows])
def test_every_command_asks_a_silent_server_in_that_way(behaviour: Callable[[Line], None]) -> None:
    with serving(behaviour) as address:
        with pytest.raises(ServerError, match="not answer in time"):
            require_server(address)
        with pytest.raises(ServerError, match="not answer in time"):
            DsnServer(Address.parse(address))


def test_a_later_answer_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def behave(line: Line) -> None:
        begin(line)
        line.wait()

    monkeypatch.setattr(foreign, "_LONGEST_S", 0.5)
    with serving(behave) as address:
        asked = session(address)
        with pytest.raises(psycopg.OperationalError, match="no whole answer in 0 s"):
            asked.execute("SELECT 1")
        assert asked.closed


def test_an_answer_has_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def behave(line: Line) -> None:
        begin(line)
        line.query()
        line.send(answer(1)[: -len(b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I")])
        line.send_for_ever(row("x" * 1000))

    monkeypatch.setattr(foreign, "_MOST_BYTES", 2**20)
    with serving(behave) as address:
        asked = session(address)
        with pytest.raises(psycopg.OperationalError, match="an answer of more than 1 MB"):
            asked.execute("SELECT 1")


def test_limits_are_in_the_start_up_packet_and_in_the_socket() -> None:
    packets: queue.Queue[dict[str, str]] = queue.Queue()

    def behave(line: Line) -> None:
        packets.put(begin(line))
        line.wait()

    with serving(behave) as address:
        asked = session(address)
        known = asked.info.get_parameters()
        asked.pgconn.finish()
        packet = packets.get(timeout=60)
    assert "-c statement_timeout=3600s" in packet["options"]
    assert (known["keepalives_idle"], known["tcp_user_timeout"]) == ("30", "60000")


@pytest.mark.parametrize(("columns", "values"), [(0, 0), (1, 1), (2, 2), (9, 9), (3, 2)])
def test_rows_of_another_width_end_in_a_sentence(columns: int, values: int) -> None:
    with (
        serving(lying(columns, values)) as address,
        pytest.raises(ServerError, match=r"does not answer as|does not allow|read-only"),
    ):
        DsnServer(Address.parse(address))


def test_without_the_mend_rows_of_another_width_end_in_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgservers.servers.dsn.as_postgres", lambda _: nullcontext())
    with serving(lying(0)) as address, pytest.raises(IndexError):
        DsnServer(Address.parse(address))


def test_a_pooler_that_takes_no_settings_is_told_apart() -> None:
    with serving(pooler) as address, pytest.raises(ServerError, match="pooler there refuses"):
        session(address)
