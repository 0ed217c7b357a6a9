"""Running servers: work in our own database or schema there, and touch nothing else."""

from __future__ import annotations

import atexit
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from ..addresses import explain, write_uri
from ..errors import CannotRun, ServerError, SpaceError, StudyError
from ..foreign import as_postgres, timeouts
from ..programs.installations import find_pgbench
from ..terminal import notice, printable
from .base import NO_PGBENCH, Capabilities, Right, ServerBase
from .foreign_sessions import foreign_session
from .places import (
    DatabasePlace,
    GuestRole,
    SchemaPlace,
    forget_databases,
    forget_statements,
    shared_objects,
)
from .settings import merged, sort_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg.rows import TupleRow

    from ..addresses import Address


_log = logging.getLogger(__name__)

OLDEST_RUNNING = 130000
"""The oldest external server: our database or schema is created by SQL of 13."""

_GIVES_PUBLIC = 150000
"""From here on the schema public belongs to whoever owns the database."""

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


class DsnServer(ServerBase):
    """A server reached by a DSN, with libpq's own variables and ~/.pgpass behind it.

    Works in a database of our own where the role may create one, else in our own schema.  Changes
    no setting of the server: ``settings`` are set for our sessions where the role may, and are
    listed in ``unmet_settings`` where it may not.

    If ``unprivileged``, everybody gets a role of the run's own, which may do anything in our
    database and nothing elsewhere; the role of the address owns the database.

    Raises ServerError when the server does not answer, is too old, read-only, or grants neither,
    and StudyError when an unprivileged role cannot be made or used.
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

        Its role is ours, or the unprivileged one.
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
            # No reason to lose a finished run, or to hide the error that ended it.
            _log.warning("%s stays on %s until the next run there: %s", name, self.spec, error)
        finally:
            self._keeper.close()

    def close_connections(self) -> None:
        """Close every connection that was given out, and roll back prepared transactions."""
        super().close_connections()
        if self._guest is not None:
            with suppress(psycopg.Error, ServerError):  # a database that stays for it is logged
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
        """Remove our databases, which are about to be dropped, from pg_stat_statements."""
        place = self._place
        with suppress(psycopg.Error, ServerError):
            if not isinstance(place, DatabasePlace) or forget_databases(self._keeper, place.names):
                return
            if self._superuser:  # which has created the extension there
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
        role = self._keeper.execute(
            "SELECT rolsuper, rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        self._superuser, self._createdb, self._createrole = role or (False, False, False)
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
        if not (self._superuser or (self._createrole and self._createdb)):
            raise StudyError(
                f"Schema and scripts are run by a role and in a database made for them, and "
                f"{self._keeper.info.user} may not make both on {self.spec}: connect as a role "
                f"with CREATEROLE and CREATEDB, whose privileges they do not get."
            )

    def _require_login(self) -> None:
        """Raise StudyError where the unprivileged role is not let in."""
        try:
            self.connect().close()
        except ServerError as error:
            raise StudyError(
                f"Schema and scripts are run by a role made for them, which {self.spec} does not "
                f"let in ({str(error).rstrip('.')}): have pg_hba.conf let new roles in by "
                f"password (scram-sha-256), or give an address where it does."
            ) from error

    def _make_place(self) -> DatabasePlace | SchemaPlace:
        if self._superuser or self._createdb:
            return DatabasePlace(self._keeper, self.spec, self._guest)
        if self._ask("SELECT has_database_privilege(current_database(), 'CREATE')"):
            return SchemaPlace(self._keeper, self.spec)
        raise ServerError(
            f"The role {self._keeper.info.user} may create neither databases nor a schema on "
            f"{self.spec}: grant it CREATEDB, or CREATE on that database."
        )

    def _find_capabilities(self) -> Capabilities:
        superuser = self._superuser and self._guest is None
        checkpoint = superuser or (
            self.version >= 150000
            and self._guest is None
            and bool(self._ask("SELECT pg_has_role(current_user, 'pg_checkpoint', 'USAGE')"))
        )
        self._furnish()
        with self.connect() as connection:
            # What is installed, and in a database of our own what we may install.
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
        """Set up a new database, before it holds anything of the workload.

        A superuser installs what counts buffers; the unprivileged role gets the schema.
        """
        place, superuser = self._place, self._superuser
        if not isinstance(place, DatabasePlace) or not (superuser or self._guest is not None):
            return
        with self._connect({}, dbname=place.name) as connection:
            query = "SELECT name FROM pg_available_extensions WHERE name = ANY (%s)"
            for (name,) in connection.execute(query, [_EXTENSIONS if superuser else []]).fetchall():
                statement = sql.SQL("CREATE EXTENSION IF NOT EXISTS {} SCHEMA public")
                connection.execute(statement.format(sql.Identifier(name)))
            # Before 15 the schema is not ours to give, and everybody may use it.
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
