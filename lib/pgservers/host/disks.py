"""The disk that holds a file, and its I/O scheduler."""

from __future__ import annotations

import os
from pathlib import Path

DEVICES = Path("/sys/dev/block")


def find_disk(path: Path, source: str | None = None) -> Path | None:
    """The directory in /sys of the whole disk behind ``path``; None where there is none.

    ``source`` is the mounted device, for file systems such as btrfs with numbers of their own.
    """
    number = path.stat().st_dev
    if os.major(number) == 0 and source and Path(source).is_block_device():
        number = Path(source).stat().st_rdev  # btrfs
    entry = DEVICES / f"{os.major(number)}:{os.minor(number)}"
    return _whole_disk(entry.resolve()) if entry.exists() else None


def scheduler_of(disk: Path) -> str | None:
    """The I/O scheduler in use there, such as "mq-deadline"; None where the kernel has none."""
    try:
        choices = (disk / "queue/scheduler").read_text().strip()
    except OSError:
        return None
    return choices.partition("[")[2].partition("]")[0] or choices


def _whole_disk(device: Path) -> Path:
    """The disk below a partition, or below a mapping onto one device such as LVM's."""
    if (device / "partition").exists():
        return _whole_disk(device.parent)
    below = list((device / "slaves").glob("*"))
    return _whole_disk(below[0].resolve()) if len(below) == 1 else device
