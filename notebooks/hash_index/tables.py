"""The tables of ``hash_index.ipynb``: statements on them, and what is looked at during a run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import psycopg
from psycopg import sql

import pgstudies as pg

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from typing import LiteralString

    from psycopg.errors import Diagnostic

    from pgstudies.measuring.trial import Trial

POST = ["wide", "narrow", "collision"]
LOCALE = "en_US.UTF-8"
COLLATIONS = {
    LOCALE: "(locale = 'en_US.UTF-8')",
    "ICU": "(provider = icu, locale = 'en-US')",
    "ICU, nondeterministic": "(provider = icu, locale = 'en-US', deterministic = false)",
}
COLLATED = {f"wide{n}": name for n, name in enumerate(COLLATIONS)}
"""The tables of wide keys in other collations than C; such a collation is named as its table is."""

LOOKS: dict[str, tuple[LiteralString, str]] = {
    "checksum": (
        "SELECT sum(('x' || substr(md5(f1 || ' ' || f2), 1, 6))::bit(24)::int) FROM {table}",
        "sum",
    ),
    "colliding": (
        """SELECT coalesce(sum(n), 0)
        FROM (SELECT count(*) n FROM {table}
            GROUP BY {code}(f2) HAVING count(*) > 1) alike""",
        "rows",
    ),
    "value_bytes": ("SELECT pg_column_size(f2) FROM {table} WHERE f1 = 1", "bytes"),
    "heap_bytes": ("SELECT pg_relation_size({name})", "bytes"),
}
"""What is looked at in a table that was loaded, and its unit."""

PREWARM: LiteralString = """SELECT pg_prewarm({name}),
    (SELECT sum(pg_prewarm(indexrelid)) FROM pg_index
     WHERE indrelid = {name}::regclass)"""
# Sorted by the primary key, so that it is read as well.
PROBE_ALL: LiteralString = """SELECT count(*)
FROM (SELECT f2 FROM {table} ORDER BY f1) a JOIN {table} b USING (f2)"""

IS_THERE: LiteralString = """SELECT count(*) FROM pg_class
WHERE relname = {name} AND pg_table_is_visible(oid)"""


def wanted(widths: Sequence[int], *, collations: bool) -> list[str]:
    """The post's tables, and those that the parameters ask for."""
    texts = [f"text{width}" for width in widths]
    return [*POST, *texts, *(COLLATED if collations else ())]


def case_of(table: str) -> str:
    return f"wide, {COLLATED[table]}" if table in COLLATED else table


def on(table: str, text: LiteralString, **words: object) -> str:
    """A statement for one table, its name as a text, and its index."""
    more = {word: sql.SQL(str(value)) for word, value in words.items()}
    return (
        sql.SQL(text)
        .format(
            table=sql.Identifier(table),
            index=sql.Identifier(f"{table}_f2"),
            name=sql.Literal(table),
            index_name=sql.Literal(f"{table}_f2"),
            **more,
        )
        .as_string()
    )


def shared_buffers(rows: int, widths: Sequence[int]) -> str:
    """Room for a table and its indexes, but at most a fourteenth of this machine's memory."""
    enough = max(64, rows * (100 + max([100, *widths])) // 200_000)
    return f"{min(enough, psutil.virtual_memory().total // 14 // 2**20)}MB"


def bytes_needed(tables: Collection[str], *, rows: int, widths: Sequence[int]) -> float:
    """What tables and the largest index on them take, as the kept copy and as the one in use."""
    of_values = sum(8 if table in POST[1:] else 100 for table in tables)
    a_row = 150 * len(tables) + 2.5 * (of_values + sum(widths))
    return 2 * rows * a_row


def has_collation(trial: Trial, table: str, no_locale: str | None) -> bool:
    """Whether there is the collation of the table's column, made if it can be.

    ``no_locale`` is why servers of ours do not know the locale, or None.
    """
    collation = COLLATED.get(table)
    if collation is None:
        return True
    ours = trial.server.capabilities.has("restart")
    if collation == LOCALE and no_locale and ours:
        return False
    try:
        trial.execute(f"CREATE COLLATION {table} {COLLATIONS[collation]}")
    except psycopg.Error:
        return False
    return True


def look_at(trial: Trial, table: str, kind: str) -> None:
    """Record what a loaded table of keys of this type holds."""
    code = "hashint8" if kind == "bigint" else "hashtext"
    for metric, (query, unit) in LOOKS.items():
        value = trial.value(on(table, query, code=code))
        trial.record("load", metric, value, unit, case=case_of(table))


def is_there(trial: Trial, table: str) -> bool:
    """Whether the table was loaded; noted where the server lacks its collation."""
    if trial.value(on(table, IS_THERE)):
        return True
    reason = "this server does not know the collation"
    trial.leave_out("all", case_of(table), reason)
    return False


def read_in(trial: Trial, table: str) -> None:
    """Fill shared buffers of a server of ours with a table and its indexes."""
    can = trial.server.capabilities
    if can.has("restart"):
        query = PREWARM if "pg_prewarm" in can.contrib else PROBE_ALL
        trial.execute(on(table, query))


def require_plan(trial: Trial, table: str, query: str, *, scans: int) -> None:
    """Raises CannotRun where a query does not use the table's index for all of its probes."""
    plan = trial.execute("EXPLAIN " + query.replace("$1", "1")).fetchall()
    found = sum(f"using {table}_f2 " in line for (line,) in plan)
    if found != scans:
        raise pg.CannotRun(
            f"the planner does not use the index on {table} {scans} times, but {found}"
        )


@contextmanager
def sorts_told(trial: Trial) -> Iterator[list[str]]:
    """What the server says meanwhile, of its sorts as well."""
    said: list[str] = []

    def listen(notice: Diagnostic) -> None:
        said.append(notice.message_primary or "")

    trial.execute("SET trace_sort = on")
    trial.execute("SET client_min_messages = log")
    trial.connection.add_notice_handler(listen)
    yield said
    trial.connection.remove_notice_handler(listen)
    trial.execute("RESET client_min_messages")
