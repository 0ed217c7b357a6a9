"""A script as psql and pgbench read it: statements, rows of COPY, backslash commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING

from pgservers.errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_TOKEN = re.compile(
    rb"--[^\n]*|/\*|['\"();\\]|(?<![\w$\x80-\xff])"  # from here on, not within a name
    rb"(?:e'|\$(?:[A-Za-z_\x80-\xff][\w\x80-\xff]*)?\$|(?:begin|case|end)(?![\w$\x80-\xff]))",
    re.IGNORECASE,
)

_ENDS = {
    b"'": re.compile(rb"''|'"),
    b"e'": re.compile(rb"\\.|''|'", re.DOTALL),
    b'"': re.compile(rb'"'),
}

_IN_COMMENT = re.compile(rb"/\*|\*/")

_CONTINUES = re.compile(rb"[ \t\r\f\v]*\n(?:[ \t\r\f\v\n]|--[^\n]*\n)*")
"""What may stand between two parts of one string."""

_ROUTINE = re.compile(rb"create\s+(?:or\s+replace\s+)?(?:function|procedure)\b", re.IGNORECASE)

_COPY_IN = re.compile(rb"copy\b.*\bfrom\s+stdin\b", re.IGNORECASE | re.DOTALL)

_CHUNK_BYTES = 1 << 18

_LONGEST_BYTES = 1 << 26
"""The longest line, and the longest statement (bytes)."""

_DUMP_BEGINS = b"-- PostgreSQL database dump\n"

_DUMP_ENDS = b"-- PostgreSQL database dump complete\n"


@dataclass(frozen=True)
class Statement:
    """One statement without comments before it; ``line`` is that of its first word."""

    text: bytes
    line: int

    @property
    def takes_rows(self) -> bool:
        """Whether its rows follow it in the script."""
        return _COPY_IN.match(self.text) is not None


@dataclass(frozen=True)
class Command:
    """A backslash command: its name as it is written, and the rest of its line."""

    name: str
    rest: str
    line: int
    within: bool
    """Whether it stands within a statement."""


class Lines:
    """The lines of one file, to be read once.

    Iterating gives statements and commands; after a statement that ``takes_rows``, ``rows`` are to
    be read before the next.  Raises StudyError for a file that is cut off.
    """

    def __init__(self, lines: Iterable[bytes], file: Path) -> None:
        self._lines = iter(lines)
        self.file = file
        self.line = 0
        self._is_dump = self._is_complete = False
        self._text = bytearray()
        self._first = 0  # the line on which the statement begins; 0 before it does
        self._quote = b""  # what a string, or a quoted name, was opened by
        self._comments = 0  # how deep they are nested
        self._ended = -1  # the end of a string with escapes, which a new line may continue
        self._brackets = 0
        self._blocks = 0

    @property
    def is_dump(self) -> bool:
        """Whether pg_dump has written it, by its first lines."""
        return self._is_dump

    def __iter__(self) -> Iterator[Statement | Command]:
        """Statements and commands, in their order."""
        for line in self._next_lines():
            place = 0
            while place < len(line):
                place, item = self._step(line, place)
                if item is not None:
                    yield item
        if self._quote or self._comments:
            raise self.cut_off("in the middle of a string or a comment")
        if self._first and self._text.strip():
            yield self._statement(len(self._text))
        if self._is_dump and not self._is_complete:
            raise self.cut_off("before its last line, as pg_dump writes it")

    def _step(self, line: bytes, place: int) -> tuple[int, Statement | Command | None]:
        """Append text up to the next special character; returns where to continue."""
        outside = not (self._quote or self._comments)
        search = _IN_COMMENT if self._comments else _ends(self._quote) if self._quote else _TOKEN
        found = search.search(line, place)
        stop = found.end() if found else len(line)
        token = found[0] if found else b""
        if outside and not self._first and not line[place : stop - len(token)].strip():
            if token in {b"", b";", b"/*"} or token.startswith(b"--"):
                self._comments = int(token == b"/*")
                return stop, None
            self._first = self.line
        elif outside:
            self._first = self._first or self.line
        if outside or self._first:
            self._text += line[place:stop]
            self._require_short(len(self._text))
        if (
            token == b"\\" and outside and line[stop : stop + 1] == b";"
        ):  # it parts, and ends nothing
            self._text += b";"
            return stop + 1, None
        if token == b"\\" and outside:
            return len(line), self._command(line[stop:])
        if token == b";" and outside and self._brackets <= 0 and not self._blocks:
            return stop, self._statement(len(self._text) - 1)
        if token and self._comments:
            self._comments += 1 if token == b"/*" else -1
        elif token and self._quote:
            if token == self._quote or token == self._quote[-1:] != b"$":
                self._ended = len(self._text) if self._quote == b"e'" else -1
                self._quote = b""
        elif token:
            self._enter(token)
        return stop, None

    def _enter(self, token: bytes) -> None:
        """Handle what begins or ends outside of strings and comments."""
        if token == b"/*":
            self._comments = 1
        elif token == b"'":
            between = (self._ended, len(self._text) - 1)
            goes_on = self._ended >= 0 and _CONTINUES.fullmatch(self._text, *between)
            self._quote, self._ended = b"e'" if goes_on else token, -1
        elif token[:1] in {b'"', b"$"} or token[-1:] == b"'":
            self._quote = token.lower() if token[-1:] == b"'" else token
        elif token in {b"(", b")"}:
            self._brackets += 1 if token == b"(" else -1
        elif self._brackets <= 0 and _ROUTINE.match(self._text):
            # Of BEGIN ATOMIC ... END the semicolons within end nothing, as in psql.
            word = token.lower()
            opens = word == b"begin" or (word == b"case" and self._blocks)
            self._blocks = self._blocks + 1 if opens else max(0, self._blocks - (word == b"end"))

    def _statement(self, end: int) -> Statement:
        statement = Statement(bytes(self._text[:end]).strip(), self._first)
        self._text.clear()
        self._first, self._brackets, self._blocks, self._ended = 0, 0, 0, -1
        return statement

    def _command(self, rest_of_line: bytes) -> Command:
        text = rest_of_line.decode("utf-8", "replace").strip()
        self._text[-1:] = b"\n"
        within = bool(self._text.strip())
        if not within:
            self._text.clear()
            self._first = 0
        name, rest = [*text.split(None, 1), "", ""][:2]
        return Command(name, rest, self.line, within)

    def rows(self) -> Iterator[bytes]:
        """The rows that follow a COPY, in parts; read them before the next statement."""
        part: list[bytes] = []
        size = 0
        for line in self._next_lines():
            if line.startswith(b"\\.") and line.rstrip(b"\r\n") == b"\\.":
                yield b"".join(part)
                return
            part.append(line)
            size += len(line)
            if size > _CHUNK_BYTES:
                yield b"".join(part)
                part, size = [], 0
        raise self.cut_off("in the middle of its rows")

    def cut_off(self, where: str) -> StudyError:
        """The error for a file that is cut off."""
        return StudyError(f"{self.file} ends {where}: it has been cut off.")

    def _require_short(self, size: int) -> None:
        if size > _LONGEST_BYTES:
            raise StudyError(
                f"{self.file}, line {self.line}: a line and a statement may have "
                f"{_LONGEST_BYTES >> 20} MB, and this one has more."
            )

    def _next_lines(self) -> Iterator[bytes]:
        for line in self._lines:
            self.line += 1
            self._require_short(len(line))
            if self.line == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901
            self._is_dump = self._is_dump or (self.line < 4 and line == _DUMP_BEGINS)
            self._is_complete = self._is_complete or line == _DUMP_ENDS
            yield line


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file for ``Lines``, which refuses one that is cut here."""
    return iter(partial(file.readline, _LONGEST_BYTES + 1), b"")


def _ends(quote: bytes) -> re.Pattern[bytes]:
    return _ENDS.get(quote) or re.compile(re.escape(quote))
