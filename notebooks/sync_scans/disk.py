"""The disk of ``sync_scans.ipynb``: what is read from it and read ahead, and its I/O scheduler."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from pgstudies.errors import CannotRun
from pgstudies.host import find_disk, scheduler_of
from pgstudies.servers import ManagedServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgstudies.servers import Server

_SECTOR_BYTES = 512
_SECTORS_READ = 2


def disk_read_bytes(path: Path) -> int | None:
    """Bytes read so far from the disk behind ``path``, by anybody; None where no disk is seen."""
    disk = find_disk(path)
    if disk is None:
        return None
    return (
        int((disk / "stat").read_text().split()[_SECTORS_READ])
        * _SECTOR_BYTES
    )


def read_ahead_bytes(path: Path) -> int | None:
    """How far the kernel reads ahead of a sequential reader of the disk behind ``path``, at most.

    None where no disk is seen.
    """
    disk = find_disk(path)
    if disk is None:
        return None
    return int((disk / "queue/read_ahead_kb").read_text()) * 1024


@contextlib.contextmanager
def scheduled(server: Server, scheduler: str) -> Iterator[None]:
    """Let the disk of a managed server have this I/O scheduler; the one before returns at the end.

    The disk is everybody's, so this is for those who ask for it.  Raises CannotRun for a server
    that is not ours, a disk that is not seen, a scheduler this kernel does not have, and without
    the rights of root.
    """
    server.capabilities.require("processes")
    assert isinstance(server, ManagedServer)
    disk = find_disk(server.data_directory)
    before = scheduler_of(disk) if disk else None
    if disk is None or before is None:
        raise CannotRun(
            "the server's files are not on a disk whose I/O scheduler can be chosen"
        )
    file = disk / "queue/scheduler"
    # A scheduler that is a module is loaded when its name is written, and is not listed before.
    if not re.fullmatch(r"[a-z0-9-]+", scheduler):
        raise CannotRun(f"{scheduler!r} is no name of an I/O scheduler")
    try:
        file.write_text(scheduler)
    except PermissionError as error:
        raise CannotRun(
            "only root may choose a disk's I/O scheduler"
        ) from error
    except OSError as error:
        listed = file.read_text().strip().replace("[", "").replace("]", "")
        raise CannotRun(
            f"this kernel has no I/O scheduler {scheduler}, but {listed}"
        ) from error
    try:
        yield
    finally:
        file.write_text(before)
