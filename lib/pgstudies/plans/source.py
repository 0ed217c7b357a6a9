"""The server whose plans are to be foreseen: it is only read."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from ..addresses import Address, explain
from ..errors import ServerError, StudyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from psycopg.rows import TupleRow


_LIMITS = {
    "default_transaction_read_only": "on",
    "statement_timeout": "60s",
    "lock_timeout": "2s",
    "application_name": "pgstudies plans",
}


_SIZES = """
    SELECT format('%I.%I', n.nspname, c.relname), pg_relation_size(c.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'i', 'm') AND c.relpersistence <> 't'
      AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""


# What the planner looks at, but for what we set ourselves.
_SETTINGS = """
    SELECT name, current_setting(name) FROM pg_settings
    WHERE (category LIKE 'Query Tuning%%' AND name <> ALL (%s)) OR name = ANY (%s)
"""


_OURS = ["plan_cache_mode", "force_parallel_mode", "debug_parallel_query"]


_TOO = [
    "work_mem",
    "hash_mem_multiplier",
    "max_parallel_workers",
    "max_parallel_workers_per_gather",
    "min_parallel_index_scan_size",
    "min_parallel_table_scan_size",
    "search_path",
    "TimeZone",
    "DateStyle",
    "IntervalStyle",
]


@dataclass(frozen=True)
class Source:
    """What a copy needs to know of the server.

    Attributes:
        connection: Read-only, each statement a transaction of its own.
        name: The server without its password.
        version: As the server counts it, 140024 for 14.24.
        encoding: Of the database.
        locale: Its collation and character classes, as libc names them.
        sizes: The bytes of every table, materialized view and index by its qualified name.
        settings: What the planner looks at.

    """

    connection: psycopg.Connection[TupleRow]
    name: str
    version: int
    encoding: str
    locale: tuple[str, str]
    sizes: Mapping[str, int]
    settings: Mapping[str, str]

    @property
    def major(self) -> int:
        """The major release, such as 14."""
        return self.version // 10000

    def environment(self) -> dict[str, str]:
        """The PG* variables by which pg_dump reaches the same database."""
        info = self.connection.info
        parts = {name: value for name, value in info.get_parameters().items() if value}
        renamed = {"dbname": "PGDATABASE", "application_name": "PGAPPNAME"}
        kept = {*renamed, "host", "hostaddr", "port", "user", *_TLS}
        found = {renamed.get(n, f"PG{n.upper()}"): v for n, v in parts.items() if n in kept}
        return found | ({"PGPASSWORD": info.password} if info.password else {})


_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "channel_binding", "gssencmode")


@contextmanager
def opened(dsn: str) -> Iterator[Source]:
    """The server at an address.

    Raises ServerError where it cannot be reached, and StudyError for what is no address.
    """
    address = Address.parse(dsn)
    if not address.is_dsn:
        raise StudyError(
            "Name the server whose plans are to be foreseen by its address: "
            "--server postgresql://me@db/shop."
        )
    try:
        connection = psycopg.connect(address.text, autocommit=True, connect_timeout=10)
    except psycopg.Error as error:
        raise explain(error, address.public) from None
    with connection:
        try:
            for name, value in _LIMITS.items():
                connection.execute("SELECT set_config(%s, %s, false)", [name, value])
            source = _known(connection, address.public)
        except psycopg.Error as error:
            said = error.diag.message_primary or str(error).strip()
            raise ServerError(f"{address.public} cannot be read: {said}.") from error
        yield source


def _known(connection: psycopg.Connection[TupleRow], name: str) -> Source:
    row = connection.execute(
        "SELECT pg_encoding_to_char(encoding), datcollate, datctype FROM pg_database "
        "WHERE datname = current_database()"
    ).fetchone()
    encoding, *locale = row or ("UTF8", "C", "C")
    return Source(
        connection=connection,
        name=name,
        version=connection.info.server_version,
        encoding=encoding,
        locale=(locale[0], locale[1]),
        sizes=dict(connection.execute(_SIZES).fetchall()),
        settings=dict(connection.execute(_SETTINGS, [_OURS, _TOO]).fetchall()),
    )
