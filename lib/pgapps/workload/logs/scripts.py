"""Scripts for pgbench from the queries in a server's log, with their values."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pgservers.errors import StudyError
from pgservers.files import regular
from pgservers.terminal import printable

from ..writing import (
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
from .entries import LONGEST, Entry, entries, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

# The most queries, calls of each query and databases that are kept, and the most characters of all
# queries and calls together.
_MOST_QUERIES, _MOST_CALLS, _MOST_DATABASES, _MOST_CHARACTERS = 20_000, 25, 1000, 30_000_000

_TIMED = re.compile(
    r"duration: (\d+\.\d+) ms  (?:(statement|execute (?!fetch from )(?:(?!: ).)*): |(plan):\n)(.*)",
    re.DOTALL,
)

# The parts of an entry of auto_explain in text format; a plan begins with its root.
_QUERY_TEXT, _QUERY_PARAMETERS = "Query Text: ", "Query Parameters: "
_ROOT = re.compile(r"\S.*  \(cost=\d+\.\d+\.\.\d+\.\d+ rows=\d+ width=\d+\)")

_PARAMETERS = re.compile(r"parameters: ", re.IGNORECASE)
_GIVEN = re.compile(r"(?:, )?\$(\d+) = (NULL|'(?:[^']++|'')*+')", re.DOTALL)

# A piece that is not closed extends to the end, so that a text is read in one pass; possessive
# quantifiers need no memory for each character.
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


class Call(NamedTuple):
    """A call of a query: its time (ms), its text, and its parameters as they stand in the log."""

    ms: float
    text: str
    given: str = ""


@dataclass
class _Calls:
    """The calls of a query in one kind of entry: number, total time, and the first ones."""

    number: int = 0
    ms: float = 0.0
    first: list[Call] = field(default_factory=list)


@dataclass
class _Found:
    """The calls in a log, by query and kind of entry; how many were left out, by reason."""

    calls: dict[str, dict[str, _Calls]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    databases: set[str] = field(default_factory=set)
    characters: int = 0

    def add(self, kind: str, call: Call, database: str) -> None:
        """Count a call, and keep it if there is room; raises UnknownError if it is left out."""
        _require_query(call.text)
        query = alike(call.text)
        size = len(call.text) + len(call.given)
        has_room = self.characters + len(query) + size < _MOST_CHARACTERS
        if query not in self.calls:
            if len(self.calls) >= _MOST_QUERIES:
                raise UnknownError(f"of more than {_MOST_QUERIES:,} different queries")
            if not has_room:
                raise UnknownError("too long to be kept beside the others")
            self.calls[query] = defaultdict(_Calls)
            self.characters += len(query)
        if len(self.databases) < _MOST_DATABASES:
            self.databases.add(database[:63])
        calls = self.calls[query][kind]
        calls.number += 1
        calls.ms += call.ms
        if len(calls.first) < _MOST_CALLS and has_room:
            calls.first.append(call)
            self.characters += size


def write_scripts_of_log(
    directory: Path, log: Path, top: int, roles: Sequence[str], show: Callable[[str], object]
) -> list[str]:
    """Write scripts of the ``top`` queries of a log by total time into a new directory.

    Returns sentences for the user.  Raises StudyError if the directory exists, the file cannot be
    read or has no time of a query, or no script can be made.
    """
    require_new(directory)
    show(f"reading {log}")
    with regular(log, "a log") as file:
        found = _read(entries(unpacked(file, log)), roles)
    name = printable(str(log))
    has_times = found.calls or found.left_out
    if not has_times and roles:
        raise StudyError(
            f"{name} has no time of a query of {', '.join(roles)}; only of csvlog and jsonlog is "
            f"known who ran a query."
        )
    if not has_times:
        raise StudyError(
            f"{name} has no time of a query: it is no log of PostgreSQL in the format stderr, "
            f"csvlog or jsonlog with English messages, or neither log_min_duration_statement nor "
            f"auto_explain was on."
        )
    queries = sorted(map(_merged, found.calls.values()), key=lambda calls: -calls.ms)[:top]
    scripts: dict[str, str] = {}
    not_written: list[str] = []
    for number, calls in enumerate(queries, start=1):
        try:
            call, text = _typical(calls.first)
        except UnknownError as reason:
            not_written.append(f"{short(calls.first[0].text)}: {reason}")
            continue
        scripts[f"{number:02}-{title_of(text)}.sql"] = (
            f"-- Number {number} of {name} by total time: {_number(calls.number)}, "
            f"{calls.ms:,.1f} ms.\n"
            f"-- The values are those of a call that took {call.ms:,.3f} ms.\n"
            f"{text};\n"
        )
    left_out = ", ".join(f"{count:,} {why}" for why, count in found.left_out.most_common())
    if not scripts:
        none = f"No script can be made of the queries in {name}:"
        raise StudyError("\n  ".join([none, *(not_written or [left_out])]))
    write_files(directory, scripts | {"README": _README.format(name=name)})
    most = (
        f"{directory} has {len(scripts)} of the {len(queries)} queries that took most time in "
        f"{name} ({_number(sum(c.number for c in queries))}, {sum(c.ms for c in queries):,.0f} ms)."
    )
    return [most, *_told(directory, not_written, left_out, found.databases - {""})]


def _merged(kinds: Mapping[str, _Calls]) -> _Calls:
    """The larger total of the kinds, which are about the same calls, and the values of both."""
    most = max(kinds.values(), key=lambda calls: calls.ms)
    return replace(most, first=[call for calls in kinds.values() for call in calls.first])


def call_of(entry: Entry) -> tuple[str, Call] | None:
    """The kind of an entry, "statement" or "plan", and its call; None for an entry without a time.

    Raises UnknownError, with the reason, if the plan cannot be read.
    """
    timed = _TIMED.match(entry.message)
    if not timed:
        return None
    if entry.is_cut:
        raise UnknownError("followed by a line of another form, which may be a part of it")
    ms = float(timed[1])
    if timed[3]:
        return "plan", Call(ms, *_explained(timed[4]))
    given = _PARAMETERS.match(entry.detail)
    return "statement", Call(ms, timed[4], entry.detail[given.end() :] if given else "")


def _explained(plan: str) -> tuple[str, str]:
    """The query and its parameters in a plan of auto_explain."""
    if plan.lstrip().startswith("{"):
        try:
            known: Any = msgspec.json.decode(plan)
        except (msgspec.MsgspecError, RecursionError):
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
    for entry in every:
        if roles and entry.role not in roles:
            continue
        try:
            if timed := call_of(entry):
                found.add(*timed, entry.database)
        except UnknownError as reason:
            found.left_out[str(reason)] += 1
    return found


def _require_query(text: str) -> None:
    """Raise UnknownError, with the reason, if a statement is not a query on tables."""
    if len(text) > LONGEST // 2:
        raise UnknownError("longer than half a million characters")
    if not VERB.match(_PIECE.sub(lambda piece: " " if piece["comment"] else piece[0], text)):
        raise UnknownError("of other commands than SELECT, INSERT, UPDATE, DELETE and MERGE")
    without_strings = _PIECE.sub(lambda piece: piece[0] if piece["name"] else " ? ", text)
    if not tables_named(without_strings):
        raise UnknownError("that name no table but the catalogs")


def alike(text: str) -> str:
    """A statement without its values: the same text for all calls of one query."""

    def plain(piece: re.Match[str]) -> str:
        if piece["comment"]:
            return " "
        return piece[0] if piece["name"] else "?"

    words = " ".join(_PIECE.sub(plain, text).rstrip("; \n").split())
    return _ROWS.sub("(?)", _LIST.sub("?", words)).lower()


def _typical(calls: Sequence[Call]) -> tuple[Call, str]:
    """The call nearest to the median time that can become a script, and its statement.

    Raises UnknownError, with the reason of the first that was tried, if none can.
    """
    by_time = sorted(calls, key=lambda call: call.ms)
    middle = len(by_time) // 2
    reasons: list[UnknownError] = []
    for place in sorted(range(len(by_time)), key=lambda place: abs(place - middle)):
        try:
            return by_time[place], statement_of(by_time[place])
        except UnknownError as reason:
            reasons.append(reason)
    raise reasons[0]


def statement_of(call: Call) -> str:
    """The statement of a call with its values; raises UnknownError if it cannot be a script."""
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

    text = call.text.strip().rstrip("; \r\n\t")
    if not re.sub(r"\s", "", text + call.given).isprintable() or "\ufffd" in text + call.given:
        raise UnknownError("it has characters that cannot be printed")
    _safe(_PIECE.sub(" ", text))  # all that is between the pieces
    return _PIECE.sub(written, text).strip()


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


_README = """\
Scripts of the queries that took most time in {name}: a workload for `pgstudies compare --workload`.

The values are those of real calls, so look before you give them to anybody.

What is missing is the tables:

    pg_dump --format=custom --file=schema.dump ADDRESS
"""


def _told(
    directory: Path, not_written: Sequence[str], left_out: str, databases: Collection[str]
) -> Iterator[str]:
    if not_written:
        yield "\n  ".join(["Not written:", *not_written])
    if left_out:
        yield f"Left out of the log: {left_out}."
    if len(databases) > 1:
        names = ", ".join(map(printable, sorted(databases)[:5]))
        yield f"The queries are of {len(databases)} databases ({names}), and a workload has one."
    yield (
        f"A log has only what took as long as log_min_duration_statement says. Of the first "
        f"{_MOST_CALLS} calls of a query the script is that of the middle time, with the values it "
        f"had. They are values of your tables: look before you give them to anybody. Each "
        f"transaction repeats that call; what cannot be repeated, such as an INSERT of a key that "
        f"is there, compare leaves out, and says so."
    )
    yield (
        f"Put the tables beside them: pg_dump --format=custom --file={directory}/schema.dump, "
        f"with the address of the server, or of a copy. Where the tables are not in public, write "
        f"search_path into {directory}/settings.conf."
    )
