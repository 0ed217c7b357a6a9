"""A slow disk and a small memory on a fast machine: limits on a managed server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..errors import CannotRun, StudyError
from ..host.cgroups import limits_on
from ..programs.slow_disk import DiskLimits
from .managed import ManagedServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..programs.slow_disk import Scheduler
    from .serve import Server


@contextlib.contextmanager
def limited(
    server: Server,
    *,
    reads_per_second: int | None = None,
    bytes_per_second: int | None = None,
    memory_bytes: int | None = None,
    seek_s: float | None = None,
    latency_s: float | None = None,
    scheduler: Scheduler | None = None,
    drive_bytes: int | None = None,
) -> Iterator[None]:
    """Limit what all processes of a managed server together may use.

    ``measure``'s argument says whether the limits are ``modelled`` or the ``kernel``'s; both also
    hold for sessions that are opened meanwhile.

    Modelled limits put the files of relations on a disk that does one read at a time, behind a page
    cache of ``memory_bytes`` that is empty at first.  A trial's ``read_bytes`` are those of this
    disk, and ``disk_s`` is its time.  Sequential reads fetch the next 128 kB ahead, and the drive
    itself the next ``drive_bytes`` (8 MB by default).  Only this disk has seeks (``seek_s`` to a
    page that is not the next one, half a turn included), a ``scheduler``, and ``latency_s`` from a
    request to its answer, which delays no other request.

    The kernel's limits are for root's servers only.  Reads are the requests that reach the device,
    and ``bytes_per_second`` is what they fetch.  Memory counts what is first touched from now on,
    the kernel's cache of files and the server's processes included: empty the cache first.

    Raises CannotRun where the limits are not available, StudyError for one that is not positive.
    """
    server.capabilities.require("limits")
    assert isinstance(server, ManagedServer)
    wanted: dict[str, Any] = {
        "reads_per_second": reads_per_second,
        "bytes_per_second": bytes_per_second,
        "memory_bytes": memory_bytes,
    }
    of_drive: dict[str, Any] = {"seek_s": seek_s, "latency_s": latency_s}
    turns = {"slice_s": scheduler.slice_s, "idle_s": scheduler.idle_s} if scheduler else {}
    _require_positive(wanted | of_drive | turns)
    if drive_bytes is not None and drive_bytes < 0:
        raise StudyError(f"drive_bytes is {drive_bytes}: give 0 or more.")
    of_drive |= {"drive_bytes": drive_bytes, "scheduler": scheduler}
    if server.slow_disk is not None:
        _require_seen(server)
        given = {name: value for name, value in (wanted | of_drive).items() if value is not None}
        limits = server.slow_disk.limits(DiskLimits(**given))
    elif any(value is not None for value in of_drive.values()):
        raise CannotRun(
            "the kernel's limits have no seeks, latency or scheduler: ask for modelled ones"
        )
    else:
        pace = {"iops": reads_per_second, "bps": bytes_per_second}
        where = server.data_directory, server.postmaster_pid, server.pids
        limits = limits_on(*where, pace=pace, memory_bytes=memory_bytes)
    with limits:
        yield


@contextlib.contextmanager
def accounted(
    server: Server, *, seek_s: float, bytes_per_second: float, memory_bytes: int | None = None
) -> Iterator[None]:
    """Add up the time that a modelled disk would take for the server's reads.

    Takes a server with modelled limits.  A trial has two metrics of that disk meanwhile,
    ``read_bytes`` and ``disk_s``: its time if nobody else reads from it.  Its page cache of
    ``memory_bytes``, by default without limit, is empty at first.

    Raises CannotRun where there is no modelled disk, StudyError for a value that is not positive.
    """
    server.capabilities.require("limits")
    assert isinstance(server, ManagedServer)
    drive = DiskLimits(seek_s=seek_s, bytes_per_second=bytes_per_second, memory_bytes=memory_bytes)
    _require_positive(vars(drive))
    if server.slow_disk is None:
        raise CannotRun("only a modelled disk accounts for its time: ask for modelled limits")
    _require_seen(server)
    with server.slow_disk.limits(drive, account=True):
        yield


def _require_positive(wanted: Mapping[str, float | None]) -> None:
    for name, value in wanted.items():
        if value is not None and value <= 0:
            raise StudyError(f"{name} is {value}: give a number above 0, or None for no limit.")


def _require_seen(server: ManagedServer) -> None:
    """Raise CannotRun where the server's reads bypass a modelled disk or its cache."""
    if server.settings.get("io_method") == "io_uring":
        raise CannotRun("io_method = io_uring bypasses a modelled disk: choose worker or sync")
    if "data" in server.settings.get("debug_io_direct", ""):
        raise CannotRun(
            "direct I/O (debug_io_direct = data) bypasses a modelled page cache: turn it off"
        )
