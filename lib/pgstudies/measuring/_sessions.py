"""Many sessions at once: whether there is room for them, and holding their transactions open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from ..errors import ServerError, require
from ..programs.accounts import without_pg_variables
from ..servers import OwnedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from psycopg.rows import TupleRow

    from ..servers import Server


_AT_ONCE = 64
"""Sessions being opened at a time: one after the other takes two to three times as long."""


_BYTES_PER_SESSION = 2 * 2**20
"""Memory of an idle backend and of our side of it; 1.0 to 1.5 MB were seen on 9.3 to 18."""


_SPARE_FILES = 100


_SPARE_PROCESSES = 50


_SPARE_CONNECTIONS = 5
"""Sessions of a server that are not ours to fill: the study's own."""


_POSIX_SEMAPHORES = 100000
"""Since 10 a connection needs no System V semaphore on Linux."""


_SEMAPHORES_PER_SET = 16


_SEMAPHORE_LIMITS = Path("/proc/sys/kernel/sem")


_SEMAPHORES_USED = Path("/proc/sysvipc/sem")


_END_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class _Room:
    """How many more sessions there is room for, and what sets that limit."""

    connections: int
    limit: str


def room_for_sessions(server: Server | None = None, *, oldest: int | None = None) -> int:
    """How many sessions this machine has room for, and the server, where one is given.

    Counted are open files and processes of this account, memory, System V semaphores where
    ``oldest``, the oldest server's version, is before 10, and ``max_connections``; of a server that
    is not ours at most half of what is free.  The limit of open files is raised first, as far as
    the system lets us.
    """
    return _room(server, oldest).connections


def reason_no_room(server: Server, count: int) -> str | None:
    """Why so many sessions do not fit beside those of this server, or None if they do."""
    room = _room(server)
    return f"{count} sessions do not fit: {room.limit}" if count > room.connections else None


def _room(server: Server | None, oldest: int | None = None) -> _Room:
    rooms = [_room_for_files()]
    if server is not None:
        rooms.append(_room_on_server(server))
        oldest = server.version if oldest is None else oldest
    if server is None or server.capabilities.has("processes"):
        rooms += [_room_in_memory(), *_room_for_processes()]
        if server is None and oldest is not None and oldest < _POSIX_SEMAPHORES:
            rooms += _room_for_semaphores()
    return min(rooms, key=lambda room: room.connections)


@contextlib.contextmanager
def hold_transactions(server: Server, count: int) -> Iterator[int]:
    """Hold ``count`` sessions open, each in a transaction with an XID of its own.

    Yields how many of the XIDs a new snapshot holds, which is ``count`` where nobody else is at
    work.  At the end, whatever happens, the sessions are closed, and on an owned server waited
    for until their processes have gone.  Raises CannotRun when there is no room for so many, and
    ServerError when the server refuses one, or a snapshot does not hold them.
    """
    before = len(server.session_pids())
    require(reason_no_room(server, count))
    holders: list[psycopg.AsyncConnection[TupleRow]] = []
    try:
        if count:
            # In a notebook this thread runs an event loop already.
            with ThreadPoolExecutor(1) as executor, unpinned(server):
                executor.submit(asyncio.run, _open(server, count, holders)).result()
        held = open_xids(server)
        _check_held(held, count)
        yield held
    finally:
        end_sessions(server, holders)
        wait_for_end(server, before)  # those too that were given up half opened


def prepare_transactions(server: Server, count: int, subtransactions: int = 0) -> None:
    """Leave ``count`` prepared transactions there, each with an XID of its own.

    So many ``subtransactions`` has each of them, with an XID each, too; they have written a row of
    a table ``held``.  They outlive sessions and restarts, so this is for the state of a server that
    is thrown away.  Raises psycopg.Error when ``max_prepared_transactions`` does not allow so many,
    and ServerError when a snapshot does not hold them.
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
    _check_held(open_xids(server), count)


def open_xids(server: Server) -> int:
    """The number of open XIDs that a new snapshot lists."""
    with server.connect() as connection:
        # An XID newer than the last one completed is not in a snapshot's list but beyond its end.
        connection.execute("SELECT txid_current()")
        row = connection.execute(
            "SELECT count(*) FROM txid_snapshot_xip(txid_current_snapshot())"
        ).fetchone()
    return int(row[0]) if row else 0


def conninfo(server: Server) -> str:
    """The connection string of our own database there, for libpq; it holds the password."""
    names = {"PGDATABASE": "dbname"}
    parts = {names.get(n, n[2:].lower()): value for n, value in server.environment().items()}
    return make_conninfo("", **parts)


async def _open(
    server: Server, count: int, holders: list[psycopg.AsyncConnection[TupleRow]]
) -> None:
    address = conninfo(server)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def hold() -> None:
        async with gate:
            connection = await psycopg.AsyncConnection.connect(address, autocommit=True)
            holders.append(connection)
            # Known in every release; pg_current_xact_id is its name since 13.
            await connection.execute("BEGIN; SELECT txid_current()")

    refused: list[psycopg.Error] = []
    try:
        with (
            without_pg_variables() if isinstance(server, OwnedServer) else contextlib.nullcontext()
        ):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(count):
                    tasks.create_task(hold())
    except* psycopg.Error as errors:
        refused += [error for error in errors.exceptions if isinstance(error, psycopg.Error)]
    # Python 3.11.2, which is Debian 12's, makes a group of what is raised within except*.
    if refused:
        reason = str(refused[0]).strip().splitlines()[0]
        raise ServerError(
            f"Only {len(holders)} of {count} sessions could be opened: {reason}"
        ) from refused[0]


def _check_held(held: int, count: int) -> None:
    if held < count:
        raise ServerError(f"A snapshot holds {held} open transactions and not the {count} opened.")


def end_sessions(
    server: Server, sessions: Sequence[psycopg.Connection[Any] | psycopg.AsyncConnection[Any]]
) -> None:
    """Close them, and on an owned server wait until their processes have gone.

    Only then are their CPU time and what they read among those of the server.  Raises ServerError
    when one is still there after a minute.
    """
    # One that broke while others were opened has no number any more.
    pids = [session.pgconn.backend_pid for session in sessions if not session.closed]
    for session in sessions:
        session.pgconn.finish()
    if server.capabilities.has("processes"):
        _wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def wait_for_end(server: Server, living: int) -> None:
    """Wait until no more than ``living`` sessions' processes are left; a stopped server has none.

    For sessions whose processes are not known, such as pgbench's.  Raises ServerError when they are
    still there after a minute.
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
    """Let us and the server's new processes use every core; those there are stay where they are.

    Two thousand sessions are open in half of the time, and parallel workers find a core.
    Afterwards all are kept where the server is: a holder that wakes up on another core to take
    note of a catalog's change would contend for locks with the session that made it.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    postmaster = server.postmaster_pid if isinstance(server, OwnedServer) else 0
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
                   (SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid())
            """
        ).fetchone()
    slots, reserved, used = row or (0, 0, 0)
    free = max(0, slots - int(reserved) - used - _SPARE_CONNECTIONS)
    if server.capabilities.has("restart"):
        return _Room(free, f"the server has {free} connections free (max_connections is the limit)")
    # Others want to get in meanwhile.
    return _Room(
        free // 2,
        f"the server has {free} connections free (max_connections is the limit), of which "
        f"{free // 2}, half of them, may be used on an external server",
    )


def _room_for_files() -> _Room:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        soft = 2**31
    free = max(0, soft - psutil.Process().num_fds() - _SPARE_FILES)
    return _Room(free, f"this process may open {free} more files (ulimit -n)")


def _room_in_memory() -> _Room:
    available = psutil.virtual_memory().available
    free = max(0, available // 2 // _BYTES_PER_SESSION)
    return _Room(free, f"memory for {free}, at 2 MB each in half of the {available >> 20} MB free")


def _room_for_processes() -> list[_Room]:
    rooms = []
    for limit, used in (
        ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids.current"),
        ("/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids/pids.current"),
    ):
        with contextlib.suppress(OSError, ValueError):
            free = int(Path(limit).read_text()) - int(Path(used).read_text()) - _SPARE_PROCESSES
            rooms.append(_Room(max(0, free), f"its cgroup may start {free} more processes"))
    # Of our own account; root's servers run as another one, which starts out with the same limit.
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most != resource.RLIM_INFINITY and os.geteuid() != 0:
        mine = sum(p.info["uids"].real == os.getuid() for p in psutil.process_iter(["uids"]))
        free = max(0, most - mine - _SPARE_PROCESSES)
        rooms.append(_Room(free, f"this account may start {free} more processes (ulimit -u)"))
    return rooms


def _room_for_semaphores() -> list[_Room]:
    try:
        limits = _SEMAPHORE_LIMITS.read_text().split()
        sets = _SEMAPHORES_USED.read_text().splitlines()[1:]
    except OSError:
        return []
    semaphores, most_sets = int(limits[1]), int(limits[3])
    used = sum(int(line.split()[3]) for line in sets)
    # A set holds 16 semaphores and one that says whose it is.
    possible = min(most_sets - len(sets), (semaphores - used) // (_SEMAPHORES_PER_SET + 1))
    free = max(0, possible * _SEMAPHORES_PER_SET - _SPARE_PROCESSES)
    return [_Room(free, f"semaphores for {free}, which servers before 10 need (kernel.sem)")]
