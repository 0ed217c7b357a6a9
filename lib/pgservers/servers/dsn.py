"""Servers that run already: work in a place of our own there, nothing else touched."""

from __future__ import annotations

import atexit
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from ..addresses import explain, write_uri
from ..errors import CannotRun, ServerError, SpaceError, StudyError
from ..foreign import STATEMENT_TIMEOUT_S, ForeignSession, as_postgres, connect, timeouts
from ..programs.installations import find_pgbench
from .base import NO_PGBENCH, Capabilities, Right, ServerBase
from .places import DatabasePlace, SchemaPlace, forget_databases, forget_statements
from .settings import merged, sort_settings, startup_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg.rows import TupleRow

    from ..addresses import Address


_log = logging.getLogger(__name__)

OLDEST_RUNNING = 130000
"""The oldest server of somebody else's: our own place there is made in the SQL of 13."""

_FIRST_SETTINGS = {"search_path": "", "statement_timeout": f"{STATEMENT_TIMEOUT_S}s"}
"""Whoever owns a database chooses where its sessions look for functions, and those would run with
our rights.  With this only what belongs to the server is found by its bare name."""

_EXTENSIONS = ["pg_stat_statements", "pg_buffercache"]

_MISSING: dict[Right, str] = {
    "restart": "an external server is not restarted",
    "processes": "the processes of an external server cannot be seen",
    "files": "the files of an external server cannot be reached",
    "limits": "an external server cannot be given a slow disk or a small memory",
    "build": "no extension is built for an external server",
    "superuser": "the role is not a superuser",
    "databases": "the role may not create databases (ALTER ROLE ... CREATEDB)",
    "checkpoint": "the role may not run CHECKPOINT (GRANT pg_checkpoint, from 15 on)",
    "pgbench": NO_PGBENCH,
}
"""What an external server may lack; the first five always."""

# A database that is ours, too, is no reason: it is swept, or another run's.
_TOO_MUCH = r"""
    SELECT why
    FROM pg_roles r,
    LATERAL (VALUES
        (1, EXISTS (
            SELECT FROM pg_roles s WHERE s.rolsuper AND pg_has_role(r.oid, s.oid, 'MEMBER')
        ), 'is a superuser'),
        (2, rolcreaterole, 'may create roles'),
        (3, rolreplication, 'may replicate'),
        (4, rolbypassrls, 'is not bound by row security'),
        (5, NOT rolcreatedb, 'may not create a database'),
        (6, EXISTS (
            SELECT FROM pg_roles p
            WHERE p.rolname IN ('pg_execute_server_program', 'pg_read_server_files',
                                'pg_write_server_files')
              AND pg_has_role(r.oid, p.oid, 'MEMBER')
        ), 'may run programs or reach files'),
        (7, EXISTS (
            SELECT FROM pg_database d
            WHERE pg_has_role(r.oid, d.datdba, 'MEMBER')
              AND d.datname !~ '^pgstudies_[0-9a-f]{16}(_[0-9]+)?$'
        ), 'owns a database')
    ) AS x (place, is_so, why)
    WHERE r.rolname = session_user AND is_so
    ORDER BY place
"""


# A function could take any role that ours is a member of, and read with pg_read_all_data what
# passwords are checked by.  CREATEROLE and the like are of no use to it, because it is computed in
# a transaction that is read-only to its end.
_RIGHTS = """
    SELECT CASE WHEN r.rolsuper THEN 'a superuser'
                ELSE pg_catalog.format('a member of %s', r.rolname) END
    FROM pg_catalog.pg_roles r
    WHERE (r.rolsuper OR r.rolname IN ('pg_execute_server_program', 'pg_read_server_files',
                                       'pg_write_server_files', 'pg_read_all_data'))
      AND pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')
    ORDER BY r.rolsuper DESC, 1 LIMIT 1
"""

# Whoever owns anything here could have a function called by it, if only one of pg_temp.
_OTHERS = """
    SELECT r.rolname
    FROM pg_catalog.pg_roles r, pg_catalog.pg_database b
    WHERE b.datname = pg_catalog.current_database()
      AND r.oid >= 16384 AND r.rolname <> session_user AND NOT EXISTS (
        SELECT 1 FROM pg_catalog.pg_roles s
        WHERE s.rolsuper AND pg_catalog.pg_has_role(r.oid, s.oid, 'MEMBER')
      )
      AND (pg_catalog.has_database_privilege(r.oid, b.oid, 'CREATE')
        OR EXISTS (
            SELECT 1 FROM pg_catalog.pg_namespace n
            WHERE pg_catalog.has_schema_privilege(r.oid, n.oid, 'CREATE')
        ) OR EXISTS (
            SELECT 1 FROM pg_catalog.pg_shdepend d
            WHERE d.dbid = b.oid AND d.deptype = 'o' AND d.refobjid = r.oid
              AND d.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass
        ))
    ORDER BY 1 LIMIT 1
"""

# What a dump locks, and whether our role may read it.
_TABLES = """
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname),
           pg_catalog.has_schema_privilege(n.oid, 'USAGE')
           AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
      AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND NOT EXISTS (
        SELECT 1 FROM pg_catalog.pg_depend d
        WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
          AND d.objid = c.oid AND d.deptype = 'e'
    )
    ORDER BY 1
"""


class DsnServer(ServerBase):
    """A server reached by a DSN, with libpq's own variables and ~/.pgpass behind it.

    Work is done in a database of our own where the role may create one, else in our own schema.
    No setting of the server is changed: ``settings`` are set for our sessions where the role may,
    and are listed in ``unmet_settings`` where it may not.

    Raises ServerError when the server does not answer, is too old, read-only, or grants neither,
    and StudyError where an ``unprivileged`` one is wanted and the role could do harm elsewhere.
    """

    def __init__(
        self,
        address: Address,
        *,
        settings: Mapping[str, str] = {},
        unprivileged: bool = False,
        like: DsnServer | None = None,
    ) -> None:
        super().__init__()
        self._given = address
        self._wanted = settings
        self._parts = dict(address.parts)
        self.spec = address.public
        self._creator = os.getpid()
        self._closed = False
        self._more: dict[str, str] = {}
        self._states: dict[str, str] = {} if like is None else like._states
        self._place: DatabasePlace | SchemaPlace | None = None
        self._keeper = self._connect({})
        try:
            with as_postgres(self.spec):
                self._look_at_server()
                if unprivileged:
                    self._require_unprivileged()
                self._settings, self.unmet_settings = self._base_settings(settings)
                if like is None:
                    DatabasePlace.sweep(self._keeper)
                    SchemaPlace.sweep(self._keeper)
                atexit.register(self.close)
                self._place = self._make_place()
                self.capabilities = self._find_capabilities()
        except psycopg.Error as error:
            lost = self._keeper.closed
            full = self.space_error(error)
            self.close()
            if full:
                raise full from error
            if lost:
                raise explain(error, self.spec) from error
            raise ServerError(f"{self.spec} does not allow a run there: {error}") from error
        except BaseException:
            self.close()
            raise

    def another(self, *, own_programs: bool = False) -> DsnServer:  # noqa: ARG002  (they are not ours)
        """A second place of our own on the same server, with the states of both in common.

        Close it before this one.
        """
        return DsnServer(self._given, settings=self._wanted, like=self)

    @property
    def place(self) -> str:
        """The name of our own database or schema."""
        return self._our_place().name

    def connect(self, **kwargs: Any) -> psycopg.Connection[TupleRow]:
        """A new connection to our own database, or with our schema as its search path."""
        place = self._our_place()
        ours = {"search_path": place.name}
        database = {}
        if isinstance(place, DatabasePlace):
            ours["search_path"] = "public"
            database = {"dbname": place.name}
        # Last, so that an object of the user's is never found under a name of ours.
        connection = self._connect(merged(self.settings, ours), **(database | kwargs))
        self._connections.add(connection)
        return connection

    def restore(
        self, state: str, build: Callable[[], None], settings: Mapping[str, str] = {}
    ) -> None:
        """Put the server into the state of that name; see ``ServerBase.restore``.

        In a schema no copy can be kept, and ``build()`` is called every time.
        """
        place = self._our_place()
        settable, out_of_reach = sort_settings(self._keeper, settings)
        if out_of_reach:
            raise CannotRun(next(iter(out_of_reach.values()))[1])
        self._forget_databases()
        self.close_connections()
        self._more = {}
        try:
            if state not in self._states or isinstance(place, SchemaPlace):
                place.make_empty()
                self._make_extensions()
                build()
                self.close_connections()
                if isinstance(place, DatabasePlace):
                    self._states[state] = place.keep()
            if isinstance(place, DatabasePlace):
                place.copy(self._states[state])
        except psycopg.OperationalError as error:
            full = self.space_error(error)
            if full:
                raise full from error
            if self._keeper.closed or self._keeper.broken:
                raise explain(error, self.spec) from error
            raise
        self._more = settable

    def environment(self) -> dict[str, str]:
        """The PG* variables by which a client program such as pgbench reaches our database."""
        names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
        with self.connect() as connection:
            parts = connection.info.get_parameters()
            password = connection.info.password
        variables = {names[part]: parts[part] for part in names if part in parts}
        variables |= {"PGOPTIONS": parts["options"]} | timeouts()
        variables |= {
            f"PG{part.upper()}": parts[part]
            for part in ("sslmode", "sslrootcert", "sslcert", "sslkey")
            if part in parts
        }
        return variables | ({"PGPASSWORD": password} if password else {})

    def no_space(self, message: str = "") -> SpaceError:
        """The error of the server's full disk; ``message`` is the server's."""
        because = f" ({message})" if message else ""
        return SpaceError(
            f"No space left on the disk of {self.spec}{because}: free some there, or measure less, "
            f"with smaller parameters."
        )

    def close(self) -> None:
        """Drop our database or schema and disconnect; more than once is no error."""
        if self._closed or os.getpid() != self._creator:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._forget_databases()
        self.close_connections()
        try:
            if self._place is not None:
                self._place.remove()
                forget_statements(self._keeper, self._place.stem)
        except psycopg.Error as error:
            name = self._place.name if self._place is not None else ""
            # No reason to lose a run that is done, or to hide the error that it is ending of.
            _log.warning("%s stays on %s until the next run there: %s", name, self.spec, error)
        finally:
            self._keeper.close()

    def _forget_databases(self) -> None:
        """Let pg_stat_statements keep nothing of our databases, which are about to be dropped."""
        place = self._place
        with suppress(psycopg.Error, ServerError):
            if not isinstance(place, DatabasePlace) or forget_databases(self._keeper, place.names):
                return
            if self._is_superuser():  # who has made the extension there
                untracked = {"pg_stat_statements.track": "none"}
                with self._connect(untracked, dbname=place.name) as connection:
                    forget_databases(connection, place.names)

    def _connect(self, settings: Mapping[str, str], **kwargs: Any) -> psycopg.Connection[TupleRow]:
        return foreign_session(self._parts, self.spec, settings, **kwargs)

    def _look_at_server(self) -> None:
        """Note what the server is; raises ServerError for one that cannot be used."""
        info = self._keeper.info
        self.spec = write_uri(
            self._parts
            | {"host": info.host, "port": str(info.port), "user": info.user, "dbname": info.dbname}
        )
        self.version = info.server_version
        self.version_text = f"PostgreSQL {info.parameter_status('server_version')}"
        if self.version < OLDEST_RUNNING:
            raise ServerError(
                f"{self.spec} is {self.version_text}, which is too old: a running server must be "
                f"PostgreSQL {OLDEST_RUNNING // 10000} or newer."
            )
        if self._ask("SELECT current_setting('transaction_read_only') = 'on'"):
            raise ServerError(f"{self.spec} is read-only: give a server that can be written to.")
        # An idle connection holds the lock of the run.  Its statements are no user's.
        self._keeper.execute(
            """
            SELECT set_config(name, '0', false) FROM pg_settings
            WHERE name IN ('idle_session_timeout', 'statement_timeout', 'lock_timeout')
            UNION ALL
            SELECT set_config(name, 'none', false) FROM pg_settings, pg_roles
            WHERE name = 'pg_stat_statements.track' AND rolname = current_user AND rolsuper
            """
        )

    def _require_unprivileged(self) -> None:
        """Raise StudyError where what others wrote could do harm with the rights of our role."""
        too_much = self._keeper.execute(_TOO_MUCH).fetchall()
        if too_much:
            raise StudyError(
                f"Schema and scripts would run with the privileges of {self._keeper.info.user} on "
                f"{self.spec}, which {too_much[0][0]}: connect as a role created for it, with "
                f"CREATEDB, no other privileges, and no database of its own."
            )

    def _make_place(self) -> DatabasePlace | SchemaPlace:
        if self._may_create_databases():
            return DatabasePlace(self._keeper, self.spec)
        if self._ask("SELECT has_database_privilege(current_database(), 'CREATE')"):
            return SchemaPlace(self._keeper, self.spec)
        raise ServerError(
            f"The role {self._keeper.info.user} may create neither databases nor a schema on "
            f"{self.spec}: grant it CREATEDB, or CREATE on that database."
        )

    def _may_create_databases(self) -> bool:
        query = "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
        return bool(self._ask(query))

    def _is_superuser(self) -> bool:
        return bool(self._ask("SELECT rolsuper FROM pg_roles WHERE rolname = current_user"))

    def _find_capabilities(self) -> Capabilities:
        superuser = self._is_superuser()
        checkpoint = superuser or (
            self.version >= 150000
            and bool(self._ask("SELECT pg_has_role(current_user, 'pg_checkpoint', 'USAGE')"))
        )
        self._make_extensions()
        with self.connect() as connection:
            # Those that are there, and in a database of our own those that we may install.
            found = connection.execute(
                """
                SELECT DISTINCT name FROM pg_available_extension_versions
                WHERE installed OR %s AND (%s OR trusted)
                """,
                [isinstance(self._place, DatabasePlace), superuser],
            ).fetchall()
        pgbench = find_pgbench()
        given = {
            "superuser": superuser,
            "databases": isinstance(self._place, DatabasePlace),
            "checkpoint": checkpoint,
            "pgbench": pgbench,
        }
        missing = {right: why for right, why in _MISSING.items() if not given.get(right)}
        return Capabilities(missing, frozenset(name for (name,) in found), pgbench)

    def _make_extensions(self) -> None:
        """Install what counts buffers, where we may: in a database of our own, as superuser."""
        if not isinstance(self._place, DatabasePlace) or not self._is_superuser():
            return
        query = "SELECT name FROM pg_available_extensions WHERE name = ANY (%s)"
        with self.connect() as connection:
            for (name,) in connection.execute(query, [_EXTENSIONS]).fetchall():
                statement = sql.SQL("CREATE EXTENSION IF NOT EXISTS {}")
                connection.execute(statement.format(sql.Identifier(name)))

    def _base_settings(
        self, settings: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        settable, out_of_reach = sort_settings(self._keeper, settings)
        wanted = merged({}, settings)
        return settable, {n: (wanted[n], actual) for n, (actual, _) in out_of_reach.items()}

    def _our_place(self) -> DatabasePlace | SchemaPlace:
        if self._place is None or self._closed:
            raise ServerError("The connection to the server has been closed.")
        return self._place

    def _ask(self, query: str, *parameters: str) -> Any:
        row = self._keeper.execute(query.encode(), parameters).fetchone()
        return row[0] if row else None


def foreign_session(
    parts: Mapping[str, str], spec: str, settings: Mapping[str, str] = {}, **kwargs: Any
) -> ForeignSession:
    """A session at an address, in autocommit mode, whose search_path is empty from its start.

    ``parts`` are libpq's, ``spec`` is the address for messages, ``settings`` may name another
    search_path or statement_timeout.  Raises ServerError where there is no connection or no answer
    in time, or a connection through a pooler that drops its settings.
    """
    wanted = _FIRST_SETTINGS | dict(settings)
    # Last, so that neither the address nor PGOPTIONS has another.
    given = parts.get("options") or os.environ.get("PGOPTIONS", "")
    options = f"{given} {startup_options(wanted)}".strip()
    session = None
    try:
        session = connect(make_conninfo(**parts), parts, **({"options": options} | kwargs))
        row = session.execute("SELECT pg_catalog.current_setting('search_path')").fetchone()
    except psycopg.Error as error:
        if session is not None:
            session.close()
        raise explain(error, spec) from error
    if row != (wanted["search_path"],):
        session.close()
        raise ServerError(
            f"{spec} ignores the settings of a connection, as some connection poolers do: give the "
            f"address of the server itself."
        )
    session.trust()
    return session


def may_read(connection: psycopg.Connection[TupleRow]) -> dict[str, bool]:
    """Whether our role may read each table of its database, by its qualified name."""
    rows = connection.execute(_TABLES).fetchall()
    # One that was dropped meanwhile has no rights.
    return {str(name): bool(readable) for name, readable in rows if readable is not None}


def rights_lent(connection: psycopg.Connection[TupleRow]) -> tuple[str, str] | None:
    """What our role is, and another that could use its rights by a function; or None.

    The planner computes immutable functions in a query and in the objects that it names.
    """
    right, other = connection.execute(_RIGHTS).fetchone(), connection.execute(_OTHERS).fetchone()
    return (str(right[0]), str(other[0])) if right and other else None
