"""A cluster of our own: its directory, its server process, and how to reach it."""

from __future__ import annotations

import atexit
import os
import subprocess
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

from ...errors import CannotRun, ServerDied, ServerError, SpaceError, require
from ...files import says_full
from ...foreign import Session
from ...programs.accounts import can_execute, server_account, without_pg_variables
from ...programs.installations import copy_installation, samples_say
from ...programs.locales import locale_environment
from ...programs.versions import has
from ..base import ServerBase
from ..instance import GUEST, PORT, SUPERUSER, Instance
from ..settings import by_known_names, merged
from .postmaster import Postmaster, StartError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from psycopg.rows import TupleRow

    from ...programs.installations import Binaries


DATABASE = "pgstudies"

_SOCKETS, _PEER = 90300, 90100
"""From here on a socket may be in several directories, and ident of a socket is called peer."""

_MOST_NAMED = 6
_MOST_SIGNALS, _BETWEEN_SIGNALS_S = 30, 2.0
_LONGEST_S = 1e6


class Cluster(ServerBase):
    """A data directory with its server, which is started and stopped, and listens on a socket.

    Its directory is removed when this object is closed.
    """

    binaries: Binaries
    _programs: Binaries
    _libraries: dict[str, str]
    _known: frozenset[str]
    _padding_bytes = 0

    def __init__(
        self, binaries: Binaries, *, spec: str, cpu: int | None, unprivileged: bool
    ) -> None:
        super().__init__()
        self.spec = spec
        self.role = GUEST if unprivileged else SUPERUSER
        self.binaries = binaries
        self.version = binaries.version
        self.version_text = binaries.version_text
        self._cpu = cpu
        self._creator = os.getpid()
        self._closed = False
        self._more: dict[str, str] = {}
        self._postmaster: Postmaster | None = None
        self._last: Postmaster | None = None
        self._alone: subprocess.Popen[bytes] | None = None
        self._alone_is_over = False
        self._account = server_account()
        self._instance = Instance(self._account, spec, _access(binaries))
        atexit.register(self.close)

    @cached_property
    def _has_one_socket(self) -> bool:
        return self.version < _SOCKETS and not samples_say(self.binaries, "unix_socket_directories")

    def pad(self, padding_bytes: int) -> None:
        """Let servers that start from now on have an environment longer by ``padding_bytes``.

        The kernel puts it above the stack, which begins lower for it.
        """
        self._padding_bytes = padding_bytes

    @property
    def data_directory(self) -> Path:
        """The server's files; on Linux we may read them, also when it runs as another account."""
        return self._instance.data

    @property
    def workplace(self) -> Path:
        """A directory for programs that run as the server's account; it goes with the cluster."""
        place = self._instance.path / "work"
        if not place.exists():
            self._instance.make_directory(place, self._account)
        return place

    @property
    def postmaster_pid(self) -> int:
        """Process number of the postmaster; raises ServerError when the server is not running."""
        return self._running().pid

    def pids(self) -> list[int]:
        """The postmaster and its living children; empty when the server is not running."""
        return self._postmaster.pids() if self._postmaster is not None else []

    def session_pids(self) -> list[int]:
        """The children that serve a session, including zombies."""
        return self._postmaster.session_pids() if self._postmaster is not None else []

    def start(self, settings: Mapping[str, str] = {}) -> None:
        """Start the server with the study's settings and these, and wait until it is ready.

        Raises CannotRun when it does not start with ``settings``, ServerError when it does not
        start at all or runs already.
        """
        if self._postmaster is not None and self._postmaster.alive:
            raise ServerError("The server is already running.")
        settings = by_known_names(settings, self._known)
        require(self.reason_unknown(*settings))
        self._more = merged({}, settings)
        try:
            self._postmaster = self._launch(self.settings)
        except StartError as error:
            self._postmaster = None
            if full := self.space_error(error):
                raise full from error
            if settings:
                wanted = ", ".join(f"{name}={value}" for name, value in settings.items())
                if len(settings) >= _MOST_NAMED:
                    wanted = f"these {len(settings)} settings"
                raise CannotRun(f"the server does not start with {wanted}: {error}") from error
            raise ServerError(f"{self.version_text} does not start: {error}") from error

    def reason_unknown(self, *names: str) -> str | None:
        """Why this release cannot have settings of these names, or None if it can."""
        unknown = [n for n in names if "." not in n and n.lower() not in self._known]
        return f"{self.version_text} has no setting {unknown[0]}" if unknown else None

    def stop(self, mode: str = "fast") -> None:
        """Close our connections and stop the server, if it runs; modes as in pg_ctl."""
        self.close_connections()
        if self._postmaster is not None:
            self._postmaster.stop(mode)
            self._postmaster = None

    def restart(self, settings: Mapping[str, str] = {}) -> None:
        """Stop, then start with the study's settings and these."""
        self.stop()
        self.start(settings)

    def connect(self, **kwargs: Any) -> psycopg.Connection[TupleRow]:
        """A new connection as our role to our own database, in autocommit mode."""
        postmaster = self._running()
        arguments: dict[str, Any] = {"autocommit": True}
        if has(self.version, "application_name"):
            arguments["application_name"] = "pgstudies"
        with without_pg_variables():
            try:
                connection = Session.connect(**(arguments | self._address(DATABASE) | kwargs))
            except psycopg.OperationalError as error:
                if not postmaster.alive:
                    self._running()
                raise ServerError(f"The server rejects the connection: {error}") from error
        self._connections.add(connection)
        return connection

    def as_superuser(self, dbname: str = "postgres") -> psycopg.Connection[TupleRow]:
        """A session of the superuser, by default in a database that nobody else can enter.

        Its search_path is empty, so that it finds by name only what belongs to the server itself.
        """
        return self.connect(user=SUPERUSER, dbname=dbname, options="-c search_path=")

    def environment(self) -> dict[str, str]:
        """The PG* variables by which a client program such as pgbench reaches our database."""
        return {
            "PGHOST": str(self._instance.socket),
            "PGPORT": str(PORT),
            "PGUSER": self.role,
            "PGDATABASE": DATABASE,
        }

    def no_space(self, message: str = "") -> SpaceError:
        """The error of the server's full disk; ``message`` is the server's."""
        because = f" ({message})" if message else ""
        return SpaceError(
            f"No space left in {self._instance.path.parent} for the server's data{because}: free "
            f"some, or set PGSTUDIES_RUN_DIR to a directory on another disk."
        )

    def space_error(self, error: BaseException) -> SpaceError | None:
        """As ``ServerBase.space_error``; also where the server died of it, or may have."""
        known = super().space_error(error)
        if known or not isinstance(error, ServerError | psycopg.OperationalError):
            return known
        died = self._last is not None and self._last.found_disk_full()
        died = died or says_full(str(error))
        return self.no_space() if died or self._instance.is_full() else None

    def close(self) -> None:
        """Stop the server and remove all its files; more than once is no error."""
        if self._closed or os.getpid() != self._creator:
            return
        self.stop("immediate")
        self._instance.remove()
        if self.slow_disk is not None:
            self.slow_disk.close()
        atexit.unregister(self.close)
        self._closed = True

    def _programs_in_reach(self) -> tuple[Binaries, dict[str, str]]:
        if can_execute(self._account, self.binaries.bindir / "postgres"):
            return self.binaries, {}
        return self._copied_programs()

    def _copied_programs(self) -> tuple[Binaries, dict[str, str]]:
        try:
            copy = copy_installation(self.binaries, self._instance.path / "binaries")
        except OSError as error:  # shutil's own has the reason in its text alone
            if says_full(str(error)):
                raise self.no_space("while its programs were copied") from error
            raise
        # Programs built from source look for libpq where they were installed.
        return copy, {"LD_LIBRARY_PATH": str(copy.bindir.parent / "lib")}

    @property
    def _environment(self) -> dict[str, str]:
        """The environment of our programs, with locales that may have been created meanwhile."""
        return locale_environment() | self._libraries

    def _launch(self, settings: Mapping[str, str]) -> Postmaster:
        # In quotes, as a comma would separate two directories.
        sockets = {"unix_socket_directories": f'"{self._instance.socket}"'}
        if self._has_one_socket:
            sockets = {"unix_socket_directory": str(self._instance.socket)}
        ours = {
            **sockets,
            "listen_addresses": "",
            "port": str(PORT),
            "hba_file": str(self._instance.hba),
            "ident_file": str(self._instance.ident),
        }
        self._last = None
        padding = {"PGSTUDIES_PADDING": "x" * self._padding_bytes}
        zone = {} if has(self.version, "timezone of initdb") else {"TZ": "UTC"}
        environment, disk = self._environment | padding | zone, self.slow_disk
        if disk is not None:
            environment = disk.environment(self._instance.data, environment)
        self._last = Postmaster(
            self._programs.bindir / "postgres",
            self._instance.data,
            self._instance.log,
            merged(settings, ours),
            version=self.version,
            address=make_conninfo(**(self._address("postgres") | {"user": SUPERUSER})),
            account=self._account,
            environment=environment,
            cpu=self._cpu,
            pass_fds=disk.pass_fds if disk is not None else (),
            started=self._instance.started,
        )
        return self._last

    def _run_alone(self, command: Sequence[str | Path], statements: str) -> tuple[int, str]:
        """Feed statements to a backend that ``command`` starts; its exit status and output."""
        script = self._instance.path / "statements"
        script.write_text(statements, encoding="utf-8")
        with script.open("rb") as opened:
            try:
                process: subprocess.Popen[bytes] = subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **self._environment},
                    start_new_session=True,  # else Ctrl-C would reach it before us
                    **(self._account.popen_arguments() | {"stdin": opened}),
                )
            except OSError as error:
                raise ServerError(f"postgres --single cannot be run: {error.strerror}.") from error
            with process:
                self._alone = process
                if self._alone_is_over:
                    _end(process)
                try:
                    self._instance.started(process.pid)
                    # Without a time limit it would read, and polars has reads go on after Ctrl-C.
                    output, _ = process.communicate(timeout=_LONGEST_S)
                except BaseException:
                    _end(process)
                    raise
                finally:
                    self._alone = None
        return process.returncode, output.decode("utf-8", "replace")

    def end(self) -> None:
        """End what another thread does with the server, for good: its connections fail.

        A single-user backend that it runs or is about to run ends, too.
        """
        self._alone_is_over = True
        if (process := self._alone) is not None:
            _end(process)
        if (postmaster := self._postmaster) is not None:
            postmaster.stop("immediate")

    def crash(self) -> str | None:
        """The line of the log on the first process that died of a signal, and its statement."""
        return self._last.crash() if self._last is not None else None

    def _running(self) -> Postmaster:
        if self._postmaster is None:
            raise ServerError("The server is not running.")
        if not self._postmaster.alive:
            raise ServerDied(
                f"The server has stopped by itself; its log says: {self._postmaster.complaint()}"
            )
        return self._postmaster

    def _address(self, database: str) -> dict[str, Any]:
        address = {"host": str(self._instance.socket), "port": PORT}
        return address | {"user": self.role, "dbname": database}


def _access(binaries: Binaries) -> str:
    """How a rule of pg_hba.conf names the map of accounts to roles, all but the map."""
    if binaries.version >= _PEER:
        return "peer map="
    return "ident map=" if samples_say(binaries, "NAME=VALUE") else "ident "


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a backend end by itself if it does: a killed one leaves its shared memory.

    It is asked again and again, as one under valgrind slept on after a first signal.
    """
    for _ in range(_MOST_SIGNALS):
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_BETWEEN_SIGNALS_S)
            return
    process.kill()
