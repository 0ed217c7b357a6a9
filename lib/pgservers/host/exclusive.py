"""One measurement at a time on a host: a lock that ends with its holder."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ServerError
from ..terminal import notice

if TYPE_CHECKING:
    from collections.abc import Iterator


_LOOK_S = 0.5


def host_lock_file() -> Path:
    """The file that is locked: ``$PGSTUDIES_HOST_LOCK``, else one that all accounts share."""
    configured = os.environ.get("PGSTUDIES_HOST_LOCK")
    return Path(configured or "/tmp/pgstudies-measuring.lock")  # noqa: S108  (see _open)


@contextmanager
def only_one_here(what: str) -> Iterator[None]:
    """Wait until nobody else measures on this host, saying so, and keep others waiting.

    ``what`` is what they print while they wait.  The kernel releases the lock when this process
    ends, however it ends.
    """
    path = host_lock_file()
    try:
        descriptor = _open(path)
    except OSError as error:
        raise _no_lock(path, str(error.strerror)) from None
    try:
        _require_plain(path, descriptor)
        if not _taken(descriptor):
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            # Any account may have written it.
            name = "".join(c for c in holder if c.isprintable())
            notice(f"Waiting: {name or 'another run'} measures on this host.")
            while not _taken(descriptor):
                time.sleep(_LOOK_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{what} (process {os.getpid()})\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # the file stays, because waiting processes have it open


def _open(path: Path) -> int:
    # One file that all accounts may write and lock: two accounts that measure at once spoil both,
    # and whoever may wait for a lock may also hold it.  A stranger can therefore keep us waiting,
    # which a notice says and PGSTUDIES_HOST_LOCK ends.
    # In a directory that everybody may write to, Linux refuses O_CREAT for another's file
    # (fs.protected_regular); a link could lead anywhere, and opening a pipe could block.
    mode = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(FileNotFoundError):
        return os.open(path, mode)
    descriptor = os.open(path, mode | os.O_CREAT, 0o666)
    with suppress(PermissionError):
        os.fchmod(descriptor, 0o666)  # whatever the umask
    return descriptor


def _require_plain(path: Path, descriptor: int) -> None:
    """Raise ServerError unless it is a regular file without hard links: we write into it."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise _no_lock(path, "Not a file")
    if status.st_nlink > 1:
        raise _no_lock(path, "It is another file's hard link")


def _no_lock(path: Path, why: str) -> ServerError:
    return ServerError(
        f"{path}, the lock of this host, cannot be used ({why}): remove it, or set "
        f"PGSTUDIES_HOST_LOCK to another file."
    )


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def on_core(cpu: int | None) -> Iterator[None]:
    """Pin this process, and those that it starts meanwhile, to one core; None pins nothing."""
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
