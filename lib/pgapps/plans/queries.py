"""The queries whose plans are asked for: from files, or a server's own most expensive ones."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from pgservers.errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from psycopg.rows import TupleRow


_NAME = re.compile(r"^--\s*name:\s*(\S.*?)\s*$", re.MULTILINE)

_BACKSLASH = re.compile(r"^\s*\\(\w+)", re.MULTILINE)

# Strings, quoted names and comments are passed over; what is left has :name as pgbench and psql do.
_VARIABLE = re.compile(
    r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|(?<![:\w\]]):([A-Za-z_]\w*)", re.DOTALL
)

# Comments and parentheses may stand before the first word.
_EXPLAINED = (
    r"^(\s|\(|--[^\n]*\n|/\*([^*]|\*+[^*/])*\*+/)*"
    r"(SELECT|INSERT|UPDATE|DELETE|MERGE|WITH|VALUES|TABLE)\M"
)

# Strings and comments are passed over, and a FROM that names no table; quoted names are not.
_TARGET = re.compile(
    r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|\bextract\s*\(\s*\S+\s+FROM\b|\bDISTINCT\s+FROM\b"
    r"|\b(?:FROM|JOIN|INTO|UPDATE)\s+(?:ONLY\s+)?([\w.\"$]+)",
    re.DOTALL | re.IGNORECASE,
)

_SKIPPED = r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/"

# pg_stat_statements puts $1 where the grammar takes a constant only.
_TYPED = re.compile(
    rf"{_SKIPPED}|\b(interval|date|(?:time|timestamp)(?:\s+with(?:out)?\s+time\s+zone)?|timetz"
    r"|timestamptz|numeric|bool|boolean|text|uuid|inet|jsonb?|bytea|regclass)\s+\$(\d+)"
    r"|\bextract\s*\(\s*\$(\d+)\s+FROM\b",
    re.DOTALL | re.IGNORECASE,
)

_CATALOG = re.compile(r"(pg_catalog\.|information_schema\.|pg_)", re.IGNORECASE)

_QUERYID, _EXEC_TIME = 90400, 130000
"""From here on pg_stat_statements has these columns."""

_LONGEST = 1_000_000
"""The longest query taken from pg_stat_statements (characters)."""

_VIEW = """
    SELECT n.nspname
    FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'pg_stat_statements'
"""

_MOST = 5000
"""So many of the most expensive queries are looked at, as pg_stat_statements has by default."""

# What is left out is counted by its cause, in as many rows as there are causes; those come first.
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
                THEN 'other commands than SELECT, INSERT, UPDATE, DELETE and MERGE'
            WHEN pg_catalog.length(query) > {longest} THEN 'longer than a million characters'
            WHEN calls < {calls} THEN 'with fewer calls'
            WHEN time_ms < {least_ms} THEN 'with less time'
            END AS cause
        FROM statement
    )
    SELECT cause, pg_catalog.count(*), named.role, named.queryid, named.query
    FROM sorted, LATERAL (
        SELECT sorted.role, sorted.queryid, sorted.query WHERE cause IS NULL
        UNION ALL SELECT NULL, NULL, NULL WHERE cause IS NOT NULL
    ) AS named (role, queryid, query)
    GROUP BY 1, 3, 4, 5
    ORDER BY cause IS NULL, pg_catalog.sum(time_ms) DESC, 4, 3 LIMIT {most}
"""

_HIDDEN = "hidden from this role (GRANT pg_read_all_stats shows them)"

_OURS = "only asked for by this tool"


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


def plannable(text: str) -> str:
    """The same statement with ``interval $1``, ``extract($1 FROM`` and the like as can be read."""

    def rewritten(found: re.Match[str]) -> str:
        kind, number, field = found.groups()
        if field:
            return f"pg_catalog.date_part(${field}::pg_catalog.text,"
        return f"CAST(${number} AS {kind})" if kind else found[0]

    return _TYPED.sub(rewritten, text)


def names_only_catalogs(text: str) -> bool:
    """Whether a statement names no table but the server's own, as far as its text tells."""
    named = [found[1].replace('"', "") for found in _TARGET.finditer(text) if found[1]]
    return all(map(_CATALOG.match, named))


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
                "The server's own queries are not known, because this database has no extension "
                "pg_stat_statements: name a directory of queries by --queries."
            )
        rows = connection.execute(
            sql.SQL(_TOP).format(
                view=sql.Identifier(row[0], "pg_stat_statements"),
                queryid=sql.SQL("s.queryid" if version >= _QUERYID else "NULL::pg_catalog.int8"),
                time=sql.Identifier("total_exec_time" if version >= _EXEC_TIME else "total_time"),
                roles=list(choice.roles),
                not_roles=list(choice.not_roles),
                hidden=_HIDDEN,
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
    left_out[_OURS] += len(ours)
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
