"""Locks, whole files and full disks: one place for each rule."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from typing import TYPE_CHECKING

from .errors import SpaceError

if TYPE_CHECKING:
    from pathlib import Path


def try_lock(path: Path) -> int | None:
    """Lock the file ``path``, made if need be: an open descriptor, or None if it is held.

    Close the descriptor to release the lock.  Programs started meanwhile do not inherit it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock; false for a file that is missing or not ours."""
    if not path.exists() or not os.access(path, os.W_OK):
        return False
    descriptor = try_lock(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


_SAYS_FULL = re.compile(r"No space left on device|quota exceeded")


# The kernel has the same words for these, and no disk will help them.
_OF_THE_KERNEL = re.compile(r"semaphore|shared memory")


def says_full(line: str) -> bool:
    """Whether a line that PostgreSQL wrote complains of a full disk."""
    return bool(_SAYS_FULL.search(line)) and not _OF_THE_KERNEL.search(line)


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR}


def space_error(error: OSError, where: Path) -> Exception:
    """The error to raise in place of one of a disk that is full or forbidden, else the same."""
    if error.errno in _FULL:
        return SpaceError(
            f"No space left while writing to {where}: free some, or set PGSTUDIES_RECORDS to a "
            f"directory on another disk; the blocks finished before are kept."
        )
    if error.errno in _FORBIDDEN:
        return SpaceError(
            f"Cannot write to {where} ({error.strerror}): "
            f"set PGSTUDIES_RECORDS to a directory you may write to."
        )
    return error
