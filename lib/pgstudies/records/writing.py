"""Writing a record: block by block, each at once and atomically, and never edited afterwards."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import shutil
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import polars as pl

from ..errors import StudyError
from ..files import space_error, try_lock
from ..paths import records_dir
from .reading import (
    FORMAT_VERSION,
    LOCK,
    SAMPLES_SCHEMA,
    Record,
    read_info,
    read_record,
    record_directories,
)

if TYPE_CHECKING:
    from pathlib import Path


def fingerprint(what: dict[str, Any]) -> str:
    """A digest of everything that must be alike for two runs to be one."""
    text = json.dumps(what, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class RecordWriter:
    """A record being made, locked against a second writer for as long as this object is open."""

    def __init__(self, path: Path, info: dict[str, Any], lock: int) -> None:
        self.path = path
        self.info = info
        self._lock = lock

    @classmethod
    def create(cls, study: str, info: dict[str, Any]) -> Self:
        """Start a new record in ``records_dir()``; raises SpaceError where nothing can be written.

        ``info`` becomes record.json; format_version, study, status and started_at are added.
        """
        now = datetime.now(UTC)
        host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-") or "host"
        name = f"{now:%Y%m%dT%H%M%SZ}-{host}-{secrets.token_hex(3)}"
        path = records_dir() / study / name
        try:
            (path / "blocks").mkdir(parents=True)
        except OSError as error:
            raise space_error(error, path) from error
        lock = try_lock(path / LOCK)
        if lock is None:  # pragma: no cover  (the name is new and random)
            raise StudyError(f"{path} is in use by another run.")
        head = {
            "format_version": FORMAT_VERSION,
            "study": study,
            "status": "running",
            "started_at": now.isoformat(),
            "finished_at": None,
        }
        writer = cls(path, head | {"timeline": [], "left_out": []} | info, lock)
        writer.save()
        return writer

    @classmethod
    def resume(cls, study: str, mark: str) -> Self | None:
        """Reopen the newest unfinished record of ``study`` with this fingerprint, if there is one.

        One that a live process is still writing is left alone.
        """
        for path in reversed(list(record_directories(records_dir(), study))):
            info = read_info(path)
            if info["status"] == "complete" or info.get("fingerprint") != mark:
                continue
            if not os.access(path, os.W_OK):
                continue
            lock = try_lock(path / LOCK)
            if lock is None:
                continue
            writer = cls(path, info, lock)
            writer.forget_half_written()
            return writer
        return None

    @property
    def finished_blocks(self) -> set[int]:
        """Numbers of the blocks that are on disk, whole; block 0 is not among them."""
        names = (part.stem for part in (self.path / "blocks").glob("[0-9]*.parquet"))
        return {int(name) for name in names if name.isdigit() and int(name) > 0}

    def forget_half_written(self) -> None:
        """Remove what a killed run left of a block, and its entries in the timeline."""
        for part in (self.path / "blocks").glob("*.tmp"):
            part.unlink()
        done = self.finished_blocks
        self.info["timeline"] = [e for e in self.info["timeline"] if e["block"] in done]

    def write_block(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        """Write one block's rows (in the order of ``SAMPLES_SCHEMA``) and then record.json.

        ``name`` is the block's number, or ``0-<session>`` for a preparation.  Raises SpaceError
        when the disk is full; the blocks before stay as they are.
        """
        frame = pl.DataFrame(rows, schema=SAMPLES_SCHEMA, orient="row")
        self._write(self.path / "blocks" / f"{name}.parquet", parquet_bytes(frame))
        self.save()

    def save(self) -> None:
        """Write record.json anew, atomically."""
        text = json.dumps(self.info, indent=1, ensure_ascii=False, default=str)
        self._write(self.path / "record.json", text.encode())

    def finish(self) -> Record:
        """Join the blocks into samples.parquet, mark the record complete and return it."""
        record = read_record(self.path)
        samples = record.samples.sort("block", "position", "started_at", maintain_order=True)
        self._write(self.path / "samples.parquet", parquet_bytes(samples))
        self.info |= {"status": "complete", "finished_at": datetime.now(UTC).isoformat()}
        self.save()
        for part in (self.path / "blocks").glob("*"):
            part.unlink()
        (self.path / "blocks").rmdir()
        self.close()
        (self.path / LOCK).unlink(missing_ok=True)
        return Record(self.path, self.info, samples)

    def interrupt(self, why: str) -> None:
        """Mark the record as stopped early; its finished blocks stay, and it can be resumed."""
        self.info |= {"status": "interrupted", "interrupted_by": why}
        self.save()

    def discard(self) -> None:
        """Remove the record: nothing has been measured, and the request cannot be carried out."""
        shutil.rmtree(self.path)

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _write(self, target: Path, content: bytes) -> None:
        aside = target.with_name(f"{target.name}.tmp")
        try:
            with aside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise space_error(error, target.parent) from error


def write_whole(path: Path, info: dict[str, Any], samples: pl.DataFrame) -> None:
    """Write a complete record at once: it is there whole, or not at all.

    Raises SpaceError where nothing can be written.
    """
    aside = path.with_name(f".{path.name}-{secrets.token_hex(3)}")
    text = json.dumps(info, indent=1, ensure_ascii=False, default=str)
    try:
        aside.mkdir(parents=True)
        (aside / "samples.parquet").write_bytes(parquet_bytes(samples))
        (aside / "record.json").write_text(text, encoding="utf-8")
        aside.rename(path)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise space_error(error, path) from error


def parquet_bytes(frame: pl.DataFrame) -> bytes:
    """The frame as the contents of a Parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()
