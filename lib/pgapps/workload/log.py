"""Scripts for pgbench from a server's log, which has queries with their values and times.

A log may hold anything that a client has sent: nothing in it is executed here.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from pgservers.errors import StudyError
from pgservers.files import regular
from pgservers.terminal import printable

from .writing import (
    UNSAFE,
    VERB,
    UnknownError,
    literal,
    require_new,
    short,
    tables_named,
    title_of,
    write_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

_LONGEST = 1_000_000
"""The longest line, or entry, that is read (bytes)."""

_MOST_QUERIES = 20_000
"""The most different queries that are kept."""

_MOST_DATABASES = 1000

_KEPT = 25
"""The most calls of a query that are kept."""

_KEPT_CHARACTERS = 30_000_000
"""The most characters of all kept queries and calls together."""

_MESSAGE, _DETAIL, _CSV_COLUMNS = 13, 14, 23

_LEVELS = "LOG|DETAIL|HINT|STATEMENT|CONTEXT|QUERY|LOCATION|ERROR|WARNING|NOTICE|INFO|FATAL|PANIC"

_LINE = re.compile(rf"(.*?)\b({_LEVELS}|DEBUG[1-5]?):  (.*)", re.DOTALL)

_TIMED = re.compile(
    r"duration: (\d+\.\d+) ms  (?:(statement|execute (?!fetch from )(?:(?!: ).)*): |(plan):\n)(.*)",
    re.DOTALL,
)

_QUERY_TEXT, _QUERY_PARAMETERS = "Query Text: ", "Query Parameters: "

_ROOT = re.compile(r"\S.*  \(cost=\d+\.\d+\.\.\d+\.\d+ rows=\d+ width=\d+\)")
"""The first line of a plan in text format."""

_PARAMETERS = re.compile(r"parameters: ", re.IGNORECASE)

_GIVEN = re.compile(r"(?:, )?\$(\d+) = (NULL|'(?:[^']++|'')*+')", re.DOTALL)

# What does not end reaches to the end, so that a text is read in one pass; what is possessive needs
# no memory for each character.
_PIECE = re.compile(
    r"""(?P<escaped>\b[eE]'(?:[^'\\]++|\\.|'')*+(?:'|\Z))|(?P<string>'(?:[^']++|'')*+(?:'|\Z))"""
    r"""|(?P<name>"[^"]*(?:"|\Z))"""
    r"""|(?P<dollar>(?<![\w$])\$(?P<tag>(?:[A-Za-z_]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z))"""
    r"""|(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))|(?<![\w$])\$(?P<parameter>\d+)"""
    r"""|(?<![\w$.])(?P<number>\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?)\b""",
    re.DOTALL,
)

_LIST = re.compile(r"\?(?:\s*,\s*\?)+")

_ROWS = re.compile(r"\(\s*\?\s*\)(?:\s*,\s*\(\s*\?\s*\))+")

_OTHERS = "of other commands than SELECT, INSERT, UPDATE, DELETE and MERGE"


class Entry(NamedTuple):
    """A message of a log, its detail, and the database and the role, where the format has them."""

    message: str
    detail: str = ""
    database: str = ""
    role: str = ""


class Call(NamedTuple):
    """A call: its time (ms), its text, its parameters as the log has them."""

    ms: float
    text: str
    given: str = ""


@dataclass
class _Calls:
    """The calls of a query in one kind of entry."""

    number: int = 0
    ms: float = 0.0
    first: list[Call] = field(default_factory=list)


@dataclass
class _Found:
    """What a log has: calls by the query and by the kind of entry, and what was left out."""

    calls: dict[str, dict[str, _Calls]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    databases: set[str] = field(default_factory=set)
    timed: int = 0


def write_scripts_of_log(
    directory: Path, log: Path, top: int, roles: Sequence[str], show: Callable[[str], object]
) -> list[str]:
    """Write a script for each of the queries that took most time by a log into a new directory.

    Returns what there is to say, in sentences.  Raises StudyError for a file that cannot be read or
    has no time of a query, where the directory is there, and where no script can be made.
    """
    require_new(directory)
    show(f"reading {log}")
    with regular(log, "a log") as file:
        found = _read(entries(file), roles)
    name = printable(str(log))
    if not found.timed and roles:
        raise StudyError(
            f"{name} has no time of a query of {', '.join(roles)}; only of csvlog and jsonlog is "
            f"known who ran a query."
        )
    if not found.timed:
        raise StudyError(
            f"{name} has no time of a query: it is no log of "
            f"PostgreSQL in the format stderr, csvlog or jsonlog with English messages, or neither "
            f"log_min_duration_statement nor auto_explain was on."
        )
    # Both kinds tell of the same calls where both are on.
    both = map(_merged, found.calls.values())
    queries = sorted(both, key=lambda calls: -calls.ms)[:top]
    scripts: dict[str, str] = {}
    not_written: list[str] = []
    for number, calls in enumerate(queries, start=1):
        call, text, reason = _typical(calls.first)
        if reason:
            not_written.append(f"{short(call.text)}: {reason}")
        else:
            head = _head(name, number, calls, call)
            scripts[f"{number:02}-{title_of(text)}.sql"] = f"{head}{text};\n"
    if not scripts:
        none = f"No script can be made of the queries in {name}:"
        raise StudyError("\n  ".join([none, *(not_written or [_told_left_out(found)])]))
    write_files(directory, scripts | {"README": _README.format(name=name)})
    most = (
        f"{directory} has {len(scripts)} of the {len(queries)} queries that took most time in "
        f"{name} ({_number(sum(c.number for c in queries))}, {sum(c.ms for c in queries):,.0f} ms)."
    )
    return [most, *_told(directory, found, not_written)]


def _merged(kinds: Mapping[str, _Calls]) -> _Calls:
    """The larger total time of the kinds, and the calls of all, because one may lack values."""
    most = max(kinds.values(), key=lambda calls: calls.ms)
    return replace(most, first=[call for calls in kinds.values() for call in calls.first])


def entries(file: BinaryIO) -> Iterator[Entry]:
    """The entries of a log, whose format is known by its first line: stderr, csvlog or jsonlog."""
    lines = _lines(file)
    first = next(lines, "")
    every = chain([first], lines)
    if _of_json(first) is not None:
        return (entry for entry in map(_of_json, every) if entry is not None)
    if first.count(",") > _MESSAGE and not _LINE.match(first):
        return _of_csv(every)
    return _of_stderr(every)


def _lines(file: BinaryIO) -> Iterator[str]:
    while line := file.readline(_LONGEST):
        yield line.decode("utf-8", "replace").replace("\0", "")


def _of_json(line: str) -> Entry | None:
    """The entry of a line of jsonlog, or None."""
    try:
        known = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(known, dict) or "message" not in known:
        return None
    wanted = (known.get(name, "") for name in ("message", "detail", "dbname", "user"))
    return Entry(*(value if isinstance(value, str) else "" for value in wanted))


def _of_csv(lines: Iterable[str]) -> Iterator[Entry]:
    csv.field_size_limit(_LONGEST)
    size = 0

    def counted() -> Iterator[str]:
        nonlocal size
        for line in lines:
            size += len(line)
            if size > _LONGEST:
                raise csv.Error
            yield line

    rows = csv.reader(counted())
    while True:
        size = 0
        try:
            row = next(rows, None)
        except csv.Error:  # longer than that
            rows = csv.reader(counted())
            continue
        if row is None:
            return
        if len(row) >= _CSV_COLUMNS:
            yield Entry(row[_MESSAGE], row[_DETAIL], row[2], row[1])


def _of_stderr(lines: Iterable[str]) -> Iterator[Entry]:
    """All lines of an entry but the first begin with a tab; its detail is the next entry."""
    message: list[str] = []
    detail: list[str] = []
    going: list[str] | None = None
    size = 0
    for line in lines:
        size += len(line)
        if line.startswith("\t"):
            if going is not None and size < _LONGEST:
                going.append(line[1:])
            continue
        found = _LINE.match(line)
        if found and found[2] == "DETAIL":
            going = detail
        else:
            if message:
                yield Entry("".join(message).rstrip("\r\n"), "".join(detail).rstrip("\r\n"))
            message, detail, size = [], [], len(line)
            going = message if found and found[2] == "LOG" else None
        if going is not None and found:
            going.append(found[3])
    if message:
        yield Entry("".join(message).rstrip("\r\n"), "".join(detail).rstrip("\r\n"))


def call_of(entry: Entry) -> tuple[str, Call] | None:
    """The call that an entry is about, and the kind of entry; None for an entry about no call.

    Raises UnknownError, with the reason, where that cannot be read.
    """
    timed = _TIMED.match(entry.message)
    if not timed:
        return None
    ms = float(timed[1])
    if timed[3]:
        return "plan", Call(ms, *_explained(timed[4]))
    given = _PARAMETERS.match(entry.detail)
    return "statement", Call(ms, timed[4], entry.detail[given.end() :] if given else "")


def _explained(plan: str) -> tuple[str, str]:
    """The query and its parameters of what auto_explain has written."""
    if plan.lstrip().startswith("{"):
        try:
            known: Any = json.loads(plan)
        except (ValueError, RecursionError):
            raise UnknownError("with a plan that is cut off") from None
        text, given = known.get("Query Text"), known.get("Query Parameters", "")
        if not isinstance(text, str) or not isinstance(given, str):
            raise UnknownError("with a plan without its query")
        return text, given
    if not plan.startswith(_QUERY_TEXT) or plan.startswith(f'{_QUERY_TEXT}"'):
        raise UnknownError("with a plan in XML or YAML, which are not read")
    lines = plan.removeprefix(_QUERY_TEXT).split("\n")
    root = next((i for i, line in enumerate(lines) if i and _ROOT.match(line)), None)
    if root is None:
        raise UnknownError("with a plan that is cut off")
    at = (i for i in range(root - 1, 0, -1) if lines[i].startswith(_QUERY_PARAMETERS))
    end = next(at, root)
    given = "\n".join(lines[end:root]).removeprefix(_QUERY_PARAMETERS)
    return "\n".join(lines[:end]), given


def _read(every: Iterable[Entry], roles: Sequence[str]) -> _Found:
    found = _Found()
    kept = 0
    for entry in every:
        if roles and entry.role not in roles:
            continue
        try:
            told = call_of(entry)
        except UnknownError as reason:
            found.timed += 1
            found.left_out[str(reason)] += 1
            continue
        if told is None:
            continue
        found.timed += 1
        kind, call = told
        if cause := _cause(call.text):
            found.left_out[cause] += 1
            continue
        query = alike(call.text)
        if query not in found.calls and len(found.calls) >= _MOST_QUERIES:
            found.left_out[f"of more than {_MOST_QUERIES:,} different queries"] += 1
            continue
        size = len(call.text) + len(call.given)
        has_room = kept + len(query) + size < _KEPT_CHARACTERS
        if query not in found.calls and not has_room:
            found.left_out["too long to be kept beside the others"] += 1
            continue
        kept += 0 if query in found.calls else len(query)
        if len(found.databases) < _MOST_DATABASES:
            found.databases.add(entry.database[:63])
        calls = found.calls.setdefault(query, defaultdict(_Calls))[kind]
        calls.number += 1
        calls.ms += call.ms
        if len(calls.first) < _KEPT and has_room:
            calls.first.append(call)
            kept += size
    return found


def _cause(text: str) -> str:
    """Why a statement is not an application's query; empty if it is."""
    if len(text) > _LONGEST // 2:
        return "longer than half a million characters"
    bare = _PIECE.sub(lambda piece: " " if piece["comment"] else piece[0], text)
    if not VERB.match(bare):
        return _OTHERS
    return "" if tables_named(_without_strings(text)) else "that name no table but the catalogs"


def _without_strings(text: str) -> str:
    return _PIECE.sub(lambda piece: piece[0] if piece["name"] else " ? ", text)


def alike(text: str) -> str:
    """A statement without its values, which is the same for all calls of a query."""

    def plain(piece: re.Match[str]) -> str:
        if piece["comment"]:
            return " "
        return piece[0] if piece["name"] else "?"

    words = " ".join(_PIECE.sub(plain, text).rstrip("; \n").split())
    return _ROWS.sub("(?)", _LIST.sub("?", words)).lower()


def _typical(calls: Sequence[Call]) -> tuple[Call, str, str]:
    """The call nearest to the median time that can become a script, or the reason why none can."""
    by_time = sorted(calls, key=lambda call: call.ms)
    middle = len(by_time) // 2
    nearest = sorted(range(len(by_time)), key=lambda place: abs(place - middle))
    why = ""
    for place in nearest:
        try:
            return by_time[place], statement_of(by_time[place]), ""
        except UnknownError as reason:
            why = why or str(reason)
    return by_time[middle], "", why


def statement_of(call: Call) -> str:
    """The statement of a call with its values; raises UnknownError where it cannot be written."""
    values = dict(_GIVEN.findall(call.given))
    if _GIVEN.sub("", call.given).strip():
        raise UnknownError("its parameters cannot be read")

    def written(piece: re.Match[str]) -> str:
        if piece["comment"]:
            return " "
        if piece["string"] or (piece["escaped"] and "\\" not in piece[0]):
            if piece[0].count("'") % 2:
                raise UnknownError("a string in it does not end")
            return literal(_inside(piece[0].lstrip("eE")))
        if piece["dollar"]:
            mark = f"${piece['tag']}$"
            if not piece[0].removeprefix(mark).endswith(mark):
                raise UnknownError("a string in it does not end")
            return literal(piece[0][len(mark) : -len(mark)])
        if piece["name"]:
            if len(piece[0]) < 2 or not piece[0].endswith('"'):
                raise UnknownError("a name in it does not end")
            if not piece[0].isprintable():  # it could end a script, and begin another
                raise UnknownError("a name in it is not one line")
        if number := piece["parameter"]:
            if number not in values:
                raise UnknownError(f"the log has no value of ${number}")
            if values[number].endswith("...'"):
                raise UnknownError(f"the log has cut off the value of ${number}")
            return "NULL" if values[number] == "NULL" else literal(_inside(values[number]))
        return piece[0] if piece["number"] else _safe(piece[0])

    parts: list[str] = []
    end = 0
    text = call.text.strip().rstrip("; \r\n\t")
    if not re.sub(r"\s", "", text + call.given).isprintable() or "\ufffd" in text + call.given:
        raise UnknownError("it has characters that cannot be printed")
    for piece in _PIECE.finditer(text):
        parts += [_safe(text[end : piece.start()]), written(piece)]
        end = piece.end()
    return "".join([*parts, _safe(text[end:])]).strip()


def _inside(string: str) -> str:
    return string[1:-1].replace("''", "'")


def _safe(text: str) -> str:
    if ";" in text:
        raise UnknownError("it is several statements")
    if UNSAFE.search(text):
        raise UnknownError("pgbench would read a part of it as a command or a variable of its own")
    return text


def _number(calls: int) -> str:
    return f"{calls:,} call{'s' * (calls != 1)}"


def _head(name: str, number: int, calls: _Calls, call: Call) -> str:
    of_all = f"{_number(calls.number)}, {calls.ms:,.1f} ms"
    return (
        f"-- Number {number} of {name} by total time: {of_all}.\n"
        f"-- The values are those of a call that took {call.ms:,.3f} ms.\n"
    )


_README = """\
Scripts of the queries that took most time in {name}: a workload for `pgstudies compare --workload`.

The values are those of real calls, so look before you give them to anybody.

What is missing is the tables:

    pg_dump --format=custom --file=schema.dump ADDRESS
"""


def _told_left_out(found: _Found) -> str:
    return ", ".join(f"{count:,} {cause}" for cause, count in found.left_out.most_common())


def _told(directory: Path, found: _Found, not_written: Sequence[str]) -> Iterator[str]:
    if not_written:
        yield "\n  ".join(["Not written:", *not_written])
    if others := _told_left_out(found):
        yield f"Left out of the log: {others}."
    databases = sorted(found.databases - {""})
    if len(databases) > 1:
        names = ", ".join(map(printable, databases[:5]))
        yield f"The queries are of {len(databases)} databases ({names}), and a workload has one."
    yield (
        f"A log has only what took as long as log_min_duration_statement says. Of the first "
        f"{_KEPT} calls of a query the script is that of the middle time, with the values it had. "
        f"They are values of your tables: look before you give them to anybody. Each transaction "
        f"repeats that call; what cannot be repeated, such as an INSERT of a key that is there, "
        f"compare leaves out, and says so."
    )
    yield (
        f"Put the tables beside them: pg_dump --format=custom --file={directory}/schema.dump, "
        f"with the address of the server, or of a copy. Where the tables are not in public, write "
        f"search_path into {directory}/settings.conf."
    )
