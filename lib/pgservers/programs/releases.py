"""The releases of PostgreSQL that can be asked for by name.

``data/releases.toml`` has the newest of each major release, ``data/minor_releases.toml`` earlier
ones of the two newest.
"""

from __future__ import annotations

import functools
import platform
import re
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

from ..addresses import EMBEDDED
from ..errors import StudyError
from ..order import version_key
from ..paths import MINOR_RELEASES, RELEASES, cache_dir
from ..tools import installing
from .cached import is_finished


@dataclass(frozen=True)
class Release:
    """One release, and where its programs come from.

    Attributes:
        name: What a study calls it: ``9.6``, ``16``; of a minor release its version.
        version: Its exact version.
        artifact: Maven coordinate of the jar: group, name and version.
        member: The archive in the jar that holds bin, lib and share.
        system: The system it was built for, as ``platform.system`` names it.
        machine: The processor it was built for, as ``platform.machine`` names it.
        size_bytes: Size of the jar.
        sha256: Checksum of the jar.
        built: Compiler and flags, as far as known.

    """

    name: str
    version: str
    artifact: str
    member: str
    system: str
    machine: str
    size_bytes: int
    sha256: str
    built: str

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of its version, for sorting."""
        return version_key(self.version)

    @property
    def is_for_this_machine(self) -> bool:
        """Whether its programs run on this machine."""
        return (self.system, self.machine) == (platform.system(), platform.machine())

    @property
    def directory(self) -> Path:
        """Its directory in the cache, cached or not; it depends on the jar."""
        return releases_dir() / f"{self.version}-{self.sha256[:12]}"

    @property
    def cached(self) -> bool:
        """Whether it has been fetched."""
        return is_finished(self.directory) and (self.directory / "bin" / "postgres").is_file()


def releases() -> list[Release]:
    """The newest of each major release, oldest first, as built for this machine if it is."""
    by_name: dict[str, Release] = {}
    for release in builds(RELEASES):
        if release.is_for_this_machine or release.name not in by_name:
            by_name[release.name] = release
    return sorted(by_name.values(), key=lambda release: release.numbers)


def minor_releases() -> list[Release]:
    """Older minor releases that are available here, oldest first."""
    found = (release for release in builds(MINOR_RELEASES) if release.is_for_this_machine)
    return sorted(found, key=lambda release: release.numbers)


@functools.cache
def builds(file: Path) -> list[Release]:
    """The releases of a catalog, for every machine: each has a table, or one inside another."""
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    found = []
    for name, table in tables.items():
        others = [value for value in table.values() if isinstance(value, dict)]
        own = {key: value for key, value in table.items() if not isinstance(value, dict)}
        found += [Release(name=name, **fields) for fields in (own, *others) if fields]
    return found


def is_release(spec: str) -> bool:
    """Whether the word is a release's name (``16``) or its exact version (``16.11``)."""
    return _find(spec) is not None


def find_release(spec: str) -> Release:
    """The release of this name or exact version; raises StudyError, which lists the known."""
    found = _find(spec)
    if found is None:
        raise StudyError(f"There is no release {spec!r}; there are {listed()}.")
    return found


def _find(spec: str) -> Release | None:
    # Those for this machine first: another machine's may have the same version.
    known = [*releases(), *minor_releases(), *builds(RELEASES), *builds(MINOR_RELEASES)]
    return next((r for r in known if spec in {r.name, r.version}), None)


def listed() -> str:
    """The names of the major releases, for a sentence."""
    return ", ".join(release.name for release in releases())


_PACKAGES = (
    "/usr/lib/postgresql/{}/bin",  # Debian
    "/usr/pgsql-{}/bin",  # RPM
    "/opt/homebrew/opt/postgresql@{}/bin",
    "/usr/local/opt/postgresql@{}/bin",
    "/home/linuxbrew/.linuxbrew/opt/postgresql@{}/bin",
    "/Applications/Postgres.app/Contents/Versions/{}/bin",
)


def packaged(spec: str) -> Path | None:
    """The installed programs that serve as a release; None if it is fetched.

    They serve where it cannot be fetched, or is not listed, such as a newer one.
    """
    place = installed(spec)
    return place if not is_release(spec) or reason_not_fetched(spec) else None


def is_known(spec: str) -> bool:
    """Whether a word names a server by a safe name: embedded, a release, a package's."""
    return spec == EMBEDDED or is_release(spec) or packaged(spec) is not None


def installed(major: str) -> Path | None:
    """The directory of a package's programs of a major release; None without a package."""
    if not re.fullmatch(r"9\.\d|\d\d", major):
        return None
    places = (Path(pattern.format(major)) for pattern in _PACKAGES)
    return next(filter(has_programs, places), None)


def has_programs(bindir: Path) -> bool:
    """Whether a directory holds initdb and postgres; raises OSError where it cannot be read."""
    return (bindir / "initdb").is_file() and (bindir / "postgres").is_file()


def reason_not_available(spec: str) -> str | None:
    """Why a release is neither cached, installed nor fetchable; None if it is.

    Raises StudyError for an unknown release.
    """
    return None if packaged(spec) else reason_not_fetched(spec)


def reason_not_fetched(spec: str) -> str | None:
    """Why a release is neither cached nor fetchable; None if it is.

    Raises StudyError for an unknown release.
    """
    release = find_release(spec)
    if not release.is_for_this_machine:
        return (
            f"PostgreSQL {release.version} is built for {release.system} {release.machine}, "
            f"and this is {platform.system()} {platform.machine()}"
        )
    if not release.cached and shutil.which("mvn") is None:
        return (
            f"PostgreSQL {release.version} cannot be fetched: there is no mvn on PATH "
            f"({installing('mvn')})"
        )
    return None


def releases_dir() -> Path:
    """The directory in the cache that holds the fetched releases."""
    return cache_dir() / "releases"
