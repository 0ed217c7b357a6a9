"""The statements of a workload's schema, read from a script of psql or a dump.

psql does not read it, because some of its commands run programs, leave the database, or read any
file of the account.  A few of its commands are done here, and all others are refused.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING

from pgservers.errors import CannotRun, StudyError
from pgservers.programs.installations import client_environment, find_binaries

from .statements import Command, Lines, Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_IGNORED = {"a", "echo", "f", "pset", "qecho", "restrict", "t", "timing", "unrestrict", "warn", "x"}
"""Commands of psql that change nothing of what is loaded."""

_WHY = {
    "!": "it runs a program",
    "c": "it leaves the database that is created for the workload",
    "connect": "it leaves the database that is created for the workload",
    "g": "it sends rows elsewhere",
    "gexec": "it executes statements that are not in the file",
    "o": "it sends rows elsewhere",
    "set": "psql's variables are not supported",
    "q": "what follows it would not be loaded",
}

LEAVES = re.compile(
    rb"((?:create|drop|alter)\s+(?:database|tablespace)|alter\s+system)\b", re.IGNORECASE
)

_OF_DATABASE = re.compile(rb"(?:create|drop|alter)\s+database\b", re.IGNORECASE)
"""What pg_dump --create begins with; see ``pieces``."""

# What gives other rows each time that it is loaded, in statements that make rows.
_MAKES_ROWS = re.compile(
    rb"(?:insert|update|merge|with|select|do|call)\b|create\s(?:\w+\s+)*table\s.*\sas\s",
    re.IGNORECASE | re.DOTALL,
)

_DRAWS = re.compile(
    rb"\b((?:random|random_normal|gen_random_uuid|gen_random_bytes|uuid_generate_v[14]\w*|uuidv[47]"
    rb"|now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday)\s*\("
    rb"|current_(?:date|time|timestamp)\b|localtime(?:stamp)?\b)",
    re.IGNORECASE,
)

_STRING = re.compile(rb"'(?:[^']|'')*'")

EXTENSION = re.compile(
    rb"""create\s+extension\s+(?:if\s+not\s+exists\s+)?("[^"]+"|[\w-]+)
         (?:\s+(?:with\s+)?schema\s+("[^"]+"|\w+))?""",
    re.IGNORECASE | re.VERBOSE,
)

_COPY_FILE = re.compile(
    r"""(?P<what>.+?)\s+from\s+(?P<file>'(?:[^']|'')*'|\S+)(?P<options>.*)""",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Rows:
    """A COPY whose rows follow, in parts; they are to be read before the next piece."""

    statement: bytes
    line: int
    file: Path
    parts: Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class Piece:
    """A statement, and where it stands."""

    statement: bytes
    line: int
    file: Path


@dataclass
class Contents:
    """What is known of a schema before it is loaded.

    Attributes:
        extensions: The extensions that it creates, each with its schema or an empty string.
        files: Those that it reads besides its own.
        draws: Where it first makes rows that differ each time, and by what; empty if nowhere.

    """

    extensions: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    draws: str = ""


def contents(schema: Path) -> Contents:
    """Read a schema through without loading it.

    Raises StudyError, with file and line, for a schema that is refused, cut off or unreadable, and
    CannotRun for a dump where there is no pg_restore.
    """
    found = Contents()
    with opened(schema, rows=False) as lines:
        for piece in pieces(lines, schema, found.files):
            if isinstance(piece, Rows):
                for _ in piece.parts():
                    pass
            elif named := EXTENSION.match(piece.statement):
                found.extensions[unquoted(named[1])] = unquoted(named[2] or b"")
            elif not found.draws and _MAKES_ROWS.match(piece.statement):
                drawn = _DRAWS.search(_STRING.sub(b"''", piece.statement))
                what = drawn[1].decode().rstrip("( \n\t") if drawn else ""
                found.draws = f"{piece.file.name}, line {piece.line}, by {what}" if what else ""
    return found


@contextmanager
def opened(schema: Path, *, rows: bool = True) -> Iterator[IO[bytes]]:
    """The SQL of a script, or of a dump as ``pg_restore`` writes it, perhaps without its rows."""
    try:
        is_script = schema.is_file() and not _is_dump(schema)
        if is_script:
            with schema.open("rb") as script:
                yield script
            return
    except OSError as error:
        raise StudyError(f"{schema} cannot be read: {error.strerror}.") from None
    program = find_binaries().program("pg_restore")
    if program is None:
        raise CannotRun("there is no pg_restore beside the embedded server")
    options = ["--no-owner", "--no-privileges", "--file=-", *([] if rows else ["--schema-only"])]
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(
            [program, *options, schema],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=client_environment({}),
        ) as restoring,
    ):
        assert restoring.stdout is not None
        try:
            yield restoring.stdout
        except BaseException:
            restoring.kill()
            raise
        restoring.stdout.close()
        if restoring.wait():
            stderr.seek(0)
            lines = stderr.read().decode(errors="replace").strip().splitlines() or [
                "it said nothing"
            ]
            raise StudyError(f"{schema} cannot be restored: {lines[-1].rstrip('.')}.")


def _is_dump(schema: Path) -> bool:
    with schema.open("rb") as content:
        return content.read(5) == b"PGDMP"


def pieces(
    lines: IO[bytes], schema: Path, files: list[Path] | None = None
) -> Iterator[Piece | Rows]:
    """Statements and rows in their order, of the schema and of the files that it includes.

    ``files`` gets the names of the included files, which lie in the schema's directory or below.  A
    dump may make a database and connect to it: the former is for the caller to pass over, as the
    latter is here.
    """
    yield from _pieces(
        Lines(lines, schema), schema.parent.resolve(), [] if files is None else files
    )


def _pieces(read: Lines, home: Path, files: list[Path]) -> Iterator[Piece | Rows]:
    for item in read:
        at = (item.line, read.file)
        if isinstance(item, Statement):
            of_dump = read.is_dump and _OF_DATABASE.match(item.text)
            if (leaving := LEAVES.match(item.text)) and not of_dump:
                words = " ".join(leaving[1].decode().upper().split())
                raise _error(
                    *at,
                    f"{words} reaches beyond the database that is made for the workload: leave it "
                    f"out",
                )
            yield Rows(item.text, *at, read.rows) if item.takes_rows else Piece(item.text, *at)
            continue
        name = item.name.lower()
        if name in {"c", "connect"} and read.is_dump and not item.within:
            continue
        if name == "set" and item.rest[:1].isupper():  # how psql itself is to behave
            continue
        if item.within or name not in {"copy", "i", "include", "ir", "include_relative", *_IGNORED}:
            why = _WHY.get(name, "this command of psql is not supported")
            raise _error(*at, f"\\{item.name} is not allowed in a schema, because {why}")
        if name in _IGNORED:
            continue
        if name == "copy":
            statement, file = _copied(item, read.file, home)
            files.append(file)
            yield Rows(statement, *at, partial(_content, file, *at))
        else:
            beside = read.file.parent if name in {"ir", "include_relative"} else home
            file = _within(beside, item.rest.strip("'"), home, *at)
            if file in files:
                raise _error(*at, f"{file} is included twice")
            files.append(file)
            with _reading(file, *at) as included:
                yield from _pieces(Lines(included, file), home, files)


def _copied(command: Command, of: Path, home: Path) -> tuple[bytes, Path]:
    r"""The COPY that ``\copy`` stands for, and the file of its rows."""
    found = _COPY_FILE.fullmatch(command.rest.rstrip("; "))
    if found is None or found["file"].lower() in {"program", "stdin", "pstdin"}:
        raise _error(command.line, of, "\\copy takes rows only FROM a 'file' beside the schema")
    name = found["file"].strip("'").replace("''", "'")
    file = _within(home, name, home, command.line, of)
    return f"COPY {found['what']} FROM STDIN {found['options']}".encode(), file


def _content(file: Path, line: int, of: Path) -> Iterator[bytes]:
    with _reading(file, line, of) as rows:
        while part := rows.read(1 << 18):
            yield part


@contextmanager
def _reading(file: Path, line: int, of: Path) -> Iterator[IO[bytes]]:
    try:
        with file.open("rb") as content:
            yield content
    except OSError as error:
        raise _error(line, of, f"{file} cannot be read: {error.strerror}") from None


def _within(directory: Path, name: str, home: Path, line: int, of: Path) -> Path:
    """The file of that name; raises StudyError unless it lies in the workload's directory."""
    file = (directory / name).resolve()
    if home not in file.parents:
        raise _error(line, of, f"{name} is not in {home}, and no other file is read")
    if not file.is_file():
        raise _error(line, of, f"there is no file {name} in {home}")
    return file


def _error(line: int, file: Path, why: str) -> StudyError:
    return StudyError(f"{file}, line {line}: {why}.")


def unquoted(name: bytes) -> str:
    """A name as the server would keep it."""
    text = name.decode("utf-8", "replace")
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()
