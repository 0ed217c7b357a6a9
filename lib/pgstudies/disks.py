"""The disk that holds a file: what it is, how much is read from it, and its I/O scheduler."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CannotRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .servers import Server

DEVICES = Path("/sys/dev/block")
_SECTOR_BYTES = 512
_SECTORS_READ = 2


def find_disk(path: Path, source: str | None = None) -> Path | None:
    """The directory in /sys of the whole disk behind ``path``; None where no disk is seen.

    ``source`` is the mounted device, for file systems that number their parts themselves.
    """
    number = path.stat().st_dev
    if os.major(number) == 0 and source and Path(source).is_block_device():
        number = Path(source).stat().st_rdev  # btrfs
    entry = DEVICES / f"{os.major(number)}:{os.minor(number)}"
    return _whole_disk(entry.resolve()) if entry.exists() else None


def disk_read_bytes(path: Path) -> int | None:
    """Bytes read so far from the disk behind ``path``, by anybody; None where no disk is seen."""
    disk = find_disk(path)
    if disk is None:
        return None
    return int((disk / "stat").read_text().split()[_SECTORS_READ]) * _SECTOR_BYTES


def scheduler_of(disk: Path) -> str | None:
    """The I/O scheduler in use there, such as "mq-deadline"; None where the kernel has none."""
    try:
        choices = (disk / "queue/scheduler").read_text().strip()
    except OSError:
        return None
    return choices.partition("[")[2].partition("]")[0] or choices


@contextlib.contextmanager
def scheduled(server: Server, scheduler: str) -> Iterator[None]:
    """Let the disk of an owned server have this I/O scheduler; the one before returns at the end.

    The disk is everybody's, so this is for those who ask for it.  Raises CannotRun for a server
    that is not ours, a disk that is not seen, a scheduler this kernel does not have, and without
    the rights of root.
    """
    if not server.owned:
        raise CannotRun("the server is not ours, so its disk is not either")
    disk = find_disk(server.data_directory)
    before = scheduler_of(disk) if disk else None
    if disk is None or before is None:
        raise CannotRun("the server's files are not on a disk whose I/O scheduler can be chosen")
    file = disk / "queue/scheduler"
    # A scheduler that is a module is loaded when its name is written, and is not listed before.
    if not re.fullmatch(r"[a-z0-9-]+", scheduler):
        raise CannotRun(f"{scheduler!r} is no name of an I/O scheduler")
    try:
        file.write_text(scheduler)
    except PermissionError as error:
        raise CannotRun("only root may choose a disk's I/O scheduler") from error
    except OSError as error:
        listed = file.read_text().strip().replace("[", "").replace("]", "")
        raise CannotRun(f"this kernel has no I/O scheduler {scheduler}, but {listed}") from error
    try:
        yield
    finally:
        file.write_text(before)


def _whole_disk(device: Path) -> Path:
    """The disk that a partition, or a mapping onto a single device such as LVM's, lies on."""
    if (device / "partition").exists():
        return _whole_disk(device.parent)
    below = list((device / "slaves").glob("*"))
    return _whole_disk(below[0].resolve()) if len(below) == 1 else device
