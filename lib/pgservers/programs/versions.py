"""What differs between releases of PostgreSQL, 8.3 to 19; versions as the server counts them."""

from __future__ import annotations

import re
from typing import Literal

from ..errors import ServerError

EVICTS_BUFFERS = 170000
"""The first version whose pg_buffercache can evict one buffer."""

EVICTS_RELATIONS = 180000
"""The first version whose pg_buffercache can evict a whole relation."""

Feature = Literal[
    "boot_val",  # of pg_settings
    "application_name",  # libpq connects a second time where it is refused
    "pg_relation_filepath",
    "extensions",
    "--auth-local",  # of initdb
    "settings of any prefix",  # without custom_variable_classes
    "timezone of initdb",  # else each start tries all there are, before it takes signals
    "--data-checksums",  # and --nosync, of initdb
    "waits for children",  # an immediate shutdown ends with the last process, not with the first
    "pg_wal",  # where it was pg_xlog, in names of functions as well
    "says ready",  # in the eighth line of postmaster.pid
    "counts WAL",  # by statement
    "marks toplevel",  # statements of a client, and not those inside of them
    "default_toast_compression",  # lists lz4 where that is built in
    "I/O workers",  # processes that read and write for a server by default
]
"""The features that some releases lack, for servers and for counting."""

_SINCE: dict[Feature, int] = {
    "boot_val": 80400,
    "application_name": 90000,
    "pg_relation_filepath": 90000,
    "extensions": 90100,
    "--auth-local": 90200,
    "settings of any prefix": 90200,
    "timezone of initdb": 90200,
    "--data-checksums": 90300,
    "waits for children": 90400,
    "pg_wal": 100000,
    "says ready": 100000,
    "counts WAL": 130000,
    "marks toplevel": 140000,
    "default_toast_compression": 140000,
    "I/O workers": 180000,
}


def has(version: int, feature: Feature) -> bool:
    """Whether a release of that version has it."""
    return version >= _SINCE[feature]


def wal_directory(version: int) -> str:
    """Where a data directory has its WAL."""
    return "pg_wal" if has(version, "pg_wal") else "pg_xlog"


def switch_wal(version: int) -> str:
    """The function that begins a new segment of WAL."""
    return "pg_switch_wal" if has(version, "pg_wal") else "pg_switch_xlog"


def parse_version(text: str) -> int:
    """The version in ``postgres --version`` as the server counts: 180006, and 190000 for 19devel.

    Before 10 a development version counts as older than its release, 9.4devel as 90399: the first
    commits that say so have the features of 9.3.  Raises ServerError when there is none.
    """
    match = re.search(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?(devel)?", text)
    if match is None:
        raise ServerError(f"{text!r} names no version of PostgreSQL.")
    major, second, third = (int(part or 0) for part in match.groups()[:3])
    if major < 10:
        return major * 10000 + second * 100 + third - bool(match[4])
    return major * 10000 + second
