"""Locks that the kernel releases when their holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def try_lock(path: Path) -> int | None:
    """Lock the file ``path``, made if need be: an open descriptor, or None if it is held.

    Close the descriptor to release the lock.  Programs started meanwhile do not inherit it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
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
