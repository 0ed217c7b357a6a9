"""Having the Maven client fetch a jar, and forget one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ServerError, SpaceError

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S = 0.1
_REPOSITORY = re.compile(r"Using local repository at (.+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def copy_artifact(
    artifact: str, directory: Path, show: Callable[[int], object] = lambda _: None
) -> Path:
    """Have ``mvn`` fetch a jar, unless it has it already, and copy it into ``directory``.

    ``artifact`` is group, name and version with colons between; ``show`` is called with the number
    of bytes that have arrived.  Raises ServerError with Maven's own reason when it fails, and
    SpaceError when the disk is full.  No ``mvn`` is left running, whatever ends this.
    """
    # The debug output tells where jars are kept, however that was configured.  A download with a
    # wrong checksum is refused (--strict-checksums), where Maven itself would only warn.
    command = ["mvn", "--batch-mode", "--debug", "--strict-checksums", "dependency:copy"]
    command += [f"-Dartifact={artifact}", f"-DoutputDirectory={directory}"]
    log = directory / "mvn.log"
    with log.open("wb") as output:
        try:
            # Elsewhere than here, where there may be a pom.xml.
            maven = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"mvn cannot be run: {error.strerror}.") from error
        try:
            while maven.poll() is None:
                show(_arrived(artifact, log))
                time.sleep(_POLL_S)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(maven.pid, signal.SIGKILL)
            maven.wait()
            raise
    jar = directory / _file_name(artifact)
    if maven.returncode != 0 or not jar.is_file():
        raise _failure(artifact, _read(log))
    return jar


def forget_artifact(artifact: str, directory: Path) -> None:
    """Remove the jar from Maven's local repository, after ``copy_artifact`` into ``directory``."""
    home = _repository_directory(artifact, directory / "mvn.log")
    for file in home.glob("*") if home else []:
        file.unlink()


def _arrived(artifact: str, log: Path) -> int:
    """Bytes of the jar that there are so far, under its own name or that of a download."""
    home = _repository_directory(artifact, log)
    sizes = [0]
    for file in home.glob(f"*{_file_name(artifact)}*") if home else []:
        with contextlib.suppress(FileNotFoundError):
            sizes.append(file.stat().st_size)
    return max(sizes)


def _repository_directory(artifact: str, log: Path) -> Path | None:
    found = _REPOSITORY.search(_read(log))
    group, name, version = artifact.split(":")
    return Path(found[1], *group.split("."), name, version) if found else None


def _file_name(artifact: str) -> str:
    _, name, version = artifact.split(":")
    return f"{name}-{version}.jar"


def _read(log: Path) -> str:
    return _COLOUR.sub("", log.read_text(encoding="utf-8", errors="replace"))


def _failure(artifact: str, said: str) -> ServerError | SpaceError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("[ERROR]").strip() for line in lines if line.startswith("[ERROR]")]
    reason = next(filter(None, errors), lines[-1] if lines else "it said nothing")
    if "No space left" in said:
        return SpaceError(f"mvn found no space left while fetching {artifact}: free some.")
    # "Failed to execute goal <plugin> on project standalone-pom: <reason> -> [Help 1]"
    reason = reason.partition(" on project standalone-pom: ")[2] or reason
    return ServerError(
        f"mvn could not fetch {artifact}: {reason.partition(' -> [')[0].rstrip('.')}."
    )
