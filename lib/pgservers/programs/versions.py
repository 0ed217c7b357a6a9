"""What differs between releases of PostgreSQL, 9.3 to 19; versions as the server counts them."""

from __future__ import annotations

import re

from ..errors import ServerError

EVICTS_BUFFERS = 170000
"""From here on pg_buffercache can empty shared buffers, one buffer at a time."""

EVICTS_RELATIONS = 180000
"""From here on it can empty them of a whole relation."""

_WAITS_FOR_CHILDREN = 90400

_SAYS_READY = 100000

_RENAMED_XLOG = 100000

_COUNTS_WAL = 130000

_MARKS_TOPLEVEL = 140000

_TELLS_COMPRESSION = 140000

_HAS_IO_WORKERS = 180000


def wal_directory(version: int) -> str:
    """Where a data directory has its WAL."""
    return "pg_wal" if version >= _RENAMED_XLOG else "pg_xlog"


def switch_wal(version: int) -> str:
    """The function that begins a new segment of WAL."""
    return "pg_switch_wal" if version >= _RENAMED_XLOG else "pg_switch_xlog"


def says_ready(version: int) -> bool:
    """Whether postmaster.pid tells, in its eighth line, that the server accepts connections."""
    return version >= _SAYS_READY


def waits_for_children(version: int) -> bool:
    """Whether an immediate shutdown ends with the last process, and not with the first."""
    return version >= _WAITS_FOR_CHILDREN


def counts_wal(version: int) -> bool:
    """Whether pg_stat_statements counts WAL."""
    return version >= _COUNTS_WAL


def marks_toplevel(version: int) -> bool:
    """Whether pg_stat_statements tells statements of a client from those inside of them."""
    return version >= _MARKS_TOPLEVEL


def tells_compression(version: int) -> bool:
    """Whether a setting lists how values may be compressed, lz4 among them where it is built in."""
    return version >= _TELLS_COMPRESSION


def has_io_workers(version: int) -> bool:
    """Whether processes of its own read and write for a server by default."""
    return version >= _HAS_IO_WORKERS


def parse_version(text: str) -> int:
    """The version in ``postgres --version`` as the server counts: 180006, and 190000 for 19devel.

    Raises ServerError when there is none.
    """
    match = re.search(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", text)
    if match is None:
        raise ServerError(f"{text!r} names no version of PostgreSQL.")
    major, second, third = (int(part or 0) for part in match.groups())
    if major < 10:
        return major * 10000 + second * 100 + third
    return major * 10000 + second
