"""The server that runs the queries now, which is only read, and programs to predict plans with."""

from __future__ import annotations

import os
import re
import socket
import struct
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil
import psycopg

from pgservers.addresses import Address, explain
from pgservers.errors import ServerError, SpaceError, StudyError
from pgservers.foreign import as_postgres, connect, timeouts
from pgservers.programs.installations import find_binaries
from pgservers.programs.releases import installed, is_release, packaged, reason_not_fetched
from pgservers.servers.foreign_sessions import foreign_session, may_read, rights_lent
from pgservers.sessions import within

from .btrees import ENTRIES, entry_bytes
from .sessions import take_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from psycopg.rows import TupleRow

_LIMITS = {"default_transaction_read_only": "on", "statement_timeout": "60s", "lock_timeout": "2s"}

_LONGEST_S = 300.0
"""The limit for all queries of the catalogs, as a server may never answer (s)."""

# From 14 on.  Without it a function that catches every error would go on when we are gone.
_END_WITH_US = """
    SELECT pg_catalog.set_config(name, '10s', false)
    FROM pg_catalog.pg_settings WHERE name = 'client_connection_check_interval'
"""

_SIZES = """
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.pg_relation_size(c.oid),
           t.relname
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
    LEFT JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
    WHERE c.relkind IN ('r', 'i', 'm') AND c.relpersistence <> 't'
      AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""

_DATABASE = """
    SELECT pg_catalog.pg_encoding_to_char(encoding), datcollate, datctype, {columns}
    FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()
"""

_PROVIDERS = {"i": "icu", "b": "builtin"}

_INCLUDES = 110000
"""The first release whose indexes include columns that are no keys."""

# By OID, so that an extension comes after those that it needs.
_EXTENSIONS = """
    SELECT e.extname, n.nspname
    FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
    ORDER BY e.oid
"""

# The settings that the planner reads, except ours.
_SETTINGS = """
    SELECT name, pg_catalog.current_setting(name) FROM pg_catalog.pg_settings
    WHERE (category LIKE 'Query Tuning%%' AND name <> ALL (%s)) OR name = ANY (%s)
"""

_OURS = ["plan_cache_mode", "force_parallel_mode", "debug_parallel_query"]

_TOO = [
    *("work_mem", "hash_mem_multiplier", "TimeZone", "DateStyle", "IntervalStyle"),
    *("max_parallel_workers", "max_parallel_workers_per_gather"),
    *("min_parallel_index_scan_size", "min_parallel_table_scan_size"),
]

# What ALTER ROLE and ALTER DATABASE set, the weakest first.
_BY_ROLE = """
    SELECT r.rolname, pg_catalog.unnest(s.setconfig)
    FROM pg_catalog.pg_db_role_setting s LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole
    WHERE s.setdatabase IN (0, (
        SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()
    )) AND (s.setrole = 0 OR r.rolname IS NOT NULL)
    ORDER BY s.setrole <> 0, s.setdatabase <> 0
"""

_DEFAULT_PATH = '"$user", public'


class Session(NamedTuple):
    """search_path and planner settings of a role's sessions; ``whose`` names the role in words."""

    whose: str
    search_path: str
    settings: Mapping[str, str] = {}


@dataclass(frozen=True)
class Source:
    """A session on the server, and what a copy of its database needs.

    Attributes:
        connection: A read-only session in autocommit mode, with an empty search_path.
        name: The address without its password.
        version: The version as a number, 140024 for 14.24.
        encoding: The encoding of the database.
        locale: The database's collation and character classes, as libc names them.
        provider: The provider of its locale (libc, icu or builtin), and the locale's name there.
        search_path: The search_path of our role's sessions, reduced to schemas that exist.
        base_path: search_path as configured; used for roles that have none of their own.
        is_path_given: Whether the address has a search_path, which then is every role's.
        by_role: Role, name and value of what ALTER ROLE and ALTER DATABASE set, the weakest first.
        sizes: The size of every table, materialized view and index (bytes), by qualified name.
        index_tables: The unqualified name of each index's table, by the index's qualified name.
        entries: The size of an entry of its inner pages (bytes), by a btree's qualified name.
        extensions: Name and schema of each; what an extension needs comes before it.
        settings: Name and value of every setting that the planner reads.

    """

    connection: psycopg.Connection[TupleRow]
    name: str
    version: int
    encoding: str
    locale: tuple[str, str]
    provider: tuple[str, str]
    search_path: str
    base_path: str
    is_path_given: bool
    by_role: Sequence[tuple[str | None, str, str]]
    sizes: Mapping[str, int]
    index_tables: Mapping[str, str]
    entries: Mapping[str, int]
    extensions: Sequence[tuple[str, str]]
    settings: Mapping[str, str]

    @property
    def major(self) -> int:
        """The major release, such as 14."""
        return self.version // 10000

    def session(self, role: str | None) -> Session:
        """The session of a role; None for our own role."""
        if role is None:
            user = self.connection.info.user
            return Session(f"role {user}", self.search_path)
        found = {name: value for who, name, value in self.by_role if who in {None, role}}
        settings = {name: value for name, value in found.items() if name in self.settings}
        if self.is_path_given:
            return Session("the address", self.search_path, settings)
        path = found.get("search_path", self.base_path)
        path = re.sub(r'"\$user"|\$user\b', lambda _: quoted(role), path)
        return Session(f"role {role}", path, settings)

    def require_role(self, role: str) -> None:
        """Raise StudyError if the server has no such role."""
        query = "SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %s"
        if self.connection.execute(query, [role]).fetchone() is None:
            raise StudyError(f"There is no role {role} on {self.name}.")

    def notes(self, roles: Collection[str]) -> list[str]:
        """A sentence on our role's settings, which also apply to queries of these other roles."""
        user = self.connection.info.user
        mine = {name for who, name, _ in self.by_role if who == user and name in self.settings}
        mine -= {n for who, n, _ in self.by_role if who in roles and who != user}
        if not mine or set(roles) <= {user}:
            return []
        return [
            f"Queries of other roles are planned with what ALTER ROLE {user} sets as well: "
            f"{', '.join(sorted(mine))}."
        ]

    def environment(self) -> dict[str, str]:
        """The PG* variables by which pg_dump reaches the same database, its settings included."""
        info = self.connection.info
        parts = {name: value for name, value in info.get_parameters().items() if value}
        renamed = {"dbname": "PGDATABASE", "application_name": "PGAPPNAME"}
        kept = {*renamed, "host", "hostaddr", "port", "user", "options", *_TLS}
        names = {n: renamed.get(n, f"PG{n.upper().replace('_', '')}") for n in kept}
        found = {names[n]: value for n, value in parts.items() if n in kept}
        return found | timeouts() | ({"PGPASSWORD": info.password} if info.password else {})


_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "channel_binding", "gssencmode")


@contextmanager
def opened(dsn: str) -> Iterator[Source]:
    """The server at an address.

    Raises ServerError if it cannot be reached or read, and StudyError for what is no address, a
    role whose privileges others could use, or a role that may not read the tables.
    """
    address = Address.parse(dsn)
    if not address.is_dsn:
        raise StudyError(
            "Give the address of the server that runs the queries: "
            "--server postgresql://me@db/shop."
        )
    with _session(address) as connection:
        with _reading(connection, address.public, "catalogs"):
            connection.execute(_END_WITH_US)
            _require_fit(connection, address.public)
            source = _known(connection, address)
        yield source


@contextmanager
def _session(address: Address) -> Iterator[psycopg.Connection[TupleRow]]:
    """A read-only session; raises ServerError if it breaks, and SpaceError on a full disk there."""
    name = address.public
    try:
        with foreign_session(
            address.parts,
            name,
            _LIMITS,
            application_name="pgstudies plans",
            prepare_threshold=None,  # only the queries are prepared here
        ) as connection:
            yield connection
    except psycopg.errors.DiskFull as error:
        raise SpaceError(f"{name} has no space left: {error.diag.message_primary}.") from error
    except UnicodeError as error:
        raise ServerError(f"{name} cannot be read: it sends text that is not UTF-8.") from error
    except psycopg.Error as error:
        message = error.diag.message_primary
        if message is None:  # of the client's side
            raise explain(error, name) from error
        raise ServerError(f"{name} cannot be read: {message}.") from error


@contextmanager
def _reading(connection: psycopg.Connection[TupleRow], name: str, what: str) -> Iterator[None]:
    """Limit the time, and raise ServerError for answers that PostgreSQL would not give."""
    with as_postgres(name), within(connection, _LONGEST_S, f"Reading the {what} of {name}"):
        take_bytes(connection)
        yield


class Target(NamedTuple):
    """Where plans are predicted: programs, and for a running server its name and settings."""

    spec: str
    name: str = ""
    settings: Mapping[str, str] | None = None


def target_of(to: str) -> Target:
    """What ``--to`` names; for an address, that server's release and planner settings.

    The copy itself is always made on this machine, as its files are lengthened.  Raises as
    ``opened`` does if the server cannot be reached or read, and as ``programs_of``.
    """
    address = Address.parse(to)
    if not address.is_dsn:
        return Target(to)
    with _session(address) as connection:
        with _reading(connection, address.public, "settings"):
            settings = _planner_settings(connection)
        programs = programs_of(connection.info.server_version, connection)
        return Target(programs, address.public, settings)


def programs_of(version: int, like: psycopg.Connection[TupleRow] | None = None) -> str:
    """Programs of a version: those of the session's server, of a package, or of a fetched release.

    Raises StudyError if there are none.
    """
    name = str(version // 10000)
    places = [*(_serving(like) if like else ()), installed(name)]
    for place in places:
        with suppress(ServerError):
            if place is not None and find_binaries(place).version == version:
                return str(place)
    if packaged(name) or (is_release(name) and not reason_not_fetched(name)):
        return name
    raise StudyError(
        f"PostgreSQL {name} can neither be fetched nor is it installed in a usual place: give --to "
        f"the directory of the server's own programs."
    )


def _serving(connection: psycopg.Connection[TupleRow]) -> list[Path]:
    """The directory of the local server's programs, if no other account can change them.

    The kernel says which process it is, not the server.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return []
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        if line.family != socket.AF_UNIX:
            return []
        size = struct.calcsize("3i")
        pid, *_ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    found = []
    with suppress(psutil.Error, IndexError):
        process = psutil.Process(pid)
        # exe is hidden for another account's process; the command line is not.
        found.append(process.cmdline()[0])
        found.append(process.exe())
    return [place for path in found if (place := Path(path).parent) and _is_ours_alone(place)]


def _is_ours_alone(directory: Path) -> bool:
    """Whether nobody but root and this account can change the programs of a directory."""
    if not directory.is_absolute():
        return False
    real = directory.resolve()
    try:
        states = [path.stat() for path in (real / "postgres", real / "initdb", real, *real.parents)]
    except OSError:
        return False
    return all(s.st_uid in {0, os.geteuid()} and not s.st_mode & 0o022 for s in states)


def _planner_settings(connection: psycopg.Connection[TupleRow]) -> dict[str, str]:
    return {str(n): str(v) for n, v in connection.execute(_SETTINGS, [_OURS, _TOO])}


def _search_paths(
    address: Address, given: str, like: psycopg.Connection[TupleRow]
) -> tuple[str, str]:
    """The role's search_path: its schemas that exist, and the setting as text.

    The search_path of our other session is empty, so this is another one, with the options
    ``given``.  It calls two functions by their qualified names, and nothing else.
    """
    with (
        connect(
            address.text,
            address.parts,
            application_name="pgstudies plans",
            options=f"{given} -c statement_timeout={_LIMITS['statement_timeout']}".strip(),
            # From 18 on the server reports search_path, which must be valid in this encoding.
            client_encoding=like.info.parameter_status("client_encoding"),
        ) as session,
        within(session, _LONGEST_S, f"Asking {address.public}"),
    ):
        row = session.execute(
            "SELECT pg_catalog.current_schemas(false), pg_catalog.current_setting('search_path')"
        ).fetchone()
    schemas = [quoted(str(name)) for name in (row[0] if row else [])]
    return ", ".join(schemas), str(row[1]) if row else ""


def quoted(name: str) -> str:
    """A quoted identifier."""
    return '"{}"'.format(name.replace('"', '""'))


def _require_fit(connection: psycopg.Connection[TupleRow], name: str) -> None:
    """Raise StudyError for a role whose rights others could use, or that cannot read the tables.

    A table that pg_dump cannot lock would leave an error in the server's log.
    """
    user = connection.info.user
    if lent := rights_lent(connection):
        raise StudyError(
            f"Planning evaluates functions with the privileges of {user}, who is {lent[0]}, and "
            f"{lent[1]} may have written some on {name}: connect as a role that may only read "
            f"these tables (CREATE ROLE plans LOGIN; GRANT pg_read_all_stats TO plans; "
            f"GRANT USAGE ON SCHEMA ... TO plans; GRANT SELECT ON ALL TABLES IN SCHEMA ... TO "
            f"plans)."
        )
    tables = may_read(connection)
    hidden = [table for table, readable in tables.items() if not readable]
    if hidden:
        raise StudyError(
            f"{user} may not read {len(hidden)} of the {len(tables)} tables on {name} "
            f"({', '.join(hidden[:3])}{', ...' if len(hidden) > 3 else ''}), which pg_dump must "
            f"lock to read their definitions: GRANT USAGE ON SCHEMA ... TO {user}; GRANT SELECT ON "
            f"ALL TABLES IN SCHEMA ... TO {user}."
        )


def _known(connection: psycopg.Connection[TupleRow], address: Address) -> Source:
    version, user = connection.info.server_version, connection.info.user
    named = "datlocale" if version >= 170000 else "daticulocale"
    columns = f"datlocprovider, {named}" if version >= 150000 else "'c', ''"
    row = connection.execute(_DATABASE.format(columns=columns).encode()).fetchone()
    sizes = connection.execute(_SIZES).fetchall()
    keys = "indnkeyatts" if version >= _INCLUDES else "indnatts"
    entries = connection.execute(ENTRIES.format(keys=keys).encode()).fetchall()
    by_role = [
        (role, *str(setting).partition("=")[::2]) for role, setting in connection.execute(_BY_ROLE)
    ]
    given = address.parts.get("options") or os.environ.get("PGOPTIONS", "")
    search_path, base_path = _search_paths(address, given, connection)
    # What is set for our role or this database is in ``by_role``; other roles get the default.
    is_set = any(who in {None, user} and name == "search_path" for who, name, _ in by_role)
    encoding, collation, classes, provider, locale = map(str, row or ())
    return Source(
        connection=connection,
        name=address.public,
        version=version,
        encoding=encoding,
        locale=(collation, classes),
        provider=(_PROVIDERS.get(provider, "libc"), locale),
        search_path=search_path,
        base_path=_DEFAULT_PATH if is_set else base_path,
        is_path_given="search_path" in given,
        by_role=by_role,
        # A relation that was dropped meanwhile has no size.
        sizes={str(relation): int(size) for relation, size, _ in sizes if size is not None},
        index_tables={str(index): str(table) for index, _, table in sizes if table is not None},
        entries=entry_bytes(entries),
        extensions=[(str(e), str(s)) for e, s in connection.execute(_EXTENSIONS)],
        settings=_planner_settings(connection),
    )
