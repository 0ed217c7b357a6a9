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
from pgservers.files import cannot_write
from pgservers.terminal import printable

from .queries import Choice, told_left_out, top_queries
from .sessions import within
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
           COALESCE(s.histogram_bounds::pg_catalog.text::pg_catalog.text[], '{}')
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
"""So many values of a column are drawn from."""

_INTEGER = re.compile(r"-?\d{1,19}")

_LARGEST = {"smallint": 2**15 - 1, "integer": 2**31 - 1, "bigint": 2**63 - 1}

_NEW_KEYS = 10**9

_LONGEST_TITLE = 30

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

_VERB = re.compile(r"[\s(]*(SELECT|INSERT|UPDATE|DELETE|MERGE|WITH|VALUES|TABLE)\b", re.IGNORECASE)

_CATALOG = re.compile(r"(?:pg_|information_schema$|sql_)", re.IGNORECASE)

# What pgbench would read as a command, or as a variable.
_UNSAFE = re.compile(r"\\|(?<!:):[A-Za-z_]|;")

_IDENTIFIER = r'(?:"(?:[^"]|"")+"|[A-Za-z_\x80-\uffff][\w$]*)'

_WORD = re.compile(_IDENTIFIER)

_NAMED = re.compile(
    rf"\b(?:FROM|JOIN|INTO|UPDATE|USING)\s+(?:ONLY\s+)?(?:{_IDENTIFIER}\.)?({_IDENTIFIER})",
    re.IGNORECASE,
)

_ALIAS = re.compile(rf"(?<![\w\"])(?=({_IDENTIFIER})\s+(?:AS\s+)?({_IDENTIFIER}))", re.IGNORECASE)

_PARAMETER = re.compile(r"\$(\d+)")

_SIDE = rf"(?:(lower|upper)\s*\(\s*)?(?:({_IDENTIFIER})\.)?({_IDENTIFIER})(?(1)\s*\))(?:::[\w ]+)?"

_COMPARED = re.compile(
    rf"{_SIDE}\s*(?:=|<>|!=|<=?|>=?|(?:NOT\s+)?I?LIKE\b|!?~~?\*?)\s*"
    r"((?:ANY|ALL|SOME)\s*\(\s*)?(?:\$(\d+)|\(\s*\$(\d+))",
    re.IGNORECASE,
)

_BETWEEN = re.compile(rf"{_SIDE}\s+(?:NOT\s+)?BETWEEN\s+\$(\d+)\s+AND\s+\$(\d+)", re.IGNORECASE)

_IN = re.compile(rf"{_SIDE}\s+(?:NOT\s+)?IN\s*\(\s*([^()]*)\)", re.IGNORECASE)

_INSERT = re.compile(
    rf"INSERT\s+INTO\s+((?:{_IDENTIFIER}\.)?{_IDENTIFIER})(?:\s+AS\s+{_IDENTIFIER})?\s*"
    r"\(([^()]*)\)\s*(?:OVERRIDING\s+\w+\s+VALUE\s*)?VALUES\s*((?:\([^()]*\)[\s,]*)+)",
    re.IGNORECASE,
)

_TUPLE = re.compile(r"\(([^()]*)\)")

# Where no column says anything, and one value is as good as another, or nearly.
_GUESSED = (
    (re.compile(r"\bLIMIT\s+\$(\d+)", re.IGNORECASE), "10"),
    (re.compile(r"\bFETCH\s+(?:FIRST|NEXT)\s+\$(\d+)", re.IGNORECASE), "10"),
    (re.compile(r"\bOFFSET\s+\$(\d+)", re.IGNORECASE), "0"),
    (re.compile(r"\bdate_trunc\s*\(\s*\$(\d+)", re.IGNORECASE), "'day'"),
    (re.compile(r"\bcount\s*\(\s*\$(\d+)\s*\)", re.IGNORECASE), "1"),
    (re.compile(r"\bSELECT\s+\$(\d+)\s+(?:AS\b|FROM\b)", re.IGNORECASE), "1"),
    (re.compile(r"[\w\")]\s*[-+]\s*\$(\d+)"), "1"),
)

# WHERE 1 = 1
_TRUE = re.compile(r"(?<![\w.])\$(\d+)\s*=\s*\$(\d+)")


class Column(NamedTuple):
    """A column, and what its table's statistics know of its values."""

    schema: str
    table: str
    name: str
    type: str
    distinct: float
    common: Sequence[str]
    frequencies: Sequence[float]
    bounds: Sequence[str]

    @property
    def title(self) -> str:
        """What it is called in a sentence."""
        return f"{self.table}.{self.name}"


class UnknownError(Exception):
    """A query of which no script can be made; the message is the reason."""


class _Value(NamedTuple):
    """What stands in a parameter's place: an expression, pgbench's commands for it, a remark."""

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
    if directory.exists():
        raise StudyError(f"There is a {directory} already: use another name.")
    with opened(dsn) as source:
        show("reading the server's queries")
        queries, left_out = top_queries(source.connection, Choice(roles))
        queries = [query for query in queries if _tables(query.text)][:top]
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
            not_written.append(f"{_short(query.text)}: {reason}")
        else:
            known = "".join(f"-- {line}\n" for line in _head(query, number, name))
            scripts[f"{number:02}-{_title(query.text)}.sql"] = known + script
    if not scripts:
        none = f"No script can be made of the queries of {name}:"
        raise StudyError("\n  ".join([none, *not_written]))
    _write(directory, scripts | _settings(paths, columns) | {"README": _README.format(name=name)})
    written = f"{directory} has {len(scripts)} of the {len(queries)} queries"
    most = f"{written} that took most time on {name}."
    return [most, *_told(directory, not_written, left_out)]


def _tables(text: str) -> list[str]:
    """What a statement names after FROM and the like, but what is the server's own."""
    bare = _COMMENT.sub(" ", text)
    named = map(unquoted, _NAMED.findall(bare))
    return [name for name in named if not _CATALOG.match(name)]


def _title(text: str) -> str:
    """The first word and the first table, as a part of a file's name."""
    verb = _VERB.match(_COMMENT.sub(" ", text))
    words = [verb[1].lower() if verb else "", *_tables(text)[:1]]
    return "-".join(re.sub(r"[^a-z0-9_]", "_", word.lower())[:_LONGEST_TITLE] for word in words)


def _columns(source: Source, queries: Sequence[Query]) -> dict[str, list[Column]]:
    """The columns of the tables that the queries name, by the table's bare name."""
    words = {unquoted(word) for query in queries for word in _WORD.findall(query.text)}
    with within(source.connection, _LONGEST_S, "Reading the statistics"):
        rows = source.connection.execute(_COLUMNS, [sorted(words)]).fetchall()
    found = defaultdict(list)
    for *names, distinct, common, frequencies, bounds in rows:
        schema, table, name, kind = map(str, names)
        found[table].append(
            Column(schema, table, name, kind, float(distinct), common, frequencies, bounds)
        )
    return dict(found)


def unquoted(name: str) -> str:
    """A name as the server keeps it."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def script_of(query: Query, columns: Mapping[str, Sequence[Column]]) -> str:
    """The script of a query; raises UnknownError where none can be made."""
    text = _COMMENT.sub(" ", query.text).strip().rstrip("; \n")
    if not _VERB.match(text):
        raise UnknownError("it is no SELECT, INSERT, UPDATE, DELETE or MERGE")
    if _UNSAFE.search(text):
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
    """What can stand in the place of parameters, by their numbers."""
    found: dict[str, _Value] = {}

    def put(
        number: str,
        column: Column | None,
        *,
        function: str = "",
        is_array: bool = False,
        is_new: bool = False,
    ) -> None:
        if column is not None and number not in found:
            how = {"is_array": is_array, "is_new": is_new}
            found[number] = _drawn(number, column, function=function, **how)

    of_aliases = _aliases(text, columns)

    def column(qualifier: str, name: str) -> Column | None:
        tables = [of_aliases[unquoted(qualifier)]] if unquoted(qualifier) in of_aliases else []
        named = tables or ([] if qualifier else list(dict.fromkeys(of_aliases.values())))
        all_of = [c for table in named for c in columns[table]]
        return next((c for c in all_of if c.name == unquoted(name)), None)

    for table, names, rows in _INSERT.findall(text):
        known = {c.name: c for c in columns.get(unquoted(_WORD.findall(table)[-1]), ())}
        wanted = [known.get(unquoted(name.strip())) for name in names.split(",")]
        for row in _TUPLE.findall(rows):
            for value, of in zip(row.split(","), wanted, strict=False):
                if number := re.fullmatch(r"\s*\$(\d+)(?:::[\w ]+)?\s*", value):
                    put(number[1], of, is_new=True)
    for function, qualifier, name, is_array, one, other in _COMPARED.findall(text):
        put(one or other, column(qualifier, name), function=function, is_array=bool(is_array))
    for function, qualifier, name, low, high in _BETWEEN.findall(text):
        of = column(qualifier, name)
        put(low, of, function=function)
        put(high, of, function=function)
        if of is not None and low in found and high in found:
            # Both in order, else most ranges would be empty.
            first, second = found[low].expression, found[high].expression
            found[low] = found[low]._replace(expression=f"LEAST({first}, {second})")
            found[high] = found[high]._replace(expression=f"GREATEST({first}, {second})")
    for function, qualifier, name, inside in _IN.findall(text):
        for number in _PARAMETER.findall(inside):
            put(number, column(qualifier, name), function=function)
    for pattern, guess in _GUESSED:
        for number in pattern.findall(text):
            found.setdefault(number, _Value(guess, "", f"${number}: {guess}, a guess"))
    for number in (each for pair in _TRUE.findall(text) for each in pair):
        found.setdefault(number, _Value("1", "", f"${number}: 1, a guess"))
    return found


def _aliases(text: str, columns: Mapping[str, Sequence[Column]]) -> dict[str, str]:
    """The tables of a query by their names and aliases there."""
    found = {word: word for word in map(unquoted, _WORD.findall(text)) if word in columns}
    for table, alias in _ALIAS.findall(text):
        if unquoted(table) in columns:
            found.setdefault(unquoted(alias), unquoted(table))
    return found


def _drawn(
    number: str, column: Column, *, function: str = "", is_array: bool = False, is_new: bool = False
) -> _Value:
    """A value drawn for each transaction; raises UnknownError where the column's are unknown."""
    if column.type.endswith("[]"):
        raise UnknownError(f"{column.title} is an array")
    if _UNSAFE.search(column.type) or not column.type.isprintable():
        raise UnknownError(f"the type of {column.title} cannot be written in a script")
    name, bounds = f"p{number}", column.bounds
    are_numbers = column.type in _LARGEST and all(map(_INTEGER.fullmatch, bounds))
    if are_numbers and bounds and (is_new or not column.common):
        low, high = int(bounds[0]), int(bounds[-1])
        if is_new and column.distinct == -1:  # a key, of which each value is there once
            low, high = high + 1, min(_LARGEST[column.type], high + _NEW_KEYS)
        commands = f"\\set {name} random({low}, {max(low, high)})\n"
        expression = f":{name}"
        remark = f"${number}: {column.title}, between {low} and {max(low, high)}"
    else:
        values = typical(column.common, column.frequencies, bounds)
        if not values:
            raise UnknownError(f"there are no statistics of {column.title} that the role may read")
        commands = f"\\set {name} random(1, {len(values)})\n"
        listed = ", ".join(map(_literal, values))
        expression = f"(ARRAY[{listed}]::{column.type}[])[:{name}]"
        remark = f"${number}: {column.title}, one of {len(values)} values of its statistics"
    if function:
        expression = f"{function}({expression})"
    if is_array:
        expression = f"ARRAY[{expression}]::{column.type}[]"
    return _Value(expression, commands, remark)


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


def _literal(value: str) -> str:
    """A string of SQL, in which pgbench finds neither commands nor variables of its own."""
    plain = value.replace("'", "''")
    if not re.search(r"[\\:;]|[^ -~\x80-\U0010ffff]", value) and value.isprintable():
        return f"'{plain}'"
    return "E'{}'".format(
        "".join(
            c if c.isalnum() or c in " .,_-" else f"\\x{ord(c):02x}" if ord(c) < 128 else c
            for c in value
        )
    )


def _head(query: Query, number: int, name: str) -> Iterator[str]:
    who = f", by role {printable(query.role)}" if query.role else ""
    known = f", queryid {query.queryid}" if query.queryid is not None else ""
    yield f"Number {number} of {name} by total time{who}{known}."
    yield "The values are typical of the columns, by pg_stats; those of the calls are not known."


def _settings(paths: Sequence[str], columns: Mapping[str, Sequence[Column]]) -> dict[str, str]:
    """Where the roles of the queries look for tables, as far as there are any, unless in public."""
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


def _write(directory: Path, files: Mapping[str, str]) -> None:
    try:
        directory.mkdir(parents=True)
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
    except UnicodeEncodeError:
        raise StudyError("A query of the server's has bytes that are not UTF-8.") from None
    except OSError as error:
        raise cannot_write(error, directory) from error


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


def _short(text: str) -> str:
    words = printable(" ".join(text.split()))
    return words if len(words) <= 60 else f"{words[:60].rstrip()}..."
