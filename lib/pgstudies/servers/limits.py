"""A slow disk and a small memory on a fast machine: limits on a managed server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal

from ..errors import CannotRun, StudyError
from ..host.cgroups import limits_on
from .managed import ManagedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._serve import Server


Limits = Literal["modelled", "kernel"]
"""What makes a disk slow and memory small: our model of them, or the kernel's cgroups."""


@contextlib.contextmanager
def limited(
    server: Server,
    *,
    reads_per_second: int | None = None,
    bytes_per_second: int | None = None,
    memory_bytes: int | None = None,
) -> Iterator[None]:
    """Let all processes of a managed server together have so much of the machine, and no more.

    As ``measure`` was told, the limits are ``modelled`` or the ``kernel``'s.  Sessions that are
    opened meanwhile are bound as well.

    Modelled, the files of relations are on a disk that does one read at a time, behind a page cache
    of ``memory_bytes``, which is empty at first; the ``read_bytes`` of a trial are those of this
    disk.  Reads that follow one another have the next 128 kB read ahead.

    The kernel's bind root's servers only.  Reads are the requests that reach the device, and
    ``bytes_per_second`` is what they fetch.  Memory counts what is first touched from now on, the
    kernel's cache of files and the server's processes included: empty that first.

    Raises CannotRun where the limits cannot be had, StudyError for one that is no positive number.
    """
    server.capabilities.require("limits")
    assert isinstance(server, ManagedServer)
    wanted = {
        "reads_per_second": reads_per_second,
        "bytes_per_second": bytes_per_second,
        "memory_bytes": memory_bytes,
    }
    for name, value in wanted.items():
        if value is not None and value <= 0:
            raise StudyError(f"{name} is {value}: give a number above 0, or None for no limit.")
    if server.slow_disk is not None:
        _require_seen(server)
        limits = server.slow_disk.limits(**wanted)
    else:
        pace = {"iops": reads_per_second, "bps": bytes_per_second}
        where = server.data_directory, server.postmaster_pid, server.pids
        limits = limits_on(*where, pace=pace, memory_bytes=memory_bytes)
    with limits:
        yield


def _require_seen(server: ManagedServer) -> None:
    """Raise CannotRun where the server's reads pass a modelled disk or its cache by."""
    if server.settings.get("io_method") == "io_uring":
        raise CannotRun(
            "reads with io_method = io_uring pass a modelled disk by: choose worker or sync"
        )
    if "data" in server.settings.get("debug_io_direct", ""):
        raise CannotRun(
            "direct I/O (debug_io_direct = data) passes a modelled page cache by: turn it off"
        )
