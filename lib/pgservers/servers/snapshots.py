"""Copies of a stopped server's data directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import struct
from typing import TYPE_CHECKING

from ..errors import SpaceError
from ..files import cannot_write, is_full, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_LARGE = 2**20
"""Files of so many bytes are on disk before a server is started from them."""

_WAL_PAGE_HEADER = struct.Struct("=HHIQ")  # xlp_magic, xlp_info, xlp_tli, xlp_pageaddr


def mirror(source: Path, target: Path) -> int:
    """Make ``target`` like ``source``, owners and times included, and have it written to disk.

    A file of the same size and modification time counts as unchanged: every copy carries the time
    of its original, and every write sets a new one.  Copies share blocks where the file system can
    (XFS, Btrfs).  Returns the number of bytes copied.  Raises SpaceError when the disk is full.
    """
    try:
        target.mkdir(exist_ok=True)
        with _opened(str(source)) as original, _opened(str(target)) as copy:
            copied = _mirror(original, copy)
            _make_alike(copy, source.stat())
    except OSError as error:
        if not is_full(error):
            raise
        raise cannot_write(error, target, "PGSTUDIES_RUN_DIR") from error
    return copied


def _mirror(source: int, target: int) -> int:
    """The same for two open directories.

    Names are relative to them, and no link is followed: root works here in directories of another
    account, which could plant links there.
    """
    copied = 0
    wanted, present = _entries(source), _entries(target)
    for name, there in list(present.items()):
        if not _can_stay(there, wanted.get(name)):
            if stat.S_ISDIR(there.st_mode):
                shutil.rmtree(name, dir_fd=target)
            else:
                os.unlink(name, dir_fd=target)
            del present[name]
    for name, like in wanted.items():
        if stat.S_ISDIR(like.st_mode):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=target)
            with _opened(name, source) as inner, _opened(name, target) as copy:
                copied += _mirror(inner, copy)
                _make_alike(copy, like)
        elif stat.S_ISLNK(like.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif name not in present or not _same(like, present[name]):
            copied += _copy_file(name, source, target, like)
    return copied


@contextlib.contextmanager
def _opened(name: str, parent: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _entries(directory: int) -> dict[str, os.stat_result]:
    with os.scandir(directory) as entries:
        return {entry.name: entry.stat(follow_symlinks=False) for entry in entries}


def _can_stay(there: os.stat_result, wanted: os.stat_result | None) -> bool:
    """Whether an existing entry can be changed into the wanted one without removing it."""
    if wanted is None or stat.S_IFMT(wanted.st_mode) != stat.S_IFMT(there.st_mode):
        return False
    return stat.S_ISDIR(there.st_mode) or (stat.S_ISREG(there.st_mode) and there.st_nlink == 1)


def _same(a: os.stat_result, b: os.stat_result) -> bool:
    return a.st_size == b.st_size and a.st_mtime_ns == b.st_mtime_ns


def _make_alike(descriptor: int, like: os.stat_result) -> None:
    os.chmod(descriptor, stat.S_IMODE(like.st_mode))
    if os.geteuid() == 0:
        os.chown(descriptor, like.st_uid, like.st_gid)
    os.utime(descriptor, ns=(like.st_atime_ns, like.st_mtime_ns))


def _copy_file(name: str, source: int, target: int, like: os.stat_result) -> int:
    """Copy the contents and return their size.

    Overwrites an existing file, which is twice as fast as freeing its blocks first.
    """
    reading = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=source)
    with open(reading, "rb") as original:  # noqa: PTH123  (an open file)
        writing = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=target)
        with open(writing, "wb") as copy:  # noqa: PTH123
            try:
                left = like.st_size
                while left > 0:
                    moved = os.copy_file_range(reading, writing, left)
                    if moved == 0:
                        break
                    left -= moved
            except (AttributeError, OSError) as error:  # not on this system, or not between these
                if is_full(error):
                    raise
                original.seek(0)
                copy.seek(0)
                shutil.copyfileobj(original, copy)
                copy.flush()
            os.ftruncate(writing, like.st_size)
            # Else the disk would still be busy with the copy while the first steps are timed.
            if like.st_size >= _LARGE:
                os.fsync(writing)
            _make_alike(writing, like)
    return like.st_size


def require_space(
    directory: Path, size: float, purpose: str = "a copy of the prepared state"
) -> None:
    """Raise SpaceError unless ``size`` bytes are free where ``directory`` is."""
    free = shutil.disk_usage(directory).free
    if free < size:
        raise SpaceError(
            f"{directory} needs {size_text(size)} for {purpose} and has {size_text(free)} free: "
            f"free some space, or set PGSTUDIES_RUN_DIR to a directory on another disk."
        )


def size_bytes(directory: Path) -> int:
    """Bytes that the files below ``directory`` occupy on disk."""
    files = (
        os.path.join(root, name)  # noqa: PTH118  (thousands of them, for every restore)
        for root, _, names in os.walk(directory)
        for name in names
    )
    return sum(os.lstat(file).st_blocks * 512 for file in files)


def drop_recycled_wal(wal: Path) -> None:
    """Remove the segments that a stopped server keeps only to reuse.

    After a bulk load they are many times the size of the data.  Such a segment does not begin with
    a page of its own address.
    """
    for segment in sorted(wal.iterdir()):
        if len(segment.name) != 24 or not segment.is_file():
            continue
        size = segment.stat().st_size
        with segment.open("rb") as file:
            header = file.read(_WAL_PAGE_HEADER.size)
        address = _WAL_PAGE_HEADER.unpack(header)[3]
        # The name is timeline, then the number of the segment as two parts of 32 bits.
        first = int(segment.name[8:16], 16) * 2**32 + int(segment.name[16:24], 16) * size
        # Before 9.3 an address was two numbers of 32 bits, the larger part first.
        if address not in {first, first >> 32 | (first & 0xFFFFFFFF) << 32}:
            segment.unlink()
