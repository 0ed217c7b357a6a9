"""One measurement at a time on a host, whoever starts it: a lock that dies with its holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator


_LOOK_S = 0.5


def host_lock_file() -> Path:
    """The file that is locked: ``$PGSTUDIES_HOST_LOCK``, else one that all accounts share."""
    configured = os.environ.get("PGSTUDIES_HOST_LOCK")
    return Path(configured or "/tmp/pgstudies-measuring.lock")  # noqa: S108  (see _open)


@contextlib.contextmanager
def only_one_here(what: str) -> Iterator[None]:
    """Wait until nobody else measures on this host, saying so, and keep others waiting.

    ``what`` tells them who it is.  The kernel releases the lock when this process ends, however it
    does.
    """
    descriptor = _open(host_lock_file())
    try:
        told = False
        while not _taken(descriptor):
            if not told:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                print(f"Waiting: {holder or 'another run'} measures on this host.", file=sys.stderr)
                told = True
            time.sleep(_LOOK_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{what} (process {os.getpid()})\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # the file stays, for whoever waits has it open


def _open(path: Path) -> int:
    # In a directory that everybody may write to, Linux refuses O_CREAT for another's file
    # (fs.protected_regular); a link could lead anywhere.
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, 0o666)  # whatever the umask
    return descriptor


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def on_core(cpu: int | None) -> Iterator[None]:
    """Be on one core for a moment; a process started meanwhile inherits that."""
    if cpu is None:
        yield
        return
    if not hasattr(os, "sched_setaffinity"):
        raise ServerError("This system cannot pin a server to a core: run without pinning.")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError:
        raise ServerError(
            f"A server cannot be pinned to core {cpu}: this process may use {sorted(before)}."
        ) from None
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
