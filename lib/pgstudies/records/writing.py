"""Writing a record: block by block, each at once and atomically, and never edited afterwards."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shutil
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Self, cast

import polars as pl

from pgservers.errors import StudyError
from pgservers.files import cannot_write, is_locked, try_lock, write_file
from pgservers.paths import records_dir
from pgservers.terminal import say

from .format import INFO, SAMPLES, info_text, sha256
from .reading import LOCK, Record, infos_below, is_of_this_host, read_record
from .samples import SAMPLES_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from .info import Info, Setup

_ELSEWHERE = "PGSTUDIES_RECORDS"


def fingerprint(what: dict[str, Any]) -> str:
    """A digest of everything that must be equal for a run to continue another."""
    return sha256(json.dumps(what, sort_keys=True, default=str).encode())[:16]


class RecordWriter:
    """A record being made, locked against a second writer for as long as this object is open."""

    def __init__(self, path: Path, info: Info, lock: int) -> None:
        self.path = path
        self.info = info
        self._lock = lock

    @classmethod
    def create(cls, study: str, setup: Setup) -> Self:
        """Start a new record in ``records_dir()``; raises SpaceError where nothing can be written.

        Study, status and times are added to ``setup``, the format's version and the checksums.
        """
        now = datetime.now(UTC)
        host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-") or "host"
        name = f"{now:%Y%m%dT%H%M%SZ}-{host}-{secrets.token_hex(3)}"
        path = records_dir() / study / name
        try:
            (path / "blocks").mkdir(parents=True)
        except OSError as error:
            raise cannot_write(error, path, _ELSEWHERE) from error
        lock = try_lock(path / LOCK)
        if lock is None:  # pragma: no cover  (the name is new and random)
            raise StudyError(f"{path} is in use by another run.")
        head: dict[str, Any] = {
            "study": study,
            "status": "running",
            "started_at": now.isoformat(),
            "finished_at": None,
            "timeline": [],
            "left_out": [],
            "sha256": {},
        }
        writer = cls(path, cast("Info", {**head, **setup}), lock)
        writer.save()
        return writer

    @classmethod
    def resume(cls, study: str, mark: str) -> Self | None:
        """Reopen the newest unfinished record of ``study`` with this fingerprint, or return None.

        Records that a live process still writes, and those without checksums or of another host,
        are left alone.
        """
        for path, info in reversed(list(infos_below(records_dir(), study))):
            is_ours = info["status"] != "complete" and info.get("fingerprint") == mark
            if not (is_ours and info["sha256"] is not None and is_of_this_host(info)):
                continue
            if (path / "blocks").is_symlink():  # what it leads to would be removed
                continue
            lock = try_lock(path / LOCK) if os.access(path, os.W_OK) else None
            if lock is not None:
                writer = cls(path, info, lock)
                writer.forget_half_written()
                return writer
        return None

    @property
    def finished_blocks(self) -> set[int]:
        """The numbers of the complete blocks on disk, without block 0 (preparation)."""
        names = (PurePath(name).stem for name in self._sums)
        return {int(name) for name in names if name.isdigit() and int(name) > 0}

    def forget_half_written(self) -> None:
        """Remove temporary files, unfinished and damaged blocks, and their times."""
        for aside in self.path.glob(".*.tmp"):
            aside.unlink()
        sums, whole = self._sums, {}
        for part in (self.path / "blocks").iterdir():
            name = f"blocks/{part.name}"
            if sums.get(name) == sha256(part.read_bytes()):
                whole[name] = sums[name]
                continue
            if name in sums:
                say(f"{part} is damaged: it is removed, and measured again.")
            part.unlink()
        self.info["sha256"] = whole
        done = self.finished_blocks
        self.info["timeline"] = [e for e in self.info["timeline"] if e["block"] in done]

    def write_block(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        """Write one block's rows (in the order of ``SAMPLES_SCHEMA``) and then record.json.

        ``name`` is the block's number, or ``0-<session>`` for a preparation.  Raises SpaceError
        when the disk is full; the blocks before stay as they are.
        """
        content = parquet_bytes(pl.DataFrame(rows, schema=SAMPLES_SCHEMA, orient="row"))
        file = f"blocks/{name}.parquet"
        write_file(self.path / file, content, _ELSEWHERE)
        self._sums[file] = sha256(content)
        self.save()

    def save(self) -> None:
        """Rewrite record.json, atomically."""
        self._save(self.info)

    def finish(self, *, to_be_read: bool = False) -> Record:
        """Join the blocks into samples.parquet, mark the record complete and return it.

        With ``to_be_read`` it is ``unread`` if this process ends before ``mark_read`` is called.
        """
        samples = read_record(self.path).samples.select(list(SAMPLES_SCHEMA))
        content = parquet_bytes(samples.sort("block", "started_at", maintain_order=True))
        write_file(self.path / SAMPLES, content, _ELSEWHERE)
        whole: Info = {
            **self.info,
            "status": "complete",
            "finished_at": datetime.now(UTC).isoformat(),
            "sha256": {SAMPLES: sha256(content)},
        }
        self._save(whole)  # from here on the blocks are not needed, and not before
        self.info = whole
        for part in (self.path / "blocks").glob("*"):
            part.unlink()
        (self.path / "blocks").rmdir()
        if to_be_read:
            self._lock = -1  # held until this process ends
        else:
            self.close()
            mark_read(self.path)
        return read_record(self.path)

    def interrupt(self, why: str) -> None:
        """Mark the record as stopped early; its finished blocks stay, and it can be resumed."""
        self.info["status"], self.info["interrupted_by"] = "interrupted", why
        self.save()

    def discard(self) -> None:
        """Remove the record: nothing was measured, and the request cannot be carried out."""
        shutil.rmtree(self.path)

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def _sums(self) -> dict[str, str]:
        """The checksums of the files, which only records of format 1 lack."""
        sums = self.info["sha256"]
        assert sums is not None
        return sums

    def _save(self, info: Info) -> None:
        files = {name: sum_ for name, sum_ in (info["sha256"] or {}).items() if name != INFO}
        write_file(self.path / INFO, info_text(info, files), _ELSEWHERE)


def mark_read(record: Path) -> None:
    """Note that the page of a complete record is written; see ``unread``."""
    with suppress(OSError):  # of somebody else
        (record / LOCK).unlink()


def unread(study: str, mark: str, blocks: Collection[int]) -> Path | None:
    """The newest complete record of these blocks whose run was ended before it wrote its page."""
    for path, info in reversed(list(infos_below(records_dir(), study))):
        done = {entry["block"] for entry in info["timeline"]}
        is_alike = info.get("fingerprint") == mark and is_of_this_host(info)
        if info["status"] == "complete" and is_alike and done == set(blocks):
            left = path / LOCK
            return path if left.exists() and not is_locked(left) else None
    return None


def write_whole(path: Path, info: Info, samples: pl.DataFrame) -> None:
    """Write a complete record, whole or not at all.  SpaceError where nothing can be written."""
    aside = path.with_name(f".{path.name}-{secrets.token_hex(3)}")
    try:
        for name, content in record_files(info, samples).items():
            write_file(aside / name, content, _ELSEWHERE)
        aside.rename(path)
    except OSError as error:
        raise cannot_write(error, path, _ELSEWHERE) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def record_files(info: Info, samples: pl.DataFrame) -> dict[str, bytes]:
    """The contents of a complete record's files, by their names."""
    content = parquet_bytes(samples.drop("copy_of", "after", strict=False))
    text = info_text(info, {SAMPLES: sha256(content)})
    return {SAMPLES: content, INFO: text.encode()}


def parquet_bytes(frame: pl.DataFrame) -> bytes:
    """The frame as the contents of a Parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()
