"""A slow disk and a small memory for some processes: the kernel's limits, by cgroups."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CannotRun
from .disks import find_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "pgstudies-"
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class _Group:
    """A group to create: ``home`` is the server's group now, ``limits`` what to write, by file."""

    home: Path
    path: Path
    limits: dict[str, str]


def reason_no_limits(directory: Path, pid: int, root: Path = _ROOT) -> str | None:
    """Why reads from ``directory`` and a process's memory cannot be limited; None if they can."""
    try:
        _groups(directory, pid, root, {"iops": 1, "bps": 1}, 1)
    except CannotRun as reason:
        return str(reason)
    return None


@contextlib.contextmanager
def limits_on(
    directory: Path,
    pid: int,
    pids: Callable[[], list[int]],
    *,
    pace: Mapping[str, int | None],
    memory_bytes: int | None,
    root: Path = _ROOT,
) -> Iterator[None]:
    """Limit the processes ``pids()``, of which ``pid`` is the first, and all that they start.

    ``pace`` is reads (iops) and bytes (bps) per second from the disk of ``directory``.  Uses
    cgroups, version 1 or 2; raises CannotRun where they are not available.
    """
    groups = _groups(directory, pid, root, pace, memory_bytes)
    with contextlib.ExitStack() as made:
        try:
            control = root / "cgroup.subtree_control"
            # Version 2 has limits only in groups whose parent enables the controllers for them.
            if control.exists() and not {"io", "memory"} <= set(_words(control)):
                control.write_text("+io +memory")
            for group in groups:
                _remove_leftovers(group.home)
                group.path.mkdir()
                made.callback(_remove, group)
                for file, limit in group.limits.items():
                    (group.path / file).write_text(limit)
                _move(pids(), group.path)
        except OSError as error:
            raise CannotRun(f"the kernel refuses a limit: {error.strerror}") from error
        yield


def _groups(
    directory: Path, pid: int, root: Path, pace: Mapping[str, int | None], memory: int | None
) -> list[_Group]:
    device = _device_of(directory)
    homes = _homes(pid)
    name = f"{_PREFIX}{pid}"  # several servers may be limited at a time
    disk, ram = root / "blkio", root / "memory"
    if (disk / "blkio.throttle.read_iops_device").exists() and ram.is_dir():
        slow = {f"blkio.throttle.read_{k}_device": f"{device} {n}" for k, n in pace.items() if n}
        small = {"memory.limit_in_bytes": str(memory)} if memory else {}
        parts = [(disk / homes.get("blkio", ""), slow), (ram / homes.get("memory", ""), small)]
    elif {"io", "memory"} <= set(_words(root / "cgroup.controllers")):
        words = " ".join(f"r{k}={n}" for k, n in pace.items() if n)
        limits = {"io.max": f"{device} {words}"} if words else {}
        parts = [(root, limits | ({"memory.max": str(memory)} if memory else {}))]
    else:
        raise CannotRun("this system has no cgroups that limit reads and memory")
    for home, _ in parts:
        if not os.access(home, os.W_OK):
            raise CannotRun("only root may limit a server's reads and memory")
    return [_Group(home, home / name, limits) for home, limits in parts if limits]


def _device_of(path: Path) -> str:
    """Number (major:minor) of the disk that holds ``path``: only whole disks can be limited."""
    disk = find_disk(path)
    if disk is None:
        raise CannotRun("the server's files are not on a disk of this machine's own")
    return (disk / "dev").read_text().strip()


def _homes(pid: int) -> dict[str, str]:
    """The group of a process by controller, in version 1."""
    homes: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        homes |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    return homes


def _move(pids: list[int], group: Path) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))


def _remove(group: _Group) -> None:
    """Move processes left in a group home, and remove it; one that just ended delays that."""
    end = time.monotonic() + _PATIENCE_S
    while group.path.exists():
        with contextlib.suppress(OSError):
            _move([int(pid) for pid in _words(group.path / "cgroup.procs")], group.home)
        try:
            group.path.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def _remove_leftovers(parent: Path) -> None:
    """Remove the groups of killed runs, except those that still hold processes."""
    for group in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            group.rmdir()


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
