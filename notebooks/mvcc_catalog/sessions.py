"""Many sessions of ``mvcc_catalog.ipynb``: how many fit, and holding their transactions open."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

from pgservers.errors import ServerError, require
from pgservers.programs.accounts import without_pg_variables
from pgservers.servers.managed import ManagedServer
from pgservers.sessions import (
    end_sessions,
    open_xids,
    reason_no_room,
    unpinned,
    wait_for_end,
)
from pgservers.sessions import (
    room_for_sessions as room_on_any_server,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg.rows import TupleRow

    from pgservers.servers.serve import Server
    from pgstudies.measuring.arms import Arm
    from pgstudies.measuring.trial import Trial

    Session = psycopg.AsyncConnection[TupleRow]

_AT_ONCE = 64
"""Sessions being opened at a time: one after the other takes two to three times as long."""

_SPARE_PROCESSES = 50
_SEMAPHORES_PER_SET = 16
_SEMAPHORE_LIMITS = Path("/proc/sys/kernel/sem")
_SEMAPHORES_USED = Path("/proc/sysvipc/sem")


def room_for_sessions() -> int:
    """How many sessions of servers of any release this machine has room for.

    System V semaphores, which servers before 10 need, are counted, too.
    """
    return min([room_on_any_server(), *_room_for_semaphores()])


def holders(trial: Trial, arm: Arm) -> contextlib.AbstractContextManager[int]:
    """Whatever holds the arm's transactions, giving how many of them a snapshot lists."""
    server, number = trial.server, arm.options["open"]
    if arm.options["holder"] != "sessions":
        return contextlib.nullcontext(open_xids(server))
    require(reason_no_room(server, number))
    trial.show(f"opening {number} sessions")
    return hold_transactions(server, number)


@contextlib.contextmanager
def hold_transactions(server: Server, count: int) -> Iterator[int]:
    """Hold ``count`` sessions open, each in a transaction with an XID of its own.

    Yields how many of the XIDs a new snapshot holds, which is ``count`` where nobody else is at
    work.  At the end, whatever happens, the sessions are closed, and on a managed server waited
    for until their processes have gone.  Raises CannotRun when there is no room for so many, and
    ServerError when the server refuses one, or a snapshot does not hold them.
    """
    before = len(server.session_pids())
    require(reason_no_room(server, count))
    holders: list[Session] = []
    try:
        if count:
            # In a notebook this thread runs an event loop already.
            with ThreadPoolExecutor(1) as executor, unpinned(server):
                executor.submit(asyncio.run, _open(server, count, holders)).result()
        yield open_xids(server, count)
    finally:
        end_sessions(server, holders)
        # Those too that were given up half opened.
        wait_for_end(server, before)


def conninfo(server: Server) -> str:
    """The connection string of our own database there, for libpq; it holds the password."""
    names = {"PGDATABASE": "dbname"}
    parts = {
        names.get(n, n[2:].lower()): value for n, value in server.environment().items()
    }
    return make_conninfo("", **parts)


async def _open(server: Server, count: int, holders: list[Session]) -> None:
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
            without_pg_variables()
            if isinstance(server, ManagedServer)
            else contextlib.nullcontext()
        ):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(count):
                    tasks.create_task(hold())
    except* psycopg.Error as errors:
        refused += [
            error for error in errors.exceptions if isinstance(error, psycopg.Error)
        ]
    # Python 3.11.2, which is Debian 12's, makes a group of what is raised within except*.
    if refused:
        reason = str(refused[0]).strip().splitlines()[0]
        raise ServerError(
            f"Only {len(holders)} of {count} sessions could be opened: {reason}"
        ) from refused[0]


def _room_for_semaphores() -> list[int]:
    """Which servers before 10 need: since then a connection needs none on Linux."""
    try:
        limits = _SEMAPHORE_LIMITS.read_text().split()
        sets = _SEMAPHORES_USED.read_text().splitlines()[1:]
    except OSError:
        return []
    semaphores, most_sets = int(limits[1]), int(limits[3])
    used = sum(int(line.split()[3]) for line in sets)
    # A set holds 16 semaphores and one that says whose it is.
    possible = min(
        most_sets - len(sets),
        (semaphores - used) // (_SEMAPHORES_PER_SET + 1),
    )
    return [max(0, possible * _SEMAPHORES_PER_SET - _SPARE_PROCESSES)]
