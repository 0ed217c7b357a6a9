"""Locks, whole files, temporary ones, full disks and sizes: one place for each rule."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import re
import secrets
import shutil
import stat
import struct
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from rich import filesize

from .errors import SpaceError, StudyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


_MOST_TEXT = 16_000_000
"""The longest file of settings, scripts or so that is read (bytes)."""

_GET_FLAGS, _SET_FLAGS, _TOP = 0x80086601, 0x40086602, 0x00020000  # linux/fs.h


def spread(directory: Path) -> None:
    """Let ext4 place new files of a directory far apart, as ``chattr +T`` does.

    Without a journal ext4 reuses no inode for five seconds, and searches all of those beside the
    directory for each new file: copies of servers that come and go in one directory take ever
    longer, up to a quarter of a millisecond per file.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError):  # another file system, or another owner
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            (flags,) = struct.unpack("l", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("l", flags | _TOP))
        finally:
            os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """Lock the file ``path``, created if missing: an open descriptor, or None if it is locked.

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
    if not os.access(path, os.W_OK):
        return False
    descriptor = try_lock(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


SHORT = "/tmp"  # noqa: S108  (what we make in it is ours)
"""The directory of temporary files with short paths, such as sockets."""

_TEMPORARY = re.compile(r"\.?pgstudies-[a-z0-9_]{8}")
_OWNER = "owner.lock"
_FORGOTTEN_S = 60.0


@contextmanager
def temporary_directory(place: Path | str | None = None, *, hidden: bool = False) -> Iterator[Path]:
    """A directory for this user alone; if this process is killed, ``sweep_temporary`` removes it.

    In ``place``, by default where temporary files are; if ``hidden``, its name begins with a dot.
    """
    path, lock = _locked_directory(place, ".pgstudies-" if hidden else "pgstudies-")
    try:
        yield path
    finally:
        try:
            shutil.rmtree(path)
        except OSError as error:
            # A sweep of another process may lock it anew between its last file and itself.
            if error.errno not in {errno.ENOTEMPTY, errno.ENOENT}:
                raise
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _locked_directory(place: Path | str | None, prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        lock = try_lock(path / _OWNER)
        if lock is not None and (path / _OWNER).exists():
            return path, lock
        if lock is not None:  # a sweep came before it was locked
            os.close(lock)


def sweep_temporary(*places: Path) -> None:
    """Remove the temporary directories of killed processes, in under 1 ms.

    Looks where temporary files are, in ``SHORT`` and in ``places``.
    """
    for place in {tempfile.gettempdir(), SHORT, *map(str, places)}:
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if _TEMPORARY.fullmatch(entry.name):
                    with suppress(OSError):
                        _sweep(Path(entry.path))


def _sweep(path: Path) -> None:
    status, owner = path.lstat(), path / _OWNER
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return
    if not owner.exists():
        if time.time() - status.st_mtime > _FORGOTTEN_S:  # else its owner may be about to lock it
            path.rmdir()
        return
    lock = try_lock(owner)
    if lock is not None:
        try:
            shutil.rmtree(path)
        finally:
            os.close(lock)


_SAYS_FULL = re.compile(r"No space left on device|quota exceeded")

# The kernel has the same words for these, which need no disk.
_OF_THE_KERNEL = re.compile(r"semaphore|shared memory")


def says_full(line: str) -> bool:
    """Whether a line that PostgreSQL wrote complains of a full disk."""
    return bool(_SAYS_FULL.search(line)) and not _OF_THE_KERNEL.search(line)


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}


def is_full(error: BaseException) -> bool:
    """Whether an operation failed because a disk, a quota or a limit on files is used up."""
    return isinstance(error, OSError) and error.errno in _FULL


def cannot_write(error: OSError, where: Path | str, variable: str = "") -> SpaceError:
    """The error to raise for an error of writing to ``where``.

    ``variable`` is the environment variable that chooses another place, if there is one.
    """
    if is_full(error):
        also = f", or set {variable} to a directory on another disk" if variable else ""
        return SpaceError(f"No space left while writing to {where}: free some{also}.")
    then = f"set {variable} to a directory" if variable else "choose a place"
    return SpaceError(
        f"Cannot write to {where} ({error.strerror or error}): {then} that you may write to."
    )


def space_error(error: OSError, where: Path | str, variable: str = "") -> SpaceError | None:
    """As ``cannot_write``; None unless the disk is full or writing forbidden.

    For callers that do not know that the error came from writing.
    """
    known = is_full(error) or error.errno in _FORBIDDEN
    return cannot_write(error, where, variable) if known else None


def write_file(target: Path, content: bytes | str, variable: str = "") -> None:
    """Replace a file atomically: after a crash it has the old or the new content.

    Text is written as UTF-8; missing directories are created.  Raises SpaceError, as
    ``cannot_write`` makes it, where the file cannot be written.
    """
    with _written_aside(target, content, variable) as aside:
        aside.replace(target)


def write_new_file(target: Path, content: bytes | str, variable: str = "") -> bool:
    """As ``write_file``, unless the file exists; returns whether it was written.

    If two processes write it at once, the first wins.
    """
    with _written_aside(target, content, variable) as aside:
        try:
            os.link(aside, target)  # fails where the target is; a rename would replace it
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.EOPNOTSUPP}:
                raise
            if target.exists():  # on a file system without links, nearly as good
                return False
            aside.replace(target)
    return True


def write_sealed(stem: Path, content: bytes, variable: str = "") -> Path:
    """Write ``<stem>-<checksum>.parquet`` as ``write_file`` does, and remove earlier ones."""
    target = stem.with_name(f"{stem.name}-{_checksum(content)}.parquet")
    write_file(target, content, variable)
    for other in _sealed(stem):
        if other != target:
            other.unlink(missing_ok=True)
    return target


def find_sealed(stem: Path) -> Path | None:
    """The file that ``write_sealed`` wrote, None if there is none."""
    return next(iter(_sealed(stem)), None)


def read_sealed(file: Path) -> bytes:
    """The content of a sealed file; raises StudyError if it is damaged."""
    content = file.read_bytes()
    if _checksum(content) != file.stem.rpartition("-")[2]:
        raise StudyError(f"{file} is damaged: its SHA-256 is not the one in its name.")
    return content


def _sealed(stem: Path) -> list[Path]:
    return sorted(stem.parent.glob(f"{glob.escape(stem.name)}-{'[0-9a-f]' * 16}.parquet"))


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def _written_aside(target: Path, content: bytes | str, variable: str) -> Iterator[Path]:
    # A host name of undecodable bytes has surrogates.
    data = content if isinstance(content, bytes) else content.encode(errors="replace")
    aside = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield aside
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(error, target, variable) from error


def open_regular(path: Path) -> BinaryIO:
    """A regular file, open for reading.

    Raises OSError for one that cannot be read, and for a directory, a FIFO (which would block us),
    a socket or a device.
    """
    if stat.S_ISREG(path.stat().st_mode):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # for what takes its place
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


@contextmanager
def regular(path: Path, what: str) -> Iterator[BinaryIO]:
    """As ``open_regular``, for a file that the user names; ``what``, as "a log", is for messages.

    Raises StudyError where it cannot be read.
    """
    shown = f"{str(path)[:200]} cannot be read as {what}"
    try:
        with open_regular(path.expanduser()) as file:
            yield file
    except OSError as error:
        raise StudyError(f"{shown}: {error.strerror or error}.") from None
    except (RuntimeError, ValueError):  # ~ of an unknown user, or a null character
        raise StudyError(f"{shown}: there is no such file.") from None


def read_regular(path: Path, limit_bytes: int, what: str) -> bytes:
    """The content of such a file; raises StudyError also for a longer one."""
    with regular(path, what) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise StudyError(f"{path} is too long for {what}: the limit is {size_text(limit_bytes)}.")
    return content


def read_text(path: Path, what: str, limit_bytes: int = _MOST_TEXT) -> str:
    """The content of a file in UTF-8, as ``read_regular``, with Unix line ends."""
    try:
        return read_regular(path, limit_bytes, what).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise StudyError(
            f"{path} cannot be read as {what}: it is not UTF-8 from byte {error.start} on."
        ) from None


def read_within(directory: Path, name: str, most_bytes: int) -> bytes:
    """The content of a file in somebody else's directory, which may contain anything.

    Follows no link below the directory, and never blocks.  Raises FileNotFoundError, and StudyError
    where it is a link, no regular file, too large or unreadable.
    """
    file = directory / name
    try:
        status = file.lstat()
        if any(part.is_symlink() for part in (file, *file.parents[: name.count("/")])):
            raise OSError(errno.EINVAL, "it is a link, which may lead anywhere")
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if status.st_size > most_bytes:
            raise OSError(errno.EINVAL, f"it is larger than {size_text(most_bytes)}")
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as opened:
            return opened.read(most_bytes)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(file) from None
    except OSError as error:
        raise StudyError(f"{file} cannot be read ({error.strerror}).") from None


def existing_directory(path: str | Path) -> Path:
    """The directory that the user names, absolute; raises StudyError where it cannot be listed."""
    try:
        directory = Path(path).expanduser().resolve(strict=True)
        os.scandir(directory).close()
        if not os.access(directory, os.X_OK):  # it may be listed and not entered
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, RuntimeError, ValueError) as error:  # ~ of nobody, a zero byte
        loops = isinstance(error, RuntimeError) and "loop" in str(error)
        why = "it is a link that leads to itself" if loops else getattr(error, "strerror", error)
        raise StudyError(f"{str(path)[:200]} cannot be read: {why}.") from None
    return directory


def size_text(size_bytes: float) -> str:
    """A size in words, such as "25.3 GB": 1 GB is 1,000,000,000 bytes."""
    return filesize.decimal(int(size_bytes))


def copy_tree(source: Path, target: Path, *ignored: str) -> None:
    """Copy a directory, writable though the original may be read-only; raises OSError.

    Leaves out files and directories with names that match ``ignored``.
    """
    for path in [source, *source.rglob("*")]:
        names = path.relative_to(source).parts
        if any(fnmatch(name, pattern) for name in names for pattern in ignored):
            continue
        if path.is_dir():
            target.joinpath(*names).mkdir(parents=True, exist_ok=True)
        else:
            shutil.copyfile(path, target.joinpath(*names))
