"""The ledger of a sweep: one file for every block that is done, wherever its hosts can write."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import polars as pl
from fsspec.implementations.local import LocalFileSystem

from ..errors import SpaceError, StudyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_FILE = re.compile(r"([^/]+)/([^/]+)/([^/]+)/(\d{4,})\.parquet")


_S3 = {"config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 2}}}


_LIMITS: dict[str, dict[str, Any]] = {"s3": _S3, "s3a": _S3}
"""By kind of store, for its client: left alone, that of S3 asks a dead one for minutes."""


_RECORD = "record"
"""The key of the Parquet file's metadata that holds record.json."""


@dataclass(frozen=True, order=True)
class Unit:
    """What is handed out: one block of one cell on one host."""

    study: str
    cell: str
    host: str
    block: int

    @property
    def path(self) -> str:
        """Its file, relative to the ledger."""
        return f"{self.study}/{self.cell}/{self.host}/{self.block:04d}.parquet"

    def __str__(self) -> str:
        return f"block {self.block} of {self.study} on {self.host}"


class Ledger:
    """A directory, or a bucket of an object store: a path, or what fsspec reads, as s3://bucket/a.

    A block is in it or is not; it is never changed.  Raises StudyError for a store that is of an
    unknown kind or cannot be opened.
    """

    def __init__(self, url: str) -> None:
        try:
            self._files, root = fsspec.core.url_to_fs(url, **_LIMITS.get(url.partition(":")[0], {}))
        except Exception as error:  # whatever the client of a store raises
            raise StudyError(f"The ledger {url} cannot be opened: {_line(error)}.") from error
        self._root = root.rstrip("/")
        self._is_local = isinstance(self._files, LocalFileSystem)
        self.url = url

    def done(self) -> set[Unit]:
        """The blocks that are there; raises StudyError when the ledger cannot be listed."""
        try:
            found = [_FILE.fullmatch(name) for name in self._names()]
        except Exception as error:  # whatever the client of a store raises
            raise self._unreadable(error) from error
        return {Unit(m[1], m[2], m[3], int(m[4])) for m in found if m is not None}

    def __contains__(self, unit: Unit) -> bool:
        self._files.invalidate_cache()
        return bool(self._files.exists(f"{self._root}/{unit.path}"))

    def put(self, unit: Unit, content: bytes) -> bool:
        """Write a block whole, unless it is there; returns whether it was written.

        Two that measured the same block, because one was thought dead, leave one file: the first.
        Raises SpaceError for a full or forbidden directory, OSError when a store does not answer.
        """
        target = f"{self._root}/{unit.path}"
        try:
            if self._is_local:
                _put_file(Path(target), content)
            else:
                self._files.pipe_file(target, content, mode="create")
        except FileExistsError:
            return False
        return True

    def read(self, unit: Unit) -> tuple[dict[str, Any], pl.DataFrame]:
        """Record.json and the samples of a block; raises StudyError when they cannot be read."""
        try:
            content = self._files.cat_file(f"{self._root}/{unit.path}")
            info = json.loads(pl.read_parquet_metadata(io.BytesIO(content))[_RECORD])
            return info, pl.read_parquet(io.BytesIO(content))
        except Exception as error:  # whatever the client of a store raises, or of a damaged file
            raise self._unreadable(error, f", {unit.path}") from error

    def _unreadable(self, error: Exception, what: str = "") -> StudyError:
        return StudyError(
            f"The ledger {self.url}{what} cannot be read ({_line(error)}): "
            f"see that it is there, and that you may read it."
        )

    def _names(self) -> Iterator[str]:
        if self._is_local:  # fsspec asks for every file's size, at three times the time
            yield from _files_below(self._root, "")
            return
        self._files.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            for name in self._files.find(self._root):
                yield str(name).removeprefix(f"{self._root}/")


def _line(error: Exception) -> str:
    """An error in a line, whoever raised it."""
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(":. ")


def packed(info: Mapping[str, Any], samples: pl.DataFrame) -> bytes:
    """A block as its file has it: the samples, with record.json in the metadata."""
    buffer = io.BytesIO()
    text = json.dumps(info, ensure_ascii=False, default=str)
    samples.write_parquet(buffer, compression="zstd", metadata={_RECORD: text})
    return buffer.getvalue()


def _put_file(target: Path, content: bytes) -> None:
    aside = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _name(aside, target)
        finally:
            aside.unlink(missing_ok=True)
    except FileExistsError:
        raise
    except OSError as error:
        raise SpaceError(f"Cannot write to {target.parent} ({error.strerror}).") from error


def _name(aside: Path, target: Path) -> None:
    try:
        os.link(aside, target)  # fails where the target is; a rename would replace it
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP}:
            raise
        if target.exists():  # a file system without links: nearly as good
            raise FileExistsError(target) from error
        aside.replace(target)


def _files_below(root: str, prefix: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(f"{root}/{prefix}"))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir():
            yield from _files_below(root, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}"
