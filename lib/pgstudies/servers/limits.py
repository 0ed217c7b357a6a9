"""A slow disk and a small memory on a fast machine: limits on a managed server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..host.cgroups import limits_on
from .owned import OwnedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._serve import Server


@contextlib.contextmanager
def limited(
    server: Server,
    *,
    reads_per_second: int | None = None,
    bytes_per_second: int | None = None,
    memory_bytes: int | None = None,
) -> Iterator[None]:
    """Let all processes of a managed server together have so much of the machine, and no more.

    Reads are the requests that reach the device, and ``bytes_per_second`` is what they fetch; what
    a cache answers is not slowed.  Memory counts what is first touched from now on, the kernel's
    cache of files included: empty that first.  Sessions that are opened meanwhile are bound as
    well.  It takes root.  Raises CannotRun where that cannot be had.
    """
    server.capabilities.require("processes")
    assert isinstance(server, OwnedServer)
    pace = {"iops": reads_per_second, "bps": bytes_per_second}
    where = server.data_directory, server.postmaster_pid, server.pids
    with limits_on(*where, pace=pace, memory_bytes=memory_bytes):
        yield
