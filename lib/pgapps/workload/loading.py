"""Loading a workload's schema as a role that can do no harm elsewhere."""

from __future__ import annotations

import atexit
import re
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from pgservers.errors import ServerError, StudyError
from pgservers.files import says_full, temporary_directory
from pgservers.host.exclusive import only_one_here
from pgservers.paths import run_dir
from pgservers.programs.installations import find_binaries, run_client
from pgservers.servers.cluster.guests import harmless_extensions
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve
from pgservers.servers.snapshots import require_space
from pgservers.sessions import within
from pgservers.terminal import notice_once, printable

from .schema import EXTENSION, Piece, contents, leaving, opened, pieces, unquoted
from .statements import statements_in
from .writing import short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from psycopg.rows import TupleRow

    from pgservers.servers.serve import Server
    from pgstudies.measuring.trial import Trial

    from .scripts import Workload

# What pg_dump --create writes of the database's own settings; the group is the setting.
_SETS_DATABASE = re.compile(
    rb"""alter\s+database\s+(?:"(?:[^"]|"")+"|[^\s;]+)\s+(set\s+(?!tablespace\b).+)""",
    re.IGNORECASE | re.DOTALL,
)

# A setting of a newer pg_dump, and the error of an older server for it, which can be skipped.
_SETS = re.compile(rb"set\b", re.IGNORECASE)
_UNKNOWN = "unrecognized configuration parameter"

_LACKS = re.compile(r'(role|schema) "(.*)" does not exist')

_SCHEMA = re.compile(rb"""create\s+schema\s+("(?:[^"]|"")+"|[^\s;]+)""", re.IGNORECASE)
_ROLE = re.compile(
    rb"""create\s+(?:role|group|user(?!\s+mapping\b))\s+("(?:[^"]|"")+"|[^\s;]+)""", re.IGNORECASE
)

# Statements that may need a superuser, and on which no plan and no time depends.
_UNNEEDED = re.compile(
    rb"""alter\s.*\sowner\s+to\s.*|comment\s+on\s+(?:extension|database)\s.*|(?:grant|revoke)\s.*
        |(?:create|alter)\s+(?:publication|event\s+trigger)\s.*
        |alter\s+default\s+privileges\s.*""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)

# Statements of pg_dump --table that need other tables, which it leaves out.
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

_MOST_MADE = 1_000
"""The most roles and schemas that a load creates because they are missing."""

_LONGEST_S = 6 * 3600.0
"""The limit for a load (s), as it runs functions of the schema."""


@dataclass
class Tables:
    """The source of the tables, with the same rows on every server.

    If a script makes rows that differ each time, the first load dumps them, and the dump takes the
    script's place.

    Attributes:
        schema: A script for psql, or a dump; None if there are only pgbench's own tables.
        scale: The scale of pgbench's own tables, which are created unless the schema has them; None
            for no such tables.
        without: Extensions that are left out, with every statement that needs them.
        drawn: ``Contents.draws`` of the script whose place a dump has taken.
        sets: The settings of the dump's database, which hold for the sessions of the role.

    """

    schema: Path | None = None
    scale: int | None = None
    without: Sequence[str] = ()
    drawn: str = ""
    sets: dict[bytes, None] = field(default_factory=dict)


def tables_of(workload: Workload, scale: int, without: Sequence[str]) -> Tables:
    """The workload's tables, with pgbench's own of that scale if a script uses them."""
    return Tables(workload.schema, scale if workload.uses_pgbench_tables else None, without)


def load(trial: Trial, tables: Tables, *, database: str = "") -> None:
    """Load the tables into the trial's database, or another database of its server.

    They are loaded as the trial's role, which has no rights elsewhere.  On a managed server the
    roles that the schema names are created.  Statements that are passed over are reported.

    Raises StudyError with the line of the first statement that fails, SpaceError if the disk does
    not have room for twice what is loaded, and CannotRun for a dump without pg_restore.
    """
    draws, where = "", {"dbname": database} if database else {}
    with trial.server.connect(**where) as connection:
        if tables.schema is not None:
            draws = _load_schema(trial, connection, tables.schema, tables)
        has_tables = connection.execute(
            "SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'pgbench_accounts'"
        ).rowcount
    address = trial.server.environment() | ({"PGDATABASE": database} if database else {})
    if draws:
        _keep_rows(trial, tables, draws, address)
    if tables.scale is not None and not has_tables:
        _load_pgbench(trial, tables.scale, address)


def execute_own(trial: Trial, lines: Sequence[str]) -> None:
    """Execute the SQL of one side of a comparison, as the role that has loaded the tables.

    Raises StudyError with the line of the first statement that fails.
    """
    file = Path("the SQL of this side")
    with trial.server.connect() as connection:
        loader = _Loader(trial, connection, Tables(), {})
        with within(connection, _LONGEST_S, file.name):
            for statement in statements_in(lines, file):
                trial.show(short(statement.text.decode(), 40))
                loader.load(Piece(statement.text, statement.line, file))


def _load_schema(
    trial: Trial, connection: psycopg.Connection[TupleRow], schema: Path, tables: Tables
) -> str:
    """Load the schema; returns its ``Contents.draws``."""
    if trial.server.capabilities.has("restart"):
        files = schema.iterdir() if schema.is_dir() else [schema]
        size_bytes = sum(file.stat().st_size for file in files)
        require_space(run_dir(), 2 * size_bytes, f"the rows of {schema.name}")
    found = contents(schema)
    loader = _Loader(trial, connection, tables, found.extensions)
    loader.make_extensions()
    with within(connection, _LONGEST_S, f"Loading {schema}"), opened(schema) as lines:
        for piece in pieces(lines, schema, schema.parent.resolve(), []):
            loader.load(piece)
    loader.set_for_role()
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise StudyError(f"{schema} ends in a transaction: there is a BEGIN without COMMIT.")
    return found.draws


def _keep_rows(trial: Trial, tables: Tables, draws: str, address: Mapping[str, str]) -> None:
    """Dump the loaded rows, so that all further loads have the same rows."""
    own = trial.server.binaries.program("pg_dump") if trial.server.binaries else None
    program = own or find_binaries().program("pg_dump")
    why = "there is no pg_dump here"
    if program is not None:
        stack = ExitStack()
        atexit.register(stack.close)
        dump = stack.enter_context(temporary_directory()) / "rows.sql"
        trial.show("dumping the rows that were drawn")
        options = ["--no-owner", "--no-privileges", f"--file={dump}"]
        done = run_client([program, *options], address)
        if done.returncode == 0:
            tables.schema, tables.drawn = dump, draws
            notice_once(f"Rows that differ each time are made once, for all servers: {draws}.")
            return
        if says_full(done.stderr):
            raise trial.server.no_space()
        why = (done.stderr.strip().splitlines() or ["?"])[-1]
    notice_once(printable(f"Every server makes rows of its own: {draws}. No dump of them: {why}."))


def lacking(schema: Path | None, servers: Iterable[str]) -> dict[str, str]:
    """The schema's extensions that one of the servers cannot have, each with that server.

    Every server is started, unless the schema has no extension.  Raises as ``serve``.
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


class _Loader:
    """Executes the pieces of a schema in a session of the role that will own its objects."""

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
        self._made: set[tuple[str, str]] = set()  # "role" or "schema", and the name
        self._bytes = 0

    def make_extensions(self) -> None:
        """Create harmless extensions first, before the workload has objects that they could call.

        A superuser does so on a managed server: before 13 no other role can.
        """
        server, wanted = self._trial.server, self._wanted
        if not isinstance(server, ManagedServer) or not wanted:
            return
        with server.as_superuser(self._connection.info.dbname) as connection:
            for name in harmless_extensions(connection, wanted):
                schema = wanted[name] or "public"
                if schema not in {"public", "pg_catalog"}:
                    make_schema = sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}")
                    names = sql.Identifier(schema), sql.Identifier(server.role)
                    connection.execute(make_schema.format(*names))
                    self._made.add(("schema", schema))
                make = sql.SQL("CREATE EXTENSION IF NOT EXISTS {} SCHEMA {}")
                connection.execute(make.format(sql.Identifier(name), sql.Identifier(schema)))

    def load(self, piece: Piece) -> None:
        """Execute a statement; raises StudyError, with its place, if it fails."""
        try:
            if piece.rows:
                self._copy(piece.statement, piece.rows)
            else:
                self._execute(piece.statement)
        except psycopg.Error as error:
            if full := self._trial.server.space_error(error):
                raise full from error
            if self._connection.closed:
                raise ServerError(f"The server went away while {piece.file} was loaded.") from error
            hint = (error.diag.message_hint or "").rstrip(".")
            raise StudyError(
                f"{piece.file}, line {piece.line}, fails on {self._trial.server.version_text}: "
                f"{_message(error)}{f' ({hint})' if hint else ''}{self._remedy(piece, error)}."
            ) from error

    def _remedy(self, piece: Piece, error: psycopg.Error) -> str:
        """Advice on a statement that fails, to be added to the error."""
        if self._tables.drawn:
            return f"; it is a dump of the rows made on another server, {self._tables.drawn}"
        if named := EXTENSION.match(piece.statement):
            name = unquoted(named[1])
            return f"; to leave it out on all sides, with what needs it: -p without={name}"
        if isinstance(error, _MISSING) and not self._wanted:
            return "; pg_dump --table and --schema leave out what a table needs of elsewhere"
        return ""

    def _copy(self, statement: bytes, rows: Callable[[], Iterator[bytes]]) -> None:
        try:
            with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
                for part in rows():
                    copy.write(part)
                    self._count(len(part))
        except psycopg.errors.UndefinedTable as error:
            if not self._tables.without:
                raise
            for part in rows():  # they come before the next statement
                self._count(len(part))
            _pass_over(statement, _message(error))

    def _execute(self, statement: bytes) -> None:
        self._count(len(statement))
        if leaving(statement):
            if found := _SETS_DATABASE.match(statement):
                self._tables.sets[found[1]] = None
            else:
                _pass_over(statement, "the workload has a database of its own")
            return
        if self._is_done(statement):
            return
        while True:
            try:
                self._connection.execute(statement)
            except psycopg.Error as error:
                if self._make_missing(error):
                    continue
                self._pass_over(statement, error)
            return

    def set_for_role(self) -> None:
        """Let the settings of the dump's database hold, as far as the role may set them itself."""
        server = self._trial.server
        if not isinstance(server, ManagedServer):
            return
        names = sql.Identifier(server.role), sql.Identifier(self._connection.info.dbname)
        for setting in self._tables.sets:
            change = sql.SQL("ALTER ROLE {} IN DATABASE {} ").format(*names)
            try:
                self._connection.execute(change.as_string().encode() + setting)
            except psycopg.Error as error:
                _pass_over(setting, _message(error))

    def _make_missing(self, error: psycopg.Error) -> bool:
        """Create the role or schema that a statement lacks; False if impossible or done before.

        Done once for each name, because a schema can raise such errors itself without end.
        """
        lacks = _LACKS.fullmatch(_message(error))
        if lacks is None or (lacks[1], lacks[2]) in self._made:
            return False
        if lacks[1] == "schema":
            is_missing = isinstance(error, psycopg.errors.InvalidSchemaName)
            return is_missing and self._make_schema(lacks[2])
        return isinstance(error, (*_MISSING, *_FORBIDDEN)) and self._make_role(lacks[2])

    def _pass_over(self, statement: bytes, error: psycopg.Error) -> None:
        """Do without a statement that fails; raises the error if the statement is needed."""
        if isinstance(error, psycopg.errors.DuplicateSchema):
            made = _SCHEMA.match(statement)
            if made is not None and ("schema", unquoted(made[1])) in self._made:
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
        """Create a missing schema, which pg_dump --table leaves out; False in a transaction."""
        if self._connection.info.transaction_status != TransactionStatus.IDLE:
            return False
        self._require_few("schema", name)
        self._connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        self._made.add(("schema", name))
        notice_once(printable(f"The schema {name} is made, which the script does not make."))
        return True

    def _require_few(self, kind: str, name: str) -> None:
        if (kind, name) not in self._made and len(self._made) >= _MOST_MADE:
            raise StudyError(
                f"The schema lacks more than {_MOST_MADE} roles and schemas, the next is "
                f"{printable(name)}: dump those, too."
            )

    def _is_done(self, statement: bytes) -> bool:
        """Whether a statement needs no execution: its role or extension is there or left out."""
        if made := _ROLE.match(statement):
            return self._make_role(unquoted(made[1]))
        named = EXTENSION.match(statement)
        if named is None:
            return False
        name = unquoted(named[1])
        if name in self._tables.without:
            _pass_over(statement, "it is to be left out")
            return True
        query = "SELECT 1 FROM pg_catalog.pg_extension WHERE extname = %s"
        return self._connection.execute(query, [name]).rowcount > 0

    def _make_role(self, name: str) -> bool:
        """Create a role that can own and be granted objects; False if that is not allowed."""
        server = self._trial.server
        if not isinstance(server, ManagedServer):
            return False
        self._require_few("role", name)
        self._made.add(("role", name))
        role, ours = sql.Identifier(name), sql.Identifier(server.role)
        with server.as_superuser() as connection:
            query = "SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %s"
            if not connection.execute(query, [name]).rowcount:
                connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(role))
                connection.execute(sql.SQL("GRANT {} TO {}").format(role, ours))
                notice_once(printable(f"The role {name} is made, without rights."))
        return True

    def _count(self, size: int) -> None:
        before, self._bytes = self._bytes, self._bytes + size
        if before // 1_000_000 != self._bytes // 1_000_000:
            self._trial.show(f"loading, {self._bytes / 1e6:,.0f} MB")


def _load_pgbench(trial: Trial, scale: int, address: Mapping[str, str]) -> None:
    command = [str(trial.server.capabilities.pgbench), "-i", "-q", "-s", str(scale), "-I", "dtgvp"]
    done = run_client(command, address)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].rstrip(".")
        if says_full(done.stderr):
            raise trial.server.no_space(message)
        raise StudyError(
            f"pgbench's tables cannot be created on {trial.server.version_text}: {message}."
        )


def _pass_over(statement: bytes, why: str) -> None:
    text = short(statement.decode(errors="replace"), 100)
    notice_once(printable(f"Passed over: {text} ({why})."))


def _message(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error).strip().partition("\n")[0]).rstrip(".")
