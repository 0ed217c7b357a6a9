"""Builds of the commits of a repository, all by one compiler and the same flags, kept by commit."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import CannotRun
from ..files import cannot_write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .repository import Repository

FLAGS = "-O2"

_WITHOUT = ("readline", "zlib", "icu")
"""What no unit of work needs, and what not every machine has."""

MOST_BYTES = 4 * 2**30
"""Of the builds that are kept, those that were used longest ago make room for new ones."""


class Builder:
    """Builds commits of one repository: with meson and ninja where there are both, else with make.

    ``configure`` has more arguments for either.  Out of tree, with ccache where there is one,
    always in the same directory, so that what has not changed is found in its cache.  ``show`` is
    told what is being done.
    """

    def __init__(
        self,
        repository: Repository,
        *,
        configure: Sequence[str] = (),
        show: Callable[[str], object] = lambda _: None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._repository = repository
        self._configure = tuple(configure)
        self._show = show
        self._most_bytes = most_bytes
        self._kept = repository.place / "builds"
        self.built = 0
        """How many have been built since, those that failed included."""

    def build(self, sha: str) -> Path:
        """The directory of a commit's installation.

        Raises CannotRun, with the compiler's words and the name of the log, for a commit that
        does not build.
        """
        target = self._kept / f"{sha[:16]}-{self._digest}"
        if (target / "bin").is_dir():
            with suppress(OSError):
                os.utime(target)
            return target
        self._show(f"building {sha[:10]}")
        self.built += 1
        source = self._repository.checkout(sha)
        work, log = self._repository.place / "build", self._kept / f"{sha[:16]}.log"
        try:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            self._kept.mkdir(parents=True, exist_ok=True)
            with log.open("w", encoding="utf-8") as told:
                for command in self._commands(source, target):
                    done = subprocess.run(
                        command, check=False, cwd=work, stdout=told, stderr=subprocess.STDOUT
                    )
                    if done.returncode != 0:
                        raise CannotRun(_why(log))
        except OSError as error:
            raise cannot_write(error, self._kept, "PGSTUDIES_CACHE") from error
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
        log.unlink()
        self._make_room(target)
        return target

    @property
    def how(self) -> str:
        """Compiler and flags, alike for all commits: gcc 12.2.0, -O2."""
        done = subprocess.run(["cc", "--version"], check=False, capture_output=True, text=True)
        first = (done.stdout.splitlines() or [""])[0]
        name = "clang" if "clang" in first else "gcc"
        number = re.search(r"\d+\.\d[\d.]*", first.rpartition(")")[2] or first)
        more = " ".join(self._configure)
        return f"{name} {number[0] if number else '?'}, {FLAGS}{more and f', {more}'}"

    @property
    def _digest(self) -> str:
        compiler = shutil.which("cc") or ""
        what = json.dumps([FLAGS, _WITHOUT, self._configure, compiler])
        return hashlib.sha256(what.encode()).hexdigest()[:8]

    def _commands(self, source: Path, target: Path) -> list[list[str]]:
        """What builds and installs it, each to be run in the directory of the build."""
        compiler = ["ccache", "cc"] if shutil.which("ccache") else ["cc"]
        jobs = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
        if (source / "meson.build").exists() and shutil.which("meson") and shutil.which("ninja"):
            disabled = [f"-D{name}=disabled" for name in _WITHOUT]
            flags = [f"--prefix={target}", f"-Dc_args={FLAGS}", "-Dbuildtype=plain", *disabled]
            flags += self._configure
            return [
                ["env", f"CC={' '.join(compiler)}", "meson", "setup", ".", str(source), *flags],
                ["ninja", "-j", jobs],
                ["meson", "install", "--quiet", "--no-rebuild"],
            ]
        without = [f"--without-{name}" for name in _WITHOUT]
        told = [f"CC={' '.join(compiler)}", f"CFLAGS={FLAGS}"]
        return [
            [str(source / "configure"), f"--prefix={target}", *without, *told, *self._configure],
            ["make", "-s", "-j", jobs],
            ["make", "-s", "-j", jobs, "install"],
        ]

    def _make_room(self, newest: Path) -> None:
        known = [d for d in self._kept.iterdir() if d.is_dir()]
        sizes = {d: sum(f.lstat().st_size for f in d.rglob("*")) for d in known}
        for oldest in sorted(known, key=lambda d: d.stat().st_mtime):
            if sum(sizes.values()) <= self._most_bytes or oldest == newest:
                return
            shutil.rmtree(oldest, ignore_errors=True)
            del sizes[oldest]


_ERROR = re.compile(r"\b(error|ERROR): ")


def _why(log: Path) -> str:
    """The first line of a log that tells of an error, and where the rest is."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # Not every line with "error" is one: configure asks for -Werror.
    told = next((line.strip() for line in lines if _ERROR.search(line)), None)
    last = lines[-1].strip() if lines else "nothing was said"
    return f"it does not build: {told or last} (all of it: {log})"
