"""Running servers: work in our own database or schema there, and touch nothing else."""

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
from ..terminal import notice, printable
from .base import NO_PGBENCH, Capabilities, Right, ServerBase
from .places import (
    DatabasePlace,
    GuestRole,
    SchemaPlace,
    forget_databases,
    forget_statements,
    shared_objects,
)
from .settings import merged, sort_settings, startup_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg.rows import TupleRow

    from ..addresses import Address


_log = logging.getLogger(__name__)

OLDEST_RUNNING = 130000
"""The oldest external server: our database or schema is created by SQL of 13."""

_GIVES_PUBLIC = 150000
"""From here on the schema public belongs to whoever owns the database."""

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

    One that is ``unprivileged`` gives everybody a role of the run's own, which may do what it likes
    in our database and nothing elsewhere; the database stays the property of the address's role.

    Raises ServerError when the server does not answer, is too old, read-only, or grants neither,
    and StudyError where an ``unprivileged`` one is wanted and no such role can be made or used.
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
        self._guest: GuestRole | None = None if like is None else like._guest
        self._is_first = like is None
        self._before: dict[str, str] = {}
        self._settings = {}
        self.unmet_settings = {}
        self._keeper = self._connect({})
        try:
            with as_postgres(self.spec):
                self._look_at_server()
                if unprivileged:
                    self._require_right_to_make_guest()
                else:
                    self._settings, self.unmet_settings = self._base_settings(settings)
                if like is None:
                    self._sweep()
                atexit.register(self.close)
                if unprivileged and like is None:
                    self._before = shared_objects(self._keeper)
                    self._guest = GuestRole(self._keeper, self.spec)
                self._place = self._make_place()
                if self._guest is not None:
                    self._require_login()
                    self._settings, self.unmet_settings = self._base_settings(settings)
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
        """A second database of our own on the same server, sharing prepared states.

        Close it before this one.
        """
        guarded = self._guest is not None
        return DsnServer(self._given, settings=self._wanted, unprivileged=guarded, like=self)

    @property
    def place(self) -> str:
        """The name of our own database or schema."""
        return self._our_place().name

    def connect(self, **kwargs: Any) -> psycopg.Connection[TupleRow]:
        """A new connection to our own database, or with our schema as its search path.

        It is our role's, or that of the role for what others wrote.
        """
        place = self._our_place()
        ours = {"search_path": place.name}
        database = {}
        if isinstance(place, DatabasePlace):
            ours["search_path"] = "public"
            database = {"dbname": place.name}
        if self._guest is not None:
            database |= {"user": self._guest.name, "password": self._guest.password}
        # Last, so that an object of the user's is never found under one of our names.
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
        settable, out_of_reach = self._sorted(settings)
        if out_of_reach:
            raise CannotRun(next(iter(out_of_reach.values()))[1])
        self._forget_databases()
        self.close_connections()
        self._more = {}
        try:
            if state not in self._states or isinstance(place, SchemaPlace):
                place.make_empty()
                self._furnish()
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
            if self._guest is not None and self._is_first:
                self._tell_changes()
                self._guest.remove()
                forget_statements(self._keeper, self._guest.name)
        except psycopg.Error as error:
            name = self._place.name if self._place is not None else ""
            # No reason to lose a run that is done, or to hide the error that it is ending of.
            _log.warning("%s stays on %s until the next run there: %s", name, self.spec, error)
        finally:
            self._keeper.close()

    def close_connections(self) -> None:
        """Close every connection that was given out, and end what is prepared."""
        super().close_connections()
        if self._guest is not None:
            with suppress(psycopg.Error, ServerError):  # it is told where a database stays for it
                self._end_prepared(self._guest.name)

    def _end_prepared(self, guest: str) -> None:
        """Roll back scripts' prepared transactions, which would block copying the database."""
        query = "SELECT gid, database FROM pg_prepared_xacts WHERE owner = %s"
        for gid, database in self._keeper.execute(query, [guest]).fetchall():
            with self._connect({"role": guest}, dbname=database) as session:
                session.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))

    def _tell_changes(self) -> None:
        """Report objects that appeared or changed on the server during a workload's run."""
        after = shared_objects(self._keeper)
        names = sorted(self._before.keys() | after.keys())
        differ = [name for name in names if self._before.get(name) != after.get(name)]
        if differ:
            notice(
                f"Since the run began, this has changed on {self.spec}, by the workload or by "
                f"others: {printable(', '.join(differ))}."
            )

    def _sweep(self) -> None:
        for guest in GuestRole.left(self._keeper):
            with suppress(psycopg.Error, ServerError):
                self._end_prepared(guest)
        DatabasePlace.sweep(self._keeper)
        SchemaPlace.sweep(self._keeper)
        GuestRole.sweep(self._keeper)  # who own what is in the databases

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

    def _require_right_to_make_guest(self) -> None:
        query = """
            SELECT rolsuper OR (rolcreaterole AND rolcreatedb)
            FROM pg_roles WHERE rolname = current_user
        """
        if not self._ask(query):
            raise StudyError(
                f"Schema and scripts are run by a role and in a database made for them, and "
                f"{self._keeper.info.user} may not make both on {self.spec}: connect as a role "
                f"with CREATEROLE and CREATEDB, whose privileges they do not get."
            )

    def _require_login(self) -> None:
        """Raise StudyError where the role for what others wrote is not let in."""
        try:
            self.connect().close()
        except ServerError as error:
            raise StudyError(
                f"Schema and scripts are run by a role made for them, which {self.spec} does not "
                f"let in ({str(error).rstrip('.')}): have pg_hba.conf let new roles in by "
                f"password (scram-sha-256), or give an address where it does."
            ) from error

    def _make_place(self) -> DatabasePlace | SchemaPlace:
        if self._may_create_databases():
            return DatabasePlace(self._keeper, self.spec, self._guest)
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
        superuser = self._is_superuser() and self._guest is None
        checkpoint = superuser or (
            self.version >= 150000
            and self._guest is None
            and bool(self._ask("SELECT pg_has_role(current_user, 'pg_checkpoint', 'USAGE')"))
        )
        self._furnish()
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

    def _furnish(self) -> None:
        """Set up a new database, before anything of the workload is in it.

        A superuser installs what counts buffers; the role for what others wrote gets the schema.
        """
        place, superuser = self._place, self._is_superuser()
        if not isinstance(place, DatabasePlace) or not (superuser or self._guest is not None):
            return
        with self._connect({}, dbname=place.name) as connection:
            query = "SELECT name FROM pg_available_extensions WHERE name = ANY (%s)"
            for (name,) in connection.execute(query, [_EXTENSIONS if superuser else []]).fetchall():
                statement = sql.SQL("CREATE EXTENSION IF NOT EXISTS {} SCHEMA public")
                connection.execute(statement.format(sql.Identifier(name)))
            # Before 15 it is not ours to give, and everybody may use it.
            if self._guest is not None and (superuser or self.version >= _GIVES_PUBLIC):
                statement = sql.SQL("ALTER SCHEMA public OWNER TO {}")
                connection.execute(statement.format(sql.Identifier(self._guest.name)))

    def _base_settings(
        self, settings: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        settable, out_of_reach = self._sorted(settings)
        wanted = merged({}, settings)
        return settable, {n: (wanted[n], actual) for n, (actual, _) in out_of_reach.items()}

    def _sorted(
        self, settings: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        """As ``sort_settings``, for the role that works there."""
        if self._guest is None:
            return sort_settings(self._keeper, settings)
        with self.connect() as connection:
            return sort_settings(connection, settings)

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
    """Our role's attribute, and a role that could use it through a function; or None.

    The planner computes immutable functions in a query and in the objects that it names.
    """
    right, other = connection.execute(_RIGHTS).fetchone(), connection.execute(_OTHERS).fetchone()
    return (str(right[0]), str(other[0])) if right and other else None
