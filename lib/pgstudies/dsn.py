"""A server that is already running: we work in a place of our own and touch nothing else."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from .binaries import pgbench_program, require_version
from .errors import CannotRun, ServerError
from .server import Capabilities, Server, open_session, without_password

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .server import Connection

NAME = re.compile(r"pgstudies_[0-9a-f]{8}")
MARK = "pgstudies"  # the key by which a COMMENT says that a thing is ours
LOCK_CLASS = 1885825908  # the first half of our advisory locks


class DsnServer(Server):
    """A place of our own on a running server: a database, or a schema for a lesser role.

    It is named ``pgstudies_`` and eight hexadecimal digits, marked by a COMMENT, and dropped when
    closed.  An advisory lock, held by a session in the database of the DSN, tells other runs that
    its owner lives.
    """

    owned = False

    def __init__(self, dsn: str, *, settings: Mapping[str, str]) -> None:
        super().__init__()
        self._dsn = dsn
        self.spec = without_password(dsn)
        self.settings = dict(settings)
        self._admin = open_session(dsn, connect_timeout=10)
        try:
            self.version = self._admin.info.server_version
            self.version_text = str(self._ask("SHOW server_version")).split()[0]
            require_version(self.version, self.version_text, self.spec)
            self.capabilities = self._examine()
            self._arm_settings: dict[str, str] = {}
            self._usable = self._find_usable_settings()
            self._sweep()
            self.place = f"pgstudies_{secrets.token_hex(4)}"
            self._lock(self.place)
            self._templates: dict[str, str] = {}
            self._make_place()
        except BaseException:
            self._admin.close()
            raise

    def _ask(self, query: Any, params: Any = None) -> Any:
        row = self._admin.execute(query, params).fetchone()
        return None if row is None else row[0]

    def _examine(self) -> Capabilities:
        superuser, create_database = self._admin.execute(
            "SELECT rolsuper, rolsuper OR rolcreatedb FROM pg_roles WHERE rolname = current_user"
        ).fetchone() or (False, False)
        checkpoint = superuser or (
            self.version >= 150000
            and self._ask("SELECT pg_has_role(current_user, 'pg_checkpoint', 'USAGE')")
        )
        names = self._admin.execute("SELECT name FROM pg_available_extensions").fetchall()
        return Capabilities(
            owned=False,
            superuser=superuser,
            restart=False,
            local_files=False,
            create_database=create_database,
            checkpoint=checkpoint,
            contrib=frozenset(row[0] for row in names),
            pg_config=None,
            headers=False,
            pgbench=pgbench_program(None),
        )

    # Settings

    def _find_usable_settings(self) -> dict[str, str]:
        """The study's settings that a session may set; the others go to ``unmet_settings``."""
        usable = {}
        for name, wanted in self.settings.items():
            if self._may_set(name):
                usable[name] = wanted
            elif not self._is_at(name, wanted):
                actual = self._ask("SELECT current_setting(%s)", [name])
                self.unmet_settings[name] = (wanted, str(actual))
        return usable

    def _may_set(self, name: str) -> bool:
        context = self._ask("SELECT context FROM pg_settings WHERE name = %s", [name])
        if context is None:
            raise CannotRun(f"PostgreSQL {self.version_text} has no setting {name}")
        return context == "user" or (context == "superuser" and self.capabilities.superuser)

    def _is_at(self, name: str, wanted: str) -> bool:
        """Whether the server has the value already, compared in the setting's own unit."""
        row = self._admin.execute(
            "SELECT setting, current_setting(name), unit FROM pg_settings WHERE name = %s", [name]
        ).fetchone()
        if row is None:
            return False
        setting, shown, unit = row
        if wanted in {setting, shown}:
            return True
        if unit is None or not re.fullmatch(r"(\d*)(B|kB|MB|GB)", unit):
            return False
        return bool(
            self._ask(
                "SELECT %s::numeric * pg_size_bytes(%s) = pg_size_bytes(%s)",
                [setting, unit if unit[0].isdigit() else f"1{unit}", wanted],
            )
        )

    # Our place

    @property
    def has_database(self) -> bool:
        """Whether our place is a database; else it is a schema."""
        return self.capabilities.create_database

    def connect(self, **options: Any) -> Connection:
        """A session in our database or schema, with the settings that a session may set."""
        if self.has_database:
            options = {"dbname": self.place} | options
        connection = open_session(self._dsn, **options)
        path = "public" if self.has_database else self.place
        wanted = self._usable | self._arm_settings | {"search_path": path}
        for name, value in wanted.items():
            connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        self._connections.add(connection)
        return connection

    def restore(
        self, state: str, build: Callable[[], None], settings: Mapping[str, str] | None = None
    ) -> None:
        """See ``Server.restore``: a copy is a template database; in a schema there is none."""
        wanted = dict(settings or {})
        for name, value in wanted.items():
            if not self._may_set(name):
                if self._is_at(name, value):
                    continue
                raise CannotRun(
                    f"{name} = {value} cannot be set by this role on a running server that is not "
                    f"ours to restart"
                )
        self.disconnect()
        self._arm_settings = {}
        if not self.has_database:
            self._drop_schema()
            self._make_place()
            build()
        elif state in self._templates:
            self._drop_database(self.place)
            self._create_database(self.place, self._templates[state])
        else:
            self._drop_database(self.place)
            self._make_place()
            build()
            self.disconnect()
            copy = f"{self.place}_{len(self._templates)}"
            self._create_database(copy, self.place)
            self._templates[state] = copy
        self.disconnect()
        self._arm_settings = {k: v for k, v in wanted.items() if self._may_set(k)}

    def _make_place(self) -> None:
        try:
            if self.has_database:
                self._create_database(self.place, "template0")
                if self.capabilities.superuser:
                    self._add_counters()
            else:
                self._admin.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.place)))
                self._comment("SCHEMA", self.place)
        except (psycopg.errors.DuplicateDatabase, psycopg.errors.DuplicateSchema):
            raise ServerError(
                f"{self.spec} already holds something named {self.place} that this run did not "
                f"make; it is left alone: run the command again."
            ) from None
        except psycopg.errors.InsufficientPrivilege:
            raise ServerError(
                f"This role may create neither databases nor schemas on {self.spec}: "
                f"ALTER ROLE … CREATEDB, or GRANT CREATE ON DATABASE … to it."
            ) from None

    def _add_counters(self) -> None:
        loaded = self._ask("SHOW shared_preload_libraries")
        if "pg_stat_statements" in loaded and "pg_stat_statements" in self.capabilities.contrib:
            with self.connect() as connection:
                connection.execute("CREATE EXTENSION pg_stat_statements")

    def _create_database(self, name: str, template: str) -> None:
        strategy = sql.SQL(" STRATEGY = FILE_COPY" if self.version >= 150000 else "")
        plain = template == "template0"
        locale = sql.SQL(" ENCODING = 'UTF8' LC_COLLATE = 'C' LC_CTYPE = 'C'" if plain else "")
        self._admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE = {}").format(
                sql.Identifier(name), sql.Identifier(template)
            )
            + locale
            + strategy
        )
        self._comment("DATABASE", name)

    def _comment(self, kind: str, name: str) -> None:
        mark = {
            MARK: 1,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "what": "working place of a pgstudies run, dropped when it ends",
        }
        self._admin.execute(
            sql.SQL("COMMENT ON {} {} IS {}").format(
                sql.SQL(kind),
                sql.Identifier(name),
                sql.Literal(json.dumps(mark)),
            )
        )

    def _drop_database(self, name: str) -> None:
        self._admin.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def _drop_schema(self) -> None:
        self._admin.execute(
            sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(self.place))
        )

    # Leftovers and ending

    def _lock(self, place: str) -> bool:
        return bool(
            self._ask("SELECT pg_try_advisory_lock(%s::int, hashtext(%s))", [LOCK_CLASS, place])
        )

    def _sweep(self) -> None:
        """Drop what a killed run of this role left: named, marked and owned as ours, not locked."""
        found = self._admin.execute(
            """
            SELECT 'database', d.datname, shobj_description(d.oid, 'pg_database')
            FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba
            WHERE r.rolname = current_user
            UNION ALL
            SELECT 'schema', n.nspname, obj_description(n.oid, 'pg_namespace')
            FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
            WHERE r.rolname = current_user
            """
        ).fetchall()
        for kind, name, comment in found:
            place = NAME.match(name)
            if place is None or not _is_marked(comment) or not self._lock(place[0]):
                continue
            if kind == "database":
                self._drop_database(name)
            else:
                self._admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
            self._admin.execute(
                "SELECT pg_advisory_unlock(%s::int, hashtext(%s))", [LOCK_CLASS, place[0]]
            )

    def close(self) -> None:
        """Drop our place and its copies, and disconnect."""
        if self._admin.closed:
            return
        self.disconnect()
        try:
            if self.has_database:
                for name in [self.place, *self._templates.values()]:
                    self._drop_database(name)
            else:
                self._drop_schema()
        except psycopg.OperationalError:
            pass  # the server has gone: the next run finds what is left by its mark
        finally:
            self._admin.close()


def _is_marked(comment: str | None) -> bool:
    try:
        return MARK in json.loads(comment or "null")
    except (ValueError, TypeError):
        return False
