"""What ``new-workload`` writes: an example, or scripts of a server's queries."""

from __future__ import annotations

import os.path
import re
from typing import TYPE_CHECKING

from pgservers.errors import StudyError
from pgservers.files import cannot_write
from pgservers.terminal import printable
from pgstudies.rooms import rooms

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LONGEST_TITLE = 30

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

VERB = re.compile(r"[\s(]*(SELECT|INSERT|UPDATE|DELETE|MERGE|WITH|VALUES|TABLE)\b", re.IGNORECASE)

_CATALOG = re.compile(r"(?:pg_|information_schema$|sql_)", re.IGNORECASE)

# What pgbench would read as a command, or as a variable.
UNSAFE = re.compile(r"\\|(?<!:):[A-Za-z_]|;")

IDENTIFIER = r'(?:"(?:[^"]|"")+"|[A-Za-z_\x80-\uffff][\w$]*)'

# No function after FROM, and no IS DISTINCT FROM.
_NAMED = re.compile(
    rf"(?:(?<!DISTINCT )\b(FROM|JOIN)|\b(?:INTO|UPDATE|USING))\s+(?:ONLY\s+)?"
    rf"(?:{IDENTIFIER}\.)?({IDENTIFIER})(?(1)(?![\w$.]|\s*\())",
    re.IGNORECASE,
)


class UnknownError(Exception):
    """A query that cannot become a script; the message is the reason."""


def new_workload(directory: Path) -> list[Path]:
    """Write an example of a workload into a new directory; returns the files.

    Raises StudyError if the directory exists, SpaceError if nothing can be written.
    """
    require_new(directory)
    example = next(iter(rooms("workload").values())).directory / "example"
    write_files(directory, {file.name: file.read_text("utf-8") for file in example.iterdir()})
    return sorted(directory.iterdir())


def require_new(directory: Path) -> None:
    """Raise StudyError if the directory exists, or a link of its name."""
    if os.path.lexists(directory):
        raise StudyError(f"There is a {directory} already: use another name.")


def tables_named(text: str) -> list[str]:
    """The tables that a statement names, without those of the catalogs."""
    bare = _COMMENT.sub(" ", text)
    named = (unquoted(name) for _, name in _NAMED.findall(bare))
    return [name for name in named if not _CATALOG.match(name)]


def title_of(text: str) -> str:
    """The first word and the first table of a statement, as a part of a file's name."""
    verb = VERB.match(_COMMENT.sub(" ", text))
    words = [verb[1].lower() if verb else "", *tables_named(text)[:1]]
    return "-".join(re.sub(r"[^a-z0-9_]", "_", word.lower())[:_LONGEST_TITLE] for word in words)


def unquoted(name: str) -> str:
    """A name as the server stores it."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def literal(value: str) -> str:
    """A string literal without anything that pgbench takes for a command or a variable."""
    if value.isprintable() and not re.search(r"[\\;]|:[A-Za-z_\x80-\U0010ffff]", value):
        return "'{}'".format(value.replace("'", "''"))
    return "E'{}'".format(
        "".join(
            c if c.isalnum() or c in " .,_-" or ord(c) >= 128 else f"\\x{ord(c):02x}" for c in value
        )
    )


def write_files(directory: Path, files: Mapping[str, str]) -> None:
    """Write files, by their names, into a new directory.

    Raises StudyError for text that is not UTF-8, SpaceError if nothing can be written.
    """
    try:
        directory.mkdir(parents=True)
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
    except UnicodeEncodeError:
        raise StudyError("A query of the server's has bytes that are not UTF-8.") from None
    except OSError as error:
        raise cannot_write(error, directory) from error


def short(text: str, most: int = 60) -> str:
    """The beginning of a statement, of ``most`` characters, on one line."""
    words = printable(" ".join(text.split()))
    return words if len(words) <= most else f"{words[:most].rstrip()}..."
