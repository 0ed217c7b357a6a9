"""The disk of ``sync_scans.ipynb``: what is read from it, its I/O scheduler, and disks of 2007."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pgservers.errors import CannotRun
from pgservers.host.disks import find_disk, scheduler_of
from pgservers.programs.slow_disk import Scheduler
from pgservers.servers.managed import ManagedServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pgservers.servers.serve import Server

_SECTOR_BYTES = 512
_SECTORS_READ = 2


def disk_read_bytes(path: Path) -> int | None:
    """Bytes read so far from the disk behind ``path``, by anybody; None where no disk is seen."""
    disk = find_disk(path)
    if disk is None:
        return None
    return int((disk / "stat").read_text().split()[_SECTORS_READ]) * _SECTOR_BYTES


def read_ahead_bytes(path: Path) -> int | None:
    """How far the kernel reads ahead of a sequential reader of the disk behind ``path``, at most.

    None where no disk is seen.
    """
    disk = find_disk(path)
    if disk is None:
        return None
    return int((disk / "queue/read_ahead_kb").read_text()) * 1024


@contextlib.contextmanager
def scheduled(server: Server, scheduler: str) -> Iterator[None]:
    """Let the disk of a managed server have this I/O scheduler; the one before returns at the end.

    The disk is everybody's, so this is for those who ask for it.  Raises CannotRun for a server
    that is not ours, a disk that is not seen, a scheduler this kernel does not have, and without
    the rights of root.
    """
    server.capabilities.require("processes")
    assert isinstance(server, ManagedServer)
    disk = find_disk(server.data_directory)
    before = scheduler_of(disk) if disk else None
    if disk is None or before is None:
        raise CannotRun(
            "the server's files are not on a disk whose I/O scheduler can be chosen"
        )
    file = disk / "queue/scheduler"
    # A scheduler that is a module is loaded when its name is written, and is not listed before.
    if not re.fullmatch(r"[a-z0-9-]+", scheduler):
        raise CannotRun(f"{scheduler!r} is no name of an I/O scheduler")
    try:
        file.write_text(scheduler)
    except PermissionError as error:
        raise CannotRun("only root may choose a disk's I/O scheduler") from error
    except OSError as error:
        listed = file.read_text().strip().replace("[", "").replace("]", "")
        raise CannotRun(
            f"this kernel has no I/O scheduler {scheduler}, but {listed}"
        ) from error
    try:
        yield
    finally:
        file.write_text(before)


# A desktop drive of 2007, 7,200 turns a minute: reviews quote an average seek of 8.5 ms from
# Seagate's figures for the Barracuda 7200.7; the specification of Hitachi's Deskstar 7K500 (2005)
# has a sustained 31 to 65 MB per second, from the inner to the outer edge.
SEEK_S = 0.0085 + 60 / 7200 / 2
BYTES_PER_SECOND = 60 * 10**6

# Linux 2.6.20, block/cfq-iosched.c: cfq_slice_sync = HZ / 10, cfq_slice_idle = HZ / 125.
CFQ = Scheduler(slice_s=1 / 10, idle_s=1 / 125)

# block/as-iosched.c: default_antic_expire = HZ / 150; as_close_req: 8192 sectors are close, half of
# that behind; default_read_expire = HZ / 8, after which a read that waits is served first.
ANTICIPATORY = Scheduler(
    slice_s=1 / 8, idle_s=1 / 150, close_bytes=8192 * _SECTOR_BYTES
)

SCHEDULERS = {"cfq": CFQ, "anticipatory": ANTICIPATORY, "first come": None}

LAPSE = 4
"""So many times as fast as in 2007 everything happens: ratios of times stay as they are."""

_SEEKS_MS, _SLICES_MS, _IDLES_MS = (4, 20), (50, 200), (2, 16)


def drives(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The limits of a drive that does not read on by itself, by the scheduler in front of it."""
    return {name: _drive(SCHEDULERS[name]) for name in names}


def mapped() -> dict[str, dict[str, Any]]:
    """The limits of drives under CFQ of which one figure differs, by what differs."""
    found = {f"seek {ms} ms": _drive(CFQ, seek_s=ms / 1000) for ms in _SEEKS_MS}
    for ms in _SLICES_MS:
        slices = replace(CFQ, slice_s=ms / 1000)
        found[f"slice {ms} ms"] = _drive(slices)
    for ms in _IDLES_MS:
        found[f"waits {ms} ms"] = _drive(replace(CFQ, idle_s=ms / 1000))
    for kb in (128, 512):
        found[f"reads on {kb} kB"] = _drive(CFQ, drive_bytes=1024 * kb)
    return found


def _drive(
    scheduler: Scheduler | None,
    *,
    seek_s: float = SEEK_S,
    drive_bytes: int = 0,
) -> dict[str, Any]:
    if scheduler is not None:
        scheduler = replace(
            scheduler,
            slice_s=scheduler.slice_s / LAPSE,
            idle_s=scheduler.idle_s / LAPSE,
        )
    return {
        "seek_s": seek_s / LAPSE,
        "bytes_per_second": BYTES_PER_SECOND * LAPSE,
        "scheduler": scheduler,
        "drive_bytes": drive_bytes,
    }
