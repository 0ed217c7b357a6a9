"""The machines of ``sync_scans.ipynb``: what their disks read, schedulers, and disks of 2007."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pgstudies as pg
from pgservers.errors import CannotRun
from pgservers.host.disks import find_disk, scheduler_of
from pgservers.host.facts import nearest_existing
from pgservers.paths import run_dir
from pgservers.programs.slow_disk import READ_AHEAD_BYTES, Scheduler
from pgservers.servers.managed import ManagedServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pgservers.servers.serve import Server
    from pgstudies.measuring.trial import Trial

LIMITED = ("small memory", "small and slow")

STAT_IO = "SELECT sum({}) FROM pg_stat_io WHERE context = 'bulkread'"

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
    scheduler: Scheduler | None, *, seek_s: float = SEEK_S, drive_bytes: int = 0
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


class Machines:
    """The machines that are played, of those that the notebook describes.

    Attributes:
        window: What the kernel, or the model of it, reads ahead of a sequential reader (bytes).
        small_bytes: What small memory has beside what each session needs.
        drives: The limits of drives of 2007, by what they are called.
        mapped: Those of drives that differ from one under CFQ in one figure.

    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        table_mb: int,
        read_mb: int,
        limits: str,
        drives_of: Sequence[str],
        maps: int,
    ) -> None:
        self._names = names
        self._are_modelled = limits == "modelled"
        here = nearest_existing(run_dir())
        window = READ_AHEAD_BYTES if self._are_modelled else read_ahead_bytes(here)
        self.window = window or 0
        self.small_bytes = table_mb * 2**20 // 8 + 4 * self.window
        self._pace = read_mb * 10**6
        self.drives = drives(drives_of)
        self.mapped = mapped() if maps else {}

    def here(self, trial: Trial) -> list[str]:
        """Those that can be had here, or the one that always can."""
        reason = trial.server.capabilities.reason("limits")
        if reason is None:
            return list(self._names) or ["warm"]
        for case in LIMITED:
            if case in self._names:
                trial.leave_out("scan", case, reason)
        return [name for name in self._names if name not in LIMITED] or ["warm"]

    def is_drive(self, case: str) -> bool:
        return case in self.drives | self.mapped

    def is_modelled(self, case: str) -> bool:
        return self.is_drive(case) or (case in LIMITED and self._are_modelled)

    @contextlib.contextmanager
    def limited(self, trial: Trial, case: str, count: int) -> Iterator[None]:
        """Let the trial's server be on this machine, for ``count`` scans at once."""
        small, limits = self.small_bytes, (self.drives | self.mapped).get(case, {})
        if case in LIMITED:
            # The kernel's limit binds the memory of the server's processes, too.
            small += 0 if self._are_modelled else 3 * 2**20 * (count + 1)
            limits = {"bytes_per_second": self._pace if case == LIMITED[1] else None}
        with contextlib.ExitStack() as stack:
            if limits:
                how = {"memory_bytes": small, **limits}
                stack.enter_context(pg.limited(trial.server, **how))
            if scheduler := trial.arm.options["scheduler"]:
                stack.enter_context(scheduled(trial.server, scheduler))
            yield

    def read(self, trial: Trial, case: str) -> dict[str, float]:
        """Bytes read so far, as the kernel counts them for the disk, and as the server does."""
        server, found = trial.server, {}
        if isinstance(server, ManagedServer) and not self.is_modelled(case):
            found["disk_bytes"] = disk_read_bytes(server.data_directory)
        if server.version >= 160000:
            is_old = server.version < 180000
            what = "reads * op_bytes" if is_old else "read_bytes"
            found["stat_io_bytes"] = trial.value(STAT_IO.format(what))
        return {name: float(n) for name, n in found.items() if n is not None}
