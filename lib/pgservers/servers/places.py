"""Our own place on somebody's server: a database or a schema, marked, locked and swept."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, LiteralString

import psycopg
from psycopg import sql

from ..errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.rows import TupleRow


_FORMAT = 1
_LOCK_CLASS = 0x70677374  # "pgst"
_NAME = re.compile(r"pgstudies_([0-9a-f]{8})([0-9a-f]{8})(_[0-9]+)?")
_MARK = {"pgstudies": int, "host": str, "pid": int, "started": str}

_DROPS = 3
"""How often the drop of a database is tried; a server waits 5 s each time for sessions to end."""

_IN_USE = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectInUse)

_log = logging.getLogger(__name__)


class Place(ABC):
    """A database, schema or role called ``pgstudies_<16 hex digits>``, made by this run.

    The first half of the digits is random and the second its checksum, so nobody else uses such a
    name.  What is ours also belongs to our role and has our mark as its comment.

    ``keeper`` is a connection to the database of the DSN; while it lives, it holds an advisory lock
    by which other runs know that the place is in use.
    """

    kind: ClassVar[LiteralString]
    # Name and comment of everything that may be ours: it belongs to our role.
    _list_ours: ClassVar[LiteralString]
    _exists: ClassVar[LiteralString]
    # Whether a run may have died before it could mark what it had made.
    _made_unmarked: ClassVar[bool]

    def __init__(self, keeper: psycopg.Connection[TupleRow], spec: str) -> None:
        self._keeper = keeper
        self._spec = spec
        self._made: set[str] = set()
        self._token = secrets.token_hex(4)
        self.stem = self.name = f"pgstudies_{self._token}{_checksum(self._token)}"
        if not _try_lock(keeper, self._token):  # pragma: no cover  (the name is new and random)
            raise ServerError(f"{self.name} on {spec} is in use by another run.")
        try:
            self.make_empty()
        except BaseException:
            with suppress(psycopg.Error, ServerError):
                self.remove()
            raise

    @abstractmethod
    def make_empty(self) -> None:
        """Make the place anew, with nothing in it."""

    @abstractmethod
    def remove(self) -> None:
        """Remove everything of this run."""

    @classmethod
    def sweep(cls, keeper: psycopg.Connection[TupleRow]) -> None:
        """Remove what dead runs of this user left: what is ours and is not locked."""
        for name in cls.left(keeper):
            token = _token(name)
            if not _try_lock(keeper, token):
                continue
            try:
                cls._drop(keeper, name)
            except psycopg.Error as error:
                _log.warning("%s %s, left by a dead run, stays: %s", cls.kind, name, error)
            finally:
                keeper.execute("SELECT pg_advisory_unlock(%s, %s)", [_LOCK_CLASS, _key(token)])

    @classmethod
    def left(cls, keeper: psycopg.Connection[TupleRow]) -> list[str]:
        """The names of what dead runs of this user left."""
        found = keeper.execute(cls._list_ours).fetchall()
        ours = [name for name, comment in found if cls._is_ours(name, comment)]
        return [name for name in ours if not _is_locked(keeper, _token(name))]

    @classmethod
    def _is_ours(cls, name: str, comment: str | None) -> bool:
        """Whether an object of this name that our role owns was created by us."""
        match = _NAME.fullmatch(name)
        if match is None or match[2] != _checksum(match[1]):
            return False
        return _is_mark(comment) or (cls._made_unmarked and comment is None)

    @classmethod
    @abstractmethod
    def _drop(cls, keeper: psycopg.Connection[TupleRow], name: str) -> None:
        """Drop the object, which has been found to be ours."""

    def _mark(self, name: str) -> None:
        mark = {
            "pgstudies": _FORMAT,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._keeper.execute(
            sql.SQL("COMMENT ON {} {} IS {}").format(
                sql.SQL(self.kind.upper()), sql.Identifier(name), sql.Literal(json.dumps(mark))
            )
        )

    def _drop_if_ours(self, name: str) -> None:
        """Drop ``name`` if it exists; raises ServerError when it is not ours.

        What this run has made needs no mark, which loading a schema may have changed.
        """
        if self._keeper.execute(self._exists, [name]).fetchone() is None:
            return
        of_our_role: dict[str, str | None] = dict(self._keeper.execute(self._list_ours).fetchall())
        is_ours = name in self._made or self._is_ours(name, of_our_role.get(name))
        if name not in of_our_role or not is_ours:
            raise ServerError(
                f"There is a {self.kind} {name} on {self._spec} that pgstudies did not make: "
                f"rename it, then run again."
            )
        self._drop(self._keeper, name)


class DatabasePlace(Place):
    """A database of our own, whose states are kept as template databases.

    The first has the name of the place, and later ones a number: a state that is put aside keeps
    its name, and so does a database that cannot be dropped yet.
    """

    kind = "database"
    _list_ours = """
        SELECT datname, shobj_description(oid, 'pg_database')
        FROM pg_database
        WHERE datname LIKE 'pgstudies%' AND pg_get_userbyid(datdba) = current_user
    """
    _exists = "SELECT FROM pg_database WHERE datname = %s"
    # CREATE DATABASE runs in no transaction, so its comment is another one's.
    _made_unmarked = True

    def __init__(
        self, keeper: psycopg.Connection[TupleRow], spec: str, guest: GuestRole | None = None
    ) -> None:
        self._used: list[str] = []
        self._guest = guest
        # CREATE DATABASE shares blocks where the server (from 18 on) and the file system can.
        keeper.execute(
            """
            SELECT set_config(name, 'clone', false) FROM pg_settings
            WHERE name = 'file_copy_method' AND 'clone' = ANY (enumvals)
            """
        )
        super().__init__(keeper, spec)

    def make_empty(self) -> None:
        """Make the database anew, in UTF-8 and with the C locale, as on a managed server."""
        provider = " LOCALE_PROVIDER libc" if self._keeper.info.server_version >= 150000 else ""
        self._create(f"TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'{provider}")

    def keep(self) -> str:
        """Put the database aside, to be copied from, closed to everybody; returns its name."""
        kept = self.name
        # Autovacuum would change it.
        self._keeper.execute(
            sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(kept))
        )
        self._take_next_name()
        return kept

    @property
    def names(self) -> list[str]:
        """The names of all databases that this run may have."""
        return [*self._used, self.name]

    def copy(self, kept: str) -> None:
        """Make the database anew, as a copy of one that was put aside."""
        # The other strategy writes every block to the WAL.
        strategy = " STRATEGY file_copy" if self._keeper.info.server_version >= 150000 else ""
        self._create("TEMPLATE {kept}" + strategy, kept)

    def remove(self) -> None:
        """Drop the database, and those put aside; leaves one that is in use to the next run."""
        for name in self.names:
            try:
                self._drop_if_ours(name)
            except _IN_USE as error:
                _log.warning("database %s stays until the next run there: %s", name, error)

    @classmethod
    def _drop(cls, keeper: psycopg.Connection[TupleRow], name: str) -> None:
        statement, database = sql.SQL("DROP DATABASE IF EXISTS {}{}"), sql.Identifier(name)
        for left in reversed(range(_DROPS)):
            # Autovacuum gives way to a plain drop, and only a superuser may force it out.
            with suppress(psycopg.errors.ObjectInUse):
                keeper.execute(statement.format(database, sql.SQL("")))
                return
            try:  # a dead run's session
                keeper.execute(statement.format(database, sql.SQL(" WITH (FORCE)")))
                return
            except _IN_USE:
                if not left:
                    raise

    def _create(self, options: LiteralString, kept: str = "") -> None:
        try:
            self._drop_if_ours(self.name)
        except _IN_USE as error:
            _log.warning("database %s stays for now: %s", self.name, error)
            self._take_next_name()
        guest = self._guest.name if self._guest is not None else ""
        named = {"name": self.name, "kept": kept or "template0", "guest": guest}
        names = {key: sql.Identifier(name) for key, name in named.items()}
        statements: tuple[LiteralString, ...] = (
            "CREATE DATABASE {name} ALLOW_CONNECTIONS false " + options,
            # Everybody may connect to a new database, and before 15 make functions in its schema
            # public, which our sessions would find.
            "REVOKE CONNECT, TEMPORARY ON DATABASE {name} FROM PUBLIC",
            *(("GRANT ALL ON DATABASE {name} TO {guest}",) if guest else ()),
            "ALTER DATABASE {name} ALLOW_CONNECTIONS true",
        )
        for number, statement in enumerate(statements):
            self._keeper.execute(sql.SQL(statement).format(**names))
            if number == 0:
                self._made.add(self.name)
                self._mark(self.name)

    def _take_next_name(self) -> None:
        self._used.append(self.name)
        self.name = f"{self.stem}_{len(self._used)}"


def forget_databases(connection: psycopg.Connection[TupleRow], databases: Sequence[str]) -> bool:
    """Remove our ``databases`` from pg_stat_statements; false where we may not.

    The view and the right to reset it are those of the connection's database.
    """
    found = _find_reset(connection)
    if found is None:
        return False
    query = "SELECT {reset} FROM pg_catalog.pg_database WHERE datname = ANY (%s)"
    reset = found[1].format(sql.SQL("0"), sql.SQL("oid"), sql.SQL("0"))
    connection.execute(sql.SQL(query).format(reset=reset), [list(databases)])
    return True


def forget_statements(connection: psycopg.Connection[TupleRow], name: str) -> None:
    """Remove our role's statements that contain ``name`` from pg_stat_statements, if we may."""
    found = _find_reset(connection)
    if found is None:
        return
    query = """
        SELECT {reset} FROM {view}
        WHERE userid = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)
          AND pg_catalog.strpos(query, %s) > 0
    """
    reset = found[1].format(sql.SQL("userid"), sql.SQL("dbid"), sql.SQL("queryid"))
    view = sql.Identifier(found[0], "pg_stat_statements")
    connection.execute(sql.SQL(query).format(reset=reset, view=view), [name])


def _find_reset(connection: psycopg.Connection[TupleRow]) -> tuple[str, sql.SQL] | None:
    """The schema of pg_stat_statements, and the call that resets part of it, if we may call it."""
    found = connection.execute(
        """
        SELECT n.nspname, p.pronargs
        FROM pg_catalog.pg_extension e
             JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
             JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_extension'::regclass
                  AND d.refobjid = e.oid AND d.deptype = 'e'
             JOIN pg_catalog.pg_proc p ON d.classid = 'pg_catalog.pg_proc'::regclass
                  AND d.objid = p.oid
        WHERE e.extname = 'pg_stat_statements' AND p.proname = 'pg_stat_statements_reset'
          AND p.pronargs IN (3, 4)  -- with none, before version 1.7, it resets everything
          AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
          AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
          -- there only when the library is loaded
          AND EXISTS (SELECT FROM pg_catalog.pg_settings WHERE name = 'pg_stat_statements.track')
        """
    ).fetchone()
    if found is None:
        return None
    schema, arguments = found
    # All arguments in their types: a better match could be anybody's function.
    call = "{}({{}}::oid, {{}}::oid, {{}}::bigint" + (", false)" if arguments == 4 else ")")
    function = sql.Identifier(schema, "pg_stat_statements_reset").as_string(connection)
    return schema, sql.SQL(call.format(function))


class GuestRole(Place):
    """A role for what others wrote, without rights outside the databases of this run.

    It owns none of them.  Our role becomes its member, to be able to end its sessions.
    """

    kind = "role"
    _list_ours = """
        SELECT rolname, shobj_description(oid, 'pg_authid') FROM pg_roles
        WHERE rolname LIKE 'pgstudies%' AND pg_has_role(oid, 'MEMBER')
    """
    _exists = "SELECT FROM pg_roles WHERE rolname = %s"
    _made_unmarked = False

    def make_empty(self) -> None:
        """Make the role, with a password that nobody else knows and no log has."""
        self.password = secrets.token_urlsafe(32)
        sent = self._keeper.pgconn.encrypt_password(self.password.encode(), self.name.encode())
        role = sql.Identifier(self.name)
        with self._keeper.transaction():
            make = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            self._keeper.execute(make.format(role, sql.Literal(sent.decode())))
            self._keeper.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(role))
            self._mark(self.name)

    def remove(self) -> None:
        """Drop the role, which must own nothing any more."""
        self._drop(self._keeper, self.name)

    @classmethod
    def _drop(cls, keeper: psycopg.Connection[TupleRow], name: str) -> None:
        keeper.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


_SHARED = """
    SELECT format('database %s', datname), concat_ws(' ', datdba, datacl, datistemplate,
           datallowconn, datconnlimit, dattablespace, shobj_description(oid, 'pg_database'))
    FROM pg_database
    UNION ALL
    SELECT format('role %s', rolname), concat_ws(' ', r::text, shobj_description(oid, 'pg_authid'))
    FROM pg_roles r
    UNION ALL
    SELECT format('membership of %s in %s', member::regrole, roleid::regrole),
           string_agg(m::text, ' ' ORDER BY m::text)
    FROM pg_auth_members m GROUP BY member, roleid
    UNION ALL
    SELECT format('settings of %s in %s', nullif(setrole, 0)::regrole, d.datname), setconfig::text
    FROM pg_db_role_setting LEFT JOIN pg_database d ON d.oid = setdatabase
    UNION ALL
    SELECT format('tablespace %s', spcname), t::text FROM pg_tablespace t
    UNION ALL
    SELECT format('replication slot %s', slot_name), '' FROM pg_replication_slots
"""

_OURS = re.compile(r"pgstudies_[0-9a-f]{16}")


def shared_objects(keeper: psycopg.Connection[TupleRow]) -> dict[str, str]:
    """The state of what belongs to no database, by kind and name, without what our runs make."""
    rows = keeper.execute(_SHARED).fetchall()
    return {what: state for what, state in rows if not _OURS.search(what)}


class SchemaPlace(Place):
    """A schema of our own in the database of the DSN; no copy of it can be kept."""

    kind = "schema"
    _list_ours = """
        SELECT nspname, obj_description(oid, 'pg_namespace')
        FROM pg_namespace
        WHERE nspname LIKE 'pgstudies%' AND pg_get_userbyid(nspowner) = current_user
    """
    _exists = "SELECT FROM pg_namespace WHERE nspname = %s"
    _made_unmarked = False

    def make_empty(self) -> None:
        """Make the schema anew."""
        self._drop_if_ours(self.name)
        with self._keeper.transaction():
            self._keeper.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.name)))
            self._mark(self.name)

    def remove(self) -> None:
        """Drop the schema with everything in it."""
        self._drop_if_ours(self.name)

    @classmethod
    def _drop(cls, keeper: psycopg.Connection[TupleRow], name: str) -> None:
        with keeper.transaction():
            # Do not wait for a dead run's last statement, which may still be running.
            keeper.execute("SET LOCAL lock_timeout = '10s'")
            keeper.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


def _token(name: str) -> str:
    return name.removeprefix("pgstudies_")[:8]


def _checksum(token: str) -> str:
    return hashlib.sha256(f"pgstudies {token}".encode()).hexdigest()[:8]


def _is_mark(comment: str | None) -> bool:
    """Whether the comment is one that ``_mark`` writes."""
    try:
        mark = json.loads(comment or "")
        return (
            {name: type(value) for name, value in mark.items()} == _MARK
            and mark["pgstudies"] == _FORMAT
            and datetime.fromisoformat(mark["started"]).tzinfo is not None
        )
    except (ValueError, AttributeError, RecursionError):
        return False


def _key(token: str) -> int:
    number = int(token, 16)
    return number - 2**32 if number >= 2**31 else number


def _try_lock(keeper: psycopg.Connection[TupleRow], token: str) -> bool:
    query = "SELECT pg_try_advisory_lock(%s::int, %s::int)"
    row = keeper.execute(query, [_LOCK_CLASS, _key(token)]).fetchone()
    return row is not None and bool(row[0])


def _is_locked(keeper: psycopg.Connection[TupleRow], token: str) -> bool:
    # Another run may have taken its lock in another database of the server.
    query = """
        SELECT FROM pg_locks
        WHERE locktype = 'advisory' AND classid = %s::oid AND objid = %s::oid AND objsubid = 2
    """
    return keeper.execute(query, [_LOCK_CLASS, int(token, 16)]).fetchone() is not None
