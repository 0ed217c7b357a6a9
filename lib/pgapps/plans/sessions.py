"""What every session with an untrusted server needs."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from threading import Event, Timer
from typing import TYPE_CHECKING

import psycopg

from pgservers.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg.rows import TupleRow


def take_bytes(connection: psycopg.Connection[TupleRow]) -> None:
    """Read texts of a database without an encoding (SQL_ASCII) as LATIN1; others send UTF-8.

    SQL_ASCII converts nothing, and every byte is a character of LATIN1.
    """
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        connection.execute("SELECT pg_catalog.set_config('client_encoding', 'LATIN1', false)")


def as_in_plans(connection: psycopg.Connection[TupleRow], name: object) -> str:
    """A name that such a session has read, as ``explain`` reads it in plans."""
    if connection.info.encoding != "iso8859-1":
        return str(name)
    return str(name).encode("latin1").decode("utf-8", "replace")


def as_sent(connection: psycopg.Connection[TupleRow], text: str) -> str:
    """A statement as such a session sends it, with bytes of ``surrogateescape``."""
    if connection.info.encoding != "iso8859-1":
        return text
    return text.encode("utf-8", "surrogateescape").decode("latin1")


@contextmanager
def within(connection: psycopg.Connection[TupleRow], seconds: float, what: str) -> Iterator[None]:
    """Close the connection and raise ServerError where ``what`` takes longer than that.

    statement_timeout does not suffice: a function can catch its error.
    """
    late = Event()

    def hang_up(descriptor: int) -> None:
        late.set()
        with socket.socket(fileno=os.dup(descriptor)) as line:
            line.shutdown(socket.SHUT_RDWR)

    timer = Timer(seconds, hang_up, [connection.fileno()])
    timer.daemon = True
    timer.start()
    try:
        yield
    except psycopg.OperationalError as error:
        if late.is_set():
            raise ServerError(f"{what} was given up after {seconds:.0f} s.") from error
        raise
    finally:
        timer.cancel()
