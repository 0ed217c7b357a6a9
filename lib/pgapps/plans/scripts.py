"""Scripts for pgbench from a server's own queries, with values that are typical of their columns.

The values that the queries were called with are not known to the server; those of the columns that
they are compared with are, by its statistics.  Nothing is planned or executed there for it: what
is compared with what is read from the queries' texts.
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
from .queries import Choice, told_left_out, top_queries
from .source import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
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

_OF_ARRAY = r"(?:\s*(\[)[^\[\]]*\])?"

_SIDE = (
    rf"(?:(?P<of>lower|upper)\s*\(\s*)?(?:({IDENTIFIER})\.)?({IDENTIFIER}){_OF_ARRAY}(?(of)\s*\))"
    r"(?:::[\w ]+(?:\[\])?)?"
)

_OPERATOR = r"\s*(=|<>|!=|<@|<=?|>=?|@>|&&|\|\||(?:NOT\s+)?I?LIKE\b|!?~~?\*?)\s*"

_MANY = r"((?:ANY|ALL|SOME)\s*\(\s*)"

_COMPARED = re.compile(
    rf"{_SIDE}{_OPERATOR}{_MANY}?(?:\$(\d+)|\(\s*\$(\d+))",
    re.IGNORECASE,
)

# ARRAY[$1, $2]
_LISTED = re.compile(rf"{_SIDE}{_OPERATOR}{_MANY}?\(?\s*ARRAY\s*\[([^\[\]]*)\]", re.IGNORECASE)

# $1 = ANY (column)
_AMONG = re.compile(
    rf"\$(\d+)(?:::[\w ]+)?\s*(?:=|<>|!=|<=?|>=?)\s*(?:ANY|ALL|SOME)\s*\(\s*{_SIDE}\s*\)",
    re.IGNORECASE,
)

_WITHIN = re.compile(
    rf"\$(\d+)(?:::[\w ]+(?:\[\])?)?\s*(?:<@|&&)\s*{_SIDE}",
    re.IGNORECASE,
)

_ELEMENT = re.compile(
    rf"\barray_(?:append|remove|positions?)\s*\(\s*{_SIDE}\s*,\s*\$(\d+)", re.IGNORECASE
)

_UNNESTED = re.compile(
    rf"{_SIDE}\s+(?:NOT\s+)?IN\s*\(\s*SELECT\s+unnest\s*\(\s*\$(\d+)", re.IGNORECASE
)

_BETWEEN = re.compile(rf"{_SIDE}\s+(?:NOT\s+)?BETWEEN\s+\$(\d+)\s+AND\s+\$(\d+)", re.IGNORECASE)

_IN = re.compile(rf"{_SIDE}\s+(?:NOT\s+)?IN\s*\(\s*([^()]*)\)", re.IGNORECASE)

_INSERT = re.compile(
    rf"INSERT\s+INTO\s+((?:{IDENTIFIER}\.)?{IDENTIFIER})(?:\s+AS\s+{IDENTIFIER})?\s*"
    r"\(([^()]*)\)\s*(?:OVERRIDING\s+\w+\s+VALUE\s*)?VALUES\s*((?:\([^()]*\)[\s,]*)+)",
    re.IGNORECASE,
)

_INSERT_UNNESTED = re.compile(
    rf"INSERT\s+INTO\s+((?:{IDENTIFIER}\.)?{IDENTIFIER})\s*\(([^()]*)\)\s*"
    r"SELECT\s+\*\s+FROM\s+unnest\s*\(([^()]*)\)",
    re.IGNORECASE,
)

_CAST = r"(?:::[\w ]+(?:\[\])?)?"

_ONE = re.compile(rf"\s*\$(\d+){_CAST}\s*")

_OF_ONE = re.compile(rf"\s*ARRAY\s*\[\s*\$(\d+){_CAST}\s*\]{_CAST}\s*", re.IGNORECASE)

_TUPLE = re.compile(r"\(([^()]*)\)")

# Where no column says anything, and one value is as good as another, or nearly.
_GUESSED = (
    (re.compile(r"\bLIMIT\s+\$(\d+)", re.IGNORECASE), "10"),
    (re.compile(r"\bFETCH\s+(?:FIRST|NEXT)\s+\$(\d+)", re.IGNORECASE), "10"),
    (re.compile(r"\bOFFSET\s+\$(\d+)", re.IGNORECASE), "0"),
    (re.compile(r"\bdate_trunc\s*\(\s*\$(\d+)", re.IGNORECASE), "'day'"),
    (re.compile(r"\binterval\s+\$(\d+)", re.IGNORECASE), "'1 day'"),
    (re.compile(r"\bcount\s*\(\s*\$(\d+)\s*\)", re.IGNORECASE), "1"),
    (re.compile(r"\bSELECT\s+\$(\d+)\s+(?:AS\b|FROM\b)", re.IGNORECASE), "1"),
    (re.compile(r"[\w\")]\s*[-+]\s*\$(\d+)"), "1"),
    (re.compile(r"(?<!ARRAY)\[\s*\$(\d+)\s*\]", re.IGNORECASE), "1"),
)

# What an operator takes of an array beside it.
_SOME = {"@>": "some", "&&": "some", "||": "some", "<@": "all"}

# WHERE 1 = 1
_TRUE = re.compile(r"(?<![\w.])\$(\d+)\s*=\s*\$(\d+)")


class Column(NamedTuple):
    """A column with the statistics of its values."""

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
    """How a parameter is used with its column.

    Attributes:
        function: That the column stands in.
        is_many: Whether it is an array of the column's values.
        is_new: Whether it is that of a new row.
        of_array: What it is of a column of arrays: "all", an "element", or an array of "some"; of
            other columns only where it is empty.

    """

    function: str = ""
    is_many: bool = False
    is_new: bool = False
    of_array: str = ""

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

    Returns what there is to say, in sentences: what was written, what was not and why, and what the
    values are.  Raises as ``opened`` and ``top_queries`` do, and StudyError where the directory is
    there, or no script can be made.
    """
    require_new(directory)
    with opened(dsn) as source:
        show("reading the server's queries")
        queries, left_out = top_queries(source.connection, Choice(roles))
        queries = [query for query in queries if tables_named(query.text)][:top]
        show("reading what is known of their columns")
        columns = _columns(source, queries)
        paths = list(dict.fromkeys(source.session(query.role).search_path for query in queries))
        name = printable(source.name)
    scripts: dict[str, str] = {}
    not_written: list[str] = []
    for number, query in enumerate(queries, start=1):
        try:
            script = script_of(query, columns)
        except UnknownError as reason:
            not_written.append(f"{short(query.text)}: {reason}")
        else:
            known = "".join(f"-- {line}\n" for line in _head(query, number, name))
            scripts[f"{number:02}-{title_of(query.text)}.sql"] = known + script
    if not scripts:
        none = f"No script can be made of the queries of {name}:"
        raise StudyError("\n  ".join([none, *not_written]))
    write_files(
        directory, scripts | _settings(paths, columns) | {"README": _README.format(name=name)}
    )
    written = f"{directory} has {len(scripts)} of the {len(queries)} queries"
    most = f"{written} that took most time on {name}."
    return [most, *_told(directory, not_written, left_out)]


def _columns(source: Source, queries: Sequence[Query]) -> dict[str, list[Column]]:
    """The columns of the tables that the queries name, by the table's bare name."""
    words = {unquoted(word) for query in queries for word in _WORD.findall(query.text)}
    with within(source.connection, _LONGEST_S, "Reading the statistics"):
        rows = source.connection.execute(_COLUMNS, [sorted(words)]).fetchall()
    found = defaultdict(list)
    for schema, table, name, kind, distinct, *known in rows:
        found[str(table)].append(
            Column(str(schema), str(table), str(name), str(kind), float(distinct), *known)
        )
    return dict(found)


def script_of(query: Query, columns: Mapping[str, Sequence[Column]]) -> str:
    """The script of a query; raises UnknownError where none can be made."""
    text = _COMMENT.sub(" ", query.text).strip().rstrip("; \n")
    if not VERB.match(text):
        raise UnknownError("it is no SELECT, INSERT, UPDATE, DELETE or MERGE")
    if UNSAFE.search(text):
        raise UnknownError("pgbench would read a part of it as a meta-command or a variable")
    if not re.sub(r"\s", "", text).isprintable():
        raise UnknownError("it has characters that cannot be printed")
    values = _values(text, columns)
    for number in _PARAMETER.findall(text):
        if number not in values:
            raise UnknownError(f"the values of ${number} cannot be determined")
    in_order = [values[n] for n in sorted(values, key=int) if n in _PARAMETER.findall(text)]
    remarks = "".join(f"-- {printable(value.remark)}\n" for value in in_order)
    commands = "".join(value.commands for value in in_order)
    filled = _PARAMETER.sub(lambda found: values[found[1]].expression, text)
    return f"{remarks}{commands}{filled};\n"


def _values(text: str, columns: Mapping[str, Sequence[Column]]) -> dict[str, _Value]:
    """The replacements of parameters, by number."""
    found: dict[str, _Value] = {}
    of_aliases = _aliases(text, columns)
    for number, (qualifier, name, subscript), use in _uses(text):
        tables = [of_aliases[unquoted(qualifier)]] if unquoted(qualifier) in of_aliases else []
        named = tables or ([] if qualifier else list(dict.fromkeys(of_aliases.values())))
        of_name = (c for table in named for c in columns[table] if c.name == unquoted(name))
        needs_arrays = bool(subscript or use.of_array)
        column = next((c for c in of_name if c.is_of_arrays or not needs_arrays), None)
        if column is not None and number not in found:
            found[number] = _drawn(number, column, use)
    for *_, low, high in _BETWEEN.findall(text):
        if low in found and high in found:
            # Both in order, else most ranges would be empty.
            first, second = found[low].expression, found[high].expression
            found[low] = found[low]._replace(expression=f"LEAST({first}, {second})")
            found[high] = found[high]._replace(expression=f"GREATEST({first}, {second})")
    for pattern, guess in _GUESSED:
        for number in pattern.findall(text):
            found.setdefault(number, _Value(guess, "", f"${number}: {guess}, a guess"))
    for number in (each for pair in _TRUE.findall(text) for each in pair):
        found.setdefault(number, _Value("1", "", f"${number}: 1, a guess"))
    return found


def _uses(text: str) -> Iterator[tuple[str, Sequence[str], _Use]]:
    """Parameters, the columns that they stand beside, and how; the first of each counts.

    A column is its qualifier, its name, and what is not empty where an element of it is meant.
    """
    yield from _inserted(text)
    for function, *of, operator, many, one, other in _COMPARED.findall(text):
        part = _SOME.get(operator) or _part(of)
        yield one or other, of, _Use(function, is_many=bool(many), of_array=part)
    for function, *of, _, many, inside in _LISTED.findall(text):
        for number in _PARAMETER.findall(inside):
            yield number, of, _Use(function, of_array="" if many else "element")
    for number, function, *of in _AMONG.findall(text):
        yield number, of, _Use(function, of_array="element")
    for number, function, *of in _WITHIN.findall(text):
        yield number, of, _Use(function, of_array="some")
    for function, *of, number in _ELEMENT.findall(text):
        yield number, of, _Use(function, of_array="element")
    for function, *of, number in _UNNESTED.findall(text):
        yield number, of, _Use(function, is_many=True)
    for function, *of, low, high in _BETWEEN.findall(text):
        yield low, of, _Use(function, of_array=_part(of))
        yield high, of, _Use(function, of_array=_part(of))
    for function, *of, inside in _IN.findall(text):
        for number in _PARAMETER.findall(inside):
            yield number, of, _Use(function, of_array=_part(of))


def _inserted(text: str) -> Iterator[tuple[str, Sequence[str], _Use]]:
    """The same for the rows of an INSERT."""
    for table, names, rows in _INSERT.findall(text):
        for row in _TUPLE.findall(rows):
            for value, name in zip(row.split(","), names.split(","), strict=False):
                of = (_WORD.findall(table)[-1], name.strip(), "")
                if number := _ONE.fullmatch(value):
                    yield number[1], of, _Use(is_new=True)
                elif number := _OF_ONE.fullmatch(value):
                    yield number[1], of, _Use(is_new=True, of_array="element")
    for table, names, arrays in _INSERT_UNNESTED.findall(text):
        for value, name in zip(arrays.split(","), names.split(","), strict=False):
            if number := _ONE.fullmatch(value):
                of = (_WORD.findall(table)[-1], name.strip(), "")
                yield number[1], of, _Use(is_many=True, is_new=True)


def _part(of: Sequence[str]) -> str:
    """What is compared: an element if the column has a subscript, else the column."""
    return "element" if of[-1] else ""


def _aliases(text: str, columns: Mapping[str, Sequence[Column]]) -> dict[str, str]:
    """The tables of a query, by name and by alias."""
    found = {word: word for word in map(unquoted, _WORD.findall(text)) if word in columns}
    for table, alias in _ALIAS.findall(text):
        if unquoted(table) in columns:
            found.setdefault(unquoted(alias), unquoted(table))
    return found


def _drawn(number: str, column: Column, use: _Use) -> _Value:
    """A value drawn for each transaction; raises UnknownError where the column's are unknown."""
    if UNSAFE.search(column.type) or not column.type.isprintable():
        raise UnknownError(f"the type of {column.title} cannot be written in a script")
    if column.is_of_arrays and use.is_many and not use.is_of_elements:
        raise UnknownError(f"{column.title} is an array, and the parameter an array of such")
    name, bounds = f"p{number}", column.bounds
    are_numbers = column.type in _LARGEST and all(map(_INTEGER.fullmatch, bounds))
    if are_numbers and bounds and (use.is_new or not column.common):
        low, high = int(bounds[0]), int(bounds[-1])
        if use.is_new and column.distinct == -1:  # a key, of which each value is there once
            low, high = high + 1, min(_LARGEST[column.type], high + _NEW_KEYS)
        commands = f"\\set {name} random({low}, {max(low, high)})\n"
        expression = f":{name}"
        remark = f"{column.title}, between {low} and {max(low, high)}"
    else:
        commands, expression, remark = _listed(name, column, use)
    if use.function:
        expression = f"{use.function}({expression})"
    if use.is_many or use.of_array == "some":
        kind = column.type.removesuffix("[]")
        expression, remark = f"ARRAY[{expression}]::{kind}[]", f"an array of one: {remark}"
    return _Value(expression, commands, f"${number}: {remark}")


def _listed(name: str, column: Column, use: _Use) -> tuple[str, str, str]:
    """A command of pgbench, the expression and a remark for one of a list of values."""
    if use.is_of_elements and column.elements:
        of_all = sum(column.element_frequencies[: len(column.elements)]) or 1
        parts = [part / of_all for part in column.element_frequencies]
        values, kind = typical(column.elements, parts, ()), column.type.removesuffix("[]")
    else:
        values, kind = typical(column.common, column.frequencies, column.bounds), column.type
    if not values:
        raise UnknownError(f"there are no statistics of {column.title} that the role may read")
    number = f"{len(values)} values of its statistics"
    commands = f"\\set {name} random(1, {len(values)})\n"
    literals = ", ".join(map(literal, values))
    if not column.is_of_arrays:
        remark = f"{column.title}, one of {number}"
        return commands, f"(ARRAY[{literals}]::{kind}[])[:{name}]", remark
    if use.is_of_elements and column.elements:
        remark = f"an element of {column.title}, one of {number}"
        return commands, f"(ARRAY[{literals}]::{kind}[])[:{name}]", remark
    # Arrays of one length would become one array of more dimensions.
    expression = f"(ARRAY[{literals}]::text[])[:{name}]::{kind}"
    if use.is_of_elements:
        remark = f"the first element of {column.title}, of one of {number}"
        return commands, f"({expression})[1]", remark
    return commands, expression, f"{column.title}, one of {number}"


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


def _head(query: Query, number: int, name: str) -> Iterator[str]:
    who = f", by role {printable(query.role)}" if query.role else ""
    known = f", queryid {query.queryid}" if query.queryid is not None else ""
    yield f"Number {number} of {name} by total time{who}{known}."
    yield "The values are typical of the columns, by pg_stats; those of the calls are not known."


def _settings(paths: Sequence[str], columns: Mapping[str, Sequence[Column]]) -> dict[str, str]:
    """The search_path of the queries' roles: schemas that exist; empty if only public."""
    there = {column.schema for of_table in columns.values() for column in of_table}
    parts = (unquoted(part.strip()) for path in paths for part in path.split(","))
    schemas = [name for name in dict.fromkeys(parts) if name in there]
    if set(schemas) <= {"public"} or not all(map(str.isprintable, schemas)):
        return {}
    quoted = ('"{}"'.format(name.replace('"', '""')) for name in schemas)
    value = ", ".join(quoted).replace("'", "''")
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
