"""Copies of a stopped server's data directory, kept small and made fast."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from .errors import SpaceError

_WAL_PAGE_HEADER = struct.Struct("=HHIQ")  # xlp_magic, xlp_info, xlp_tli, xlp_pageaddr


def mirror(source: Path, target: Path) -> int:
    """Make ``target`` like ``source``, owners and times included, and have it written to disk.

    A file of the same size and modification time is taken for unchanged: every copy carries the
    time of its original, and every write sets a new one.  Where the file system can share blocks
    between files (XFS, Btrfs), copying does.  Returns the number of bytes copied.  Raises
    SpaceError when the disk is full.
    """
    target.mkdir(exist_ok=True)
    _own(target, source.stat())
    wanted, present = _tree(source), _tree(target)
    for name in sorted(present.keys() - wanted.keys(), reverse=True):
        path = target / name
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    copied = 0
    for name in sorted(wanted):
        original, copy = wanted[name], target / name
        if original.is_dir(follow_symlinks=False):
            copy.mkdir(exist_ok=True)
        elif original.is_symlink():
            copy.unlink(missing_ok=True)
            copy.symlink_to(Path(original.path).readlink())
            continue
        elif name in present and _same(original, present[name]):
            continue
        else:
            copied += _copy_file(Path(original.path), copy)
        stat = original.stat()
        _own(copy, stat)
        os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    # Else the disk would still be busy with the copy while the first steps are timed.
    here = ["-f", str(target)] if sys.platform == "linux" else []
    subprocess.run(["sync", *here], check=False, stderr=subprocess.DEVNULL)
    return copied


def _tree(top: Path) -> dict[str, os.DirEntry[str]]:
    """Everything below ``top`` by its relative name, parents before children when sorted."""
    found: dict[str, os.DirEntry[str]] = {}
    pending = [str(top)] if top.is_dir() else []
    cut = len(str(top)) + 1
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                found[entry.path[cut:]] = entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return found


def _same(a: os.DirEntry[str], b: os.DirEntry[str]) -> bool:
    x, y = a.stat(), b.stat()
    return x.st_size == y.st_size and x.st_mtime_ns == y.st_mtime_ns


def _own(path: Path, stat: os.stat_result) -> None:
    path.chmod(stat.st_mode & 0o7777)
    if os.geteuid() == 0:
        os.chown(path, stat.st_uid, stat.st_gid)


def _copy_file(source: Path, target: Path) -> int:
    """Copy the contents and return their size."""
    with source.open("rb") as original, target.open("wb") as copy:
        size = os.fstat(original.fileno()).st_size
        try:
            left = size
            while left > 0:
                left -= os.copy_file_range(original.fileno(), copy.fileno(), left)
        except (AttributeError, OSError) as error:  # not on this system, or not between these
            if getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT}:
                raise SpaceError(
                    f"No space left while restoring the prepared state to {target.parent}: free "
                    f"some space, or set PGSTUDIES_RUN_DIR to a directory on another disk."
                ) from error
            original.seek(0)
            copy.seek(0)
            shutil.copyfileobj(original, copy)
            copy.truncate()
    return size


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

    After a bulk load they are many times the size of the data.  Such a segment does not begin with
    a page of its own address.
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
