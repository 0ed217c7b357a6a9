"""What every session with an untrusted server needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow


def take_bytes(connection: psycopg.Connection[TupleRow]) -> None:
    """Read texts of a database without an encoding (SQL_ASCII) as LATIN1; others send UTF-8.

    SQL_ASCII converts nothing, and every byte is a character of LATIN1.
    """
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        connection.execute("SELECT pg_catalog.set_config('client_encoding', 'LATIN1', false)")


def as_utf8(connection: psycopg.Connection[TupleRow], text: object, errors: str = "replace") -> str:
    """A text that such a session has read; ``errors`` is for bytes that are not UTF-8."""
    if connection.info.encoding != "iso8859-1":
        return str(text)
    return str(text).encode("latin1").decode("utf-8", errors)


def as_sent(connection: psycopg.Connection[TupleRow], text: str) -> str:
    """A statement as such a session sends it, with bytes of ``surrogateescape``."""
    if connection.info.encoding != "iso8859-1":
        return text
    return text.encode("utf-8", "surrogateescape").decode("latin1")
