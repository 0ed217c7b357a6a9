"""The format of record.json: what it holds, how older ones are read, and its checksums."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pgservers.errors import StudyError

from ..checking import misfit
from .info import HostFacts, Info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FORMAT_VERSION = 5
"""Higher with every key, or column of the samples, that is added: ``_UPGRADES`` then says what
older records have for a key, ``samples_in`` what they have for a column."""

INFO, SAMPLES = "record.json", "samples.parquet"


def _without_checksums(info: dict[str, Any]) -> dict[str, Any]:
    return info | {"sha256": None}  # records of format 1 have none


def _with_columns_for_names(info: dict[str, Any]) -> dict[str, Any]:
    """In format 2 ``copy_of`` was ``repeats``, and steps called "first ..." were not compared.

    In a comparison ``of`` was ``plays``, and the facts of servers were by arm and side.
    """
    for arm in info.get("arms", []):
        arm["copy_of"] = arm.pop("repeats")
        if "plays" in arm:
            arm["of"] = arm.pop("plays")
    first = ("lookup", "warm", "scan", "scan with work")
    info |= {"not_compared": [f"first {what}" for what in first]}
    if "comparison" not in info:
        return info
    facts = info["comparison"].pop("facts")
    placed = {arm["name"]: facts.get(arm["of"], {}).get(arm["side"]) for arm in info["arms"]}
    return info | {"facts": {name: found for name, found in placed.items() if found}}


_UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: _without_checksums,
    2: _with_columns_for_names,
    3: dict,  # its samples have no parts
    4: dict,  # it says nothing of the code's parts
}
"""Functions that upgrade a format to the next."""


def info_in(content: bytes, name: Path | str) -> Info:
    """A record.json's contents in the newest format; StudyError, naming ``name``, if unusable."""
    try:
        info = json.loads(content, parse_constant=int)  # which NaN is not
    except (ValueError, RecursionError) as error:
        raise damaged(name, f"it is not JSON ({error})") from None
    version = info.get("format_version") if isinstance(info, dict) else None
    if type(version) is not int or version < 1:
        raise damaged(name, "it has no format_version")
    if version > FORMAT_VERSION:
        raise StudyError(
            f"{name} has record format {version}, and this version of pgstudies reads formats "
            f"up to {FORMAT_VERSION}: update pgstudies."
        )
    try:
        own = _digest(info)
    except (UnicodeEncodeError, RecursionError):
        raise damaged(name, "it has text that is not Unicode") from None
    files = info.get("sha256")
    if version > 1 and own != (files.get(INFO) if isinstance(files, dict) else None):
        raise damaged(name, "it is not as it was written")
    try:
        for older in range(version, FORMAT_VERSION):
            info = _UPGRADES[older](info) | {"format_version": older + 1}
        msgspec.convert(info, Info)
        msgspec.convert(info["host"], HostFacts)
        datetime.fromisoformat(info["started_at"]).astimezone(UTC)
    except msgspec.ValidationError as error:
        raise damaged(name, misfit(error, info, Info)) from None
    except (AttributeError, LookupError, TypeError):
        raise damaged(name, f"it is not as format {version} has it") from None
    except (ValueError, OverflowError) as error:
        raise damaged(name, f"started_at is no time ({error})") from None
    return cast("Info", info)  # as it is, with keys that are unknown here


def info_text(info: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """The text of a record.json; ``files`` has the checksums of the record's other files."""
    plain = json.dumps(dict(info), ensure_ascii=False, default=str)
    # A host name of undecodable bytes has surrogates, which cannot be written.
    written = json.loads(plain.encode(errors="replace")) | {
        "format_version": FORMAT_VERSION,
        "sha256": dict(files),
    }
    written["sha256"][INFO] = _digest(written)
    return json.dumps(written, indent=1, ensure_ascii=False)


def sha256(content: bytes) -> str:
    """The checksum of a file's contents, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def damaged(file: Path | str, why: str) -> StudyError:
    """The error for a file that cannot be as it was written."""
    return StudyError(f"{file} is damaged: {why.rstrip('.')}; restore it from a copy or remove it.")


def _digest(info: Mapping[str, Any]) -> str:
    """The checksum of everything in record.json but this checksum itself."""
    files = info.get("sha256")
    if isinstance(files, dict):
        info = {**info, "sha256": {name: files[name] for name in files if name != INFO}}
    return sha256(json.dumps(info, sort_keys=True, ensure_ascii=False).encode())
