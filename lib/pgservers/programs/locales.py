"""The C library's locales for managed servers: found on the system, else made for them."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from ..files import temporary_directory
from ..paths import cache_dir
from ..tools import installing

_SOURCES = Path("/usr/share/i18n/locales")


def reason_no_locale(name: str) -> str | None:
    """Why servers started from now on do not know a locale such as ``en_US.UTF-8``, or None.

    Compiles a locale that the system lacks into our cache, which needs no root.
    """
    if _canonical(name) in _on_system() or (_directory() / name).is_dir():
        return None
    language, _, charmap = name.partition(".")
    localedef = shutil.which("localedef")
    if localedef is None or not (_SOURCES / language).is_file():
        how = installing("sources of locales")
        return f"this system has neither a locale {name} nor its source: {how}"
    directory = _directory()
    directory.mkdir(parents=True, exist_ok=True)
    with temporary_directory(directory) as aside:
        made = aside / name
        command = [localedef, "-i", language, "-f", charmap or "UTF-8", str(made)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if not made.is_dir():
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            return f"localedef cannot make {name}: {lines[0]}"
        with contextlib.suppress(FileExistsError):  # another run was faster
            made.rename(directory / name)
    return None


def locale_environment() -> dict[str, str]:
    """LOCPATH for managed servers, once a locale has been made for them; else nothing."""
    directory = _directory()
    with contextlib.suppress(OSError):
        if any(entry.is_dir() for entry in directory.iterdir()):
            return {"LOCPATH": str(directory)}
    return {}


def _directory() -> Path:
    return cache_dir() / "locales"


def _on_system() -> set[str]:
    program = shutil.which("locale")
    if program is None:
        return set()
    done = subprocess.run([program, "-a"], check=False, capture_output=True, text=True)
    return {_canonical(line) for line in done.stdout.split()}


def _canonical(name: str) -> str:
    return name.lower().replace("-", "")
