"""Loading a workload's schema by a role that can do no harm elsewhere."""

from __future__ import annotations

import atexit
import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from pgservers.errors import ServerError, StudyError
from pgservers.files import says_full, size_text, temporary_directory
from pgservers.host.exclusive import only_one_here
from pgservers.paths import run_dir
from pgservers.programs.installations import find_binaries, run_client
from pgservers.servers.managed import ManagedServer, harmless_extensions
from pgservers.servers.serve import serve
from pgservers.servers.snapshots import require_space
from pgservers.sessions import within
from pgservers.terminal import notice, notice_once, printable

from .schema import EXTENSION, LEAVES, Rows, contents, opened, pieces, unquoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from psycopg.rows import TupleRow

    from pgservers.servers.serve import Server
    from pgstudies.measuring.trial import Trial

    from .schema import Piece
    from .scripts import Workload

_UNKNOWN = "unrecognized configuration parameter"
"""The error of an older server for a setting of a newer pg_dump, which can be skipped."""

_SETS = re.compile(rb"set\b", re.IGNORECASE)

_NO_ROLE = re.compile(r'role "(.*)" does not exist')

_NO_SCHEMA = re.compile(r'schema "(.*)" does not exist')

_ROLE = re.compile(
    rb"""create\s+(?:role|group|user(?!\s+mapping\b))\s+("(?:[^"]|"")+"|[^\s;]+)""", re.IGNORECASE
)

# What a superuser may do alone, and no plan and no time depends on.
_UNNEEDED = re.compile(
    rb"""alter\s.*\sowner\s+to\s.*|comment\s+on\s+(?:extension|database)\s.*|(?:grant|revoke)\s.*
        |(?:create|alter)\s+(?:publication|event\s+trigger)\s.*
        |alter\s+default\s+privileges\s.*""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)

# What pg_dump --table writes of other tables, which it leaves out.
_OF_OTHERS = re.compile(
    rb"alter\s+table\s.*\s(?:foreign\s+key|attach\s+partition)\s.*|create\s(?:\w+\s+)*trigger\s.*"
    rb"|alter\s+index\s.*\sattach\s+partition\s.*",
    re.IGNORECASE | re.DOTALL,
)

_MISSING = (
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedObject,
    psycopg.errors.UndefinedTable,
)

_FORBIDDEN = (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidCatalogName)

_LONGEST_TOLD = 100

_MOST_MADE = 1_000
"""Roles and schemas that a load makes because they are missing."""

_LONGEST_S = 6 * 3600.0
"""The limit for a load, and for a vacuum of what was loaded, which run others' functions (s)."""

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


@dataclass
class Tables:
    """What databases are loaded from, with the same rows on every server.

    Where a script makes rows that differ each time, the first load has a dump made of them, which
    then takes the script's place.

    Attributes:
        schema: A script of psql, or a dump; None for pgbench's own tables alone.
        scale: Of pgbench's own tables, which are made unless the schema has them; None for none.
        without: Extensions that are left out, and with them every statement that needs them.
        drawn: What the rows of the first load were drawn by, where a dump of them is the schema.

    """

    schema: Path | None = None
    scale: int | None = None
    without: Sequence[str] = ()
    drawn: str = ""


def tables_of(workload: Workload, scale: int, without: Sequence[str]) -> Tables:
    """The workload's tables, with pgbench's own of that scale where a script names them."""
    return Tables(workload.schema, scale if workload.uses_pgbench_tables else None, without)


def load(trial: Trial, tables: Tables, *, database: str = "") -> None:
    """Load the tables into the trial's database, or another of its server.

    The trial's role loads them, which has no rights elsewhere; roles that the schema names are made
    on a managed server.  Statements that are passed over or changed are reported on stderr.

    Raises StudyError with the first statement that fails, by its line, SpaceError where the disk
    does not hold twice what is loaded, and CannotRun without pg_restore.
    """
    draws, where = "", {"dbname": database} if database else {}
    with trial.server.connect(**where) as connection:
        if tables.schema is not None:
            draws = _load_schema(trial, connection, tables.schema, tables)
        has_tables = connection.execute(_HAS_PGBENCH_TABLES).rowcount
    if draws:
        _keep_rows(trial, tables, draws, trial.server.environment() | _in(database))
    if tables.scale is not None and not has_tables:
        _load_pgbench(trial, tables.scale, database)


def _load_schema(
    trial: Trial, connection: psycopg.Connection[TupleRow], schema: Path, tables: Tables
) -> str:
    """Load the schema; returns what makes its rows differ each time, as ``contents`` does."""
    if trial.server.capabilities.has("restart"):
        require_space(run_dir(), 2 * _size(schema), f"the rows of {schema.name}")
    found = contents(schema)
    loader = _Loader(trial, connection, tables, found.extensions)
    loader.make_extensions()
    with within(connection, _LONGEST_S, f"Loading {schema}"), opened(schema) as lines:
        for piece in pieces(lines, schema):
            loader.load(piece)
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise StudyError(f"{schema} ends in a transaction: there is a BEGIN without COMMIT.")
    return found.draws


def _keep_rows(trial: Trial, tables: Tables, draws: str, address: Mapping[str, str]) -> None:
    """Dump the loaded rows, so that all further loads have the same rows."""
    own = trial.server.binaries.program("pg_dump") if trial.server.binaries else None
    program = own or find_binaries().program("pg_dump")
    stack = ExitStack()
    atexit.register(stack.close)
    dump = stack.enter_context(temporary_directory()) / "rows.sql"
    trial.show("dumping the rows that were drawn")
    command = [str(program), "--no-owner", "--no-privileges", f"--file={dump}"]
    done = run_client(command, address) if program is not None else None
    if done is not None and done.returncode == 0:
        tables.schema, tables.drawn = dump, draws
        notice_once(f"Rows that differ each time are made once, for all servers: {draws}.")
        return
    if done is not None and says_full(done.stderr):
        raise trial.server.no_space()
    why = (done.stderr.strip().splitlines() or ["?"])[-1] if done else "there is no pg_dump here"
    notice_once(printable(f"Every server makes rows of its own: {draws}. No dump of them: {why}."))


def lacking(schema: Path | None, servers: Iterable[str]) -> dict[str, str]:
    """The schema's extensions that one of these servers cannot have, each with that server.

    Every server is asked, unless there is no extension.  Raises as ``serve``.
    """
    wanted = set(contents(schema).extensions if schema is not None else ()) - {"plpgsql"}
    found: dict[str, str] = {}
    if not wanted:
        return found
    with only_one_here("a look at extensions"):
        for name in dict.fromkeys(servers):
            with serve(name, unprivileged=True) as server, _asking(server) as connection:
                able = harmless_extensions(connection, wanted)
            found |= dict.fromkeys(sorted(wanted.difference(able)), name)
    return found


def _asking(server: Server) -> psycopg.Connection[TupleRow]:
    return server.as_superuser() if isinstance(server, ManagedServer) else server.connect()


def _in(database: str) -> dict[str, str]:
    return {"PGDATABASE": database} if database else {}


class _Loader:
    """Executes the pieces of a schema in a session of the role that owns what it makes."""

    def __init__(
        self,
        trial: Trial,
        connection: psycopg.Connection[TupleRow],
        tables: Tables,
        extensions: Mapping[str, str],
    ) -> None:
        self._trial = trial
        self._connection = connection
        self._tables = tables
        self._wanted = {n: s for n, s in extensions.items() if n not in tables.without}
        self._made: set[str] = set()  # schemas that the script does not make, or not yet
        self._lacked: set[str] = set()  # roles that were to be there
        self._bytes = 0

    def make_extensions(self) -> None:
        """Create harmless extensions first, before the workload has objects that they could call.

        On a managed server that is the superuser's work before 13, and by the same rules after.
        """
        server, wanted = self._trial.server, self._wanted
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
                f"{_with_hint(error)}{self._remedy(piece, error)}."
            ) from error

    def _remedy(self, piece: Piece | Rows, error: psycopg.Error) -> str:
        """What may help with a statement that fails, to be added to the error."""
        named = EXTENSION.match(piece.statement)
        if self._tables.drawn:
            return f"; it is a dump of the rows made on another server, {self._tables.drawn}"
        if named:
            name = unquoted(named[1])
            return f"; to leave it out on all sides, with what needs it: -p without={name}"
        if isinstance(error, _MISSING) and not self._wanted:
            return "; pg_dump --table and --schema leave out what a table needs of elsewhere"
        return ""

    def _copy(self, piece: Rows) -> None:
        try:
            with self._connection.cursor() as cursor, cursor.copy(piece.statement) as copy:
                for part in piece.parts():
                    copy.write(part)
                    self._count(len(part))
        except psycopg.errors.UndefinedTable as error:
            if not self._tables.without:
                raise
            for part in piece.parts():  # they stand before the next statement
                self._count(len(part))
            _pass_over(piece.statement, _message(error))

    def _execute(self, statement: bytes) -> None:
        self._count(len(statement))
        if LEAVES.match(statement):
            _pass_over(statement, "the workload has a database of its own")
        if LEAVES.match(statement) or self._is_done(statement):
            return
        while True:
            try:
                self._connection.execute(statement)
            except psycopg.Error as error:
                if not self._make_missing(error):
                    self._pass_over(statement, error)
                    return
            else:
                return

    def _make_missing(self, error: psycopg.Error) -> bool:
        """Create the role or schema that a statement lacks; False if impossible or done before.

        A schema can raise such an error itself, as often as it likes.
        """
        message = _message(error)
        role, schema = _NO_ROLE.fullmatch(message), _NO_SCHEMA.fullmatch(message)
        if isinstance(error, psycopg.errors.InvalidSchemaName):
            return schema is not None and self._make_schema(schema[1])
        if role is None or not isinstance(error, (*_MISSING, *_FORBIDDEN)):
            return False
        return role[1] not in self._lacked and self._make_role(role[1])

    def _pass_over(self, statement: bytes, error: psycopg.Error) -> None:
        """Do without a statement that fails; raises the error where it is needed."""
        if isinstance(error, psycopg.errors.DuplicateSchema):
            made = _SCHEMA.match(statement)
            if made is not None and unquoted(made[1]) in self._made:
                return
        elif isinstance(error, (*_MISSING, *_FORBIDDEN)):
            message, missing = _message(error), isinstance(error, _MISSING)
            if (
                _UNNEEDED.fullmatch(statement)
                or (_SETS.match(statement) and _UNKNOWN in message)
                or (missing and (self._tables.without or _OF_OTHERS.fullmatch(statement)))
            ):
                _pass_over(statement, message)
                return
        raise error

    def _make_schema(self, name: str) -> bool:
        """Create a missing schema, which pg_dump --table leaves out; once."""
        idle = self._connection.info.transaction_status == TransactionStatus.IDLE
        if name in self._made or not idle:
            return False
        self._require_few(name)
        self._connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        self._made.add(name)
        notice_once(printable(f"The schema {name} is made, which the script does not make."))
        return True

    def _require_few(self, name: str) -> None:
        if name not in self._lacked and len(self._made | self._lacked) >= _MOST_MADE:
            raise StudyError(
                f"The schema lacks more than {_MOST_MADE} roles and schemas, the next is "
                f"{printable(name)}: dump those, too."
            )

    def _is_done(self, statement: bytes) -> bool:
        """Whether a statement needs no execution: it creates a role, or was done."""
        if made := _ROLE.match(statement):
            return self._make_role(unquoted(made[1]))
        named = EXTENSION.match(statement)
        if named and unquoted(named[1]) in self._tables.without:
            _pass_over(statement, "it is to be left out")
            return True
        query = "SELECT FROM pg_catalog.pg_extension WHERE extname = %s"
        return named is not None and bool(
            self._connection.execute(query, [unquoted(named[1])]).rowcount
        )

    def _make_role(self, name: str) -> bool:
        """Create a role that can own and be granted objects; False if that is not allowed."""
        server = self._trial.server
        if not isinstance(server, ManagedServer):
            return False
        self._require_few(name)
        self._lacked.add(name)
        role, ours = sql.Identifier(name), sql.Identifier(server.role)
        with server.as_superuser() as connection:
            query = "SELECT FROM pg_catalog.pg_roles WHERE rolname = %s"
            if not connection.execute(query, [name]).rowcount:
                connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(role))
                connection.execute(sql.SQL("GRANT {} TO {}").format(role, ours))
                notice_once(printable(f"The role {name} is made, without rights."))
        return True

    def _count(self, size: int) -> None:
        before, self._bytes = self._bytes, self._bytes + size
        if before // _SHOWN_BYTES != self._bytes // _SHOWN_BYTES:
            self._trial.show(f"loading, {self._bytes / 1e6:,.0f} MB")


def _load_pgbench(trial: Trial, scale: int, database: str) -> None:
    environment = trial.server.environment() | _in(database)
    command = [str(trial.server.capabilities.pgbench), "-i", "-q", "-s", str(scale), "-I", "dtgvp"]
    done = run_client(command, environment)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].rstrip(".")
        if says_full(done.stderr):
            raise trial.server.no_space(message)
        raise StudyError(
            f"pgbench's tables cannot be created on {trial.server.version_text}: {message}."
        )


def vacuum(trial: Trial) -> None:
    """Vacuum and analyze all that was loaded; the server's own tables, too, where it is ours."""
    # By name, as it would warn of every table of the server's that is not the role's.
    with within(trial.connection, _LONGEST_S, "VACUUM"):
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


def _pass_over(statement: bytes, why: str) -> None:
    words = " ".join(statement.decode(errors="replace").split())
    short = words if len(words) <= _LONGEST_TOLD else f"{words[:_LONGEST_TOLD].rstrip()}..."
    notice_once(printable(f"Passed over: {short} ({why})."))


def _message(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error).strip().partition("\n")[0]).rstrip(".")


def _with_hint(error: psycopg.Error) -> str:
    hint = (error.diag.message_hint or "").rstrip(".")
    return f"{_message(error)} ({hint})" if hint else _message(error)


def _size(schema: Path) -> int:
    """The size of a script or a dump (bytes)."""
    files = schema.iterdir() if schema.is_dir() else [schema]
    return sum(file.stat().st_size for file in files)
