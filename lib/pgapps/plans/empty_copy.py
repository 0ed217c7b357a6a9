"""A copy of a database without its data: schema, statistics, and files of the true size.

The planner takes the sizes of tables from their files, so the copy's sparse files are as long as
the original's, and the height of a btree from its first page.  The copy can plan and nothing else:
its pages are empty.

The original's code is not trusted: a role without privileges restores and plans it, and from then
on no superuser connects to the database.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from pgservers.errors import CannotRun, ServerError, StudyError
from pgservers.files import says_full, size_text, space_error
from pgservers.programs.installations import client_environment, find_binaries
from pgservers.servers.cluster.guests import harmless_extensions, open_to_guest
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve
from pgservers.sessions import within
from pgservers.tls import without_tls

from .btrees import ENTRIES, MADE, entry_bytes, grow, height, leaves
from .sessions import take_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from psycopg.rows import TupleRow

    from pgservers.programs.installations import Binaries

    from ..workload.statements import Statement
    from .source import Source

RESTORES_STATISTICS = 180000
"""The first release that restores optimizer statistics from a dump."""

_DATABASE = "plans"

_SEGMENT_BYTES = 2**30

_LONGEST_BYTES = 2**45
"""A relation has at most 2^32 pages."""

_MOST_SEGMENTS = 100_000

_LONGEST_S = 600.0
"""The limit for the dump, and for each part of the restore, which may run functions (s)."""

_OUTPUT_BYTES = 1_000_000

_DUMP = [
    "--format=custom",
    "--no-data",
    "--statistics",
    # We create the harmless ones, before anything else is in the database.
    "--exclude-extension=*",
    "--lock-wait-timeout=2s",
]

_RESTORE = [
    *("--no-owner", "--no-privileges", "--no-publications", "--no-subscriptions"),
    *("--no-comments", "--no-security-labels", "--no-tablespaces"),
]

_SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "max_wal_size": "128MB",
    "temp_file_limit": "1GB",
    "event_triggers": "off",
    "ignore_checksum_failure": "on",  # of the pages of btrees that we write
}

_NO_PLAN = "no plan depends on what no session can set, such as shared_buffers"

# Plans depend on these settings; the copy's server is started with them if no session can set them.
_PLANNED_BY = """
    SELECT context, category LIKE 'Query Tuning%%' OR name = 'session_replication_role'
    FROM pg_catalog.pg_settings WHERE pg_catalog.lower(name) = %s
"""

_INDEXES = """
    SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'i' AND c.oid >= 16384
"""

_LIMITS = "-c search_path= -c statement_timeout=20s"

# Extensions' schemas exist before the restore, and event triggers do not affect plans.
_EXPECTED = re.compile(r'schema ".*" already exists|permission denied to create event trigger .*')


@dataclass
class EmptyCopy:
    """The running copy; ``settings`` are the original's planner settings.

    ``tried`` are the settings to try that a session can set, ``by_start`` those that only a start
    of the server can.  ``notes`` are sentences on what could not be copied.  ``missing_locale`` is
    the database's locale in words if the copy has another, or empty.
    """

    server: ManagedServer
    settings: Mapping[str, str]
    tried: Mapping[str, str]
    by_start: Mapping[str, str]
    notes: list[str] = field(default_factory=list)
    missing_locale: str = ""

    def connect(self, settings: Mapping[str, str] = {}) -> psycopg.Connection[TupleRow]:
        """A read-only session with the original's planner settings, changed by ``settings``."""
        connection = _connected(self.server)
        for name, value in self.settings.items():
            try:
                _set(connection, name, value)
            except psycopg.Error:
                note = f"The setting {name} = {value} is not known to it."
                self.notes += [] if note in self.notes else [note]
        for name, value in settings.items():
            _set(connection, name, value)
        _set(connection, "default_transaction_read_only", "on")
        return connection


def _connected(server: ManagedServer) -> psycopg.Connection[TupleRow]:
    """A session of the role without privileges."""
    connection = server.connect(
        dbname=_DATABASE, options=_LIMITS, client_encoding="UTF8", prepare_threshold=None
    )
    take_bytes(connection)
    return connection


def _set(connection: psycopg.Connection[TupleRow], name: str, value: str) -> None:
    connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", [name, value])


@contextmanager
def empty_copy(
    source: Source,
    spec: str,
    show: Callable[[str], None],
    tried: Mapping[str, str] = {},
    *,
    like: Mapping[str, str] | None = None,
    script: Sequence[Statement] = (),
) -> Iterator[EmptyCopy]:
    """A copy of the source's database on a managed server, as ``serve`` names it.

    It is 18 or later.  ``tried`` are settings and ``script`` is SQL to try there; ``like`` are
    planner settings in place of the source's.  Raises StudyError for settings that cannot be tried,
    before anything is dumped, and for a statement that fails, ServerError if the dump or the
    restore fails or the copy does not answer, and SpaceError on a full disk.
    """
    with serve(spec, settings=_SETTINGS, unprivileged=True) as server:
        assert isinstance(server, ManagedServer)
        try:
            copy = _with_settings(server, source.settings if like is None else like, tried)
            _fill(copy, source, show, script)
            yield copy
        except (psycopg.Error, ServerError) as error:
            full = server.space_error(error)
            if full:
                raise full from error
            if isinstance(error, psycopg.Error):
                raise ServerError(f"The copy on {server.version_text} failed: {error}") from error
            raise
        except OSError as error:
            full = space_error(error, server.data_directory, "PGSTUDIES_RUN_DIR")
            raise full or ServerError(f"The copy cannot be made: {error}.") from error


def _with_settings(
    server: ManagedServer, settings: Mapping[str, str], tried: Mapping[str, str]
) -> EmptyCopy:
    """The copy, still without a database, after a trial of the settings to try.

    Raises StudyError for an unknown setting or a wrong value, and if no setting can be tried.
    """
    by_session: dict[str, str] = {}
    by_start: dict[str, str] = {}
    unable: list[str] = []
    with server.connect(options=_LIMITS) as connection:
        for name, value in tried.items():
            row = connection.execute(_PLANNED_BY, [name]).fetchone()
            context, affects_plans = row or ("user", True)
            if context == "user":
                try:
                    _set(connection, name, value)
                except psycopg.Error as error:
                    why = f"cannot be tried in a session: {error.diag.message_primary}"
                    raise StudyError(f"{name} = {value} {why}.") from None
                by_session[name] = value
            elif affects_plans:
                by_start[name] = value
            else:
                unable.append(name)
    if tried and not by_session and not by_start:
        raise StudyError(f"Nothing is left to try: {', '.join(unable)}: {_NO_PLAN}.")
    if by_start:
        try:
            server.restart(by_start)
        except CannotRun as error:
            raise StudyError(f"{', '.join(by_start)} cannot be tried: {error}.") from None
        server.restart()
    notes = [f"Not tried: {', '.join(unable)}; {_NO_PLAN}."] if unable else []
    return EmptyCopy(server, settings, by_session, by_start, notes)


def _fill(
    copy: EmptyCopy, source: Source, show: Callable[[str], None], script: Sequence[Statement]
) -> None:
    """Dump the source and restore it in the copy, and execute the script there."""
    server, archive = copy.server, copy.server.workplace / "archive"
    show("reading schema and statistics")
    _dump(source, server, archive)
    show("restoring them")
    copy.missing_locale = _create(server, source)
    if copy.missing_locale:
        copy.notes.append(
            f"The copy has not the {copy.missing_locale}, but C: queries that compare texts are "
            f"not judged."
        )
    copy.notes += _extend(server, source)
    copy.notes += _restore(server, archive, "--no-statistics")
    made = _executed(server, script, source.search_path) if script else {}
    # A new index may have the name of one that is gone.
    sizes = {n: size for n, size in source.sizes.items() if n not in made.values()}
    copy.notes += _lengthen(server, sizes, source.entries)
    # Index builds have reset what is known of visible pages.
    _restore(server, archive, "--statistics-only")
    if made:
        sizes, entries, notes = _sizes_of_made(server, [*made])
        copy.notes += [*notes, *_lengthen(server, sizes, entries)]


def _executed(
    server: ManagedServer, script: Sequence[Statement], search_path: str
) -> dict[int, str]:
    """Execute a script while all tables are empty; returns the indexes that it makes, by OID.

    Raises StudyError for a statement that fails.
    """
    with _connected(server) as connection, within(connection, _LONGEST_S, "The SQL to try"):
        before = set(connection.execute(_INDEXES).fetchall())
        _set(connection, "search_path", search_path)
        for statement in script:
            try:
                connection.execute(statement.text)
            except psycopg.Error as error:
                why = error.diag.message_primary or str(error)
                raise StudyError(f"Line {statement.line} of the SQL to try fails: {why}.") from None
        return dict(set(connection.execute(_INDEXES).fetchall()) - before)


def _sizes_of_made(
    server: ManagedServer, made: Sequence[int]
) -> tuple[dict[str, int], Mapping[str, int], list[str]]:
    """The sizes that new indexes would have (bytes), the entries of btrees, and notes on both."""
    sizes, notes = {}, []
    with _connected(server) as connection, within(connection, _LONGEST_S, "Planning its indexes"):
        for name, method, table, predicate, width, distinct in connection.execute(MADE, [made]):
            if method != "btree":
                notes.append(f"The index {name} is planned as if it were empty, as a {method} is.")
                continue
            query = f"SELECT FROM ONLY {table}{f' WHERE {predicate}' if predicate else ''}"
            (plan,) = connection.execute(f"EXPLAIN (FORMAT JSON) {query}".encode()).fetchone() or ()
            pages = leaves(float(plan[0]["Plan"]["Plan Rows"]), float(width), distinct)
            sizes[str(name)] = 8192 * pages
            notes.append(f"The index {name} is planned with {size_text(sizes[name])}.")
        rows = connection.execute(ENTRIES.format(keys="indnkeyatts").encode()).fetchall()
    return sizes, entry_bytes(rows), notes


def _dump(source: Source, server: ManagedServer, archive: Path) -> None:
    with without_tls(source.connection, source.environment()) as address:
        failed, output = _run(server, "pg_dump", [*_DUMP, "--file", archive], address)
    if failed:
        errors = [line for line in output if "error:" in line] or output[-1:] or ["it says nothing"]
        why = errors[0].partition("error: ")[2].strip() or errors[0].strip()
        if says_full(why):
            raise server.no_space(why)
        raise ServerError(f"The schema of {source.name} cannot be read: {why}.")


def _run(
    server: ManagedServer, name: str, options: Sequence[str | Path], address: Mapping[str, str]
) -> tuple[bool, list[str]]:
    """Whether a client program failed, and the lines of the first MB of its error output."""
    complaints = server.workplace / "complaints"
    try:
        with complaints.open("w+b") as file:
            done = subprocess.run(
                [_program(server.binaries, name), *options],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env=client_environment(address) | {"LC_ALL": "C"},
                timeout=_LONGEST_S,
            )
            file.seek(0)
            output = file.read(_OUTPUT_BYTES).decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        raise ServerError(
            f"{name} was given up after {_LONGEST_S:.0f} s: the schema is too large, or a function "
            f"in it does not end."
        ) from None
    return done.returncode != 0, output.splitlines()


def _program(binaries: Binaries, name: str) -> Path:
    """A client program of a release, or the embedded server's if the release has none."""
    program = binaries.program(name)
    if program is None and (embedded := find_binaries()).version >= binaries.version:
        program = embedded.program(name)
    if program is None:
        raise ServerError(f"There is no {name} in {binaries.bindir}: name another by --to.")
    return program


def _create(server: ManagedServer, source: Source) -> str:
    """Create the database with the original's locale, or with C; returns a missing locale."""
    query = sql.SQL(
        "CREATE DATABASE {} TEMPLATE template0 ENCODING {} LC_COLLATE {} LC_CTYPE {} "
        "LOCALE_PROVIDER {}"
    )
    database, (provider, name) = sql.Identifier(_DATABASE), source.provider
    libc, missing = sql.SQL("libc"), ""
    attempts: list[tuple[tuple[str, str], sql.Composable]] = [(source.locale, libc)]
    if provider != "libc":
        word = sql.SQL("icu ICU_LOCALE {}" if provider == "icu" else "builtin BUILTIN_LOCALE {}")
        own = word.format(name)
        # The provider determines the order of texts, whatever libc has.
        attempts = [(source.locale, own), (("C", "C"), own)]
    with server.as_superuser() as connection:
        for locale, by in attempts:
            try:
                connection.execute(query.format(database, source.encoding, *locale, by))
                break
            except psycopg.DatabaseError as error:
                if server.space_error(error):
                    raise
        else:
            connection.execute(query.format(database, source.encoding, "C", "C", libc))
            missing = f"{provider} locale {source.locale[0] if provider == 'libc' else name}"
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(database))
    return missing


def _extend(server: ManagedServer, source: Source) -> list[str]:
    """Create the extensions; returns sentences on those that could not be created."""
    notes = []
    with server.as_superuser(_DATABASE) as connection:
        take_bytes(connection)
        open_to_guest(connection)
        able = harmless_extensions(connection, [name for name, _ in source.extensions])
        for name, schema in source.extensions:
            why = "is not here, or may give what others wrote a way to files or other servers"
            if name in able:
                why = _make_extension(connection, name, schema, server.role)
            if why:
                notes.append(f"Not copied: the extension {name}, and what needs it; it {why}.")
    return notes


def _make_extension(
    connection: psycopg.Connection[TupleRow], name: str, schema: str, role: str
) -> str:
    """Create an extension in its schema; returns the reason if it cannot be created."""
    make = sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}")
    extension = sql.SQL("CREATE EXTENSION IF NOT EXISTS {} SCHEMA {}")
    try:
        if schema != "pg_catalog":
            connection.execute(make.format(sql.Identifier(schema), sql.Identifier(role)))
        connection.execute(extension.format(sql.Identifier(name), sql.Identifier(schema)))
    except psycopg.errors.DiskFull:
        raise
    except psycopg.Error as error:
        return f"cannot be made: {error.diag.message_primary or error}"
    return ""


def _restore(server: ManagedServer, archive: Path, part: str) -> list[str]:
    options: list[str | Path] = [*_RESTORE, part, "--dbname", _DATABASE, archive]
    failed, output = _run(server, "pg_restore", options, server.environment())
    errors = list(dict.fromkeys(x.partition("ERROR:")[2].strip() for x in output if "ERROR:" in x))
    if failed and not errors:
        raise ServerError(f"The copy cannot be made: {' '.join(output)[-500:]}")
    if any(map(says_full, errors)):
        raise server.no_space()
    return [f"Not copied: {error}." for error in errors if not _EXPECTED.fullmatch(error)]


def _lengthen(
    server: ManagedServer, sizes: Mapping[str, int], entries: Mapping[str, int]
) -> list[str]:
    """Give every file its length, up to PostgreSQL's limit, and btrees their height."""
    with _connected(server) as connection:
        # Never a file of the catalogs, whatever the original calls its tables.
        rows = connection.execute(
            """
            SELECT s.name, pg_catalog.pg_relation_filepath(c.oid), s.size
            FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.text[]),
                            pg_catalog.unnest(%s::pg_catalog.numeric[])) AS s (name, size)
            JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(s.name)
            WHERE c.oid >= 16384 AND c.relkind IN ('r', 'i', 'm')
            """,
            [list(sizes), list(sizes.values())],
        ).fetchall()
    server.stop()
    left, shorter = _MOST_SEGMENTS, 0
    for name, path, size in rows:
        wanted = min(max(int(size), 0), _LONGEST_BYTES, left * _SEGMENT_BYTES)
        shorter += wanted < size
        file = server.data_directory / path
        left -= _lengthen_file(file, wanted)
        entry = entries.get(name)
        if entry and (levels := height(wanted // 8192, entry)):
            grow(file, levels)
    server.start()
    reason = "The original gives more room to its tables than a server has, or than this copy can"
    return [f"{reason}: {shorter} of them are planned as shorter."] if shorter else []


def _lengthen_file(first: Path, size: int) -> int:
    """Lengthen a relation by sparse segments; returns the number of segments."""
    owner = first.stat()
    count = -(-size // _SEGMENT_BYTES)
    for number in range(count):
        segment = first if number == 0 else first.with_name(f"{first.name}.{number}")
        length = min(_SEGMENT_BYTES, size - number * _SEGMENT_BYTES)
        with segment.open("ab") as handle:
            handle.truncate(max(length, segment.stat().st_size))
        segment.chmod(owner.st_mode & 0o777)
        if segment.stat().st_uid != owner.st_uid:
            os.chown(segment, owner.st_uid, owner.st_gid)
    return count
