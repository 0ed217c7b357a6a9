"""Many sessions at once: whether there is room for them, their transactions and their end."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from pathlib import Path
from threading import Event, Timer
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

from .errors import ServerError
from .servers.managed import ManagedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from psycopg.rows import TupleRow

    from .servers.serve import Server


_BYTES_PER_SESSION = 2 * 2**20
"""Memory of an idle backend and of our side of it; 1.0 to 1.5 MB were seen on 9.3 to 18."""

_SPARE_FILES = 100
_SPARE_PROCESSES = 50

_SPARE_CONNECTIONS = 5
"""Sessions of a server that are left free, for the study's own."""

_END_TIMEOUT_S = 60.0


_Room = tuple[int, str]
"""The number of further sessions that fit, and what limits it."""


def room_for_sessions(server: Server | None = None) -> int:
    """The number of sessions that this machine, and the server if given, has room for.

    The least of open files and processes of this account, memory, and free connections, of which an
    external server gives at most half.  Raises this process's limit of open files first, if it can.
    """
    return _room(server)[0]


def reason_no_room(server: Server, count: int) -> str | None:
    """The reason why ``count`` sessions do not fit beside those of the server; None if they do."""
    room, limit = _room(server)
    return f"{count} sessions do not fit: {limit}" if count > room else None


def _room(server: Server | None) -> _Room:
    rooms = [_room_for_files()]
    if server is not None:
        rooms.append(_room_on_server(server))
    if server is None or server.capabilities.has("processes"):
        rooms += [_room_in_memory(), *_room_for_processes()]
    return min(rooms, key=lambda room: room[0])


def prepare_transactions(server: Server, count: int, subtransactions: int = 0) -> None:
    """Leave ``count`` prepared transactions there, each with an XID of its own.

    Each has as many ``subtransactions``, which have XIDs, too, as they write to a table ``held``.
    Prepared transactions outlive sessions and restarts, so this is for the state of a server that
    is thrown away.  Raises psycopg.Error when ``max_prepared_transactions`` is too small, and
    ServerError when a snapshot does not hold them.
    """
    if not count:
        return
    inner = "".join(
        f"SAVEPOINT s{n}; INSERT INTO held DEFAULT VALUES; RELEASE s{n}; "
        for n in range(subtransactions)
    )
    with server.connect() as connection:
        if subtransactions:
            connection.execute("CREATE TABLE held ()")
        for number in range(count):
            # In one message, so that it takes one round trip.
            connection.execute(
                f"BEGIN; SELECT txid_current(); {inner}PREPARE TRANSACTION 'pgstudies {number}'"
                "".encode()
            )
    open_xids(server, count)


def open_xids(server: Server, least: int = 0) -> int:
    """The number of open XIDs that a new snapshot lists; ServerError if it is below ``least``."""
    with server.connect() as connection:
        # A snapshot does not list XIDs that are newer than the last one completed.
        connection.execute("SELECT txid_current()")
        row = connection.execute(
            "SELECT count(*) FROM txid_snapshot_xip(txid_current_snapshot())"
        ).fetchone()
    held = int(row[0]) if row else 0
    if held < least:
        raise ServerError(f"A snapshot holds {held} open transactions, not the {least} opened.")
    return held


def end_sessions(
    server: Server, sessions: Sequence[psycopg.Connection[Any] | psycopg.AsyncConnection[Any]]
) -> None:
    """Close them, and on a managed server wait until their processes have ended.

    Only then does the server's usage include their CPU time and reads.  Raises ServerError when one
    remains after a minute.
    """
    # A session that broke meanwhile no longer has a process number.
    pids = [session.pgconn.backend_pid for session in sessions if not session.closed]
    for session in sessions:
        session.pgconn.finish()
    wait_until_gone(server, pids)


def wait_until_gone(server: Server, pids: Collection[int]) -> None:
    """Wait until these processes of a managed server end; raises as ``end_sessions`` does."""
    if server.capabilities.has("processes"):
        _wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def wait_for_end(server: Server, living: int) -> None:
    """Wait until at most ``living`` sessions' processes are left; a stopped server has none.

    For sessions whose processes are unknown.  Raises as ``end_sessions`` does.
    """
    _wait_until(lambda: len(server.session_pids()) <= living)


def _wait_until(ended: Callable[[], bool]) -> None:
    end = time.monotonic() + _END_TIMEOUT_S
    while not ended():
        if time.monotonic() > end:
            raise ServerError(f"Closed sessions are still there after {_END_TIMEOUT_S:.0f} s.")
        time.sleep(0.02)


@contextlib.contextmanager
def unpinned(server: Server) -> Iterator[None]:
    """Let us and the server's new processes use every core; existing processes stay pinned.

    Opening two thousand sessions then takes half the time, and parallel workers find a core.
    Afterwards all are pinned where the server is: a session that wakes up on another core, to
    process a catalog change, would contend for locks with the session that made the change.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    postmaster = server.postmaster_pid if isinstance(server, ManagedServer) else 0
    before = {pid: os.sched_getaffinity(pid) for pid in {0, postmaster}}
    try:
        for pid in before:
            os.sched_setaffinity(pid, range(os.cpu_count() or 1))
        yield
    finally:
        os.sched_setaffinity(0, before[0])
        for pid in server.pids():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(pid, before[postmaster])


def _room_on_server(server: Server) -> _Room:
    with server.connect() as connection:
        row = connection.execute(
            """
            SELECT current_setting('max_connections')::int
                   - current_setting('superuser_reserved_connections')::int,
                   (SELECT coalesce(sum(setting::int), 0) FROM pg_settings
                    WHERE name = 'reserved_connections'),
                   (SELECT count(*) - 1 FROM pg_stat_activity)
            """
        ).fetchone()
    slots, reserved, used = row or (0, 0, 0)
    free = max(0, slots - int(reserved) - used - _SPARE_CONNECTIONS)
    limit = f"the server has {free} connections free (max_connections is the limit)"
    if server.capabilities.has("restart"):
        return free, limit
    half = free // 2  # others want to connect meanwhile
    return half, f"{limit}, of which {half}, half of them, may be used on an external server"


def _room_for_files() -> _Room:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        soft = 2**31
    free = max(0, soft - psutil.Process().num_fds() - _SPARE_FILES)
    return free, f"this process may open {free} more files (ulimit -n)"


def _room_in_memory() -> _Room:
    available = psutil.virtual_memory().available
    free = max(0, available // 2 // _BYTES_PER_SESSION)
    return free, f"memory for {free}, at 2 MB each in half of the {available >> 20} MB free"


def _room_for_processes() -> list[_Room]:
    rooms = []
    for group in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids")):
        with contextlib.suppress(OSError, ValueError):
            most, used = (int((group / f"pids.{name}").read_text()) for name in ("max", "current"))
            free = most - used - _SPARE_PROCESSES
            rooms.append((max(0, free), f"its cgroup may start {free} more processes"))
    # Of our own account; root's servers run as another one, which starts out with the same limit.
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most != resource.RLIM_INFINITY and os.geteuid() != 0:
        mine = sum(p.info["uids"].real == os.getuid() for p in psutil.process_iter(["uids"]))
        free = max(0, most - mine - _SPARE_PROCESSES)
        rooms.append((free, f"this account may start {free} more processes (ulimit -u)"))
    return rooms


@contextlib.contextmanager
def within(connection: psycopg.Connection[TupleRow], seconds: float, what: str) -> Iterator[None]:
    """Close the connection and raise ServerError if ``what`` takes longer than ``seconds``.

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
    except (psycopg.OperationalError, ServerError) as error:
        if late.is_set():
            raise ServerError(f"{what} was given up after {seconds:.0f} s.") from error
        raise
    finally:
        timer.cancel()
