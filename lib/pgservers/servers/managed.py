"""Servers that are ours: made, started, restarted and removed here, from a set of binaries."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
from functools import cached_property
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from ..errors import CannotRun, ServerDied, ServerError, SpaceError, require
from ..files import says_full
from ..host.cgroups import reason_no_limits
from ..programs.accounts import can_execute, run_as, server_account, without_pg_variables
from ..programs.extensions import build
from ..programs.installations import copy_installation, find_pgbench, samples_say
from ..programs.locales import locale_environment
from ..programs.relinking import can_relink, relinked
from ..programs.slow_disk import SlowDisk
from ..programs.versions import has, switch_wal, wal_directory
from .base import NO_PGBENCH, Capabilities, Right, ServerBase
from .instance import GUEST, PORT, SUPERUSER, Instance
from .postmaster import Postmaster, StartError
from .settings import BLOCK_BYTES, by_known_names, merged, setting_bytes
from .snapshots import drop_recycled_wal, mirror, require_space, size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from psycopg.rows import TupleRow

    from ..programs.installations import Binaries
    from .base import Limits


DATABASE = "pgstudies"

_QUIET = {"bgwriter_lru_maxpages": "0", "wal_writer_delay": "10s"}
"""Unless a study sets them: nine idle servers would else wake eighty times a second, and what these
processes do late for one arm would fall into the turns of another."""

_PRELOADED = "pg_stat_statements"

_PRELOAD = "shared_preload_libraries"

_EXTENSIONS = (_PRELOADED, "pg_buffercache")

_MONITOR_ROLE, _CHECKPOINT_ROLE = 100000, 150000
"""The versions with pg_monitor, and with pg_checkpoint."""

_SOCKETS, _PEER = 90300, 90100
"""From here on a socket may be in several directories, and ident of a socket is called peer."""

_TRUSTS_EXTENSIONS = 130000
"""The first version with trusted extensions."""

_NO_PG_CHECKSUMS = "there is no pg_checksums beside initdb, as before 12 and in fetched releases"

_MOST_NAMED = 6

_END_TIMEOUT_S = 60.0

_LONGEST_S = 1e6


class ManagedServer(ServerBase):
    """A server of our own, on a Unix socket, in a directory that goes when this object is closed.

    ``settings`` stand on its command line; those that the release does not know are listed in
    ``unmet_settings``.  ``cpu`` is the core that the server and all its processes are kept on.
    ``limits`` says how ``limited`` is to make its disk slow and its memory small.  One that is
    ``unprivileged`` is for what comes from others: everybody but ``as_superuser`` gets a role that
    may make what it likes in our database, and can reach no other, no file and no program.
    Raises ServerError when it does not start, SpaceError when its directory cannot be written.
    """

    binaries: Binaries
    _padding_bytes = 0

    def __init__(
        self,
        binaries: Binaries,
        *,
        spec: str,
        settings: Mapping[str, str] = {},
        cpu: int | None = None,
        limits: Limits | None = None,
        unprivileged: bool = False,
        like: ManagedServer | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.role = GUEST if unprivileged else SUPERUSER
        self.binaries = binaries
        self._programs: Binaries
        self._libraries: dict[str, str]
        self._known: frozenset[str]
        self._empty: tuple[Path, int]
        self._snapshots: Path
        self.version = binaries.version
        self.version_text = binaries.version_text
        self.limits = limits
        self._cpu = cpu
        self._creator = os.getpid()
        self._closed = False
        self._more: dict[str, str] = {}
        self._postmaster: Postmaster | None = None
        self._last: Postmaster | None = None
        self._states: dict[str, tuple[Path, int]] = {}
        self.held_bytes = 0
        """What the copy of a state took that the server has been put into last, or still holds."""
        self._account = server_account()
        self._instance = Instance(self._account, spec, _access(binaries))
        atexit.register(self.close)
        if like is not None:
            self._programs, self._libraries = like._programs, like._libraries
            self._settings, self.unmet_settings = like._settings, like.unmet_settings
            self._known, self.capabilities = like._known, like.capabilities
            self._states, self._empty, self._snapshots = like._states, like._empty, like._snapshots
            self.slow_disk = SlowDisk() if like.slow_disk is not None else None
            return
        self._snapshots = self._instance.snapshots
        try:
            self._programs, self._libraries = self._programs_in_reach()
            no_limits = self._reason_no_limits()
            known, contrib = self._make_empty_state()
            self._settings, self.unmet_settings = self._base_settings(settings, known, contrib)
            self._known = known
            self.capabilities = self._find_capabilities(contrib, no_limits)
            self._unpack(*self._empty)
            self.start()
        except (psycopg.Error, ServerError) as error:
            full = self.space_error(error)
            self.close()
            if full:
                raise full from error
            raise
        except BaseException:
            self.close()
            raise

    def another(self, *, own_programs: bool = False) -> ManagedServer:
        """A second server like this one, not started, with the states of both in common.

        With ``own_programs`` it runs from a copy of them.  Close it before this one.
        """
        made = ManagedServer(
            self.binaries,
            spec=self.spec,
            cpu=self._cpu,
            limits=self.limits,
            unprivileged=self.role == GUEST,
            like=self,
        )
        if own_programs:
            try:
                made._programs, made._libraries = made._copied_programs()
            except BaseException:
                made.close()
                raise
        return made

    @cached_property
    def _has_one_socket(self) -> bool:
        return self.version < _SOCKETS and not samples_say(self.binaries, "unix_socket_directories")

    @cached_property
    def can_relink(self) -> bool:
        """Whether its programs can be relinked."""
        return can_relink(self.binaries)

    def relink(self, seed: int) -> str:
        """Let the next start run a relinked backend, in an order drawn from ``seed``.

        Returns the SHA-256 of the program, which no other server runs.  Raises as ``relinked``.
        """
        if not self._programs.bindir.is_relative_to(self._instance.path):
            self._programs, self._libraries = self._copied_programs()
        return relinked(self.binaries, seed, self._programs.bindir / "postgres")

    def pad(self, padding_bytes: int) -> None:
        """Let servers that start from now on have an environment longer by ``padding_bytes``.

        The kernel puts it above the stack, which begins lower for it.
        """
        self._padding_bytes = padding_bytes

    def provide(self, extension: str) -> None:
        """Build an extension for the server's own programs; see ``ServerBase.provide``."""
        for name, path in build(extension, self.binaries).items():
            own = path.rpartition(":")[0]
            known = self._settings.get(name, path)
            self._settings[name] = known if own in known.split(":") else f"{own}:{known}"
            self.extensions = {**self.extensions, name: self._settings[name]}

    def memory_bytes(self, settings: Mapping[str, str] = {}) -> int:
        """Shared buffers when started with these settings."""
        wanted = merged(self._settings, settings).get("shared_buffers", "128MB")
        return setting_bytes(wanted, unit_bytes=BLOCK_BYTES)

    def state_bytes(self, state: str) -> int:
        """Size of a prepared state on disk; 0 before it is prepared."""
        return self._states[state][1] if state in self._states else 0

    @property
    def data_directory(self) -> Path:
        """Where the server's files are; on Linux we may read them, also when it runs as another."""
        return self._instance.data

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
        self._require_known(settings)
        self._more = merged({}, settings)
        try:
            self._postmaster = self._launch(self.settings)
        except StartError as error:
            self._postmaster = None
            full = self.space_error(error)
            if full:
                raise full from error
            if settings:
                wanted = ", ".join(f"{name}={value}" for name, value in settings.items())
                wanted = (
                    wanted if len(settings) < _MOST_NAMED else f"these {len(settings)} settings"
                )
                raise CannotRun(f"the server does not start with {wanted}: {error}") from error
            raise ServerError(f"{self.version_text} does not start: {error}") from error

    def reason_unknown(self, *names: str) -> str | None:
        """Why this release cannot have settings of these names, or None if it can."""
        unknown = [n for n in names if "." not in n and n.lower() not in self._known]
        return f"{self.version_text} has no setting {unknown[0]}" if unknown else None

    def _require_known(self, settings: Mapping[str, str]) -> None:
        """Raise CannotRun where this release has no setting of a name."""
        require(self.reason_unknown(*settings))

    def stop(self, mode: str = "fast") -> None:
        """Close our connections and stop the server; modes as in pg_ctl.

        One that has stopped by itself is no error.
        """
        self.close_connections()
        if self._postmaster is not None:
            self._postmaster.stop(mode)
            self._postmaster = None

    def clear(self) -> None:
        """Stop the server and remove its data, which the next restore makes anew."""
        self.stop("immediate")
        shutil.rmtree(self._instance.data, ignore_errors=True)
        self.held_bytes = 0

    def restart(self, settings: Mapping[str, str] = {}) -> None:
        """Stop, then start with the study's settings and these."""
        self.stop()
        self.start(settings)

    def disable_checksums(self) -> None:
        """Restart without data checksums, which every state but those made from here on has.

        For the ``build`` of a state.  Raises CannotRun where there is no program pg_checksums.
        """
        program = self._programs.program("pg_checksums")
        if program is None:
            raise CannotRun(f"data checksums cannot be turned off: {_NO_PG_CHECKSUMS}")
        more = self._more
        self.stop()
        command: list[str | Path] = [program, "--disable", "--no-sync", "-D", self._instance.data]
        run_as(self._account, command, self._environment, pass_fds=self._instance.held_by())
        self.start(more)

    def connect(self, **kwargs: Any) -> psycopg.Connection[TupleRow]:
        """A new connection as our role to our own database, in autocommit mode."""
        postmaster = self._running()
        arguments: dict[str, Any] = {"autocommit": True}
        if has(self.version, "application_name"):
            arguments["application_name"] = "pgstudies"
        with without_pg_variables():
            try:
                connection = psycopg.connect(**(arguments | self._address(DATABASE) | kwargs))
            except psycopg.OperationalError as error:
                if not postmaster.alive:
                    self._running()
                raise ServerError(f"The server rejects the connection: {error}") from error
        self._connections.add(connection)
        return connection

    def as_superuser(self, dbname: str = "postgres") -> psycopg.Connection[TupleRow]:
        """A session of the superuser's, in a database that nobody else gets into.

        In any other ``dbname`` it finds by name only what belongs to the server itself.
        """
        return self.connect(user=SUPERUSER, dbname=dbname, options="-c search_path=")

    def restore(
        self, state: str, build: Callable[[], None], settings: Mapping[str, str] = {}
    ) -> None:
        """Put the server into the state of that name; see ``ServerBase.restore``."""
        # Before a state is built for nothing.
        self._require_known(by_known_names(settings, self._known))
        self.prepare(state, build)
        self.stop("immediate")
        self._unpack(*self._states[state])
        self.start(settings)

    def prepare(
        self, state: str, build: Callable[[], None], settings: Mapping[str, str] = {}
    ) -> None:
        """Make the state of that name with these settings, unless there is one; see ``restore``."""
        if state in self._states:
            return
        self.stop("immediate")
        self._unpack(*self._empty)
        self.start(settings)
        try:
            build()
            self._states[state] = self._pack(f"{len(self._states) + 1}")
        except (psycopg.Error, ServerError) as error:
            full = self.space_error(error)
            if full:
                raise full from error
            raise

    def run_alone(
        self,
        state: str,
        statements: str,
        *,
        settings: Mapping[str, str] = {},
        under: Sequence[str | Path] = (),
    ) -> tuple[int, str]:
        """Run statements in a single-user backend on a fresh copy of a prepared state.

        One statement a line, each answered on the standard output; the first error ends it.
        ``under`` is a command to run the backend by, such as a profiler.  Nothing is preloaded, and
        the environment is the same for everybody.  Returns the exit status and all that was
        written.  Whatever ends this ends the backend.  Raises ServerError where it cannot be run.
        """
        self.stop("immediate")
        self._unpack(*self._states[state])
        wanted = merged(self._settings, settings)
        options = {n: v for n, v in wanted.items() if not n.startswith((_PRELOADED, _PRELOAD))}
        # Every message has the time in it, of which the digits cost; an error ends it, so is fatal.
        options |= {"exit_on_error": "on", "log_min_messages": "fatal"}
        set_here = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        command: list[str | Path] = [*under, self._programs.bindir / "postgres", "--single"]
        command += ["-D", self._instance.data, *set_here, DATABASE]
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
                try:
                    self._instance.started(process.pid)
                    # Without a time limit it would read, and polars has reads go on after Ctrl-C.
                    output, _ = process.communicate(timeout=_LONGEST_S)
                except BaseException:
                    _end(process)
                    raise
        return process.returncode, output.decode("utf-8", "replace")

    @property
    def workplace(self) -> Path:
        """A directory that programs run as the server's account may write to, gone with it."""
        place = self._instance.path / "work"
        if not place.exists():
            self._instance.make_directory(place, self._account)
        return place

    def has(self, state: str) -> bool:
        """Whether the state of that name is prepared."""
        return state in self._states

    def adopt(self, state: str, snapshot: Path) -> None:
        """Use ``snapshot`` of another server as the state of that name.

        It is moved.  The two servers must be alike in everything; raises OSError where it is on
        another file system.
        """
        kept = self._snapshots / f"{len(self._states) + 1}"
        snapshot.rename(kept)
        self._states[state] = kept, size_bytes(kept)

    def copy_state(self, state: str) -> None:
        """Put the stopped server's data into the prepared state of that name, if there is one."""
        if state in self._states:
            self._unpack(*self._states[state])

    def hand_over(self, state: str, target: Path) -> None:
        """Move the prepared state to ``target``; this server no longer has it.  Raises OSError."""
        kept, _ = self._states.pop(state)
        kept.rename(target)

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

    def _make_empty_state(self) -> tuple[frozenset[str], frozenset[str]]:
        """Make a cluster with our database; returns names of all settings and of all extensions."""
        data = self._instance.data
        self._instance.empty_data(self._account)
        initdb = self._programs.bindir / "initdb"
        command: list[str | Path] = [initdb, "-D", data, "-U", SUPERUSER]
        # -n is --noclean: a disk that was full stays so for us to see.
        command += ["-E", "UTF8", "--locale=C", "-n"]
        if has(self.version, "--auth-local"):
            command += ["--auth-local=peer", "--auth-host=reject"]
        if has(self.version, "--data-checksums"):
            # -N is --nosync, since 10 spelled --no-sync.
            # Checksums are the default since 18; without them the releases before would log less.
            command += ["--data-checksums", "-N"]
        held = self._instance.held_by()
        run_as(self._account, command, self._environment, pass_fds=held)
        try:
            self._postmaster = self._launch({"fsync": "off"})
        except StartError as error:
            raise ServerError(f"{self.version_text} does not start: {error}") from error
        with self.as_superuser() as connection:
            known = connection.execute("SELECT lower(name) FROM pg_settings").fetchall()
            found = (
                connection.execute("SELECT name FROM pg_available_extensions").fetchall()
                if has(self.version, "extensions")
                else []
            )
            connection.execute("CREATE DATABASE pgstudies")
            if self.role == GUEST:
                make_guest(connection)
        contrib = frozenset(name for (name,) in found)
        with self.connect(user=SUPERUSER) as connection:
            # In one order: where rows of the catalogs lie costs a later statement half a per cent.
            for extension in filter(contrib.__contains__, _EXTENSIONS):
                name = sql.Identifier(extension)
                connection.execute(sql.SQL("CREATE EXTENSION IF NOT EXISTS {}").format(name))
            if self.role == GUEST:
                open_to_guest(connection)
        self._empty = self._pack("empty")
        return frozenset(name for (name,) in known), contrib

    def _base_settings(
        self, settings: Mapping[str, str], known: frozenset[str], contrib: frozenset[str]
    ) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        wanted = merged(_QUIET, settings)
        unmet = {n: v for n, v in wanted.items() if "." not in n and n not in known}
        if _PRELOADED in contrib:
            preload = {
                _PRELOAD: _PRELOADED,
                "pg_stat_statements.track_utility": "on",
            }
            wanted = preload | wanted
        met = {name: value for name, value in wanted.items() if name not in unmet}
        absent = f"not in {self.version_text}"
        return met, {name: (value, absent) for name, value in unmet.items()}

    def _reason_no_limits(self) -> str | None:
        """Create the modelled disk, if requested; returns why there can be no limits."""
        if self.limits == "kernel":
            # The server does not run yet; what forbids limits forbids them to all our processes.
            return reason_no_limits(self._instance.data.parent, os.getpid())
        if self.limits is None:
            return "this server was not started for limits on its disk and memory"
        try:
            self.slow_disk = SlowDisk()
        except CannotRun as reason:
            return str(reason)
        return None

    def _find_capabilities(self, contrib: frozenset[str], no_limits: str | None) -> Capabilities:
        pgbench = find_pgbench(self.binaries)
        missing: dict[Right, str] = {} if pgbench else {"pgbench": NO_PGBENCH}
        if self.slow_disk is not None and not self.slow_disk.loaded:
            no_limits = (
                f"the programs of {self.version_text} load no library in front of their reads: "
                f"they are linked statically, or the cache is on a file system without programs"
            )
        missing |= {"limits": no_limits} if no_limits else {}
        if self.role == GUEST:
            missing["superuser"] = "what comes from others is not run by a superuser"
            if self.version < _CHECKPOINT_ROLE:
                missing["checkpoint"] = "before 15 only a superuser may run CHECKPOINT"
        return Capabilities(missing, contrib, pgbench)

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
        environment, disk = self._environment | padding, self.slow_disk
        if disk is not None:
            environment = disk.environment(self._instance.data, environment)
        postmaster = Postmaster(
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
        self._last = postmaster
        return postmaster

    def _pack(self, name: str) -> tuple[Path, int]:
        """Stop the server and put its data aside; returns where it is and its size (bytes).

        Every state begins with a segment of WAL of its own: else the same work would end segments
        at other turns on one server than on another, and a new one costs as much as a turn's tenth.
        """
        postmaster = self._running()
        with self.as_superuser() as connection:
            connection.execute(f"SELECT pg_catalog.{switch_wal(self.version)}()")
        self.stop()
        if not postmaster.ended_well:
            raise ServerError(
                f"The server did not stop as it should, so its state cannot be kept: "
                f"{postmaster.complaint()}"
            )
        drop_recycled_wal(self._instance.data / wal_directory(self.version))
        kept = self._snapshots / name
        self._instance.data.rename(kept)
        self.held_bytes = 0
        return kept, size_bytes(kept)

    def _unpack(self, kept: Path, size: int) -> None:
        """Make the stopped server's data a copy of what was put aside."""
        if not self._instance.data.exists():
            require_space(kept, size)
        mirror(kept, self._instance.data)
        self.held_bytes = size

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


def make_guest(connection: psycopg.Connection[TupleRow]) -> None:
    """Create the unprivileged role; of the existing databases it can connect to ours only."""
    version, guest = connection.info.server_version, sql.Identifier(GUEST)
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(guest))
    for name, since in (("pg_monitor", _MONITOR_ROLE), ("pg_checkpoint", _CHECKPOINT_ROLE)):
        if version >= since:
            connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(name), guest))
    for database in ("postgres", "template1"):
        closed = sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database))
        connection.execute(closed)


_HARMLESS = re.split(
    r"\s+",
    "bloom btree_gin btree_gist citext cube dict_int earthdistance fuzzystrmatch hstore intarray "
    "isn lo ltree pg_buffercache pg_stat_statements pg_trgm pgcrypto plpgsql postgis seg tablefunc "
    "tsm_system_rows tsm_system_time unaccent uuid-ossp vector",
)
"""Extensions that reach no file, no program and no other server; before 13 none is marked so."""


def harmless_extensions(
    connection: psycopg.Connection[TupleRow], wanted: Iterable[str]
) -> list[str]:
    """The trusted extensions that are installed here."""
    version = connection.info.server_version
    if not has(version, "extensions"):
        return []
    trusted = "trusted OR NOT superuser" if version >= _TRUSTS_EXTENSIONS else "NOT superuser"
    query = f"""
        SELECT DISTINCT name FROM pg_available_extension_versions
        WHERE name = ANY (%s) AND (name = ANY (%s) OR {trusted}) ORDER BY name
    """  # noqa: S608  (one of two texts)
    rows = connection.execute(query.encode(), [list(wanted), _HARMLESS]).fetchall()
    return [name for (name,) in rows]


def open_to_guest(connection: psycopg.Connection[TupleRow]) -> None:
    """Give the unprivileged role, and roles that it grants to, all rights in this database.

    The database itself stays the superuser's: its owner could choose settings for our sessions.
    """
    database, guest = sql.Identifier(connection.info.dbname), sql.Identifier(GUEST)
    connection.execute(sql.SQL("GRANT ALL ON DATABASE {} TO PUBLIC").format(database))
    connection.execute(sql.SQL("ALTER SCHEMA public OWNER TO {}").format(guest))
    connection.execute("GRANT ALL ON SCHEMA public TO PUBLIC")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a backend end by itself if it does: a killed one leaves its shared memory."""
    process.terminate()
    try:
        process.communicate(timeout=_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
