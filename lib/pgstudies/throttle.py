"""A slow disk on a fast machine: the kernel's limits on what a server of ours may read."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CannotRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .servers import Server

_ROOT = Path("/sys/fs/cgroup")
_DEVICES = Path("/sys/dev/block")
_PREFIX = "pgstudies-"
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class _Kind:
    """Where one version of cgroups keeps the limit, and how it is written."""

    parent: Path
    controller: str
    file: str
    words: str


def reason_no_throttle(server: Server, root: Path = _ROOT) -> str | None:
    """Why reads of this server cannot be slowed down, or None if they can."""
    if not server.owned:
        return "the server is not ours, so its reads cannot be slowed down"
    try:
        _device_of(server.data_directory)
        _kind(root)
    except CannotRun as reason:
        return str(reason)
    return None


@contextlib.contextmanager
def slow_disk(server: Server, reads_per_second: int, root: Path = _ROOT) -> Iterator[None]:
    """Let all processes of an owned server together read so many times a second, and no more.

    A read is a request that reaches the device; what a cache answers is not slowed.  Sessions that
    are opened meanwhile are bound by it as well.  Through cgroups, version 1 or 2, which takes
    root.  Raises CannotRun where that cannot be had.
    """
    reason = reason_no_throttle(server, root)
    if reason is not None or not server.owned:
        raise CannotRun(reason or "the server is not ours")
    kind, device = _kind(root), _device_of(server.data_directory)
    _remove_leftovers(kind.parent)
    group = kind.parent / f"{_PREFIX}{os.getpid()}"
    pids = server.pids()
    home = _group_of(kind, server.postmaster_pid)
    try:
        group.mkdir()
        (group / kind.file).write_text(kind.words.format(device=device, reads=reads_per_second))
        _move(pids, group)
    except OSError as error:
        _remove(group, home)
        raise CannotRun(f"the kernel refuses a limit on reads: {error.strerror}") from error
    try:
        yield
    finally:
        _remove(group, home)


def _kind(root: Path) -> _Kind:
    """Version 1, where its controller is mounted, else version 2."""
    old, new = root / "blkio", root
    if (old / "blkio.throttle.read_iops_device").exists():
        kind = _Kind(old, "blkio", "blkio.throttle.read_iops_device", "{device} {reads}")
    elif "io" in _words(new / "cgroup.controllers"):
        kind = _Kind(new, "", "io.max", "{device} riops={reads}")
    else:
        raise CannotRun("this system has no cgroups that limit reads")
    if not os.access(kind.parent, os.W_OK):
        raise CannotRun("only root may slow down a server's reads")
    if kind.parent == new and "io" not in _words(new / "cgroup.subtree_control"):
        try:
            (new / "cgroup.subtree_control").write_text("+io")
        except OSError as error:
            raise CannotRun(f"the kernel refuses limits on reads: {error.strerror}") from error
    return kind


def _device_of(path: Path) -> str:
    """Number (major:minor) of the whole disk that holds ``path``; limits are for those only."""
    number = path.stat().st_dev
    entry = _DEVICES / f"{os.major(number)}:{os.minor(number)}"
    if not entry.exists():
        raise CannotRun("the server's files are not on a disk of this machine's own")
    real = entry.resolve()
    disk = real.parent if (real / "partition").exists() else real
    return (disk / "dev").read_text().strip()


def _group_of(kind: _Kind, pid: int) -> Path:
    """The group that a process is in now."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if kind.controller in controllers.split(","):
            return kind.parent / path.lstrip("/")
    return kind.parent


def _move(pids: list[int], group: Path) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))


def _remove(group: Path, home: Path) -> None:
    """Bring what is left in a group back, and remove it; a process just ended holds it a moment."""
    end = time.monotonic() + _PATIENCE_S
    while group.exists():
        with contextlib.suppress(OSError):
            _move([int(pid) for pid in _words(group / "cgroup.procs")], home)
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def _remove_leftovers(parent: Path) -> None:
    """Remove groups of runs that were killed; one that still holds processes stays."""
    for group in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            group.rmdir()


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
