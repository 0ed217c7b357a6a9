"""Loading a workload's schema by a role that can do no harm elsewhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from pgservers.errors import ServerError, StudyError
from pgservers.files import says_full, size_text
from pgservers.paths import run_dir
from pgservers.programs.installations import run_client
from pgservers.servers.managed import ManagedServer, harmless_extensions
from pgservers.servers.snapshots import require_space
from pgservers.terminal import notice, notice_once, printable

from .schema import EXTENSION, Rows, contents, opened, pieces, unquoted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from psycopg.rows import TupleRow

    from pgstudies.measuring.trial import Trial

    from .schema import Piece

_UNKNOWN = "unrecognized configuration parameter"
"""The error of an older server for a setting of a newer pg_dump, which can be skipped."""

_SETS = re.compile(rb"set\b", re.IGNORECASE)

_NO_ROLE = re.compile(r'role "(.*)" does not exist')

_ROLE = re.compile(rb"""create\s+(?:role|user|group)\s+("(?:[^"]|"")+"|[^\s;]+)""", re.IGNORECASE)

# What a superuser may do alone, and no plan and no time depends on.
_UNNEEDED = re.compile(
    rb"""alter\s.*\sowner\s+to\s.*|comment\s+on\s+extension\s.*|(?:grant|revoke)\s.*
        |(?:create|alter)\s+(?:publication|event\s+trigger)\s.*
        |alter\s+default\s+privileges\s.*""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)

_SCHEMA = re.compile(rb"""create\s+schema\s+("(?:[^"]|"")+"|[^\s;]+)""", re.IGNORECASE)

_HAS_PGBENCH_TABLES = "SELECT FROM pg_catalog.pg_class WHERE relname = 'pgbench_accounts'"

_SHOWN_BYTES = 1_000_000

_OF_THE_SERVER = """
    SELECT relname FROM pg_class
    WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r'
"""

_LOADED = r"""
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
      AND pg_catalog.pg_has_role(c.relowner, 'USAGE')
"""

_TABLES = f"SELECT n.nspname, c.relname {_LOADED} AND c.relkind IN ('r', 'm', 'p')"

_HELD = f"""
    SELECT pg_catalog.count(*),
           COALESCE(pg_catalog.sum(GREATEST(c.reltuples, 0)), 0),
           COALESCE(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)), 0)
    {_LOADED} AND c.relkind IN ('r', 'm')
"""


def load(
    trial: Trial, schema: Path | None, *, scale: int | None = None, database: str = ""
) -> None:
    """Load a script of psql or a dump into the trial's database, or another of its server.

    With a ``scale`` pgbench makes its own tables, unless the schema has them.  The trial's role
    loads it, which has no rights elsewhere; roles that the schema names are created on a server of
    ours.
    Statements that are skipped or changed are reported on stderr.

    Raises StudyError with the first statement that fails, by its line, SpaceError where the disk
    does not hold twice what is loaded, and CannotRun without pg_restore.
    """
    where = {"dbname": database} if database else {}
    with trial.server.connect(**where) as connection:
        if schema is not None:
            _load_schema(trial, connection, schema)
        has_tables = connection.execute(_HAS_PGBENCH_TABLES).rowcount
    if scale is not None and not has_tables:
        _load_pgbench(trial, scale, database)


def _load_schema(
    trial: Trial, connection: psycopg.Connection[TupleRow], schema: Path
) -> None:
    if trial.server.capabilities.has("restart"):
        require_space(run_dir(), 2 * _size(schema), f"the rows of {schema.name}")
    loader = _Loader(trial, connection)
    loader.make_extensions(contents(schema).extensions)
    with opened(schema) as lines:
        for piece in pieces(lines, schema):
            loader.load(piece)
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise StudyError(f"{schema} ends in a transaction: there is a BEGIN without COMMIT.")


class _Loader:
    """Executes the pieces of a schema in a session of the role that owns what it makes."""

    def __init__(self, trial: Trial, connection: psycopg.Connection[TupleRow]) -> None:
        self._trial = trial
        self._connection = connection
        self._made: set[str] = set()  # schemas, made for extensions
        self._bytes = 0

    def make_extensions(self, wanted: Mapping[str, str]) -> None:
        """Make those that others may have, while nothing of theirs is there that they could find.

        On a server of ours that is the superuser's work before 13, and by the same rules after.
        """
        server = self._trial.server
        if not isinstance(server, ManagedServer) or not wanted:
            return
        with server.as_superuser(self._connection.info.dbname) as connection:
            for name in harmless_extensions(connection, wanted):
                schema = wanted[name] or "public"
                if schema not in {"public", "pg_catalog"} | self._made:
                    make_schema = sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}")
                    names = sql.Identifier(schema), sql.Identifier(server.role)
                    connection.execute(make_schema.format(*names))
                    self._made.add(schema)
                make = sql.SQL("CREATE EXTENSION IF NOT EXISTS {} SCHEMA {}")
                connection.execute(make.format(sql.Identifier(name), sql.Identifier(schema)))

    def load(self, piece: Piece | Rows) -> None:
        """Execute a statement; raises StudyError, with its place, where that fails."""
        try:
            if isinstance(piece, Rows):
                self._copy(piece)
            else:
                self._execute(piece.statement)
        except psycopg.Error as error:
            if full := self._trial.server.space_error(error):
                raise full from error
            if self._connection.closed:
                raise ServerError(f"The server went away while {piece.file} was loaded.") from error
            raise StudyError(
                f"{piece.file}, line {piece.line}, fails on {self._trial.server.version_text}: "
                f"{_with_hint(error)}."
            ) from error

    def _copy(self, piece: Rows) -> None:
        with self._connection.cursor() as cursor, cursor.copy(piece.statement) as copy:
            for part in piece.parts():
                copy.write(part)
                self._count(len(part))

    def _execute(self, statement: bytes) -> None:
        self._count(len(statement))
        if self._is_done(statement):
            return
        try:
            self._connection.execute(statement)
        except (psycopg.errors.UndefinedObject, psycopg.errors.InsufficientPrivilege) as error:
            message = _message(error)
            role = _NO_ROLE.fullmatch(message)
            if role is not None and self._make_role(role[1]):
                self._execute(statement)
            elif _UNNEEDED.fullmatch(statement) or (_SETS.match(statement) and _UNKNOWN in message):
                text = printable(statement.decode(errors="replace"))
                notice_once(f"Passed over: {text} ({message}).")
            else:
                raise
        except psycopg.errors.DuplicateSchema:
            made = _SCHEMA.match(statement)
            if made is None or unquoted(made[1]) not in self._made:
                raise

    def _is_done(self, statement: bytes) -> bool:
        """Whether a statement makes a role, which is made without its rights, or has been done."""
        if made := _ROLE.match(statement):
            return self._make_role(unquoted(made[1]))
        named = EXTENSION.match(statement)
        query = "SELECT FROM pg_catalog.pg_extension WHERE extname = %s"
        return named is not None and bool(
            self._connection.execute(query, [unquoted(named[1])]).rowcount
        )

    def _make_role(self, name: str) -> bool:
        """Make a role that owns and may be granted something; false where we may not."""
        server = self._trial.server
        if not isinstance(server, ManagedServer):
            return False
        role, ours = sql.Identifier(name), sql.Identifier(server.role)
        with server.as_superuser() as connection:
            query = "SELECT FROM pg_catalog.pg_roles WHERE rolname = %s"
            if not connection.execute(query, [name]).rowcount:
                connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(role))
                connection.execute(sql.SQL("GRANT {} TO {}").format(role, ours))
                notice_once(f"The role {name} is made, without rights.")
        return True

    def _count(self, size: int) -> None:
        before, self._bytes = self._bytes, self._bytes + size
        if before // _SHOWN_BYTES != self._bytes // _SHOWN_BYTES:
            self._trial.show(f"loading, {self._bytes / 1e6:,.0f} MB")


def _load_pgbench(trial: Trial, scale: int, database: str) -> None:
    environment = trial.server.environment() | ({"PGDATABASE": database} if database else {})
    command = [str(trial.server.capabilities.pgbench), "-i", "-q", "-s", str(scale), "-I", "dtgvp"]
    done = run_client(command, environment)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].rstrip(".")
        if says_full(done.stderr):
            raise trial.server.no_space(message)
        raise StudyError(
            f"pgbench's tables cannot be made on {trial.server.version_text}: {message}."
        )


def vacuum(trial: Trial) -> None:
    """Vacuum and analyze all that was loaded; the server's own tables, too, where it is ours."""
    # By name, as it would warn of every table of the server's that is not the role's.
    for schema, name in trial.execute(_TABLES).fetchall():
        table = sql.Identifier(schema, name)
        trial.execute(sql.SQL("VACUUM ANALYZE {}").format(table))
    server = trial.server
    if isinstance(server, ManagedServer):
        # Of the role's own tables its functions would be computed with the superuser's rights.
        with server.as_superuser(trial.connection.info.dbname) as connection:
            for (name,) in connection.execute(_OF_THE_SERVER).fetchall():
                table = sql.Identifier("pg_catalog", name)
                connection.execute(sql.SQL("VACUUM ANALYZE {}").format(table))


def tell_loaded(trial: Trial) -> None:
    """Record and say what the trial's database holds after ``vacuum``: tables, rows, bytes."""
    tables, rows, size = trial.execute(_HELD).fetchone() or (0, 0, 0)
    for metric, value, unit in (("tables", tables, "tables"), ("rows", rows, "rows")):
        trial.record("load", metric, float(value), unit)
    trial.record("load", "size_bytes", float(size), "bytes")
    notice(
        f"Loaded into {trial.server.version_text}: {tables:,} tables, {rows:,.0f} rows, "
        f"{size_text(int(size))}."
    )


def _message(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error).strip().partition("\n")[0]).rstrip(".")


def _with_hint(error: psycopg.Error) -> str:
    hint = (error.diag.message_hint or "").rstrip(".")
    return f"{_message(error)} ({hint})" if hint else _message(error)


def _size(schema: Path) -> int:
    """Bytes of a script, or a dump."""
    files = schema.iterdir() if schema.is_dir() else [schema]
    return sum(file.stat().st_size for file in files)
