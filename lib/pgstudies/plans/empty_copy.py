"""A copy of a database without its data: schema, statistics, and files of the true size.

The planner asks statistics for the values and files for their size, so the files are made as long
as the original's, by holes that take no room.  The copy can plan and nothing else: its pages are
empty.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from ..errors import ServerError, StudyError
from ..programs import find_binaries, run_client
from ..servers import serve
from ..servers.managed import ManagedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from psycopg.rows import TupleRow

    from ..programs.installations import Binaries
    from .source import Source


RESTORES_STATISTICS = 180000
"""From here on a server takes optimizer statistics from a dump."""


_DATABASE = "plans"


_SEGMENT_BYTES = 2**30


_SCHEMA = [
    "--no-data",
    "--statistics",
    "--no-owner",
    "--no-privileges",
    "--no-publications",
    "--no-subscriptions",
    "--no-comments",
    "--no-security-labels",
    "--no-tablespaces",
    "--lock-wait-timeout=2s",
]


_STATISTICS = ["--statistics-only", "--lock-wait-timeout=2s"]


_SETTINGS = {"autovacuum": "off", "fsync": "off", "max_wal_size": "1GB"}


class EmptyCopy:
    """The copy while it lasts; ``notes`` are what could not be copied, in words."""

    def __init__(self, server: ManagedServer, settings: Mapping[str, str]) -> None:
        self.server = server
        self.notes: list[str] = []
        self._settings = settings

    def connect(self, settings: Mapping[str, str] = {}) -> psycopg.Connection[TupleRow]:
        """A read-only connection with the original's settings for the planner, and with these.

        Raises StudyError for one of ``settings`` that cannot be had.
        """
        connection = self.server.connect(dbname=_DATABASE)
        for name, value in self._settings.items():
            try:
                connection.execute("SELECT set_config(%s, %s, false)", [name, value])
            except psycopg.Error:
                self._note(f"The setting {name} = {value} is not known to it.")
        for name, value in settings.items():
            try:
                connection.execute("SELECT set_config(%s, %s, false)", [name, value])
            except psycopg.Error as error:
                raise StudyError(
                    f"{name} = {value} cannot be tried in a session: {error.diag.message_primary}."
                ) from None
        connection.execute("SET default_transaction_read_only = on")
        return connection

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


@contextmanager
def empty_copy(source: Source, spec: str, show: Callable[[str], None]) -> Iterator[EmptyCopy]:
    """A copy of the source's database on a server of ours, as ``serve`` names it.

    Raises StudyError for one before 18, and ServerError where the dump or the restore fails.
    """
    with serve(spec, settings=_SETTINGS) as server:
        if not isinstance(server, ManagedServer):
            raise StudyError(
                "The copy needs a managed server: give --to a release such as 18, embedded, or "
                "a directory of programs."
            )
        if server.version < RESTORES_STATISTICS:
            raise StudyError(
                f"Plans can be foreseen on release 18 or later, which load statistics from a dump, "
                f"and {spec} is {server.version_text}."
            )
        copy = EmptyCopy(server, source.settings)
        with tempfile.TemporaryDirectory(prefix="pgstudies-") as directory:
            schema, statistics = (Path(directory) / name for name in ("schema", "statistics"))
            show("reading schema and statistics")
            _dump(source, server, _SCHEMA, schema)
            _dump(source, server, _STATISTICS, statistics)
            show("restoring them")
            copy.notes += _create(server, source)
            copy.notes += _restore(server, schema)
            _lengthen(server, source.sizes)
            # Index builds after the first time have reset what is known of visible pages.
            _restore(server, statistics)
        yield copy


def _dump(source: Source, server: ManagedServer, options: list[str], file: Path) -> None:
    command: list[str | Path] = [_program(server.binaries, "pg_dump"), *options, "--file", file]
    done = run_client(command, source.environment())
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error:" in line] or [done.stderr]
        raise ServerError(
            f"The schema of {source.name} cannot be read: "
            f"{said[0].partition('error: ')[2].strip() or said[0].strip()}."
        )


def _program(binaries: Binaries, name: str) -> Path:
    """A client program of a release, or the embedded server's, as fetched releases have none."""
    program = binaries.program(name)
    if program is None and (embedded := find_binaries()).version >= binaries.version:
        program = embedded.program(name)
    if program is None:
        raise ServerError(f"There is no {name} in {binaries.bindir}: name another by --to.")
    return program


def _create(server: ManagedServer, source: Source) -> list[str]:
    """Make the database, with the original's locale where there is one of that name here."""
    query = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LC_COLLATE {} LC_CTYPE {}")
    with server.connect() as connection:
        try:
            connection.execute(
                query.format(sql.Identifier(_DATABASE), source.encoding, *source.locale)
            )
        except psycopg.Error:
            connection.execute(query.format(sql.Identifier(_DATABASE), source.encoding, "C", "C"))
            return [
                f"There is no locale {source.locale[0]} here, so the copy has C: LIKE and sorting "
                f"may be planned otherwise."
            ]
    return []


def _restore(server: ManagedServer, file: Path) -> list[str]:
    done = run_client(
        [
            _program(server.binaries, "psql"),
            "--no-psqlrc",
            "--quiet",
            "--output",
            os.devnull,
            "--file",
            file,
        ],
        server.environment() | {"PGDATABASE": _DATABASE},
    )
    if done.returncode:
        raise ServerError(f"The copy cannot be made: {done.stderr.strip()[-500:]}")
    failed = [line.partition("ERROR:")[2].strip() for line in done.stderr.splitlines()]
    return [f"Not copied: {said}." for said in dict.fromkeys(filter(None, failed))]


def _lengthen(server: ManagedServer, sizes: Mapping[str, int]) -> None:
    """Give every file the length of the original's."""
    with server.connect(dbname=_DATABASE) as connection:
        files = {}
        for name, size in sizes.items():
            row = connection.execute(
                "SELECT pg_relation_filepath(to_regclass(%s))", [name]
            ).fetchone()
            if row is not None and row[0] is not None:
                files[row[0]] = size
        connection.execute("CHECKPOINT")
    server.stop()
    for path, size in files.items():
        first = server.data_directory / path
        owner = first.stat()
        for number in range(-(-size // _SEGMENT_BYTES)):
            segment = first if number == 0 else first.with_name(f"{first.name}.{number}")
            length = min(_SEGMENT_BYTES, size - number * _SEGMENT_BYTES)
            with segment.open("ab") as handle:
                handle.truncate(max(length, segment.stat().st_size))
            segment.chmod(owner.st_mode & 0o777)
            if segment.stat().st_uid != owner.st_uid:
                os.chown(segment, owner.st_uid, owner.st_gid)
    server.start()
