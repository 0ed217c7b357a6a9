"""Programs in the cache: complete, our own, and unchanged since they were completed."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

from ..errors import ServerError
from ..files import write_file
from .accounts import open_to_all, others_can_change

if TYPE_CHECKING:
    from pathlib import Path

_MARK = "finished.json"
"""Written last: the SHA-256 of every file of the directory, by its name there."""


def finish(directory: Path) -> None:
    """Mark a directory as complete: every account can read and execute it, none can change it.

    Raises SpaceError where the mark cannot be written.
    """
    open_to_all(directory)
    mark = directory / _MARK
    write_file(mark, json.dumps(_digests(directory), indent=1), "PGSTUDIES_CACHE")
    mark.chmod(0o644)


def is_finished(directory: Path) -> bool:
    """Whether ``finish`` completed the directory."""
    return (directory / _MARK).is_file()


def require_own(directory: Path, *within: Path) -> None:
    """Raise ServerError where others could plant files for us to run, also from a parent."""
    real = [path for path in within if not path.is_symlink()]
    for path in [directory, *real, *directory.resolve().parents]:
        if others_can_change(path, above=directory):
            raise ServerError(
                f"Other accounts can change {path}, so no program is run from there: make it yours "
                f"alone (chown, chmod go-w), or set PGSTUDIES_CACHE to a directory of your own."
            )


def require_unchanged(directory: Path) -> None:
    """Raise ServerError if others could change the directory, or its files have changed."""
    require_own(directory, *directory.rglob("*"))
    try:
        finished = json.loads((directory / _MARK).read_bytes())
    except ValueError:
        finished = None
    if finished != _digests(directory):
        raise ServerError(
            f"The files in {directory} have changed since they were stored: remove the directory, "
            f"and it is made again."
        )


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _digests(directory: Path) -> dict[str, str]:
    found = {}
    for path in sorted(directory.rglob("*")):
        name = os.fsencode(path.relative_to(directory)).decode(errors="backslashreplace")
        if path.is_symlink():
            found[name] = os.fsencode(path.readlink()).decode(errors="backslashreplace")
        elif path.is_file() and name != _MARK:
            found[name] = sha256_of(path)
    return found
