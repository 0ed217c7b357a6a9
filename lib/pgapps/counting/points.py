"""The points at which units of work are counted: releases, commits, directories of programs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pgservers.addresses import Address
from pgservers.errors import StudyError
from pgservers.order import version_in
from pgservers.programs.installations import find_binaries, is_commit, is_directory, optimization
from pgservers.programs.releases import find_release, packaged, reason_not_available
from pgservers.servers.facts import digest_of
from pgstudies.records.reading import built_with, version_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgservers.programs.installations import Binaries


@dataclass(frozen=True)
class Point:
    """A release, a commit, or the programs in a directory.

    ``name`` is that of the release (18) or commit (commit-568d4138c6), else the version of the
    programs (18.6, 19rc1, 20devel), with the directory where two say the same.  ``server`` is in
    the words of ``serve``, ``built`` has compiler and flags as far as known, ``reason`` is why a
    release cannot be had here.  ``digest`` is that of a directory's programs: they may be others
    tomorrow.
    """

    name: str
    server: str
    version: str
    built: str | None
    reason: str | None = None
    digest: str = ""


def points(words: Sequence[str]) -> list[Point]:
    """The points that the words name, in their order: releases, commits, packages, directories.

    Raises StudyError for a word that is none of these, ServerError for a directory that holds no
    PostgreSQL that runs.
    """
    found = [_point(word) for word in words]
    same = Counter(point.name for point in found)
    return [
        replace(point, name=f"{point.name} in {point.server}")
        if point.digest and same[point.name] > 1
        else point
        for point in found
    ]


def _point(word: str) -> Point:
    if Address.parse(word).is_dsn:
        raise StudyError(
            "Instructions of a server that is already running cannot be counted: give releases or "
            "directories of programs."
        )
    is_named = packaged(word) is not None or is_commit(word)
    if not is_named and "/" not in word and not is_directory(word):
        release = find_release(word)
        reason = reason_not_available(word)
        return Point(release.name, release.name, release.version, release.built, reason)
    binaries = find_binaries(word)
    version = version_number(binaries.version_text)
    name = word if is_commit(word) else version
    server = word if is_named else str(Path(word).expanduser().resolve())
    return Point(name, server, version_in(version), _built(binaries), digest=digest_of(binaries))


def _built(binaries: Binaries) -> str | None:
    """Compiler and optimization, by the text of ``version()`` in the program."""
    program = (binaries.bindir / "postgres").read_bytes()
    said = re.search(rb"PostgreSQL [ -~]{1,200}compiled by [ -~]{1,200}", program)
    build = said[0].decode("ascii") if said else None
    return built_with({"build": build, "cflags": optimization(binaries)})
