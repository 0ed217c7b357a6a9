"""The queries whose plans are asked for: from files, or a server's own most expensive ones."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from pgservers.errors import StudyError
from pgservers.files import read_text
from pgservers.foreign import as_postgres

from ..workload.statements import Command, Lines
from .sessions import as_utf8
from .statements import first_word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from psycopg.rows import TupleRow


_NAME = re.compile(r"^--\s*name:\s*(\S.*?)\s*$", re.MULTILINE)

_SCHEMA = "schema.sql"
"""The tables of a workload; its queries are beside this file."""

# Commands that end a query as a semicolon does.
_SENDS = re.compile(r"\\(?:(?:gset|aset|gx?)\b[^\n]*|;)")

_PASSED = {
    *("set", "if", "elif", "else", "endif", "sleep", "unset", "echo", "pset", "timing"),
    *("startpipeline", "syncpipeline", "endpipeline"),
}
"""Commands of psql and pgbench that change no plan."""

_TRANSACTION = {"ABORT", "BEGIN", "COMMIT", "END", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"}

# :name and :'name' as in pgbench and psql; strings, quoted names and comments are passed over.
_VARIABLE = re.compile(
    r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|(?<![:\w\]]):(['\"]?)([A-Za-z_]\w*)\1",
    re.DOTALL,
)

# A statement that can be planned; comments and parentheses may stand before its first word.
_EXPLAINED = (
    r"^(\s|\(|--[^\n]*\n|/\*([^*]|\*+[^*/])*\*+/)*"
    r"((SELECT|INSERT|UPDATE|DELETE|MERGE|WITH|VALUES|TABLE|DECLARE\s.*\mCURSOR)\M"
    r"|COPY\s*\("
    r"|CREATE\s+((GLOBAL|LOCAL|TEMP|TEMPORARY|UNLOGGED)\s+)*(TABLE|MATERIALIZED\s+VIEW)\s"
    r"[^(]*(\([^()]*\)[^(]*)*\mAS[\s(]+(SELECT|WITH|VALUES|TABLE)\M)"
)

_QUERYID, _EXEC_TIME = 90400, 130000
"""The first versions whose pg_stat_statements has these columns."""

_VIEW = """
    SELECT n.nspname
    FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'pg_stat_statements'
      AND EXISTS (SELECT 1 FROM pg_catalog.pg_settings WHERE name = 'pg_stat_statements.max')
"""

# The first rows count what is left out, a row for each cause.  The queries follow, the most
# expensive first, at most as many as the default of pg_stat_statements.max.  What our role ran is
# counted apart, as this number grows each time that we ask.
_TOP = """
    WITH statement AS (
        SELECT s.dbid, r.rolname::pg_catalog.text AS role, {queryid} AS queryid, s.query,
               pg_catalog.sum(s.calls) AS calls, pg_catalog.sum(s.{time}) AS time_ms
        FROM {view} s LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.userid
        GROUP BY 1, 2, 3, 4
    ), sorted AS (
        SELECT *, CASE
            WHEN dbid <> (
                SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()
            ) THEN 'of other databases'
            WHEN (role = ANY ({roles})) IS NOT TRUE AND {roles} <> '{{}}'
              OR role = ANY ({not_roles}) THEN 'of other roles'
            WHEN query = '<insufficient privilege>'
                THEN 'hidden from this role (GRANT pg_read_all_stats shows them)'
            WHEN query ~* {explained} IS NOT TRUE
                THEN 'of other commands than SELECT, INSERT, UPDATE, DELETE and MERGE'
            WHEN pg_catalog.length(query) > 1000000 THEN 'longer than a million characters'
            WHEN calls < {calls} THEN 'with fewer calls'
            WHEN time_ms < {least_ms} THEN 'with less time'
            END AS cause
        FROM statement
    )
    SELECT CASE WHEN sorted.role = current_user::pg_catalog.text AND cause IS NOT NULL
                THEN {ours} ELSE cause END,
           pg_catalog.count(*), named.role, named.queryid, named.query
    FROM sorted, LATERAL (
        SELECT sorted.role, sorted.queryid, sorted.query WHERE cause IS NULL
        UNION ALL SELECT NULL, NULL, NULL WHERE cause IS NOT NULL
    ) AS named (role, queryid, query)
    GROUP BY 1, 3, 4, 5
    ORDER BY pg_catalog.bool_and(cause IS NULL), pg_catalog.sum(time_ms) DESC, 4, 3 LIMIT 5000
"""

_OURS = "of the role that asks"


@dataclass(frozen=True)
class Query:
    """One statement; its parameters are $1, $2 and so on.

    Bytes of ``text`` that are not UTF-8 are decoded by ``surrogateescape``.  ``role`` is the role
    that runs it, None for the role in the address; ``queryid`` is that of pg_stat_statements.
    """

    name: str
    text: str
    role: str | None = None
    queryid: int | None = None

    @property
    def title(self) -> str:
        """The name, with role and queryid if they are known."""
        known = [f"role {self.role}"] if self.role else []
        known += [f"queryid {self.queryid}"] if self.queryid is not None else []
        return f"{self.name} ({', '.join(known)})" if known else self.name


def queries_in(directory: Path) -> list[Query]:
    """The queries of the files ``*.sql`` but ``schema.sql``, by file or by line ``-- name: ...``.

    A variable (``:name``, ``:'name'``) becomes a parameter; BEGIN, COMMIT and the like are ignored.
    Raises StudyError if there is no query, and for a file that cannot be read, or that has a
    variable for a name or a command that changes plans.
    """
    try:
        files = sorted(p for p in directory.iterdir() if p.suffix == ".sql" and not p.is_dir())
    except OSError as error:
        raise StudyError(f"{directory} cannot be read: {error.strerror}.") from None
    found = [query for file in files if file.name != _SCHEMA for query in _queries_of(file)]
    if not found:
        raise StudyError(
            f"{directory} has no file *.sql with a query in it ({_SCHEMA} is not read): name "
            f"another directory."
        )
    return found


def _queries_of(file: Path) -> Iterator[Query]:
    before, *named = _NAME.split(read_text(file, "a file of queries"))
    for name, part in [(file.stem, before), *zip(named[::2], named[1::2], strict=True)]:
        for number, query in enumerate(_statements(file, part), start=1):
            yield Query(name if number == 1 else f"{name} {number}", query)


def _statements(file: Path, text: str) -> Iterator[str]:
    lines = Lines(_SENDS.sub(";", text).encode().splitlines(keepends=True), file)
    for item in lines:
        if not isinstance(item, Command):
            statement = item.text.decode()
            if item.takes_rows:
                for _ in lines.rows():
                    pass
            elif statement and first_word(statement) not in _TRANSACTION:
                yield _numbered(file, statement)
        elif item.name.lower() not in _PASSED:
            raise StudyError(f"{file}: \\{item.name} is a command of psql or pgbench, not a query.")


def _numbered(file: Path, text: str) -> str:
    """The statement with $1, $2 and so on in place of variables."""
    names: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        quote, name = found.groups()
        if quote == '"':
            raise StudyError(
                f'{file}: :"{name}" stands for a name, without which no query can be planned: '
                f"write the name itself."
            )
        return f"${names.setdefault(name, len(names) + 1)}" if name else found[0]

    return _VARIABLE.sub(numbered, text)


@as_postgres("The server")
def top_queries(
    connection: psycopg.Connection[TupleRow],
    *,
    roles: Sequence[str] = (),
    not_roles: Sequence[str] = (),
    min_calls: int = 0,
    min_time_ms: float = 0,
) -> tuple[list[Query], Counter[str]]:
    """The queries of this database that took most time, and the number of others by reason.

    Without ``roles`` they are those of every role but ``not_roles``.  Raises StudyError if
    pg_stat_statements is not installed, or has no such query.
    """
    version = connection.info.server_version
    try:
        row = connection.execute(_VIEW).fetchone()
        if row is None:
            raise StudyError(
                "The server's own queries are not known, because pg_stat_statements is not in this "
                "database, or not in shared_preload_libraries: name a directory of queries by "
                "--queries."
            )
        rows = connection.execute(
            sql.SQL(_TOP).format(
                view=sql.Identifier(row[0], "pg_stat_statements"),
                queryid=sql.SQL("s.queryid" if version >= _QUERYID else "NULL::pg_catalog.int8"),
                time=sql.Identifier("total_exec_time" if version >= _EXEC_TIME else "total_time"),
                roles=list(roles),
                not_roles=list(not_roles),
                ours=_OURS,
                explained=_EXPLAINED,
                calls=min_calls,
                least_ms=min_time_ms,
            )
        ).fetchall()
    except psycopg.Error as error:
        if connection.closed:
            raise
        raise StudyError(
            f"The server's own queries cannot be read from pg_stat_statements "
            f"({error.diag.message_primary}): name a directory of queries by --queries."
        ) from None
    left_out = Counter({str(cause): int(count) for cause, count, *_ in rows if cause is not None})
    found = [
        Query("", as_utf8(connection, text, "surrogateescape"), role, number)
        for cause, _, role, number, text in rows
        if not cause
    ]
    del left_out[_OURS]
    # EXPLAIN can be counted as a call by our role of what another role has run.
    user = connection.info.user
    others = {query.queryid for query in found if query.role != user} - {None}
    queries = [q for q in found if q.role != user or q.queryid not in others]
    if not queries:
        why = told_left_out(left_out)
        raise StudyError(
            f"pg_stat_statements has no such query of this database{f' ({why})' if why else ''}: "
            f"ask for others, or use --queries."
        )
    return queries, left_out


def told_left_out(left_out: Mapping[str, int]) -> str:
    """The numbers of statements that were left out, with the reasons."""
    return ", ".join(f"{count} {cause}" for cause, count in left_out.items() if count)
