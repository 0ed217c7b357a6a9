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

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

_CONTINUES = re.compile(rb"[ \t\r\f\v]*\n(?:[ \t\r\f\v\n]|--[^\n]*\n)*")
"""The text allowed between two parts of one string."""

_ROUTINE = re.compile(rb"create\s+(?:or\s+replace\s+)?(?:function|procedure)\b", re.IGNORECASE)

_COPY_IN = re.compile(rb"copy\b.*\bfrom\s+stdin\b", re.IGNORECASE | re.DOTALL)

_CHUNK_BYTES = 1 << 18

_LONGEST_BYTES = 1 << 26
"""The longest line, and the longest statement (bytes)."""

_DUMP_BEGINS = b"-- PostgreSQL database dump\n"
_DUMP_ENDS = b"-- PostgreSQL database dump complete\n"


@dataclass(frozen=True)
class Statement:
    """A statement without the comments before it; ``line`` is the line of its first word."""

    text: bytes
    line: int

    @property
    def takes_rows(self) -> bool:
        """Whether rows follow the statement in the script."""
        return _COPY_IN.match(self.text) is not None


@dataclass(frozen=True)
class Command:
    """A backslash command: its name, the rest of its line, and whether it is within a statement."""

    name: str
    rest: str
    line: int
    within: bool


class Lines:
    """The statements and commands of one file, to be iterated over once.

    After a statement that ``takes_rows``, read ``rows`` before the next item.  ``is_dump`` is
    whether pg_dump has written the file, by its first lines.  Raises StudyError for a file that is
    cut off, or has too long a line or statement.
    """

    def __init__(self, lines: Iterable[bytes], file: Path) -> None:
        self._lines = iter(lines)
        self.file = file
        self.line = 0
        self.is_dump = self._is_complete = False
        self._text = bytearray()
        self._first = 0  # the line on which the statement begins; 0 before it does
        self._quote = b""  # the token that opened the current string or quoted name
        self._comments = 0  # the number of nested comments that are open
        self._ended = -1  # the end of a string with escapes, which a new line may continue
        self._brackets = 0
        self._blocks = 0

    def __iter__(self) -> Iterator[Statement | Command]:
        for line in self._next_lines():
            place = 0
            while place < len(line):
                place, item = self._step(line, place)
                if item is not None:
                    yield item
        if self._quote or self._comments:
            raise self._cut_off("in the middle of a string or a comment")
        if self._first and self._text.strip():
            yield self._statement(len(self._text))
        if self.is_dump and not self._is_complete:
            raise self._cut_off("before its last line, as pg_dump writes it")

    def _step(self, line: bytes, place: int) -> tuple[int, Statement | Command | None]:
        """Append text up to the next token; returns where to continue, and an item that ends."""
        outside = not (self._quote or self._comments)
        search = _IN_COMMENT if self._comments else _TOKEN
        if self._quote:
            search = _ENDS.get(self._quote) or re.compile(re.escape(self._quote))
        found = search.search(line, place)
        stop = found.end() if found else len(line)
        token = found[0] if found else b""
        if outside and not self._first:
            is_blank = not line[place : stop - len(token)].strip()
            if is_blank and (token in {b"", b";", b"/*"} or token.startswith(b"--")):
                self._comments = int(token == b"/*")
                return stop, None
            self._first = self.line
        if outside or self._first:
            self._text += line[place:stop]
            self._require_short(len(self._text))
        if token == b"\\" and outside:
            if line[stop : stop + 1] != b";":
                return len(line), self._command(line[stop:])
            self._text += b";"  # \; separates statements that are sent as one
            return stop + 1, None
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
        """Handle a token outside of strings and comments."""
        if token == b"/*":
            self._comments = 1
        elif token == b"'":
            between = (self._ended, len(self._text) - 1)
            goes_on = self._ended >= 0 and _CONTINUES.fullmatch(self._text, *between)
            self._quote, self._ended = b"e'" if goes_on else token, -1
        elif token[:1] in {b'"', b"$"}:
            self._quote = token
        elif token.lower() == b"e'":
            self._quote = b"e'"
        elif token in {b"(", b")"}:
            self._brackets += 1 if token == b"(" else -1
        elif self._brackets <= 0 and _ROUTINE.match(self._text):
            # As in psql, a semicolon within BEGIN ATOMIC ... END does not end the statement.
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
        raise self._cut_off("in the middle of its rows")

    def _cut_off(self, where: str) -> StudyError:
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
            self.is_dump |= self.line < 4 and line == _DUMP_BEGINS
            self._is_complete |= line == _DUMP_ENDS
            yield line


def without_comments(text: str) -> str:
    """SQL without its comments and the space around it."""
    return _COMMENT.sub("", text).strip()


def statements_in(lines: Iterable[str], file: Path) -> list[Statement]:
    """The statements in lines of SQL; raises StudyError for psql's commands and rows of COPY."""
    found = []
    for item in Lines((f"{line}\n".encode() for line in lines), file):
        if isinstance(item, Command) or item.takes_rows:
            what = f"\\{item.name} is psql's" if isinstance(item, Command) else "COPY takes rows"
            raise StudyError(f"{file}, line {item.line}: {what}: only statements are executed.")
        found.append(item)
    return found


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file for ``Lines``, which refuses a line that is cut here."""
    return iter(partial(file.readline, _LONGEST_BYTES + 1), b"")
