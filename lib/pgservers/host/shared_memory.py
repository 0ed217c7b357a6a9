"""Shared memory that nobody frees: a killed server's, and the semaphores of a killed worker."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

_SEGMENTS = Path("/proc/sysvipc/shm")
_DYNAMIC = Path("/dev/shm")  # noqa: S108

# PGShmemHeader of storage/pg_shmem.h up to dsm_control: magic, creatorPID, totalsize, freeoffset.
_HEADER = struct.Struct("@iiNNI")

_MAGIC = 679834894
_SHM_RDONLY = 0o10000
_IPC_RMID = 0
_TIMEOUT_S = 5


def free(data: Path) -> None:
    """Free the shared memory that a data directory's postmaster.pid names, unless it is in use.

    That is the System V segment that this process made and the file's owner owns, and the segments
    in ``/dev/shm`` that its control segment lists.  Waits for the last children of a killed
    postmaster.
    """
    if sys.platform != "linux":
        return
    note = data / "postmaster.pid"
    try:
        lines = note.read_text().splitlines()
        # A single-user backend writes its number with a minus sign.
        pid, segment, owner = abs(int(lines[0])), int(lines[6].split()[1]), note.stat().st_uid
    except (OSError, ValueError, IndexError):
        return
    deadline = time.monotonic() + _TIMEOUT_S
    while (attached := _attached(segment, pid, owner)) and not psutil.pid_exists(pid):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    if attached != 0:
        return
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(segment, None, _SHM_RDONLY)
    if address in {None, ctypes.c_void_p(-1).value}:
        return
    magic, creator, _, _, control = _HEADER.unpack(ctypes.string_at(address, _HEADER.size))
    libc.shmdt(ctypes.c_void_p(address))
    if (magic, creator) == (_MAGIC, pid):
        for file in _dynamic(control, owner):
            file.unlink(missing_ok=True)
        libc.shmctl(segment, _IPC_RMID, None)


_SEMAPHORE = re.compile(r"sem\.pgstudies-(\d+)-\w+")


def name_semaphores() -> None:
    """Put our process number into the names of this process's ``multiprocessing`` semaphores.

    Python removes them in a helper process, which dies with us when the whole session is killed.
    """
    ours: dict[str, str] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    ours["semprefix"] = f"/pgstudies-{os.getpid()}"


def free_semaphores() -> None:
    """Remove the semaphores of this user's processes that are dead."""
    for file in _DYNAMIC.glob("sem.pgstudies-*"):
        found = _SEMAPHORE.fullmatch(file.name)
        with suppress(FileNotFoundError):
            status = file.lstat()
            if found and status.st_uid == os.geteuid() and _is_dead(int(found[1]), status.st_mtime):
                file.unlink()


def _is_dead(pid: int, since: float) -> bool:
    """Whether the process that had this number at ``since`` (s since 1970) has ended."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE or process.create_time() > since + 1
    except psutil.NoSuchProcess:
        return True


def _attached(segment: int, creator: int, owner: int) -> int | None:
    """The number of processes attached to a segment; None if there is no such segment."""
    rows = [row.split() for row in _SEGMENTS.read_text().splitlines()[1:]]
    # shmid, cpid, uid, nattch
    found = {tuple(int(row[i]) for i in (1, 4, 7)): int(row[6]) for row in rows}
    return found.get((segment, creator, owner))


def _dynamic(control: int, owner: int) -> list[Path]:
    """The files of a control segment: itself, and those of its entries.

    Their layout depends on the release, so every number in it counts that names a file.
    """
    listing = _DYNAMIC / f"PostgreSQL.{control}"
    try:
        content = listing.read_bytes()
    except OSError:
        return []
    numbers = {control, *(n for (n,) in struct.iter_unpack("@I", content[: len(content) // 4 * 4]))}
    theirs = {f.name: f for f in _DYNAMIC.glob("PostgreSQL.*") if f.lstat().st_uid == owner}
    return [theirs[name] for n in numbers if (name := f"PostgreSQL.{n}") in theirs]
