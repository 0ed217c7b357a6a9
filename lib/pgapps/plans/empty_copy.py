"""A copy of a database without its data: schema, statistics, and files of the true size.

The planner takes the sizes of tables from their files, so these are as long as the original's, and
sparse.  The copy can plan and nothing else: its pages are empty.

What comes from the original is code of others: it is restored and planned by a role without rights,
and once it is there no superuser enters the database.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from pgservers.errors import CannotRun, ServerError, StudyError
from pgservers.files import says_full, space_error
from pgservers.programs.installations import client_environment, find_binaries
from pgservers.servers.managed import ManagedServer, harmless_extensions, open_to_guest
from pgservers.servers.serve import serve

from .sessions import take_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from psycopg.rows import TupleRow

    from pgservers.programs.installations import Binaries

    from .source import Source

RESTORES_STATISTICS = 180000
"""The first release that restores optimizer statistics from a dump."""

_DATABASE = "plans"

_SEGMENT_BYTES = 2**30

_LONGEST_BYTES = 2**45
"""A relation has at most 2^32 pages."""

_MOST_SEGMENTS = 100_000

_LONGEST_S = 600.0
"""The limit for the dump and for each part of the restore, which may run others' functions (s)."""

_OUTPUT_BYTES = 1_000_000

_DUMP = [
    "--format=custom",
    "--no-data",
    "--statistics",
    # We make those that are known to be harmless, before anything else is in the database.
    "--exclude-extension=*",
    "--lock-wait-timeout=2s",
]

_RESTORE = [
    "--no-owner",
    "--no-privileges",
    "--no-publications",
    "--no-subscriptions",
    "--no-comments",
    "--no-security-labels",
    "--no-tablespaces",
]

_SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "max_wal_size": "128MB",
    "temp_file_limit": "1GB",
    "event_triggers": "off",
}

_NO_PLAN = "no plan depends on what no session can set, such as shared_buffers"

# But on these: they are tried by a start of the copy's server.
_PLANNED_BY = """
    SELECT context, category LIKE 'Query Tuning%%' OR name = 'session_replication_role'
    FROM pg_catalog.pg_settings WHERE pg_catalog.lower(name) = %s
"""

_LIMITS = "-c search_path= -c statement_timeout=20s"

# Extensions' schemas are there before the restore, and event triggers are no matter of plans.
_EXPECTED = re.compile(r'schema ".*" already exists|permission denied to create event trigger .*')


class EmptyCopy:
    """The running copy; ``notes`` say what could not be copied.

    ``missing_locale`` is the database's, in words, where the copy has another.  ``tried`` are the
    settings to try that a session can set, and ``by_start`` those that a server is started with.
    """

    def __init__(self, server: ManagedServer, settings: Mapping[str, str]) -> None:
        self.server = server
        self.notes: list[str] = []
        self.missing_locale = ""
        self.tried: Mapping[str, str] = {}
        self.by_start: Mapping[str, str] = {}
        self._settings = settings

    def start_as_tried(self) -> None:
        """Restart the server with the settings that a session cannot set."""
        if self.by_start:
            self.server.restart(self.by_start)

    def connect(self, settings: Mapping[str, str] = {}) -> psycopg.Connection[TupleRow]:
        """A read-only connection with the original's planner settings, changed by ``settings``."""
        connection = _connected(self.server)
        for name, value in self._settings.items():
            try:
                _set(connection, name, value)
            except psycopg.Error:
                self._note(f"The setting {name} = {value} is not known to it.")
        for name, value in settings.items():
            _set(connection, name, value)
        _set(connection, "default_transaction_read_only", "on")
        return connection

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def _connected(server: ManagedServer) -> psycopg.Connection[TupleRow]:
    """A session of the role without rights."""
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
) -> Iterator[EmptyCopy]:
    """A copy of the source's database on a managed server, as ``serve`` names it.

    ``tried`` are settings to try there; ``like`` are planner settings in place of the source's.
    Raises StudyError for a server before 18 or older than the source, and for settings
    that cannot be tried, all before anything is dumped, ServerError where the dump or the restore
    fails or the copy does not answer, and SpaceError on a full disk.
    """
    with serve(spec, settings=_SETTINGS, unprivileged=True) as server:
        assert isinstance(server, ManagedServer)
        if server.version < RESTORES_STATISTICS:
            raise StudyError(
                f"Plans can be predicted only for release 18 or later, which restores statistics "
                f"from a dump, and {spec} is {server.version_text}: name another by --to."
            )
        if server.version // 10000 < source.major:
            raise StudyError(
                f"{source.name} is PostgreSQL {source.major}, and {spec} is {server.version_text}: "
                f"give --to its own release or a later one, by a directory of programs if need be."
            )
        try:
            copy = EmptyCopy(server, source.settings if like is None else like)
            copy.tried, copy.by_start, unable = _settable(server, tried)
            if unable:
                copy.notes.append(f"Not tried: {', '.join(unable)}; {_NO_PLAN}.")
            show("reading schema and statistics")
            archive = server.workplace / "archive"
            _dump(source, server, archive)
            show("restoring them")
            copy.missing_locale = _create(server, source)
            if copy.missing_locale:
                copy.notes.append(
                    f"The copy has not the {copy.missing_locale}, but C: queries that compare "
                    f"texts are not judged."
                )
            copy.notes += _extend(server, source)
            copy.notes += _restore(server, archive, "--no-statistics")
            copy.notes += _lengthen(server, source.sizes)
            # Index builds have reset what is known of visible pages.
            _restore(server, archive, "--statistics-only")
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


def _settable(
    server: ManagedServer, tried: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Settings for a session, settings for the server's start, and names that cannot be tried.

    Raises StudyError for one that the server has not, for a wrong value, and where none is left.
    """
    by_session: dict[str, str] = {}
    by_start: dict[str, str] = {}
    unable: list[str] = []
    with server.connect(options=_LIMITS) as connection:
        for name, value in tried.items():
            row = connection.execute(_PLANNED_BY, [name]).fetchone()
            if row is not None and row[0] != "user":
                by_start |= {name: value} if row[1] else {}
                unable += [] if row[1] else [name]
                continue
            try:
                _set(connection, name, value)
            except psycopg.Error as error:
                raise StudyError(
                    f"{name} = {value} cannot be tried in a session: {error.diag.message_primary}."
                ) from None
            by_session[name] = value
    if tried and not by_session and not by_start:
        raise StudyError(f"Nothing is left to try: {', '.join(unable)}: {_NO_PLAN}.")
    if by_start:
        try:
            server.restart(by_start)
        except CannotRun as error:
            raise StudyError(f"{', '.join(by_start)} cannot be tried: {error}.") from None
        server.restart()
    return by_session, by_start, unable


def _dump(source: Source, server: ManagedServer, archive: Path) -> None:
    failed, output = _run(server, "pg_dump", [*_DUMP, "--file", archive], source.environment())
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
    """Create the database with the original's locale; returns a sentence if that is missing."""
    query = sql.SQL(
        "CREATE DATABASE {} TEMPLATE template0 ENCODING {} LC_COLLATE {} LC_CTYPE {} "
        "LOCALE_PROVIDER "
    )
    database, (provider, name) = sql.Identifier(_DATABASE), source.provider
    kind: sql.Composable = sql.SQL("libc")
    if provider != "libc":
        word = sql.SQL("icu ICU_LOCALE " if provider == "icu" else "builtin BUILTIN_LOCALE ")
        kind = word + sql.Literal(name)
    # ICU has the order of texts, whatever libc has.
    tried = [(source.locale, kind)] + ([] if provider == "libc" else [(("C", "C"), kind)])
    missing = f"{provider} locale {source.locale[0] if provider == 'libc' else name}"
    with server.as_superuser() as connection:
        for locale, by in [*tried, (("C", "C"), sql.SQL("libc"))]:
            try:
                connection.execute(query.format(database, source.encoding, *locale) + by)
            except psycopg.DatabaseError as error:
                if server.space_error(error) or by is not kind:
                    raise
            else:
                missing = missing if by is not kind else ""
                break
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(database))
    return missing


def _extend(server: ManagedServer, source: Source) -> list[str]:
    """Create the extensions; returns sentences on those that could not be created."""
    with server.as_superuser(_DATABASE) as connection:
        take_bytes(connection)
        open_to_guest(connection)
        return _make_extensions(connection, source, server.role)


def _make_extensions(
    connection: psycopg.Connection[TupleRow], source: Source, role: str
) -> list[str]:
    able = harmless_extensions(connection, [name for name, _ in source.extensions])
    notes = []
    for name, schema in source.extensions:
        why = ""
        if name not in able:
            why = "is not here, or may give what others wrote a way to files or other servers"
        else:
            try:
                _make_extension(connection, name, schema, role)
            except psycopg.errors.DiskFull:
                raise
            except psycopg.Error as error:
                why = f"cannot be made: {error.diag.message_primary or error}"
        if why:
            notes.append(f"Not copied: the extension {name}, and what needs it; it {why}.")
    return notes


def _make_extension(
    connection: psycopg.Connection[TupleRow], name: str, schema: str, role: str
) -> None:
    make = sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}")
    if schema != "pg_catalog":
        connection.execute(make.format(sql.Identifier(schema), sql.Identifier(role)))
    extension = sql.SQL("CREATE EXTENSION IF NOT EXISTS {} SCHEMA {}")
    connection.execute(extension.format(sql.Identifier(name), sql.Identifier(schema)))


def _restore(server: ManagedServer, archive: Path, part: str) -> list[str]:
    options: list[str | Path] = [*_RESTORE, part, "--dbname", _DATABASE, archive]
    failed, output = _run(server, "pg_restore", options, server.environment())
    errors = list(dict.fromkeys(x.partition("ERROR:")[2].strip() for x in output if "ERROR:" in x))
    if failed and not errors:
        raise ServerError(f"The copy cannot be made: {' '.join(output)[-500:]}")
    if any(map(says_full, errors)):
        raise server.no_space()
    return [f"Not copied: {error}." for error in errors if not _EXPECTED.fullmatch(error)]


def _lengthen(server: ManagedServer, sizes: Mapping[str, int]) -> list[str]:
    """Give every file the length of the original's, up to PostgreSQL's limit."""
    with _connected(server) as connection:
        # None of the server's own, whatever the original calls its tables.
        rows = connection.execute(
            """
            SELECT pg_catalog.pg_relation_filepath(c.oid), s.size
            FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.text[]),
                            pg_catalog.unnest(%s::pg_catalog.numeric[])) AS s (name, size)
            JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(s.name)
            WHERE c.oid >= 16384 AND c.relkind IN ('r', 'i', 'm')
            """,
            [list(sizes), list(sizes.values())],
        ).fetchall()
    server.stop()
    left, shorter = _MOST_SEGMENTS, 0
    for path, size in rows:
        wanted = min(max(int(size), 0), _LONGEST_BYTES, left * _SEGMENT_BYTES)
        shorter += wanted < size
        left -= _lengthen_file(server.data_directory / path, wanted)
    server.start()
    reason = "The original gives more room to its tables than a server has, or than this copy can"
    return [f"{reason}: {shorter} of them are planned as shorter."] if shorter else []


def _lengthen_file(first: Path, size: int) -> int:
    """Make the segments of a relation; returns how many there are."""
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
