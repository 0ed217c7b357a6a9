"""The ledger of a sweep: one file for every block that is done, in a place all hosts can write."""

from __future__ import annotations

import contextlib
import io
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pgservers.errors import StudyError
from pgservers.files import write_new_file
from pgstudies.records.format import INFO, SAMPLES, damaged, info_in
from pgstudies.records.samples import samples_in
from pgstudies.records.writing import record_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from pgstudies.records.info import Info


_FILE = re.compile(r"([^/]+)/([^/]+)/([^/]+)/(\d{4,})\.zip")

_S3 = {"config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 2}}}
"""Options of the client of S3, which by default retries for minutes."""

_LIMITS: dict[str, dict[str, Any]] = {"s3": _S3, "s3a": _S3}

_NO_ZIP = (zipfile.BadZipFile, LookupError, NotImplementedError, RuntimeError, ValueError, EOFError)
"""The errors of reading a damaged zip."""


@dataclass(frozen=True, order=True)
class SweepBlock:
    """One block of one cell to measure on one host."""

    study: str
    cell: str
    host: str
    number: int

    @property
    def path(self) -> str:
        """The block's file, relative to the ledger."""
        return f"{self.study}/{self.cell}/{self.host}/{self.number:04d}.zip"

    def __str__(self) -> str:
        return f"block {self.number} of {self.study} on {self.host}"


class Ledger:
    """The finished blocks, in a directory or any store that fsspec reads, such as s3://bucket/a.

    A block is never changed.  Raises StudyError for a store of an unknown kind, or one that cannot
    be opened.
    """

    def __init__(self, url: str) -> None:
        try:
            self._files, root = fsspec.core.url_to_fs(url, **_LIMITS.get(url.partition(":")[0], {}))
        except Exception as error:  # whatever the client of a store raises
            raise StudyError(f"The ledger {url} cannot be opened: {_line(error)}.") from error
        self._root = root.rstrip("/")
        self._is_local = isinstance(self._files, LocalFileSystem)
        self.url = url

    def done(self) -> set[SweepBlock]:
        """The blocks in the ledger; raises StudyError if it cannot be listed."""
        try:
            found = [_FILE.fullmatch(p.removeprefix(f"{self._root}/")) for p in self._paths()]
        except Exception as error:  # whatever the client of a store raises
            raise self._unreadable(error) from error
        return {SweepBlock(m[1], m[2], m[3], int(m[4])) for m in found if m is not None}

    def __contains__(self, block: SweepBlock) -> bool:
        self._files.invalidate_cache()
        return bool(self._files.exists(f"{self._root}/{block.path}"))

    def put(self, block: SweepBlock, content: bytes) -> bool:
        """Write a block whole, unless it is there; returns whether it was written.

        If two workers measured the same block, because one was thought dead, the first file
        remains.  Raises SpaceError for a directory that cannot be written, OSError if a store does
        not answer.
        """
        target = f"{self._root}/{block.path}"
        if self._is_local:
            return write_new_file(Path(target), content)
        try:
            self._files.pipe_file(target, content, mode="create")
        except FileExistsError:
            return False
        return True

    def read(self, block: SweepBlock) -> tuple[Info, pl.DataFrame]:
        """The ``record.json`` and the samples of a block; raises StudyError if it is damaged."""
        place = f"{self._root}/{block.path}"
        try:
            content = self._files.cat_file(place)
        except Exception as error:  # whatever the client of a store raises
            raise self._unreadable(error, f", {block.path}") from error
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as files:
                texts = {name: files.read(name) for name in (INFO, SAMPLES)}
        except _NO_ZIP as error:
            raise damaged(place, str(error)) from None
        info = info_in(texts[INFO], f"{place}, {INFO}")
        checksum = (info["sha256"] or {}).get(SAMPLES)
        if checksum is None:
            raise damaged(place, f"its {INFO} has no checksum of {SAMPLES}")
        return info, samples_in(texts[SAMPLES], checksum, f"{place}, {SAMPLES}")

    def _unreadable(self, error: Exception, what: str = "") -> StudyError:
        return StudyError(
            f"The ledger {self.url}{what} cannot be read ({_line(error)}): "
            f"see that it is there, and that you may read it."
        )

    def _paths(self) -> Iterator[str]:
        if not self._is_local:
            self._files.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                yield from self._files.find(self._root)
            return
        # fsspec asks for every file's size, which takes three times as long.
        for place, _, names in os.walk(self._root, onerror=_unless_missing, followlinks=True):
            yield from (f"{place}/{name}" for name in names)


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _line(error: Exception) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(":. ")


def packed(info: Info, samples: pl.DataFrame) -> bytes:
    """The content of a block's file: a zip of a record with this block only."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as files:
        for name, content in record_files(info, samples).items():
            files.writestr(name, content)
    return buffer.getvalue()
