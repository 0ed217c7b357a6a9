"""The statements of a workload's schema, read from a script for psql or a dump.

psql itself does not read them, because some of its commands run programs, leave the database, or
read any file of the account.  A few of its commands are done here; all others are refused.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from tempfile import TemporaryFile, gettempdir
from typing import IO, TYPE_CHECKING

from pgservers.errors import CannotRun, StudyError
from pgservers.files import cannot_write, is_full, open_regular, temporary_directory
from pgservers.programs.installations import client_environment, find_binaries

from .statements import Command, Lines, Statement, lines_of, statements_in, without_comments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_IGNORED = {"a", "echo", "f", "pset", "qecho", "restrict", "t", "timing", "unrestrict", "warn", "x"}
"""Commands of psql that do not affect what is loaded."""

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

_GAP = rb"(?:\s|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)+"
_LEAVES = re.compile(
    rb"((?:create|drop|alter)%b(?:database|tablespace)|alter%bsystem)\b" % (_GAP, _GAP),
    re.IGNORECASE,
)

_OF_DATABASE = re.compile(rb"(?:create|drop|alter)\s+database\b", re.IGNORECASE)
"""Statements at the beginning of a dump by pg_dump --create; see ``pieces``."""

# Statements that make rows, and the functions in them that give other rows at each load.
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

_MAGIC = b"PGDMP"
_TOC = "toc.dat"
_OF_DUMP = re.compile(r"toc\.dat|blobs(?:_[0-9]+)?\.toc|(?:blob_)?[0-9]+\.dat(?:\.gz|\.lz4|\.zst)?")

# The entries of a table of contents that name a file, and the names that pg_dump gives.
_NAMED = {
    b"TABLE DATA": re.compile(rb"[0-9]+\.dat"),
    b"BLOBS": re.compile(rb"blobs(?:_[0-9]+)?\.toc"),
}

_LARGE_OBJECTS = re.compile(rb"(?:[0-9]{1,10} blob_[0-9]{1,10}\.dat\n)*")

_LONGEST_TOC = 1 << 28
_COMPLAINT_BYTES = 10_000

# The minor versions of pg_dump's archives from 9.1 to 18, and the versions that added fields.
_KNOWN_MINORS = range(12, 17)
_HAS_ACCESS_METHOD, _HAS_ALGORITHM, _HAS_KIND = 14, 15, 16

_COPY_FILE = re.compile(
    r"""(?P<what>.+?)\s+from\s+(?P<file>'(?:[^']|'')*'|\S+)(?P<options>.*)""",
    re.IGNORECASE | re.DOTALL,
)


_LONGEST_SQL = 100_000

_SHOWN_BYTES = 2_000


@dataclass(frozen=True)
class Piece:
    """A statement and its place; read the ``rows`` of a COPY, in parts, before the next piece."""

    statement: bytes
    line: int
    file: Path
    rows: Callable[[], Iterator[bytes]] | None = None


@dataclass
class Contents:
    """The facts about a schema that are known before it is loaded.

    Attributes:
        extensions: The extensions that it creates, each with its schema or an empty string.
        files: The files that it includes.
        draws: Where it first makes rows that differ each time, and by what; empty if nowhere.

    """

    extensions: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    draws: str = ""


def contents(schema: Path) -> Contents:
    """Read a schema without loading it.

    Raises StudyError, with file and line, for a schema that is refused, cut off or unreadable, and
    CannotRun for a dump without pg_restore.
    """
    found = Contents()
    with opened(schema, rows=False) as lines:
        for piece in pieces(lines, schema, schema.parent.resolve(), found.files):
            if piece.rows:
                for _ in piece.rows():
                    pass
            elif named := EXTENSION.match(piece.statement):
                found.extensions[unquoted(named[1])] = unquoted(named[2] or b"")
            elif not found.draws and _MAKES_ROWS.match(piece.statement):
                drawn = _DRAWS.search(_STRING.sub(b"''", piece.statement))
                what = drawn[1].decode().rstrip("( \n\t") if drawn else ""
                found.draws = f"{piece.file.name}, line {piece.line}, by {what}" if what else ""
    return found


def sql_lines(file: Path) -> list[str]:
    """The lines of a file of SQL; raises StudyError unless it has statements alone."""
    try:
        with open_regular(file) as script:
            content = script.read(_LONGEST_SQL + 1)
    except OSError as error:
        raise StudyError(f"{file} cannot be read: {error.strerror}.") from None
    if len(content) > _LONGEST_SQL:
        raise StudyError(f"{file} has more than {_LONGEST_SQL:,} bytes: put it into the schema.")
    try:
        lines = content.decode().expandtabs().splitlines()
    except UnicodeDecodeError:
        raise StudyError(f"{file} is not UTF-8.") from None
    found = statements_in(lines, file)
    if not found:
        raise StudyError(f"{file} has no statement.")
    for statement in found:
        if words := leaving(statement.text):
            where = f"{file}, line {statement.line}"
            raise StudyError(f"{where}: {words} reaches beyond the workload's database.")
    return lines


def beginning(schema: Path) -> str:
    """The first characters of a script without its comments; empty for a dump."""
    if schema.is_dir():
        return ""
    with open_regular(schema) as file:
        content = file.read(_SHOWN_BYTES)
    if content.startswith((_MAGIC, b"--\n-- PostgreSQL database dump")):
        return ""
    return without_comments(content.decode("utf-8", "replace"))


@contextmanager
def opened(schema: Path, *, rows: bool = True) -> Iterator[IO[bytes]]:
    """The SQL of a script, or of a dump as pg_restore writes it; without ``rows``, a dump has none.

    Raises StudyError for a schema that cannot be read, and for a dump that names a file outside.
    """
    script: IO[bytes] | None = None
    with ExitStack() as stack:
        try:
            if schema.is_dir():
                aside = stack.enter_context(temporary_directory()) / "dump"
                _take_dump(schema, aside, rows=rows)
                options = ["--format=directory", str(aside)]
            else:
                script = stack.enter_context(open_regular(schema))
                options = ["--format=custom"]  # which names no file
        except OSError as error:
            if is_full(error):
                raise cannot_write(error, gettempdir(), "TMPDIR") from error
            where = error.filename or schema
            raise StudyError(f"{where} cannot be read: {error.strerror}.") from None
        if script is not None and os.pread(script.fileno(), len(_MAGIC), 0) != _MAGIC:
            yield script
        else:
            yield stack.enter_context(_restored(options, schema, script, rows=rows))


@contextmanager
def _restored(
    options: Sequence[str], schema: Path, dump: IO[bytes] | None, *, rows: bool
) -> Iterator[IO[bytes]]:
    program = find_binaries().program("pg_restore")
    if program is None:
        raise CannotRun("there is no pg_restore beside the embedded server")
    more = ["--no-owner", "--no-privileges", "--file=-", *([] if rows else ["--schema-only"])]
    with (
        TemporaryFile() as stderr,
        subprocess.Popen(
            [program, *options, *more],
            stdin=subprocess.DEVNULL if dump is None else dump,
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
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _COMPLAINT_BYTES))
            complaint = stderr.read().decode(errors="replace").strip().splitlines()
            why = (complaint or ["it said nothing"])[-1].rstrip(".")
            raise StudyError(f"{schema} cannot be restored: {why}.")


def _take_dump(schema: Path, dump: Path, *, rows: bool) -> None:
    """Copy the directory ``schema`` to ``dump``, which names no file outside.

    pg_restore opens every file that ``toc.dat`` and ``blobs*.toc`` name, relative to the directory.
    Raises StudyError for a link, a file that pg_dump does not write, and a name of another file.
    """
    dump.mkdir()
    for file in sorted(schema.iterdir()):
        if not _OF_DUMP.fullmatch(file.name):
            raise StudyError(f"{file} is no file of a dump: take it out of the directory.")
        if file.is_symlink():
            raise StudyError(f"{file} is a link: copy the file into the dump.")
        with open_regular(file) as content:
            if file.suffix == ".toc" or file.name == _TOC:
                text = content.read(_LONGEST_TOC + 1)
                if len(text) > _LONGEST_TOC or not _names_only_its_own(file.name, text):
                    raise StudyError(
                        f"{file} is not as pg_dump writes it, or pg_dump is newer than 18, and "
                        f"pg_restore could read files outside of the dump: make one with "
                        f"--format=custom."
                    )
                (dump / file.name).write_bytes(text)
            elif rows:
                _link_or_copy(file, content, dump / file.name)


def _link_or_copy(file: Path, content: IO[bytes], copy: Path) -> None:
    """Link files of rows instead of copying them, if the file system is the same."""
    with suppress(OSError):
        os.link(file, copy, follow_symlinks=False)
        if os.path.samestat(copy.lstat(), os.fstat(content.fileno())):
            return
        copy.unlink()
    with copy.open("wb") as target:
        shutil.copyfileobj(content, target)


def _names_only_its_own(name: str, text: bytes) -> bool:
    """Whether a dump's table of contents only names files of the dump."""
    if name != _TOC:
        return _LARGE_OBJECTS.fullmatch(text) is not None
    try:
        found = list(_named_files(BytesIO(text)))
    except ValueError:
        return False
    return all(_NAMED.get(kind, re.compile(b"")).fullmatch(file) for kind, file in found)


def _named_files(toc: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The kind of each entry of ``toc.dat``, and the file that it names.

    It is read as by ReadHead and ReadToc of pg_dump.  Raises ValueError for an unknown version of
    the format, and for a file that is cut off.
    """

    def take(size: int) -> bytes:
        part = toc.read(size)
        if len(part) < size:
            raise ValueError
        return part

    def number() -> int:
        negative, value = take(1) != b"\0", int.from_bytes(take(4), "little")
        if value >= 1 << 31:
            raise ValueError
        return -value if negative else value

    def text() -> bytes | None:
        size = number()
        return take(size) if size >= 0 else None

    magic, major, minor, revision, *sizes = take(len(_MAGIC)), *take(6)
    # A number has four bytes; the format is tar's, whose contents are the same.
    known = (major, revision, sizes[0], sizes[2]) == (1, 0, 4, 3) and minor in _KNOWN_MINORS
    if magic != _MAGIC or not known:
        raise ValueError
    take(1) if minor >= _HAS_ALGORITHM else number()  # compression
    for read in (number,) * 7 + (text,) * 3:  # when, of what and by what it was made
        read()
    for _ in range(number()):
        for read in (number, number, text, text, text):
            read()
        kind = text() or b""
        number()
        for _ in range(5 + (minor >= _HAS_ACCESS_METHOD)):
            text()
        if minor >= _HAS_KIND:
            number()
        for _ in range(2):
            text()
        while text() is not None:  # what it depends on
            pass
        yield kind, text() or b""


def pieces(lines: IO[bytes], file: Path, home: Path, files: list[Path]) -> Iterator[Piece]:
    """The statements of ``file``, and of the files in ``home`` that it includes, in their order.

    The included files are added to ``files``.  A dump may create a database and connect to it: the
    caller passes over the former, as this function does over the latter.
    """
    read = Lines(lines_of(lines), file)
    for item in read:
        at = (item.line, file)
        if isinstance(item, Statement):
            of_dump = read.is_dump and _OF_DATABASE.match(item.text)
            if (words := leaving(item.text)) and not of_dump:
                raise _error(
                    *at,
                    f"{words} reaches beyond the database that is made for the workload: leave it "
                    f"out",
                )
            yield Piece(item.text, *at, read.rows if item.takes_rows else None)
            continue
        name = item.name.lower()
        passed = name in _IGNORED or (name in {"c", "connect"} and read.is_dump)
        sets_psql = name == "set" and item.rest[:1].isupper()
        if sets_psql or (passed and not item.within):
            continue
        if item.within or name not in {"copy", "i", "include", "ir", "include_relative"}:
            why = _WHY.get(name, "this command of psql is not supported")
            raise _error(*at, f"\\{item.name} is not allowed in a schema, because {why}")
        if name == "copy":
            statement, rows_file = _copied(item, file, home)
            files.append(rows_file)
            yield Piece(statement, *at, partial(_content, rows_file, *at))
        else:
            beside = file.parent if name in {"ir", "include_relative"} else home
            included = _within(beside, item.rest.strip("'"), home, *at)
            if included in files:
                raise _error(*at, f"{included} is included twice")
            files.append(included)
            with _reading(included, *at) as more:
                yield from pieces(more, included, home, files)


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
        with open_regular(file) as content:
            yield content
    except OSError as error:
        raise _error(line, of, f"{file} cannot be read: {error.strerror}") from None


def _within(directory: Path, name: str, home: Path, line: int, of: Path) -> Path:
    """The file ``name`` in ``directory``; raises StudyError unless it is in ``home`` or below."""
    try:
        file = (directory / name).resolve()
        if home not in file.parents:
            raise _error(line, of, f"{name} is not in {home}, and no other file is read")
        is_there = file.exists()
    except (OSError, RuntimeError, ValueError):  # too long, a link to itself, a NUL in it
        raise _error(line, of, f"{name!r} names no file") from None
    if not is_there:
        raise _error(line, of, f"there is no file {name} in {home}")
    return file


def _error(line: int, file: Path, why: str) -> StudyError:
    return StudyError(f"{file}, line {line}: {why}.")


def leaving(statement: bytes) -> str:
    """The first words of a statement that reaches beyond its database; empty for all others."""
    found = _LEAVES.match(statement)
    return " ".join(found[1].decode(errors="replace").upper().split()) if found else ""


def unquoted(name: bytes) -> str:
    """A name as the server stores it."""
    text = name.decode("utf-8", "replace")
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()
