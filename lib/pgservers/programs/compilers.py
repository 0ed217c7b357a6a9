"""The tools that extensions in C are built with: a compiler, make, the server's headers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CannotRun
from ..tools import installing
from .running import build_environment

if TYPE_CHECKING:
    from .installations import Binaries


def server_headers(binaries: Binaries) -> tuple[Path, Path]:
    """An installation's ``pg_config`` and its directory of server headers; raises CannotRun."""
    pg_config = binaries.program("pg_config")
    if pg_config is not None:
        command = [str(pg_config), "--includedir-server"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
        headers = Path(done.stdout.strip())
        if done.returncode == 0 and (headers / "postgres.h").is_file():
            return pg_config, headers
    raise CannotRun("the server's headers are not installed")


def find_make() -> str:
    """The path of GNU make, which PostgreSQL's rules for extensions need; raises CannotRun."""
    found = shutil.which("gmake") or shutil.which("make")  # on BSD, GNU's is called gmake
    if found is None:
        raise CannotRun(f"there is no make ({installing('make')})")
    return found


def find_compiler() -> list[str]:
    """The command of a C compiler: $CC, cc, gcc, clang, or that of the package ziglang.

    Raises CannotRun without one, and when $CC names one that is missing.
    """
    configured = shlex.split(os.environ.get("CC", ""))
    if configured:
        if shutil.which(configured[0]):
            return configured
        raise CannotRun(f"there is no {configured[0]}, which the variable CC names")
    for command in ("cc", "gcc", "clang"):
        if shutil.which(command):
            return [command]
    if find_spec("ziglang"):
        return [sys.executable, "-P", "-m", "ziglang", "cc"]
    raise CannotRun(f"there is no C compiler ({installing('C compiler')})")


def compiler_version(compiler: list[str]) -> str:
    """The compiler's version; raises CannotRun if it fails or finds no headers of the C library."""
    try:
        done, trial = (
            subprocess.run(
                [*compiler, *arguments],
                check=False,
                capture_output=True,
                text=True,
                input="#include <stdio.h>\n",
                env=build_environment(),
            )
            for arguments in (["--version"], ["-E", "-x", "c", "-"])
        )
    except OSError as error:
        raise CannotRun(f"{shlex.join(compiler)} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise CannotRun(f"{shlex.join(compiler)} --version fails")
    if trial.returncode != 0:
        how = installing("headers of the C library")
        raise CannotRun(f"the C library's headers are not installed ({how})")
    return (done.stdout.strip().splitlines() or ["unknown"])[0]
