"""Managed servers: the states, settings, programs and rights of a cluster of our own."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from ..errors import CannotRun, ServerError, require
from ..host.cgroups import reason_no_limits
from ..programs.accounts import run_as
from ..programs.extensions import build
from ..programs.installations import find_pgbench
from ..programs.relinking import can_relink, relinked
from ..programs.slow_disk import SlowDisk
from ..programs.versions import has, switch_wal, wal_directory
from .base import NO_PGBENCH, Capabilities, Right
from .cluster.cluster import DATABASE, Cluster
from .cluster.guests import CHECKPOINT_ROLE, make_guest, open_to_guest
from .cluster.postmaster import StartError
from .instance import GUEST, SUPERUSER
from .settings import BLOCK_BYTES, by_known_names, merged, setting_bytes
from .snapshots import drop_recycled_wal, mirror, require_space, size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ..programs.installations import Binaries
    from .base import Limits


_QUIET = {"bgwriter_lru_maxpages": "0", "wal_writer_delay": "10s"}
"""Unless a study sets them: nine idle servers would else wake eighty times a second, and what these
processes do late for one arm would fall into the turns of another."""

_PRELOADED = "pg_stat_statements"
_PRELOAD = "shared_preload_libraries"
_EXTENSIONS = (_PRELOADED, "pg_buffercache")

_NO_PG_CHECKSUMS = "there is no pg_checksums beside initdb, as before 12 and in fetched releases"


class ManagedServer(Cluster):
    """A server of our own, on a Unix socket, in a directory that goes when this object is closed.

    ``settings`` stand on its command line; those that the release does not know are listed in
    ``unmet_settings``.  ``cpu`` is the core that the server and all its processes are kept on.
    ``limits`` says how ``limited`` is to make its disk slow and its memory small.  In an
    ``unprivileged`` one everybody but ``as_superuser`` gets a role for what comes from others: it
    may do anything in our database, and can reach no other database, no file and no program.
    Raises ServerError when it does not start, SpaceError when its directory cannot be written.
    """

    _empty: tuple[Path, int]

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
        self.limits = limits
        self.held_bytes = 0
        """Size of the state that the server was last put into, while its data directory exists."""
        self._states: dict[str, tuple[Path, int]] = {}
        super().__init__(binaries, spec=spec, cpu=cpu, unprivileged=unprivileged)
        self._snapshots = self._instance.snapshots
        if like is not None:
            self._programs, self._libraries = like._programs, like._libraries
            self._settings, self.unmet_settings = like._settings, like.unmet_settings
            self._known, self.capabilities = like._known, like.capabilities
            self._states, self._empty, self._snapshots = like._states, like._empty, like._snapshots
            self.slow_disk = SlowDisk() if like.slow_disk is not None else None
            return
        try:
            with self._naming_full_disk():
                self._programs, self._libraries = self._programs_in_reach()
                no_limits = self._reason_no_limits()
                self._known, contrib = self._make_empty_state()
                self._settings, self.unmet_settings = self._base_settings(settings, contrib)
                self.capabilities = self._find_capabilities(contrib, no_limits)
                self._unpack(*self._empty)
                self.start()
        except BaseException:
            self.close()
            raise

    def another(self, *, own_programs: bool = False) -> ManagedServer:
        """A second server like this one, not started, that shares its states.

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

    def clear(self) -> None:
        """Stop the server and remove its data, which the next restore makes anew."""
        self.stop("immediate")
        shutil.rmtree(self._instance.data, ignore_errors=True)
        self.held_bytes = 0

    def disable_checksums(self) -> None:
        """Restart without data checksums, which all states have that are made without this.

        For the ``build`` of a state.  Raises CannotRun where there is no program pg_checksums.
        """
        program = self._programs.program("pg_checksums")
        if program is None:
            raise CannotRun(f"data checksums cannot be turned off: {_NO_PG_CHECKSUMS}")
        more = self._more
        self.stop()
        self._run([program, "--disable", "--no-sync", "-D", self._instance.data])
        self.start(more)

    def restore(
        self, state: str, build: Callable[[], None], settings: Mapping[str, str] = {}
    ) -> None:
        """Put the server into the state of that name; see ``ServerBase.restore``."""
        # Before a state is built for nothing.
        require(self.reason_unknown(*by_known_names(settings, self._known)))
        self.prepare(state, build)
        self.stop("immediate")
        self._unpack(*self._states[state])
        self.start(settings)

    def prepare(
        self, state: str, build: Callable[[], None], settings: Mapping[str, str] = {}
    ) -> None:
        """Make the state of that name with these settings, unless it exists; see ``restore``."""
        if state in self._states:
            return
        self.stop("immediate")
        self._unpack(*self._empty)
        self.start(settings)
        with self._naming_full_disk():
            build()
            self._states[state] = self._pack(f"{len(self._states) + 1}")

    def run_alone(
        self,
        state: str,
        statements: str,
        *,
        settings: Mapping[str, str] = {},
        under: Sequence[str | Path] = (),
    ) -> tuple[int, str]:
        """Run statements in a single-user backend on a fresh copy of a prepared state.

        One statement per line, each answered on standard output; the first error ends it.
        ``under`` is a command to run the backend by, such as a profiler.  Nothing is preloaded, and
        the environment is the same for everybody.  Returns the exit status and the output.
        Whatever interrupts this ends the backend.  Raises ServerError where it cannot be run.
        """
        self.stop("immediate")
        self._unpack(*self._states[state])
        wanted = merged(self._settings, settings)
        options = {n: v for n, v in wanted.items() if not n.startswith((_PRELOADED, _PRELOAD))}
        # Messages contain the time, whose digits cost instructions; exit_on_error makes them fatal.
        options |= {"exit_on_error": "on", "log_min_messages": "fatal"}
        set_here = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        command: list[str | Path] = [*under, self._programs.bindir / "postgres", "--single"]
        command += ["-D", self._instance.data, *set_here, DATABASE]
        return self._run_alone(command, statements)

    def has(self, state: str) -> bool:
        """Whether the state of that name is prepared."""
        return state in self._states

    def state_bytes(self, state: str) -> int:
        """Size of a prepared state on disk; 0 before it is prepared."""
        return self._states[state][1] if state in self._states else 0

    def adopt(self, state: str, snapshot: Path) -> None:
        """Move ``snapshot`` of an identical server here, as the state of that name.

        Raises OSError where it is on another file system.
        """
        kept = self._snapshots / f"{len(self._states) + 1}"
        snapshot.rename(kept)
        self._states[state] = kept, size_bytes(kept)

    def copy_state(self, state: str) -> None:
        """Put the stopped server's data into the prepared state of that name, if it exists."""
        if state in self._states:
            self._unpack(*self._states[state])

    def hand_over(self, state: str, target: Path) -> None:
        """Move the prepared state to ``target``; this server no longer has it.  Raises OSError."""
        kept, _ = self._states.pop(state)
        kept.rename(target)

    def _make_empty_state(self) -> tuple[frozenset[str], frozenset[str]]:
        """Create a cluster with our database; returns the names of settings and of extensions."""
        data = self._instance.data
        self._instance.empty_data(self._account)
        initdb = self._programs.bindir / "initdb"
        command: list[str | Path] = [initdb, "-D", data, "-U", SUPERUSER]
        # -n is --noclean: a full disk stays full until we have looked at it.
        command += ["-E", "UTF8", "--locale=C", "-n"]
        if has(self.version, "--auth-local"):
            command += ["--auth-local=peer", "--auth-host=reject"]
        if has(self.version, "--data-checksums"):
            # -N is --nosync, since 10 spelled --no-sync.
            # Checksums are the default since 18; without them older releases would log less.
            command += ["--data-checksums", "-N"]
        self._run(command)
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
            # In one order: the place of catalog rows costs a later statement half a per cent.
            for extension in filter(contrib.__contains__, _EXTENSIONS):
                name = sql.Identifier(extension)
                connection.execute(sql.SQL("CREATE EXTENSION IF NOT EXISTS {}").format(name))
            if self.role == GUEST:
                open_to_guest(connection)
        self._empty = self._pack("empty")
        return frozenset(name for (name,) in known), contrib

    def _base_settings(
        self, settings: Mapping[str, str], contrib: frozenset[str]
    ) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        wanted = merged(_QUIET, settings)
        absent = f"not in {self.version_text}"
        unmet = {n: (v, absent) for n, v in wanted.items() if "." not in n and n not in self._known}
        if _PRELOADED in contrib:
            wanted = {_PRELOAD: _PRELOADED, f"{_PRELOADED}.track_utility": "on"} | wanted
        return {name: value for name, value in wanted.items() if name not in unmet}, unmet

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
            if self.version < CHECKPOINT_ROLE:
                missing["checkpoint"] = "before 15 only a superuser may run CHECKPOINT"
        return Capabilities(missing, contrib, pgbench)

    def _pack(self, name: str) -> tuple[Path, int]:
        """Stop the server and put its data aside; returns the place and the size (bytes).

        Every state begins with a new segment of WAL: else servers would end segments at different
        turns of the same work, and a new segment costs as much as a tenth of a turn.
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

    def _run(self, command: Sequence[str | Path]) -> None:
        """Run one of our programs as the server's account; it keeps the directory meanwhile."""
        run_as(self._account, command, self._environment, pass_fds=self._instance.held_by())

    @contextmanager
    def _naming_full_disk(self) -> Iterator[None]:
        """Raise SpaceError in place of an error that the server's full disk has caused."""
        try:
            yield
        except (psycopg.Error, ServerError) as error:
            if full := self.space_error(error):
                raise full from error
            raise
