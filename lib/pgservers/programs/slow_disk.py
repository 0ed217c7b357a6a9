"""The modelled disk of a managed server: a library in front of its reads, and its limits."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CannotRun
from .extensions import build_library

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


READ_AHEAD_BYTES = 128 * 1024
"""The read-ahead of sequential reads: the default of Linux."""

_PAGE_BYTES = 8192

DRIVE_BYTES = 8 * 2**20
"""What a drive reads ahead by itself for a delayed sequential reader: all its memory, 2007."""


@dataclass(frozen=True)
class Scheduler:
    """Serves one process for ``slice_s``, and waits ``idle_s`` for its next read meanwhile.

    Also serves another process whose read is at most ``close_bytes`` after the head, or half that
    before it.
    """

    slice_s: float
    idle_s: float
    close_bytes: int = 0


@dataclass(frozen=True)
class DiskLimits:
    """A disk and a page cache; None is no limit, no seek, or first come, first served."""

    reads_per_second: float | None = None
    bytes_per_second: float | None = None
    memory_bytes: int | None = None
    seek_s: float | None = None
    """The time of a seek to a page that is not the next one, half a rotation included."""
    latency_s: float | None = None
    """The latency of a request, which does not delay the next one, as of a network disk."""
    scheduler: Scheduler | None = None
    drive_bytes: int = DRIVE_BYTES


_MOST_BYTES = 16 * 2**30
"""The largest page cache that can be modelled.  Its table takes memory as it fills."""

# As in slow_disk.h.
_HEADER_BYTES, _BYTES_PER_PAGE = 4096, 40 + 4
_WANTED, _LIMITS, _STARTED, _BYTES_READ, _SEEKS, _BUSY = 0, 8, 96, 104, 112, 120


class SlowDisk:
    """A disk and a page cache for one server, with limits while ``limits`` are entered.

    Raises CannotRun where the library cannot be built or preloaded.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise CannotRun("a modelled disk needs Linux")
        self._library = build_library("slow_disk")
        if set(str(self._library)) & set(" :"):  # which separate the names in LD_PRELOAD
            raise CannotRun(
                f"no server can preload {self._library}: set PGSTUDIES_CACHE to a directory "
                f"without a space or a colon in its name"
            )
        self._descriptor = os.memfd_create("pgstudies-slow-disk")
        os.ftruncate(self._descriptor, _HEADER_BYTES + _MOST_BYTES // _PAGE_BYTES * _BYTES_PER_PAGE)
        self._limits = 0
        self.limited = False
        """Whether limits are in force."""

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """The file descriptors that the server must inherit."""
        return (self._descriptor,)

    def environment(self, data_directory: Path, before: Mapping[str, str]) -> dict[str, str]:
        """The environment ``before``, with the variables that have a server load the library.

        Only files of relations below ``data_directory`` are on the disk.
        """
        relations = data_directory.resolve() / "base"
        others = before.get("LD_PRELOAD") or os.environ.get("LD_PRELOAD")
        return {
            **before,
            "LD_PRELOAD": f"{self._library}:{others}" if others else str(self._library),
            "PGSTUDIES_SLOW_DISK": f"{self._descriptor}:{relations}/",
        }

    @property
    def loaded(self) -> bool:
        """Whether a server has loaded the library."""
        return self._number(_STARTED) > 0

    @property
    def bytes_read(self) -> int:
        """Bytes that the disk has read so far."""
        return self._number(_BYTES_READ)

    @property
    def seeks(self) -> int:
        """Seeks of the disk so far."""
        return self._number(_SEEKS)

    @property
    def busy_s(self) -> float:
        """The time that the disk takes for all its reads and seeks so far."""
        (seconds,) = struct.unpack("=d", os.pread(self._descriptor, 8, _BUSY))
        return float(seconds)

    @contextlib.contextmanager
    def limits(self, limits: DiskLimits, *, account: bool = False) -> Iterator[None]:
        """Start with an empty page cache, on a disk with these limits.

        With ``account`` no read is delayed: the disk's time is only added up.
        """
        if self.limited:
            raise CannotRun("the server's reads and memory are limited already")
        if (limits.memory_bytes or 0) > _MOST_BYTES:
            raise CannotRun(f"a modelled page cache has at most {_MOST_BYTES >> 30} GB")
        least = 4 * READ_AHEAD_BYTES
        pages = max(limits.memory_bytes, least) // _PAGE_BYTES if limits.memory_bytes else 0
        turns = limits.scheduler or Scheduler(0, 0)
        what = struct.pack(
            "=QQddddddQQQ",
            pages,
            READ_AHEAD_BYTES // _PAGE_BYTES,
            limits.bytes_per_second or 0,
            limits.reads_per_second or 0,
            limits.seek_s or 0,
            limits.latency_s or 0,
            turns.slice_s,
            turns.idle_s,
            turns.close_bytes,
            limits.drive_bytes,
            account,
        )
        os.pwrite(self._descriptor, what, _LIMITS)
        self._limits += 1
        self._want(self._limits)
        try:
            yield
        finally:
            self._want(0)

    def close(self) -> None:
        """Release the memory; repeated calls are no error."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _want(self, number: int) -> None:
        os.pwrite(self._descriptor, struct.pack("=Q", number), _WANTED)
        self.limited = number > 0

    def _number(self, offset: int) -> int:
        (number,) = struct.unpack("=Q", os.pread(self._descriptor, 8, offset))
        return int(number)
