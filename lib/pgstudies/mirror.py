"""Making one directory tree like another by copying only the files that differ."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path


def mirror(source: Path, target: Path) -> int:
    """Make ``target`` like ``source``, owners and times included.

    A file of the same size and modification time is taken for unchanged: every copy carries the
    time of its original, and every write sets a new one.  Where the file system can share blocks
    between files (XFS, Btrfs), copying does.  Returns the number of bytes copied.
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
                raise
            original.seek(0)
            copy.seek(0)
            shutil.copyfileobj(original, copy)
            copy.truncate()
    return size
