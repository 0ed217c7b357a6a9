"""Scripts for pgbench from a server's own queries, with values that are typical of their columns.

A server does not know the values of the calls, but it has statistics of the columns.  Which column
a parameter is compared with is read from the query's text; no query is planned or executed there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from pgservers.errors import StudyError
from pgservers.sessions import within
from pgservers.terminal import printable

from ..workload.writing import (
    IDENTIFIER,
    UNSAFE,
    VERB,
    UnknownError,
    literal,
    require_new,
    short,
    tables_named,
    title_of,
    unquoted,
    write_files,
)
from .queries import told_left_out, top_queries
from .source import opened, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from .queries import Query
    from .source import Source

_COLUMNS = r"""
    SELECT DISTINCT ON (n.nspname, c.relname, a.attnum)
           n.nspname, c.relname, a.attname, pg_catalog.format_type(a.atttypid, NULL),
           COALESCE(s.n_distinct, 0),
           COALESCE(s.most_common_vals::pg_catalog.text::pg_catalog.text[], '{}'),
           COALESCE(s.most_common_freqs, '{}'),
           COALESCE(s.histogram_bounds::pg_catalog.text::pg_catalog.text[], '{}'),
           COALESCE(s.most_common_elems::pg_catalog.text::pg_catalog.text[], '{}'),
           COALESCE(s.most_common_elem_freqs, '{}')
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
    LEFT JOIN pg_catalog.pg_stats s
        ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = a.attname
    WHERE c.relname = ANY (%s) AND c.relkind IN ('r', 'p', 'm', 'f', 'v')
      AND a.attnum > 0 AND NOT a.attisdropped
      AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    ORDER BY n.nspname, c.relname, a.attnum, s.inherited DESC NULLS LAST
"""

_LONGEST_S = 120.0

_VALUES = 40
"""The number of a column's values to draw from."""

_INTEGER = re.compile(r"-?\d{1,19}")

_LARGEST = {"smallint": 2**15 - 1, "integer": 2**31 - 1, "bigint": 2**63 - 1}

_NEW_KEYS = 10**9

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

_WORD = re.compile(IDENTIFIER)

_ALIAS = re.compile(rf"(?<![\w\"])(?=({IDENTIFIER})\s+(?:AS\s+)?({IDENTIFIER}))", re.IGNORECASE)

_PARAMETER = re.compile(r"\$(\d+)")

_CAST = r"(?:::[\w ]+(?:\[\])?)?"

_SIDE = (
    rf"(?:(?P<function>lower|upper)\s*\(\s*)?(?:(?P<table>{IDENTIFIER})\.)?(?P<name>{IDENTIFIER})"
    rf"(?:\s*(?P<part>\[)[^\[\]]*\])?(?(function)\s*\)){_CAST}"
)

_OPERATOR = r"\s*(?:=|<>|!=|<@|<=?|>=?|@>|&&|\|\||(?:NOT\s+)?I?LIKE\b|!?~~?\*?)\s*"

_ANY = r"(?:ANY|ALL|SOME)\s*\(\s*"

_IN = r"\s+(?:NOT\s+)?IN\s*\("

_ARRAY_FUNCTION = r"(?:append|remove|positions?)"

_BETWEEN = rf"{_SIDE}\s+(?:NOT\s+)?BETWEEN\s+(?P<numbers>\$\d+\s+AND\s+\$\d+)"

_END = rf"{_SIDE}\s*(?P<operator>[<>])=?\s*\$(?P<number>\d+)"
"""One end of a range."""

_BESIDE = (
    (rf"{_SIDE}(?P<operator>{_OPERATOR})(?P<many>{_ANY})?(?P<numbers>(?:\(\s*)?\$\d+)", ""),
    (rf"{_SIDE}{_OPERATOR}{_ANY}\(?\s*ARRAY\s*\[(?P<numbers>[^\[\]]*)\]", ""),
    (rf"{_SIDE}{_OPERATOR}\(?\s*ARRAY\s*\[(?P<numbers>[^\[\]]*)\]", "element"),
    (rf"(?P<numbers>\$\d+){_CAST}\s*(?:=|<>|!=|<=?|>=?)\s*{_ANY}{_SIDE}\s*\)", "element"),
    (rf"(?P<numbers>\$\d+){_CAST}\s*(?:<@|&&)\s*{_SIDE}", "some"),
    (rf"\barray_{_ARRAY_FUNCTION}\s*\(\s*{_SIDE}\s*,\s*(?P<numbers>\$\d+)", "element"),
    (rf"{_SIDE}{_IN}\s*(?P<many>SELECT\s+unnest)\s*\(\s*(?P<numbers>\$\d+)", ""),
    (_BETWEEN, ""),
    (rf"{_SIDE}{_IN}(?P<numbers>[^()]*)\)", ""),
)
"""Parameters beside a column, and their ``_Use.of_array`` unless the text says it."""

# ``_Use.of_array`` of a parameter beside these operators.
_OF_ARRAY = {"@>": "some", "&&": "some", "||": "some", "<@": "all"}

_INSERT = re.compile(
    rf"INSERT\s+INTO\s+(?:{IDENTIFIER}\.)?({IDENTIFIER})(?:\s+AS\s+{IDENTIFIER})?\s*"
    r"\(([^()]*)\)\s*(?:OVERRIDING\s+\w+\s+VALUE\s*)?"
    r"(?:VALUES\s*((?:\([^()]*\)[\s,]*)+)|SELECT\s+\*\s+FROM\s+unnest\s*(\([^()]*\)))",
    re.IGNORECASE,
)

_TUPLE = re.compile(r"\(([^()]*)\)")

_ONE = re.compile(rf"\s*\$(\d+){_CAST}\s*")

_OF_ONE = re.compile(rf"\s*ARRAY\s*\[\s*\$(\d+){_CAST}\s*\]{_CAST}\s*", re.IGNORECASE)

# Parameters beside no column, and values that are as good as any other, or nearly.
_GUESSED = (
    (r"\bLIMIT\s+\$(\d+)", "10"),
    (r"\bFETCH\s+(?:FIRST|NEXT)\s+\$(\d+)", "10"),
    (r"\bOFFSET\s+\$(\d+)", "0"),
    (r"\bdate_trunc\s*\(\s*\$(\d+)", "'day'"),
    (r"\binterval\s+\$(\d+)", "'1 day'"),
    (r"\bcount\s*\(\s*\$(\d+)\s*\)", "1"),
    (r"\bSELECT\s+\$(\d+)\s+(?:AS\b|FROM\b)", "1"),
    (r"[\w\")]\s*[-+]\s*\$(\d+)", "1"),
    (r"(?<!ARRAY)\[\s*\$(\d+)\s*\]", "1"),
    (r"(?<![\w.])\$(\d+)\s*=\s*\$\d", "1"),  # WHERE 1 = 1
    (r"(?<![\w.])\$\d+\s*=\s*\$(\d+)", "1"),
)


class Column(NamedTuple):
    """A column with the statistics of its values in ``pg_stats``."""

    schema: str
    table: str
    name: str
    type: str
    distinct: float
    common: Sequence[str]
    frequencies: Sequence[float]
    bounds: Sequence[str]
    elements: Sequence[str] = ()
    element_frequencies: Sequence[float] = ()

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        return f"{self.table}.{self.name}"

    @property
    def is_of_arrays(self) -> bool:
        """Whether its values are arrays."""
        return self.type.endswith("[]")


class _Use(NamedTuple):
    """A parameter beside a column.

    Attributes:
        number: The number of the parameter.
        table: The column's table or its alias; empty if the query does not say it.
        name: The name of the column.
        function: The function that the column is an argument of, or empty.
        of_array: What the parameter is of a column of arrays: an "element", an array of "some"
            elements, or "all" of an array; empty if the column may be of another type.
        is_many: Whether the parameter is an array of the column's values.
        is_new: Whether the parameter is a value of a new row.

    """

    number: str
    table: str
    name: str
    function: str = ""
    of_array: str = ""
    is_many: bool = False
    is_new: bool = False

    @property
    def is_of_elements(self) -> bool:
        """Whether elements of arrays are drawn in place of arrays."""
        return self.of_array in {"element", "some"}


class _Value(NamedTuple):
    """What replaces a parameter: an expression, pgbench's commands for it, a remark."""

    expression: str
    commands: str
    remark: str


def write_scripts(
    directory: Path, dsn: str, top: int, roles: Sequence[str], show: Callable[[str], object]
) -> list[str]:
    """Write a script for each of a server's most expensive queries into a new directory.

    Returns sentences: what was written, what was not and why, and where the values come from.
    Raises as ``opened`` and ``top_queries`` do, and StudyError if the directory exists or no script
    can be made.
    """
    require_new(directory)
    with opened(dsn) as source:
        show("reading the server's queries")
        queries, left_out = top_queries(source.connection, roles=roles)
        queries = [query for query in queries if tables_named(query.text)][:top]
        show("reading what is known of their columns")
        columns = _columns(source, queries)
        paths = [source.session(query.role).search_path for query in queries]
        schemas = {column.schema for of_table in columns.values() for column in of_table}
        schemas |= {schema for _, schema in source.extensions}
        name = printable(source.name)
    scripts: dict[str, str] = {}
    not_written: list[str] = []
    for number, query in enumerate(queries, start=1):
        try:
            script = script_of(query, columns)
        except UnknownError as reason:
            not_written.append(f"{short(query.text)}: {reason}")
        else:
            head = _head(query, number, name)
            scripts[f"{number:02}-{title_of(query.text)}.sql"] = head + script
    if not scripts:
        none = f"No script can be made of the queries of {name}:"
        raise StudyError("\n  ".join([none, *not_written]))
    settings = _settings(paths, {*schemas, "public"})
    write_files(directory, scripts | settings | {"README": _README.format(name=name)})
    written = f"{len(scripts)} of the {len(queries)} queries that took most time on {name}"
    return [f"{directory} has {written}.", *_told(directory, not_written, left_out)]


def _columns(source: Source, queries: Sequence[Query]) -> dict[str, list[Column]]:
    """The columns of the tables that the queries name, by the table's bare name."""
    words = {unquoted(word) for query in queries for word in _WORD.findall(query.text)}
    with within(source.connection, _LONGEST_S, "Reading the statistics"):
        rows = source.connection.execute(_COLUMNS, [sorted(words)]).fetchall()
    found = defaultdict(list)
    for row in rows:
        column = Column(*row)
        found[column.table].append(column)
    return dict(found)


def script_of(query: Query, columns: Mapping[str, Sequence[Column]]) -> str:
    """The script of a query; raises UnknownError if none can be made."""
    text = _COMMENT.sub(" ", query.text).strip().rstrip("; \n")
    if not VERB.match(text):
        raise UnknownError("it is no SELECT, INSERT, UPDATE, DELETE or MERGE")
    if UNSAFE.search(text):
        raise UnknownError("pgbench would read a part of it as a meta-command or a variable")
    if not re.sub(r"\s", "", text).isprintable():
        raise UnknownError("it has characters that cannot be printed")
    values = _values(text, columns)
    numbers = dict.fromkeys(_PARAMETER.findall(text))
    for number in numbers:
        if number not in values:
            raise UnknownError(f"the values of ${number} cannot be determined")
    in_order = [values[number] for number in sorted(numbers, key=int)]
    remarks = "".join(f"-- {printable(value.remark)}\n" for value in in_order)
    commands = "".join(value.commands for value in in_order)
    filled = _PARAMETER.sub(lambda found: values[found[1]].expression, text)
    return f"{remarks}{commands}{filled};\n"


def _values(text: str, columns: Mapping[str, Sequence[Column]]) -> dict[str, _Value]:
    """The replacements of parameters, by number."""
    found: dict[str, _Value] = {}
    of_aliases = _aliases(text, columns)
    for use in _uses(text):
        aliases = [unquoted(use.table)] if use.table else list(of_aliases)
        tables = dict.fromkeys(of_aliases[alias] for alias in aliases if alias in of_aliases)
        of_name = (c for table in tables for c in columns[table] if c.name == unquoted(use.name))
        column = next((c for c in of_name if c.is_of_arrays or not use.of_array), None)
        if column is not None and use.number not in found:
            found[use.number] = _drawn(column, use)
    for low, high in _ranges(text):
        if low in found and high in found:
            # Both in order, else most ranges would be empty.
            first, second = found[low].expression, found[high].expression
            found[low] = found[low]._replace(expression=f"LEAST({first}, {second})")
            found[high] = found[high]._replace(expression=f"GREATEST({first}, {second})")
    for pattern, guess in _GUESSED:
        for number in re.findall(pattern, text, re.IGNORECASE):
            found.setdefault(number, _Value(guess, "", f"${number}: {guess}, a guess"))
    return found


def _ranges(text: str) -> Iterator[tuple[str, str]]:
    """The parameters of the lower and the upper end of each range of a column."""
    for between in re.finditer(_BETWEEN, text, re.IGNORECASE):
        low, high = _PARAMETER.findall(between["numbers"])
        yield low, high
    ends: dict[tuple[str | None, ...], dict[str, list[str]]] = {}
    for end in re.finditer(_END, text, re.IGNORECASE):
        column = end["table"], end["name"], end["function"]
        ends.setdefault(column, {"<": [], ">": []})[end["operator"]].append(end["number"])
    for of_column in ends.values():
        if len(of_column[">"]) == len(of_column["<"]) == 1:
            yield of_column[">"][0], of_column["<"][0]


def _uses(text: str) -> Iterator[_Use]:
    """The uses of parameters; the first of each parameter counts."""
    yield from _inserted(text)
    for pattern, fixed in _BESIDE:
        for found in re.finditer(pattern, text, re.IGNORECASE):
            has = found.groupdict("")
            operator, part = has.get("operator", "").strip(), "element" if has["part"] else ""
            of_array = fixed or _OF_ARRAY.get(operator, part)
            for number in _PARAMETER.findall(has["numbers"]):
                yield _Use(
                    number,
                    has["table"],
                    has["name"],
                    has["function"],
                    of_array,
                    is_many=bool(has.get("many")),
                )


def _inserted(text: str) -> Iterator[_Use]:
    """The uses of parameters in the rows of an INSERT, of VALUES or of unnested arrays."""
    for table, names, rows, arrays in _INSERT.findall(text):
        for row in _TUPLE.findall(rows or arrays):
            for value, name in zip(row.split(","), names.split(","), strict=False):
                use = _Use("", table, name.strip(), is_many=bool(arrays), is_new=True)
                if one := _ONE.fullmatch(value):
                    yield use._replace(number=one[1])
                elif one := _OF_ONE.fullmatch(value):
                    yield use._replace(number=one[1], of_array="element")


def _aliases(text: str, columns: Mapping[str, Sequence[Column]]) -> dict[str, str]:
    """The tables of a query, by name and by alias."""
    found = {word: word for word in map(unquoted, _WORD.findall(text)) if word in columns}
    for table, alias in _ALIAS.findall(text):
        if unquoted(table) in columns:
            found.setdefault(unquoted(alias), unquoted(table))
    return found


def _drawn(column: Column, use: _Use) -> _Value:
    """A value drawn for each transaction; raises UnknownError if the column's are unknown."""
    if UNSAFE.search(column.type) or not column.type.isprintable():
        raise UnknownError(f"the type of {column.title} cannot be written in a script")
    if column.is_of_arrays and use.is_many and not use.is_of_elements:
        raise UnknownError(f"{column.title} is an array, and the parameter an array of such")
    bounds = column.bounds
    are_numbers = column.type in _LARGEST and all(map(_INTEGER.fullmatch, bounds))
    if are_numbers and bounds and (use.is_new or not column.common):
        low, high = int(bounds[0]), int(bounds[-1])
        if use.is_new and column.distinct == -1:  # a key, of which each value is there once
            low, high = high + 1, min(_LARGEST[column.type], high + _NEW_KEYS)
        high = max(low, high)
        expression, remark = f":p{use.number}", f"{column.title}, between {low} and {high}"
    else:
        values, expression, remark = _listed(column, use)
        low, high = 1, len(values)
    if use.function:
        expression = f"{use.function}({expression})"
    if use.is_many or use.of_array == "some":
        kind = column.type.removesuffix("[]")
        expression, remark = f"ARRAY[{expression}]::{kind}[]", f"an array of one: {remark}"
    commands = f"\\set p{use.number} random({low}, {high})\n"
    return _Value(expression, commands, f"${use.number}: {remark}")


def _listed(column: Column, use: _Use) -> tuple[list[str], str, str]:
    """Values of the column's statistics, the expression for one of them, and a remark."""
    has_elements = use.is_of_elements and bool(column.elements)
    if has_elements:
        of_all = sum(column.element_frequencies[: len(column.elements)]) or 1
        parts = [part / of_all for part in column.element_frequencies]
        values = typical(column.elements, parts, ())
    else:
        values = typical(column.common, column.frequencies, column.bounds)
    if not values:
        raise UnknownError(f"there are no statistics of {column.title} that the role may read")
    literals = ", ".join(map(literal, values))
    remark = f"one of {len(values)} values of its statistics"
    if has_elements or not column.is_of_arrays:
        kind = column.type.removesuffix("[]")
        expression = f"(ARRAY[{literals}]::{kind}[])[:p{use.number}]"
        of = "an element of " if has_elements else ""
        return values, expression, f"{of}{column.title}, {remark}"
    # Arrays of one length would become one array of more dimensions.
    expression = f"(ARRAY[{literals}]::text[])[:p{use.number}]::{column.type}"
    if use.is_of_elements:
        return values, f"({expression})[1]", f"the first element of {column.title}, of {remark}"
    return values, expression, f"{column.title}, {remark}"


def typical(
    common: Sequence[str], frequencies: Sequence[float], bounds: Sequence[str]
) -> list[str]:
    """Values as often as they are in a column: the most common, and others evenly spaced."""
    weighted = zip(common, frequencies, strict=False)
    found = [value for value, part in weighted for _ in range(round(part * _VALUES))][:_VALUES]
    room = _VALUES - len(found)
    step = max(1, len(bounds) / room) if room else 1
    places = (int(i * step) for i in range(room))
    found += [bounds[place] for place in places if place < len(bounds)]
    return found or list(common[:_VALUES])


def _head(query: Query, number: int, name: str) -> str:
    who = f", by role {printable(query.role)}" if query.role else ""
    known = f", queryid {query.queryid}" if query.queryid is not None else ""
    return (
        f"-- Number {number} of {name} by total time{who}{known}.\n"
        "-- The values are typical of the columns, by pg_stats; those of the calls are not known.\n"
    )


def _settings(paths: Sequence[str], there: Collection[str]) -> dict[str, str]:
    """The search_path of the queries' roles: schemas that are ``there``; empty if only public."""
    parts = (unquoted(part.strip()) for path in paths for part in path.split(","))
    schemas = [name for name in dict.fromkeys(parts) if name in there]
    if set(schemas) <= {"public"} or not all(map(str.isprintable, schemas)):
        return {}
    value = ", ".join(map(quoted, schemas)).replace("'", "''")
    return {"settings.conf": f"search_path = '{value}'\n"}


_README = """\
Scripts of the queries that took most time on {name}, by pg_stat_statements, with values in place
of their parameters: a workload for `pgstudies compare --workload`.

The values are typical of the columns, by pg_stats.  They are values of your tables, so look before
you give them to anybody, and they are not those of the calls, which the server does not know.

What is missing is the tables:

    pg_dump --format=custom --file=schema.dump ADDRESS
"""


def _told(
    directory: Path, not_written: Sequence[str], left_out: Mapping[str, int]
) -> Iterator[str]:
    if not_written:
        yield "\n  ".join(["Not written, as no values are known:", *not_written])
    if others := told_left_out(left_out):
        yield f"Other statements of pg_stat_statements: {others}."
    yield (
        "The values in the scripts are typical of the columns, by pg_stats, and not those of the "
        "calls, which the server does not know. They are values of your tables: look before you "
        "give them to anybody."
    )
    yield (
        f"Put the tables beside them: pg_dump --format=custom --file={directory}/schema.dump, "
        f"with the address of the server, or of a copy."
    )
