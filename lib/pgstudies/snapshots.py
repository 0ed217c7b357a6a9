"""Copies of a stopped server's data directory, kept small and made fast."""

from __future__ import annotations

import os
import shutil
import struct
import sys
from typing import TYPE_CHECKING

from .accounts import run_as
from .errors import SpaceError

if TYPE_CHECKING:
    from pathlib import Path

    from .accounts import Account

# cp shares blocks where the file system can (Btrfs, XFS, APFS) and otherwise was as fast as
# anything in Python; run as the server's account, it makes files that belong to it.
_COPY = ["cp", "-Rpc"] if sys.platform == "darwin" else ["cp", "-a", "--reflink=auto"]

_WAL_PAGE_HEADER = struct.Struct("=HHIQ")  # xlp_magic, xlp_info, xlp_tli, xlp_pageaddr


def copy_contents(source: Path, target: Path, account: Account, size: int) -> None:
    """Copy what is in ``source``, ``size`` bytes, into the empty directory ``target``.

    Raises SpaceError, before anything is written, when the disk cannot take it.
    """
    require_space(target, size)
    run_as(account, [*_COPY, f"{source}/.", f"{target}/"])


def require_space(directory: Path, size: int) -> None:
    """Raise SpaceError unless ``size`` bytes are free where ``directory`` is."""
    free = shutil.disk_usage(directory).free
    if free < size:
        raise SpaceError(
            f"{directory} needs {size / 1e6:,.0f} MB for a copy of the prepared state and has "
            f"{free / 1e6:,.0f} MB free: free some space, or set PGSTUDIES_RUN_DIR to a directory "
            f"on another disk."
        )


def size_bytes(directory: Path) -> int:
    """Bytes that the files below ``directory`` occupy on disk."""
    files = (
        os.path.join(root, name)  # noqa: PTH118  (thousands of them, for every restore)
        for root, _, names in os.walk(directory)
        for name in names
    )
    return sum(os.lstat(file).st_blocks * 512 for file in files)


def drop_recycled_wal(data: Path) -> int:
    """Remove the segments that a stopped server keeps only to write over; returns their number.

    After a bulk load they are many times the size of the data.  Such a segment does not begin with a
    page of its own address.
    """
    dropped = 0
    for segment in sorted((data / "pg_wal").iterdir()):
        if len(segment.name) != 24 or not segment.is_file():
            continue
        size = segment.stat().st_size
        with segment.open("rb") as file:
            header = file.read(_WAL_PAGE_HEADER.size)
        address = _WAL_PAGE_HEADER.unpack(header)[3]
        # The name is timeline, then the number of the segment as two parts of 32 bits.
        first = int(segment.name[8:16], 16) * 2**32 + int(segment.name[16:24], 16) * size
        if address != first:
            segment.unlink()
            dropped += 1
    return dropped
