"""What the planner needs and a copy lacks, and the queries that need it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from .explain import lines_of, tables_of
from .sessions import as_utf8

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from .empty_copy import EmptyCopy
    from .explain import Node
    from .source import Source

_ROW_SECURITY, _STATISTICS, _EXPRESSIONS, _RANGE_STATISTICS = 90500, 100000, 140000, 170000
"""The first versions with row security, extended statistics, those on expressions, and those of
ranges in pg_stats."""

# On the copy the owner of the tables plans, whom row security binds only if it is forced.
_GUARDED = """
    SELECT DISTINCT r.rolname, c.relname
    FROM pg_catalog.pg_class c, pg_catalog.pg_roles r
    WHERE c.relrowsecurity AND r.rolname = ANY (%s) AND (
        c.relforcerowsecurity OR NOT (
            r.rolsuper OR r.rolbypassrls OR pg_catalog.pg_has_role(r.oid, c.relowner, 'USAGE')
        )
    )
"""

_EXTENDED = """
    SELECT pg_catalog.format('%I.%I', n.nspname, s.stxname), c.relname, {expressions},
           ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum = ANY (s.stxkeys))
    FROM pg_catalog.pg_statistic_ext s
    JOIN pg_catalog.pg_class c ON c.oid = s.stxrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = s.stxnamespace
"""

_THERE = """
    SELECT c.relname, pg_catalog.format('%I.%I', n.nspname, c.relname)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid >= 16384
"""

_WITH_VALUES = """
    SELECT pg_catalog.format('%I.%I', statistics_schemaname, statistics_name)
    FROM pg_catalog.pg_stats_ext
"""

# Statistics of an index's expressions are shown to its owner only.
_INDEXED = """
    SELECT pg_catalog.format('%I.%I', n.nspname, i.relname), c.relname,
           pg_catalog.pg_get_indexdef(x.indexrelid, x.number, true)
    FROM (
        SELECT *, pg_catalog.generate_series(1, indnatts) AS number FROM pg_catalog.pg_index
    ) x
    JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
    JOIN pg_catalog.pg_class c ON c.oid = x.indrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = i.relnamespace
    WHERE i.oid >= 16384 AND x.indkey[x.number - 1] = 0
"""

_WITH_STATISTICS = """
    SELECT pg_catalog.format('%I.%I', schemaname, tablename) FROM pg_catalog.pg_stats
"""

_RANGES = """
    SELECT c.relname, a.attname
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE c.oid >= 16384 AND c.relkind IN ('r', 'm', 'p') AND t.typtype IN ('r', 'm')
      AND a.attnum > 0 AND NOT a.attisdropped
"""

# Tables that have a tablespace with costs of its own, or an index that has.
_PRICED = """
    SELECT DISTINCT t.relname, s.spcname
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
    JOIN pg_catalog.pg_tablespace s ON s.spcoptions IS NOT NULL
        AND s.oid = CASE c.reltablespace WHEN 0 THEN d.dattablespace ELSE c.reltablespace END
    LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
    JOIN pg_catalog.pg_class t ON t.oid = COALESCE(i.indrelid, c.oid)
    WHERE c.oid >= 16384
"""

# Patterns, and comparisons by the order of texts.
_BY_LOCALE = re.compile(r"~|\^@|[<>]=? \(?'[^']*'\)?::text|text\)? [<>]")


class Extended(NamedTuple):
    """Extended statistics: their name, table and columns, and whether they are of expressions."""

    name: str
    table: str
    has_expressions: bool
    columns: Sequence[str]


@dataclass(frozen=True)
class Lacking:
    """What a copy lacks.

    Attributes:
        relations: The names of the tables and indexes that it has.
        indexes: The missing indexes, with their tables.
        statistics: Extended statistics without values in the copy.
        expressions: Index, table and text of each indexed expression without statistics there.
        guarded: Roles with the tables whose row security binds them.
        locale: The locale of the database in words, if the copy has another; else empty.
        ranges: The columns of ranges, each after its table, whose statistics no dump has.
        priced: Tables, each with a tablespace that has costs of its own.

    """

    relations: Collection[str]
    indexes: Sequence[tuple[str, str]]
    statistics: Sequence[Extended]
    expressions: Sequence[tuple[str, str, str]]
    guarded: Collection[tuple[str, str]]
    locale: str
    ranges: Collection[tuple[str, str]] = ()
    priced: Collection[tuple[str, str]] = ()

    def reason(self, roles: Iterable[str], plans: Sequence[Node], *, is_reproduced: bool) -> str:
        """The reason why a query's plans cannot be judged; empty if they can.

        With ``is_reproduced`` the control, without the statistics too, had the server's own plan.
        """
        tables = set[str]().union(*map(tables_of, plans))
        for role in roles:
            if held := [table for table in sorted(tables) if (role, table) in self.guarded]:
                return f"row security of {held[0]} binds role {role}, and is not so on the copy"
        if gone := sorted(tables - {""} - set(self.relations)):
            return f"the copy has no {gone[0]}"
        if short := [name for name, table in self.indexes if table in tables]:
            return f"the copy has no index {short[0]}"
        conditions = " ".join(line.text for plan in plans for line in lines_of(plan))
        if self.locale and _BY_LOCALE.search(conditions):
            return f"it compares texts, and the copy has not the {self.locale}"
        return "" if is_reproduced else self._unknown(tables, conditions)

    def _unknown(self, tables: Collection[str], conditions: str) -> str:
        """What is missing that the planner would use for these conditions, as a reason."""
        for index, table, text in self.expressions:
            if table in tables and _bare(text) in _bare(conditions):
                return (
                    f"the copy has no statistics of the expression in the index {index}, which "
                    f"are shown to its owner only"
                )
        for table, space in self.priced:
            if table in tables:
                return f"the copy does not have the costs of {table}'s tablespace {space}"
        words = set(re.findall(r"\w+", conditions))
        for table, column in self.ranges:
            if table in tables and column in words:
                return (
                    f"the copy has no statistics of the ranges {table}.{column}, which servers "
                    f"before 17 do not show"
                )
        for extended in self.statistics:
            enough = 1 if extended.has_expressions else 2
            if extended.table in tables and len(words.intersection(extended.columns)) >= enough:
                return f"the copy has no values of the extended statistics {extended.name}"
        return ""


def _bare(text: str) -> str:
    """An expression without aliases, parentheses and spaces, which depend on its place."""
    return re.sub(r"\b\w+\.(?=\w)|[()\s]", "", text)


def lacking(source: Source, copy: EmptyCopy, roles: Collection[str]) -> Lacking:
    """What the copy lacks for the queries of ``roles``."""
    with copy.connect() as connection:
        rows = connection.execute(_THERE)
        there = {str(full): as_utf8(connection, name) for name, full in rows}
        valued = {str(name) for (name,) in connection.execute(_WITH_VALUES)}
        counted = {str(name) for (name,) in connection.execute(_WITH_STATISTICS)}
    ask, read = source.connection.execute, partial(as_utf8, source.connection)
    version = source.version
    guarded = ask(_GUARDED, [list(roles)]).fetchall() if version >= _ROW_SECURITY else []
    expressions = "s.stxexprs IS NOT NULL" if version >= _EXPRESSIONS else "false"
    query = _EXTENDED.format(expressions=expressions).encode()
    extended = ask(query).fetchall() if version >= _STATISTICS else []
    ranges = ask(_RANGES).fetchall() if version < _RANGE_STATISTICS else []
    return Lacking(
        relations=set(there.values()),
        indexes=[(n, read(table)) for n, table in source.index_tables.items() if n not in there],
        statistics=[
            Extended(name, read(table), of_expressions, [read(column) for column in columns])
            for name, table, of_expressions, columns in extended
            if name not in valued
        ],
        expressions=[(n, read(t), read(e)) for n, t, e in ask(_INDEXED) if n not in counted],
        guarded={(role, read(table)) for role, table in guarded},
        locale=copy.missing_locale,
        ranges={(read(table), read(column)) for table, column in ranges},
        priced=sorted((read(table), read(space)) for table, space in ask(_PRICED)),
    )
