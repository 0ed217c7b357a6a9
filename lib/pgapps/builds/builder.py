"""Builds of the commits of a repository, all by one compiler and the same flags, kept by commit."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from pgservers.errors import CannotRun, ServerError, SpaceError, StudyError
from pgservers.files import cannot_write, says_full
from pgservers.paths import cache_dir
from pgservers.programs.accounts import make_open_directory
from pgservers.programs.cached import finish, is_finished, require_own, require_unchanged
from pgservers.programs.compilers import compiler_version
from pgservers.programs.relinking import KEPT, find_link, keep_link
from pgservers.programs.running import (
    NO_PROCESSES,
    build_environment,
    run_with_us,
    says_no_processes,
)
from pgservers.servers.serve import serve
from pgservers.terminal import Progress, rough_duration

from .eras import flags_for, flex_for, parts_of, require_tools
from .repository import ROOM_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .repository import Commit, Repository

_WITHOUT = ("readline", "zlib", "icu")
"""Libraries that no unit of work needs and not every machine has; make uses no others anyway."""

_LAYOUT = 4
"""Raise it if builds keep other files: kept builds of a lower version are not used."""

_SUBJECT = "subject"
"""The file in an installation that has the first line of the commit's message."""

MOST_BYTES = 4 * 2**30
"""The most that kept builds may take (bytes); the least recently used make room."""


class Builder:
    """Builds commits of one repository, with meson and ninja if both are installed, else with make.

    ``configure`` has more arguments for either.  All commits get the compiler flags that one of
    ``ends`` needs, the oldest and the newest of them.  Builds are out of tree, with ccache if
    installed, and always in the same directory, so that ccache finds unchanged files.  ``show``
    gets the name of each step, with how much of it is done and the time left.
    """

    def __init__(
        self,
        repository: Repository,
        *,
        ends: Sequence[str] = (),
        configure: Sequence[str] = (),
        show: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.repository = repository
        self._flags = " ".join(["-O2", *flags_for(repository, ends)])
        self._configure = tuple(configure)
        self._show = show
        self._kept = repository.place / "builds"
        self._work = repository.place / "build"
        self.built = 0
        """The number of builds so far, failed ones included."""

    def kept(self, sha: str) -> Path | None:
        """The directory of a commit's installation; None if it is not there or incomplete.

        Raises ServerError where others have changed what was built, or could.
        """
        target = self._target(sha)
        if not is_finished(target):
            return None
        require_unchanged(target)
        with suppress(OSError):
            os.utime(target)
        return target

    def build(self, sha: str) -> Path:
        """The directory of a commit's installation, built unless it is kept.

        A build is kept once its initdb has made a cluster and its server runs.  Raises CannotRun,
        with the compiler's message and the name of the log, for a commit that does not build;
        SpaceError on a full disk; StudyError where a tool is missing, or no process can be started;
        and as ``kept``.
        """
        if kept := self.kept(sha):
            return kept
        self._show(f"building {sha[:10]}")
        self.built += 1
        source = self.repository.checkout(sha)
        require_tools(source)
        target, work, log = self._target(sha), self._work, self._kept / f"{sha[:16]}.log"
        try:
            make_open_directory(self._kept)
            require_own(self._kept)
            for unfinished in [work, *(d for d in self._all() if not is_finished(d))]:
                if unfinished.exists():
                    shutil.rmtree(unfinished)
            work.mkdir(mode=0o755)
            log.unlink(missing_ok=True)
            log.touch(mode=0o644)
            with self._watched(f"building {sha[:10]}", source, work, log):
                self._carry_out(self._commands(source, work, target), work, log)
            _try_out(target)
            self._keep_link(work, source, target)
            (target / _SUBJECT).touch(mode=0o644)
            (target / _SUBJECT).write_text(self.repository.commit(sha).subject, encoding="utf-8")
            finish(target)
        except OSError as error:
            raise cannot_write(error, self._kept, "PGSTUDIES_CACHE") from error
        finally:
            for rest in [work, *([] if is_finished(target) else [target])]:
                shutil.rmtree(rest, ignore_errors=True)
        log.unlink()
        remove_oldest(self._all(), MOST_BYTES, but=target)
        return target

    def _carry_out(self, commands: Iterable[Sequence[str]], work: Path, log: Path) -> None:
        """Run the commands; raises SpaceError, StudyError or CannotRun for the first that fails."""
        for command in commands:
            with log.open("ab") as output:
                done = run_with_us(command, cwd=work, environment=build_environment(), log=output)
            # A test of configure that fails for want of room is none that says no.
            logs = [work / "config.log", work / "meson-logs" / "meson-log.txt"]
            failed = done.returncode != 0
            lines = [line for file in [*logs, *([log] if failed else [])] for line in _lines(file)]
            full = next((line.strip() for line in lines if says_full(line)), "")
            if full or (failed and shutil.disk_usage(work).free < ROOM_BYTES):
                log.unlink()
                raise SpaceError(
                    f"No space left while building in {self._kept}{full and f' ({full})'}: free "
                    f"some, or set PGSTUDIES_CACHE to a directory on another disk."
                )
            if any(map(says_no_processes, lines)):
                raise StudyError(NO_PROCESSES)
            if failed:
                raise CannotRun(_why(log))

    @contextmanager
    def _watched(self, what: str, source: Path, work: Path, log: Path) -> Iterator[None]:
        """Show how much of a build is done, and how long the rest takes at the same pace."""
        ended = Event()

        def watch() -> None:
            files, began = _sources(source), time.monotonic()
            while not ended.wait(_LOOK_S):
                done, total = _steps(log) or (_objects(work), files)
                if not done:  # how long configure takes tells nothing of the rest
                    began = time.monotonic()
                elif done < total:
                    left_s = (time.monotonic() - began) * (total - done) / done
                    self._show(f"{what}: {done} of {total}, {rough_duration(left_s)} left")

        watching = Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()

    def _keep_link(self, work: Path, source: Path, target: Path) -> None:
        """Keep what is needed to relink the backend; a build without it is compared as it is."""
        program, kept = target / "bin" / "postgres", target / KEPT
        try:
            command, linked_in = find_link(work)
            keep_link(command, program, kept, cwd=linked_in, trees=(work, source))
        except CannotRun:
            shutil.rmtree(kept, ignore_errors=True)

    @property
    def how(self) -> str:
        """Compiler and flags, alike for all commits: gcc 12.2.0, -O2."""
        first = self._compiler
        name = "clang" if "clang" in first else "gcc"
        number = re.search(r"\d+\.\d[\d.]*", first.rpartition(")")[2] or first)
        more = " ".join(self._configure)
        return f"{name} {number[0] if number else '?'}, {self._flags}{more and f', {more}'}"

    @cached_property
    def _compiler(self) -> str:
        """The version that the compiler prints; raises CannotRun if there is none."""
        return compiler_version(["cc"])

    @property
    def _digest(self) -> str:
        how = [self._flags, _WITHOUT, "install-quiet", self._configure, _LAYOUT]
        what = json.dumps([*how, shutil.which("cc"), self._compiler])
        return hashlib.sha256(what.encode()).hexdigest()[:8]

    def _target(self, sha: str) -> Path:
        return self._kept / f"{sha[:16]}-{self._digest}"

    def _commands(self, source: Path, work: Path, target: Path) -> Iterator[list[str]]:
        """The commands that build, install and try a commit, each to be run in ``work``."""
        answers = [str(target / "bin" / "postgres"), "--version"]
        compiler = ["ccache", "cc"] if shutil.which("ccache") else ["cc"]
        jobs = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
        if (source / "meson.build").exists() and shutil.which("meson") and shutil.which("ninja"):
            # Without pl/*, documentation and tests, and with the same libraries on every machine.
            least = ["-Dbuildtype=plain", "-Dauto_features=disabled"]
            flags = [f"--prefix={target}", f"-Dc_args={self._flags}", *least, *self._configure]
            yield ["env", f"CC={' '.join(compiler)}", "meson", "setup", ".", str(source), *flags]
            # In 16 and 17 the target install-quiet builds what only tests need as well.
            yield ["ninja", "-j", jobs, *_installed(work)]
            yield ["meson", "install", "--quiet", "--no-rebuild"]
            yield answers
            return
        without = [f"--without-{name}" for name in _WITHOUT]
        cc = [f"CC={' '.join(compiler)}", f"CFLAGS={self._flags}", *flex_for(source, work)]
        # The place of each commit is told to make: configure writes it into pg_config.h, so that
        # ccache would find no file unchanged.
        make = ["make", "-s", "-j", jobs, f"prefix={target}"]
        made = [make, [*make, "install"]]
        if parts := parts_of(source):
            goals = [(goal, part) for goal in ("all", "install") for part in parts]
            made = [[*make, "-C", f"src/{part}", goal] for goal, part in goals]
        elif (source / "src" / "interfaces" / "libpq").is_dir():
            made = [[*make, "-C", "src", *_left_out(goal), goal] for goal in ("all", "install")]
            made += [[*make, "-C", part, "install"] for part in ("src/interfaces/libpq", "config")]
        configure = [str(source / "configure"), *without, *cc]
        yield from ([*configure, *self._configure], *made, answers)

    def _all(self) -> list[Path]:
        return [d for d in self._kept.iterdir() if d.is_dir() and not d.is_symlink()]


def commit_of(place: str) -> str | None:
    """The abbreviated commit of a directory of a build; None for other directories."""
    found = re.search(r"/commits/[0-9a-f]+/builds/([0-9a-f]{10})[0-9a-f]{6}-[0-9a-f]{8}$", place)
    return found[1] if found else None


def subject_of(place: str) -> str:
    """The subject of the commit of a build in our cache; empty for other directories."""
    if not Path(place).resolve().is_relative_to(cache_dir().resolve()):
        return ""  # it may come from a stranger's record
    with suppress(OSError, UnicodeDecodeError):
        return (Path(place) / _SUBJECT).read_text(encoding="utf-8")
    return ""


def remove_oldest(places: Sequence[Path], most_bytes: int, *, but: Path) -> None:
    """Remove the least recently used directories, until the rest takes ``most_bytes`` at most.

    Removes neither ``but`` nor a directory that was used after it.
    """
    sizes = {place: sum(f.lstat().st_size for f in place.rglob("*")) for place in places}
    for oldest in sorted(places, key=lambda place: place.stat().st_mtime):
        if sum(sizes.values()) <= most_bytes or oldest == but:
            return
        shutil.rmtree(oldest, ignore_errors=True)
        del sizes[oldest]


def _try_out(place: Path) -> None:
    """Raise CannotRun if initdb makes no cluster with it: postgres --version proves nothing."""
    if (place / "bin" / "initdb").is_file():
        try:
            serve(str(place)).close()
        except ServerError as error:
            raise CannotRun(f"it builds, and its server does not run: {error}") from error


def _installed(work: Path) -> list[str]:
    """What ninja is to make, by meson's own list: the files that are installed."""
    targets = json.loads((work / "meson-info" / "intro-targets.json").read_text(encoding="utf-8"))
    files = {file for target in targets if target["installed"] for file in target["filename"]}
    return sorted(os.path.relpath(os.path.realpath(file), work.resolve()) for file in files)


def _left_out(goal: str) -> list[str]:
    """Make src/ skip what no server needs: test programs, and ecpg."""
    parts = ("interfaces", "test/regress", "test/isolation", "test/perl")
    return [word for part in parts for word in ("-o", f"{goal}-{part}-recurse")]


_LOOK_S = 1.0

_STEP = re.compile(rb"^\[(\d+)/(\d+)\]", re.MULTILINE)


def _steps(log: Path) -> tuple[int, int] | None:
    """The steps done, and all steps, by ninja's log; None if it has none yet."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 10_000))
        if found := _STEP.findall(file.read()):
            done, total = found[-1]
            return int(done), int(total)
    return None


def _objects(work: Path) -> int:
    """The number of files that make has compiled so far."""
    found = (name for _, _, names in os.walk(work / "src") for name in names)
    return sum(name.endswith(".o") for name in found)


def _sources(source: Path) -> int:
    """About as many files as make compiles, which says nothing of its steps."""
    parts = ["backend", "bin", *["common"] * 3, "fe_utils", "interfaces/libpq", "port", "timezone"]
    found = (file for part in parts for file in (source / "src" / part).rglob("*.c"))
    return sum(1 for file in found if "test" not in file.parts)


def built(
    repository: Repository, commits: Sequence[Commit], configure: Sequence[str]
) -> list[Path]:
    """The installations of commits, built unless they are kept; raises as ``Builder.build``.

    The repository is locked only to build.
    """
    ends = [commit.sha for commit in commits]
    kept = list(map(Builder(repository, ends=ends, configure=configure).kept, ends))
    if all(kept):
        return [place for place in kept if place]
    with repository.held(), Progress("building", len(commits)) as progress:
        builder = Builder(repository, ends=ends, configure=configure, show=progress.show)
        places = []
        for sha in ends:
            places.append(builder.build(sha))
            progress.advance()
    return places


_ERROR = re.compile(r"\b(error|ERROR): ")


def _lines(file: Path) -> list[str]:
    return file.read_text("utf-8", "replace").splitlines() if file.is_file() else []


def _why(log: Path) -> str:
    """The first line of a log that reports an error, and the log's name."""
    lines = _lines(log)
    # Not every line with "error" is one: configure asks for -Werror.
    error = next((line.strip() for line in lines if _ERROR.search(line)), None)
    last = lines[-1].strip() if lines else "nothing was said"
    return f"it does not build: {error or last} (all of it: {log})"
