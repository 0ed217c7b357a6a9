"""What killed runs left behind in the run directory: servers still running, and their files."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import signal
import stat
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ..errors import ServerError
from ..files import cannot_write, try_lock
from ..host.shared_memory import free

if TYPE_CHECKING:
    from collections.abc import Iterator


NAME = re.compile(r"s-[0-9a-f]{8}")
"""Names of our own directories in the run directory."""

SHORT = Path("/tmp")  # noqa: S108  (a name in it is only used if the mkdir was ours)
"""Where the socket is when the run directory's own path is none for a socket."""

_TIMEOUT_S = 10.0


def require_safe(directory: Path) -> Path:
    """The same directory without links; raises ServerError where other accounts could change it."""
    trusted = {0, os.geteuid()}
    links = [p for p in (directory, *directory.parents) if p.is_symlink()]
    planted = any(link.lstat().st_uid not in trusted for link in links)
    directory = directory.resolve()
    status = directory.lstat()
    shared = status.st_mode & 0o022 and not status.st_mode & 0o1000
    if planted or status.st_uid not in trusted or shared:
        raise ServerError(
            f"Other accounts can change {directory}, which is to hold the servers' data: "
            f"remove it, or set PGSTUDIES_RUN_DIR to a directory of your own."
        )
    return directory


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Lock the run directory against our other processes, briefly, waiting for them."""
    # By account, as several may share a run directory like /scratch.
    mode = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        descriptor = os.open(directory / f".lock-{os.geteuid()}", mode, 0o600)
    except OSError as error:  # /proc has no place for it
        raise cannot_write(error, directory, "PGSTUDIES_RUN_DIR") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sweep(directory: Path) -> list[Path]:
    """Stop the servers and remove the files of dead runs; returns the removed directories.

    A run is dead when nobody holds its ``owner.lock``.  Looks only at directories that we own, with
    one of our names and an ``owner.lock``.  Raises ServerError where other accounts could change
    ``directory``.
    """
    directory = require_safe(directory)
    with directory_lock(directory):
        claimed = [(path, _claim(path)) for path in sorted(directory.glob("s-*"))]
    removed = []
    for path, lock in claimed:
        if lock is not None:
            try:
                remove(path)
            finally:
                os.close(lock)
            removed.append(path)
    return removed


@contextmanager
def scratch(base: Path) -> Iterator[Path]:
    """A directory for this user alone; the next call removes it if this process is killed."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep(base)
    path, lock = new_directory(base, 0o700)
    try:
        yield path
    finally:
        remove(path)
        os.close(lock)


def new_directory(base: Path, mode: int) -> tuple[Path, int]:
    """A new directory of ours in ``base``, and the descriptor that locks it; raises OSError."""
    with directory_lock(base):
        path = base / f"s-{secrets.token_hex(4)}"
        path.mkdir(mode=mode)
        lock = try_lock(path / "owner.lock")
    if lock is None:  # pragma: no cover  (the name is new and random)
        raise ServerError(f"{path} is in use by another run.")
    return path, lock


def remove(instance: Path) -> None:
    """Stop the server of this directory, if it runs, and remove its files and shared memory.

    Raises ServerError when files cannot be removed.
    """
    postmaster = find_postmaster(instance / "data")
    if postmaster is not None:
        _stop(postmaster)
    free(instance / "data")
    # The lock goes last: a directory without one would never be swept.
    short = short_socket_directory(instance)
    for tree in (instance / "data", instance / "snapshots", short, instance):
        if tree is not None:
            _remove_tree(tree)


def short_socket_directory(instance: Path) -> Path | None:
    """The directory in ``SHORT`` that the instance made for its socket, if any.

    None for anything that took its name and is not a directory of our own.
    """
    link = instance / "socket"
    if not link.is_symlink():
        return None
    directory = link.readlink()
    try:
        status = directory.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return directory if ours and directory.parent == SHORT else None


def find_postmaster(data: Path) -> psutil.Process | None:
    """The server that runs in this data directory.

    The number in postmaster.pid may have been reused, so the process must also have the data
    directory as its working directory, as every postmaster has.
    """
    try:
        # A single-user backend writes its number with a minus sign.
        number = abs(int((data / "postmaster.pid").read_text().split()[0]))
        process = psutil.Process(number)
        is_ours = process.cwd() == str(data.resolve())
    except (OSError, ValueError, IndexError, psutil.Error):
        return None
    return process if is_ours else None


def _claim(path: Path) -> int | None:
    lock = path / "owner.lock"
    try:
        ours = path.lstat().st_uid == os.geteuid() and lock.lstat().st_uid == os.geteuid()
        plain = stat.S_ISDIR(path.lstat().st_mode) and stat.S_ISREG(lock.lstat().st_mode)
    except FileNotFoundError:
        return None
    return try_lock(lock) if ours and plain and NAME.fullmatch(path.name) else None


def _stop(postmaster: psutil.Process) -> None:
    try:
        children = postmaster.children()
        # The data is thrown away, so the server need not write any of it.
        postmaster.send_signal(signal.SIGQUIT)
        psutil.wait_procs([postmaster, *children], timeout=_TIMEOUT_S)
        postmaster.kill()
        postmaster.wait(_TIMEOUT_S)
    except (psutil.NoSuchProcess, psutil.TimeoutExpired):
        return


def _remove_tree(path: Path) -> None:
    # Repeated: a copy that outlived its run may be writing here, and a watchdog removing.
    deadline = time.monotonic() + _TIMEOUT_S
    while path.exists():
        try:
            shutil.rmtree(path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError) and time.monotonic() > deadline:
                raise ServerError(
                    f"{path} was left by an earlier run and cannot be removed "
                    f"({error.strerror}): remove it by hand."
                ) from error
            time.sleep(0.01)
