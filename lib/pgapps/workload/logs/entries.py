"""The entries of a server's log: stderr, csvlog or jsonlog, as they are or as others wrap them.

A log may contain anything that a client has sent: nothing in it is executed.  Lines that may be the
rest of a statement are never dropped in silence: the entry is marked as cut.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pgservers.errors import StudyError
from pgservers.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import IO, BinaryIO

LONGEST = 1_000_000
"""The longest line, or entry, that is read (bytes)."""

_GZIP = b"\x1f\x8b"

_MESSAGE, _DETAIL, _CSV_COLUMNS = 13, 14, 23

_LINE = re.compile(
    r".*?\b(LOG|DETAIL|HINT|STATEMENT|CONTEXT|QUERY|LOCATION|ERROR|WARNING|NOTICE|INFO|FATAL|PANIC"
    r"|DEBUG[1-5]?):  (.*)",
    re.DOTALL,
)

# What syslog and journald, Docker Compose and kubectl put before a line: of the first two the
# process, and of syslog the numbers of the message and of its part.
_WRAPPED = re.compile(
    r"(?:<\d+>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) \S+ "
    r"postgres\S*\[(?P<process>\d+)\]: (?:\[(?P<number>\d+)-(?P<part>\d+)\] ?)?"
    r"|[\w.-]+ +\| |\[pod/\S+\] "
)


class Entry(msgspec.Struct, frozen=True, rename={"database": "dbname", "role": "user"}):
    """A message of a log and its detail; stderr has no database and no role.

    It ``is_cut`` if lines after it may be a part of it.
    """

    message: str
    detail: str = ""
    database: str = ""
    role: str = ""
    is_cut: bool = False


class _Record(msgspec.Struct):
    """The entry in a line of CloudNativePG."""

    message: str
    detail: str = ""
    database_name: str = ""
    user_name: str = ""


class _Operators(msgspec.Struct):
    record: _Record


class _Payload(msgspec.Struct):
    """A line of stderr as Cloud SQL and Docker wrap it."""

    textPayload: str = ""  # noqa: N815  (its name there)
    log: str = ""


class _Line(NamedTuple):
    """A line without what was put before it; ``part`` is 0 where lines are not numbered."""

    text: str
    process: str = ""
    number: str = ""
    part: int = 0

    def follows(self, other: _Line) -> bool:
        """Whether nothing is missing between the other line and this one."""
        is_next = (self.number, self.part) == (other.number, other.part + 1)
        return self.process == other.process and (is_next or not self.part)


def unpacked(file: BinaryIO, name: Path) -> IO[bytes] | gzip.GzipFile:
    """A log, which may be packed by gzip; raises StudyError if it cannot be unpacked."""
    if file.read(len(_GZIP)) != _GZIP:
        file.seek(0)
        return file
    file.seek(0)
    try:
        with gzip.open(file) as tried:
            tried.read(1)
    except (OSError, EOFError, zlib.error):
        raise StudyError(f"{printable(str(name))} cannot be unpacked: gunzip it first.") from None
    file.seek(0)
    return gzip.open(file)


def entries(file: IO[bytes] | gzip.GzipFile) -> Iterator[Entry]:
    """The entries of a log in the format of its first line."""
    lines = _lines(file)
    first = next((line for line in lines if line.strip() not in {"", "["}), "")
    every = chain([first], lines)
    if _payload(first):
        return _of_stderr(_joined(map(_payload, every)))
    if _of_json(first) is not None:
        return (entry for entry in map(_of_json, every) if entry is not None)
    if first.count(",") > _MESSAGE and not _LINE.match(first):
        return _of_csv(every)
    return _of_stderr(every)


def _lines(file: IO[bytes] | gzip.GzipFile) -> Iterator[str]:
    try:
        while line := file.readline(LONGEST):
            yield line.decode("utf-8", "replace").replace("\0", "")
    except (EOFError, zlib.error):
        return  # the end of a packed file is missing


def _of_json(line: str) -> Entry | None:
    """The entry of a line of jsonlog or of CloudNativePG, or None."""
    with suppress(msgspec.MsgspecError, RecursionError):
        return msgspec.json.decode(line, type=Entry)
    with suppress(msgspec.MsgspecError, RecursionError):
        record = msgspec.json.decode(line, type=_Operators).record
        return Entry(record.message, record.detail, record.database_name, record.user_name)
    return None


def _payload(line: str) -> str:
    """The line of stderr in a line of JSON; empty if there is none."""
    try:
        known = msgspec.json.decode(line.strip().rstrip(","), type=_Payload)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return f"{known.textPayload}\n" if known.textPayload else known.log


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """The lines of texts, of which one may have several lines, or only a part of one."""
    rest = ""
    for text in texts:
        *whole, rest = f"{rest}{text}".split("\n")
        yield from (f"{line}\n" for line in whole)
        if len(rest) > LONGEST:
            rest = ""
    yield rest


def _of_csv(lines: Iterable[str]) -> Iterator[Entry]:
    """A row goes on while a quote is open; rows longer than ``LONGEST`` are left out."""
    csv.field_size_limit(LONGEST)
    part: list[str] = []
    size = quotes = 0
    for line in lines:
        part.append(line)
        size += len(line)
        quotes += line.count('"')
        if quotes % 2 and size <= LONGEST:
            continue
        try:
            row = next(csv.reader(part), []) if size <= LONGEST else []
        except csv.Error:
            row = []
        if len(row) >= _CSV_COLUMNS:
            yield Entry(row[_MESSAGE], row[_DETAIL], row[2], row[1])
        part, size, quotes = [], 0, 0


def _unwrapped(line: str) -> _Line:
    found = _WRAPPED.match(line)
    if found is None:
        return _Line(line)
    text, part = line[found.end() :], int(found["part"] or 0)
    if part:
        text = text.replace("#011", "\t")  # a tab, as syslog writes it
    return _Line(text, found["process"] or "", found["number"] or "", part)


def _of_stderr(lines: Iterable[str]) -> Iterator[Entry]:
    """Each line of an entry but the first begins with a tab; a DETAIL belongs to the LOG before."""
    message: list[str] = []
    detail: list[str] = []
    going: list[str] | None = None
    size, last, is_cut = 0, _Line(""), False
    for line in map(_unwrapped, chain(lines, [""])):  # the empty line ends the last entry
        size += len(line.text)
        found = None if line.text.startswith("\t") else _LINE.match(line.text)
        if line.text.startswith("\t") or line.part > 1:
            if going is not None and not line.follows(last):
                is_cut, going = True, None
            if going is not None and size < LONGEST:
                if not line.text.startswith("\t"):  # syslog splits long lines
                    going[-1] = going[-1].rstrip("\r\n")
                going.append(line.text.removeprefix("\t"))
            last = line
            continue
        if found is None and line.text.strip():
            is_cut, going = is_cut or bool(message), None
            continue
        if found and found[1] == "DETAIL":
            going = detail if line.process == last.process else None
        else:
            if message:
                text, told = ("".join(part).rstrip("\r\n") for part in (message, detail))
                yield Entry(text, told, is_cut=is_cut)
            message, detail, size, is_cut = [], [], len(line.text), False
            going = message if found and found[1] == "LOG" else None
        if going is not None and found:
            going.append(found[2])
        last = line
