"""What every kind of server has in common, and what it can do."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Self

    from psycopg.rows import TupleRow

    Connection = psycopg.Connection[TupleRow]

APPLICATION_NAME = "pgstudies"


@dataclass(frozen=True)
class Capabilities:
    """What can be done with a server, and so which arms and steps can run on it."""

    owned: bool
    superuser: bool
    restart: bool
    local_files: bool
    create_database: bool
    checkpoint: bool
    contrib: frozenset[str]
    pg_config: Path | None
    headers: bool
    pgbench: Path | None


class Server(ABC):
    """A PostgreSQL server with a place in it that is ours; use it as a context manager.

    Attributes:
        spec: What the user asked for, without any password.
        version: Like 180006.
        version_text: Like ``18.6``.
        settings: The study's settings, wished for in every state.
        unmet_settings: Settings that could not be had: name to (wanted, actual).
    """

    owned: bool
    spec: str
    version: int
    version_text: str
    settings: Mapping[str, str]
    unmet_settings: dict[str, tuple[str, str]]
    capabilities: Capabilities

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self.unmet_settings = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def connect(self, **options: Any) -> Connection:
        """A new session in our own place on the server, in autocommit mode."""

    @abstractmethod
    def restore(
        self, state: str, build: Callable[[], None], settings: Mapping[str, str] | None = None
    ) -> None:
        """Put the server into ``state``, with the study's settings and these.

        The first time, or where no copy can be kept, the state is made from an empty one by
        ``build``, which connects by itself.  Sessions opened before are closed.  Raises CannotRun
        when a setting cannot be had here, SpaceError when the disk has no room for a copy.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave nothing of ours behind."""

    def disconnect(self) -> None:
        """Close every session that ``connect`` has given out."""
        for connection in list(self._connections):
            connection.close()
        self._connections.clear()

    def nondefault_settings(self) -> pl.DataFrame:
        """Every setting that is not at its default: name, value, unit, source."""
        with self.connect() as connection:
            rows = connection.execute(
                """
                SELECT name, setting, unit, source
                FROM pg_settings
                WHERE source NOT IN ('default', 'override') AND setting IS DISTINCT FROM boot_val
                ORDER BY name
                """
            ).fetchall()
        columns = ["name", "value", "unit", "source"]
        return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()), orient="row")


def open_session(conninfo: str, **options: Any) -> Connection:
    """Connect in autocommit mode; raises ServerError with a sentence that says what to do."""
    try:
        return psycopg.connect(
            conninfo, autocommit=True, application_name=APPLICATION_NAME, **options
        )
    except psycopg.Error as error:
        raise ServerError(_explain(conninfo, error)) from None


def without_password(conninfo: str) -> str:
    """The connection string with password and other secrets left out, fit for a page."""
    known = conninfo_to_dict(conninfo)
    shown = {k: v for k, v in known.items() if k not in {"password", "sslpassword", "passfile"}}
    host, port = shown.pop("host", ""), shown.pop("port", None)
    user, dbname = shown.pop("user", ""), shown.pop("dbname", "")
    if str(host).startswith("/") or shown:
        parts = {"host": host, "port": port, "user": user, "dbname": dbname} | shown
        return make_conninfo(**{k: str(v) for k, v in parts.items() if v})
    at = f"{user}@" if user else ""
    colon = f":{port}" if port else ""
    return f"postgresql://{at}{host}{colon}/{dbname}"


_REMEDIES = {
    "password authentication failed": "check the password in the DSN, PGPASSWORD or ~/.pgpass",
    "no password supplied": "give one in the DSN, PGPASSWORD or ~/.pgpass",
    "no pg_hba.conf entry": "its pg_hba.conf does not let this user in from here",
    "too many clients": "raise its max_connections or close some sessions",
    "remaining connection slots": "raise its max_connections or close some sessions",
    "Connection refused": "is it running, and are host and port right?",
    "No such file or directory": "is it running, and is the socket directory right?",
    "timeout": "is it running, and are host and port right?",
    "could not translate host name": "check the host name",
    "failed to resolve host": "check the host name",
    "role": "check the user name",
    "database": "check the database name",
}


def _explain(conninfo: str, error: psycopg.Error) -> str:
    text = str(error).strip()
    reason = text.splitlines()[-1].strip().rstrip(".")
    remedy = next((r for sign, r in _REMEDIES.items() if sign in text), "check the DSN")
    return f"The server {without_password(conninfo)} does not let us in ({reason}): {remedy}."
