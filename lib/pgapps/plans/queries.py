"""The queries whose plans are asked for: from files, or a server's own most expensive ones."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from pgservers.errors import StudyError
from pgservers.files import read_text
from pgservers.foreign import as_postgres

from ..workload.statements import Command, Lines
from .statements import first_word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from psycopg.rows import TupleRow


_NAME = re.compile(r"^--\s*name:\s*(\S.*?)\s*$", re.MULTILINE)

_SCHEMA = "schema.sql"
"""The tables of a workload; its queries are beside this file."""

# They end a query as a semicolon does.
_SENDS = re.compile(r"\\(?:(?:gset|aset|gx?)\b[^\n]*|;)")

_PASSED = {"set", "if", "elif", "else", "endif", "sleep", "unset", "echo", "pset", "timing"} | {
    f"{word}pipeline" for word in ("start", "sync", "end")
}
"""Commands of psql and pgbench that change no plan."""

_TRANSACTION = {"ABORT", "BEGIN", "COMMIT", "END", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"}

# Strings, quoted names and comments are passed over; what is left has :name and :'name' as pgbench
# and psql do.
_VARIABLE = re.compile(
    r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|(?<![:\w\]]):(['\"]?)([A-Za-z_]\w*)\1",
    re.DOTALL,
)

# Comments and parentheses may stand before the first word.
_EXPLAINED = (
    r"^(\s|\(|--[^\n]*\n|/\*([^*]|\*+[^*/])*\*+/)*"
    r"((SELECT|INSERT|UPDATE|DELETE|MERGE|WITH|VALUES|TABLE|DECLARE\s.*\mCURSOR)\M"
    r"|COPY\s*\("
    r"|CREATE\s+((GLOBAL|LOCAL|TEMP|TEMPORARY|UNLOGGED)\s+)*(TABLE|MATERIALIZED\s+VIEW)\s"
    r"[^(]*(\([^()]*\)[^(]*)*\mAS[\s(]+(SELECT|WITH|VALUES|TABLE)\M)"
)

_QUERYID, _EXEC_TIME = 90400, 130000
"""The versions from which on pg_stat_statements has these columns."""

_LONGEST = 1_000_000
"""The longest query taken from pg_stat_statements (characters)."""

_VIEW = """
    SELECT n.nspname
    FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'pg_stat_statements'
      AND EXISTS (SELECT 1 FROM pg_catalog.pg_settings WHERE name = 'pg_stat_statements.max')
"""

_MOST = 5000
"""The number of queries read, the most expensive first: the default of pg_stat_statements.max."""

# What is left out is counted by its cause, in as many rows as there are causes; those come first.
# What our own role ran is not, as the count would be another each time that we ask.
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
            WHEN query = '<insufficient privilege>' THEN {hidden}
            WHEN query ~* {explained} IS NOT TRUE
                THEN 'of other commands than SELECT, INSERT, UPDATE, DELETE and MERGE'
            WHEN pg_catalog.length(query) > {longest} THEN 'longer than a million characters'
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
    ORDER BY pg_catalog.bool_and(cause IS NULL), pg_catalog.sum(time_ms) DESC, 4, 3 LIMIT {most}
"""

_HIDDEN = "hidden from this role (GRANT pg_read_all_stats shows them)"

_OURS = "of the role that asks"


@dataclass(frozen=True)
class Query:
    """One statement; its parameters are $1, $2 and so on.

    Bytes that are not UTF-8, of a database without an encoding, are those of ``surrogateescape``.

    Attributes:
        name: By which it is told.
        text: The statement.
        role: That ran it, by pg_stat_statements; none where it is that of the address.
        queryid: By which pg_stat_statements knows it.

    """

    name: str
    text: str
    role: str | None = None
    queryid: int | None = None

    @property
    def title(self) -> str:
        """The name, with the role and the number that pg_stat_statements has."""
        known = [f"role {self.role}"] if self.role else []
        known += [f"queryid {self.queryid}"] if self.queryid is not None else []
        return f"{self.name} ({', '.join(known)})" if known else self.name


@dataclass(frozen=True)
class Choice:
    """Which of a server's own queries are wanted.

    Attributes:
        roles: Those that ran them; all if there is none.
        not_roles: Those whose queries are not wanted.
        calls: The least number of calls.
        time_ms: The least time of all calls together (ms).

    """

    roles: Sequence[str] = ()
    not_roles: Sequence[str] = ()
    calls: int = 0
    time_ms: float = 0


def queries_in(directory: Path) -> list[Query]:
    """The queries of the files ``*.sql`` but ``schema.sql``, by file or by line ``-- name: ...``.

    A variable (``:name``, ``:'name'``) becomes a parameter, and what begins and ends transactions
    is passed over.  Raises StudyError where there is no such file, and for one that cannot be read,
    has a name in a variable, or a command that is not passed over.
    """
    try:
        files = sorted(
            p
            for p in directory.iterdir()
            if p.suffix == ".sql" and p.name != _SCHEMA and not p.is_dir()
        )
    except OSError as error:
        raise StudyError(f"{directory} cannot be read: {error.strerror}.") from None
    texts = {file: read_text(file, "a file of queries") for file in files}
    found = [query for file, text in texts.items() for query in _queries_of(file, text)]
    if not found:
        raise StudyError(
            f"{directory} has no file *.sql with a query in it ({_SCHEMA} is not read): name "
            f"another directory."
        )
    return found


def _queries_of(file: Path, text: str) -> Iterator[Query]:
    before, *named = _NAME.split(text)
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
    connection: psycopg.Connection[TupleRow], choice: Choice
) -> tuple[list[Query], Counter[str]]:
    """The queries of this database that took most time, by ``pg_stat_statements``, and the others.

    The others are counted by the reason why they are left out.  Raises StudyError where that
    extension is not installed, or has no such query.
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
                roles=list(choice.roles),
                not_roles=list(choice.not_roles),
                hidden=_HIDDEN,
                ours=_OURS,
                explained=_EXPLAINED,
                longest=_LONGEST,
                calls=choice.calls,
                least_ms=choice.time_ms,
                most=_MOST,
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
        Query("", str(text), role, number) for cause, _, role, number, text in rows if not cause
    ]
    # EXPLAIN can be counted as a call by our role of what another role has run.
    others = {query.queryid for query in found if query.role != connection.info.user} - {None}
    ours = [q for q in found if q.role == connection.info.user and q.queryid in others]
    del left_out[_OURS]
    queries = [query for query in found if query not in ours]
    if not queries:
        why = told_left_out(left_out)
        raise StudyError(
            f"pg_stat_statements has no such query of this database{f' ({why})' if why else ''}: "
            f"ask for others, or use --queries."
        )
    # The session's encoding is LATIN1 where the bytes have none.
    if connection.info.encoding == "iso8859-1":
        queries = [
            replace(q, text=q.text.encode("latin1").decode("utf-8", "surrogateescape"))
            for q in queries
        ]
    return queries, left_out


def told_left_out(left_out: Mapping[str, int]) -> str:
    """How many statements were left out, by the reason."""
    return ", ".join(f"{count} {cause}" for cause, count in left_out.items() if count)
