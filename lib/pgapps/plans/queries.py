"""The queries whose plans are asked for: from files, or a server's own most expensive ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from pgservers.errors import StudyError

if TYPE_CHECKING:
    from pathlib import Path

    from psycopg.rows import TupleRow


_NAME = re.compile(r"^--\s*name:\s*(\S.*?)\s*$", re.MULTILINE)

_BACKSLASH = re.compile(r"^\s*\\(\w+)", re.MULTILINE)

# Strings, quoted names and comments are passed over; what is left has :name as pgbench and psql do.
_VARIABLE = re.compile(
    r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|(?<![:\w\]]):([A-Za-z_]\w*)", re.DOTALL
)

_EXPLAINED = r"^\s*(SELECT|INSERT|UPDATE|DELETE|MERGE|WITH|VALUES|TABLE)\M"

_LONGEST = 1_000_000
"""The longest query taken from pg_stat_statements (characters)."""

_VIEW = """
    SELECT n.nspname
    FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'pg_stat_statements'
"""

_TOP = """
    SELECT query FROM {view}
    WHERE dbid = (
        SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()
    )
      AND pg_catalog.length(query) <= {longest}
      AND query !~ 'pg_stat_statements'
      AND query ~* {explained}
    GROUP BY query ORDER BY pg_catalog.sum({time}) DESC LIMIT {count}
"""


@dataclass(frozen=True)
class Query:
    """One statement; its parameters are $1, $2 and so on.

    Bytes that are not UTF-8, of a database without an encoding, are those of ``surrogateescape``.
    """

    name: str
    text: str


def queries_in(directory: Path) -> list[Query]:
    """The queries of the files ``*.sql``, one for each file or for each line ``-- name: ...``.

    A variable of pgbench (``:name``) becomes a parameter.  Raises StudyError where there is no such
    file, or one that cannot be read or has a backslash command.
    """
    try:
        files = sorted(p for p in directory.iterdir() if p.suffix == ".sql" and p.is_file())
        texts = {file: file.read_text(encoding="utf-8") for file in files}
    except OSError as error:
        raise StudyError(f"{directory} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise StudyError(f"A file of {directory} is not UTF-8: {error.reason}.") from None
    found = [query for file, text in texts.items() for query in _queries_of(file, text)]
    if not found:
        raise StudyError(f"{directory} has no file *.sql with a query in it.")
    return found


def _queries_of(file: Path, text: str) -> list[Query]:
    command = _BACKSLASH.search(text)
    if command:
        raise StudyError(f"{file}: \\{command[1]} is a command of psql or pgbench, not a query.")
    before, *named = _NAME.split(text)
    parts = [(file.stem, before), *zip(named[::2], named[1::2], strict=True)]
    return [Query(name, query) for name, part in parts if (query := _query(part))]


def _query(text: str) -> str:
    """The statement without comments around it and the semicolon at its end."""
    names: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        name = found[1]
        return found[0] if name is None else f"${names.setdefault(name, len(names) + 1)}"

    stripped = re.sub(r"^\s*(--[^\n]*\n\s*)*", "", f"{text}\n").strip().rstrip(";").strip()
    return _VARIABLE.sub(numbered, stripped)


def top_queries(connection: psycopg.Connection[TupleRow], count: int) -> list[Query]:
    """The queries of this database that took most time, by ``pg_stat_statements``.

    Raises StudyError where that extension is not installed, or has no queries.
    """
    time = "total_exec_time" if connection.info.server_version >= 130000 else "total_time"
    try:
        row = connection.execute(_VIEW).fetchone()
        if row is None:
            raise StudyError(
                "The server's own queries are not known, because this database has no extension "
                "pg_stat_statements: name a directory of queries by --queries."
            )
        rows = connection.execute(
            sql.SQL(_TOP).format(
                view=sql.Identifier(row[0], "pg_stat_statements"),
                longest=_LONGEST,
                explained=_EXPLAINED,
                time=sql.Identifier(time),
                count=count,
            )
        ).fetchall()
    except psycopg.Error as error:
        if connection.closed:
            raise
        raise StudyError(
            f"The server's own queries cannot be read from pg_stat_statements "
            f"({error.diag.message_primary}): name a directory of queries by --queries."
        ) from None
    if not rows:
        raise StudyError("pg_stat_statements has no query of this database: use --queries.")
    # The session's encoding is LATIN1 where the bytes have none.
    if connection.info.encoding == "iso8859-1":
        rows = [(text.encode("latin1").decode("utf-8", "surrogateescape"),) for (text,) in rows]
    return [Query(f"{number}", text) for number, (text,) in enumerate(rows, start=1)]
