"""Servers of our own: made, started, restored and stopped here, on a Unix socket."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from .accounts import reachable, server_account
from .binaries import pgbench_program
from .errors import ServerError, SpaceError
from .leftovers import DATA, OWNER_LOCK, PREFIX, find_postmaster, kill_server, start_watchdog, sweep
from .locks import try_lock
from .mirror import mirror
from .server import Capabilities, Server, open_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .binaries import Binaries
    from .server import Connection

DATABASE = "pgstudies"
SUPERUSER = "postgres"
PORT = 5432  # names the socket; no TCP port is opened
EMPTY = ""  # the name of the state before anything is built
SOCKET_PATH_MAX = 90  # the system's limit is 107 bytes, file name included


class OwnedServer(Server):
    """A server with a data directory of its own below ``base``, gone when it is closed."""

    owned = True

    def __init__(
        self,
        binaries: Binaries,
        *,
        spec: str,
        settings: Mapping[str, str],
        base: Path,
        cpu: int | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.settings = dict(settings)
        self._cpu = cpu
        self._account = server_account()
        _make_base(base)
        sweep(base)
        self.binaries = reachable(binaries, self._account, base)
        self.version = binaries.version
        self.version_text = binaries.version_text
        self._directory, self._lock = _make_instance(base)
        self.data_directory = self._directory / DATA
        self._snapshots = self._directory / "snapshots"
        self.socket_directory = self._directory / "socket"
        self._log = self._directory / "log"
        self._kept: set[str] = set()
        self._watchdog = start_watchdog(self._directory)
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    def _create(self) -> None:
        if len(str(self.socket_directory)) > SOCKET_PATH_MAX:
            short = tempfile.mkdtemp(prefix="pgstudies-")
            self.socket_directory.symlink_to(short)
            self.socket_directory = Path(short)
        for directory in (self.data_directory, self._snapshots, self.socket_directory):
            directory.mkdir(mode=0o700, exist_ok=True)
            self._account.give(directory)
        self._log.touch()
        self._account.give(self._log)
        self._run(
            "initdb",
            *("-D", str(self.data_directory), "-U", SUPERUSER, "-A", "trust"),
            *("-E", "UTF8", "--locale=C", "--no-sync"),
        )
        self._preload = "pg_stat_statements" if self._has("pg_stat_statements") else ""
        self.start()
        with self.connect(dbname="postgres") as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        with self.connect() as connection:
            available = {
                row[0] for row in connection.execute("SELECT name FROM pg_available_extensions")
            }
            for extension in ("pg_stat_statements", "pg_buffercache"):
                if extension in available:
                    connection.execute(f"CREATE EXTENSION {extension}")
        self.capabilities = self._examine(frozenset(available))
        self._keep(EMPTY)
        self.start()

    def _has(self, library: str) -> bool:
        lib = self.binaries.bindir.parent / "lib"
        return any((place / f"{library}.so").exists() for place in (lib, lib / "postgresql"))

    def _examine(self, contrib: frozenset[str]) -> Capabilities:
        pg_config = self.binaries.program("pg_config")
        headers = False
        if pg_config is not None:
            where = self._run("pg_config", "--includedir-server").strip()
            headers = Path(where, "postgres.h").exists()
        return Capabilities(
            owned=True,
            superuser=True,
            restart=True,
            local_files=True,
            create_database=True,
            checkpoint=True,
            contrib=contrib,
            pg_config=pg_config,
            headers=headers,
            pgbench=pgbench_program(self.binaries),
        )

    # Running

    def connect(self, **options: Any) -> Connection:
        """A superuser's session in the database ``pgstudies``, in autocommit mode."""
        named = {"dbname": DATABASE, "user": SUPERUSER, "options": ""} | options
        connection = open_session(self.conninfo, **named)
        self._connections.add(connection)
        return connection

    @property
    def conninfo(self) -> str:
        """The libpq connection string, for pgbench and psql."""
        return (
            f"host={self.socket_directory} port={PORT} user={SUPERUSER} dbname={DATABASE} "
            f"sslmode=disable gssencmode=disable"
        )

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start with the study's settings and these; raises ServerError with the log's words."""
        wanted = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_directory),
            "shared_preload_libraries": self._preload,
            **self.settings,
            **(settings or {}),
        }
        if "pg_stat_statements" in wanted["shared_preload_libraries"]:
            wanted = {"pg_stat_statements.track": "top", **wanted}
        command_line = shlex.join(part for k, v in wanted.items() for part in ("-c", f"{k}={v}"))
        place = ["-D", str(self.data_directory), "-l", str(self._log)]
        with _on_core(self._cpu):
            self._run("pg_ctl", *place, "-w", "-t", "120", "-s", "-o", command_line, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop and wait; all sessions are closed."""
        self.disconnect()
        if self.postmaster is not None:
            place = ["-D", str(self.data_directory)]
            self._run("pg_ctl", *place, "-w", "-t", "600", "-s", "-m", mode, "stop")

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Stop and start with the study's settings and these."""
        self.stop()
        self.start(settings)

    @property
    def postmaster(self) -> psutil.Process | None:
        """The server's first process, or None while it is stopped."""
        return find_postmaster(self.data_directory)

    def pids(self) -> list[int]:
        """Process numbers of the postmaster and all its children."""
        postmaster = self.postmaster
        if postmaster is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [postmaster.pid, *(child.pid for child in postmaster.children())]
        return []

    # States

    def restore(
        self, state: str, build: Callable[[], None], settings: Mapping[str, str] | None = None
    ) -> None:
        """See ``Server.restore``: a state is a copy of the stopped data directory."""
        if state not in self._kept:
            self._bring_back(EMPTY)
            self.start()
            build()
            self._keep(state)
        self._bring_back(state)
        self.start(settings)

    def _keep(self, state: str) -> None:
        """Stop, copy the data directory aside, and stay stopped."""
        with self.connect() as connection:
            connection.execute("CHECKPOINT")
        self.stop()
        self._remove_spare_wal()
        copy = self._copy_of(state)
        self._copy(self.data_directory, copy)
        self._kept.add(state)

    def _bring_back(self, state: str) -> None:
        if self.postmaster is not None:
            self.disconnect()
            kill_server(self.data_directory)  # its data are about to be thrown away
        self._copy(self._copy_of(state), self.data_directory)

    def _copy_of(self, state: str) -> Path:
        return self._snapshots / (re.sub(r"[^A-Za-z0-9]+", "-", state) + f".{len(state)}")

    def _copy(self, source: Path, target: Path) -> None:
        needed = sum(f.stat().st_size for f in source.rglob("*") if f.is_file())
        free = shutil.disk_usage(target.parent).free
        if not target.exists() and free < needed * 1.05:
            raise SpaceError(
                f"{target.parent} has {free / 2**20:,.0f} MB free and a copy of the server's data "
                f"needs {needed / 2**20:,.0f} MB: free some, or set PGSTUDIES_RUN_DIR."
            )
        mirror(source, target)
        # What was copied is written out now and not during the next measurement.
        subprocess.run(["sync", "-f", target], check=False, stderr=subprocess.DEVNULL)

    def _remove_spare_wal(self) -> None:
        """Remove segments other than the one that holds the last checkpoint.

        After a clean stop nothing else is ever read, and recycled segments would make every copy
        larger by hundreds of megabytes.
        """
        told = self._run("pg_controldata", str(self.data_directory))
        found = re.search(r"REDO WAL file:\s*(\w{24})", told)
        if found is None:
            return
        for segment in (self.data_directory / "pg_wal").iterdir():
            if segment.is_file() and segment.name != found[1]:
                segment.unlink()

    # Ending

    def close(self) -> None:
        """Stop the server at once and remove everything that was made for it."""
        if self._lock < 0:
            return
        self.disconnect()
        kill_server(self.data_directory)
        if self.socket_directory.parent != self._directory:
            shutil.rmtree(self.socket_directory, ignore_errors=True)
        shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1
        if self._watchdog.stdin:
            self._watchdog.stdin.close()
        self._watchdog.wait()

    def _run(self, name: str, *arguments: str) -> str:
        """Run one of PostgreSQL's programs as the server's account and return what it printed.

        In a session of its own: Ctrl-C in the terminal is for us, who then stop the server.
        """
        program = self.binaries.program(name)
        if program is None:
            return ""
        run: subprocess.CompletedProcess[str] = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            env=_environment(self._directory),
            cwd="/",
            start_new_session=True,
            **self._account.as_popen,
        )
        if run.returncode != 0:
            raise ServerError(
                f"{name} of PostgreSQL {self.version_text} failed: "
                f"{self._last_words() or run.stdout.strip()}"
            )
        return run.stdout

    def _last_words(self) -> str:
        """The last complaint in the server's log."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        complaints = [line for line in lines if re.search(r"\b(FATAL|PANIC|ERROR)\b", line)]
        return re.sub(r"^.*?\b(?=FATAL|PANIC|ERROR)", "", complaints[-1]) if complaints else ""


def _make_base(base: Path) -> None:
    """Make the directory that holds our servers; it must be ours, as others may write beside it."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        if base.stat().st_uid != os.geteuid() or base.is_symlink():
            raise SpaceError(f"{base} belongs to somebody else: set PGSTUDIES_RUN_DIR.")
        base.chmod(0o711)
    except OSError as error:
        raise SpaceError(
            f"Cannot make {base} ({error.strerror}): set PGSTUDIES_RUN_DIR to a directory you may "
            f"write to, on a disk with room for the tables."
        ) from error


def _make_instance(base: Path) -> tuple[Path, int]:
    while True:
        directory = base / f"{PREFIX}{secrets.token_hex(4)}"
        directory.mkdir(mode=0o711)
        directory.chmod(0o711)
        lock = try_lock(directory / OWNER_LOCK)
        if lock is not None:  # else another start took it for a leftover, and removes it
            return directory, lock


def _environment(home: Path) -> dict[str, str]:
    """The server's environment: nothing of libpq's, so that no PGDATA or PGOPTIONS leaks in."""
    kept = ("PATH", "LD_LIBRARY_PATH", "LOCPATH", "TMPDIR")
    return {k: os.environ[k] for k in kept if k in os.environ} | {"LC_ALL": "C", "HOME": str(home)}


@contextmanager
def _on_core(cpu: int | None) -> Iterator[None]:
    """Start child processes on one core; they keep to it."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
