"""A user's git repository, read through our own clone, so that nothing in it changes.

It may come from somebody else: none of its settings, hooks, filters or remotes can run a program.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pgservers.errors import ServerError, SpaceError, StudyError
from pgservers.files import cannot_write, existing_directory, says_full
from pgservers.paths import cache_dir
from pgservers.programs.accounts import make_open_directory
from pgservers.programs.cached import require_own
from pgservers.programs.running import (
    NO_PROCESSES,
    build_environment,
    run_with_us,
    says_no_processes,
)
from pgservers.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator


_SUBJECT_LENGTH = 100

ROOM_BYTES = 1_000_000
"""A build or git that fails with less free space than this is reported as a full disk."""


@dataclass(frozen=True)
class Commit:
    """One commit, as the answer names it."""

    sha: str
    date: str
    author: str
    subject: str

    @property
    def short(self) -> str:
        """Its abbreviated name, as git shows it."""
        return self.sha[:10]

    @property
    def about(self) -> str:
        """Date, author and subject."""
        return f"{self.date} {self.author}: {self.subject}"


class Repository:
    """The commits of a repository, and our own checkout of any of them.

    The checkout belongs to a clone in the cache which borrows the repository's objects: the user's
    working tree, index and branches stay as they are.  Raises StudyError where there is no git or
    no repository.
    """

    def __init__(self, source: Path) -> None:
        self.source = existing_directory(source)
        if shutil.which("git") is None:
            raise StudyError("git is not installed: install it first.")
        top = os.fsencode(self._path("--absolute-git-dir"))
        self.place = cache_dir() / "commits" / hashlib.sha256(top).hexdigest()[:12]
        self.clone = self.place / "source"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the clone; raises StudyError where another process has it."""
        try:
            make_open_directory(self.place)
            require_own(self.place)
            lock = os.open(self.place / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise cannot_write(error, self.place, "PGSTUDIES_CACHE") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StudyError(
                    f"Another command builds from {self.source}: wait until it has ended."
                ) from None
            try:
                self._prepare_clone()
            except OSError as error:
                raise cannot_write(error, self.clone, "PGSTUDIES_CACHE") from error
            yield
        finally:
            os.close(lock)

    def _prepare_clone(self) -> None:
        """Make the clone, or repair an incomplete one or one that others could have changed.

        ``git clone`` is not used: it would run a program to talk to the repository.
        """
        if self.clone.exists():
            try:
                require_own(self.clone, *self.clone.rglob("*"))
            except ServerError:
                shutil.rmtree(self.clone)
        hashed = _git(self.source, "rev-parse", "--show-object-format").strip()
        how = ["init", "--quiet", "--template=", f"--object-format={hashed}", str(self.clone)]
        _git(self.place, *how, home=self.place)
        ours = self.clone / ".git"
        for lock in ours.rglob("*.lock"):  # of a git that was killed: we hold the clone
            lock.unlink()
        borrowed = ours / "objects" / "info" / "alternates"
        borrowed.parent.mkdir(mode=0o755, exist_ok=True)
        borrowed.touch(mode=0o644)
        borrowed.write_bytes(os.fsencode(self._path("--git-path", "objects")) + b"\n")
        shallow = self._path("--git-path", "shallow")
        (ours / "shallow").unlink(missing_ok=True)
        if shallow.is_file():
            (ours / "shallow").touch(mode=0o644)
            shutil.copyfile(shallow, ours / "shallow")

    def _path(self, *which: str) -> Path:
        """A path in the repository, by ``git rev-parse`` with these arguments."""
        output = _git(self.source, "rev-parse", *which, errors="surrogateescape")
        return self.source / output.removesuffix("\n")

    def commit(self, name: str) -> Commit:
        """The commit that a name stands for; raises StudyError where there is none.

        The name of a remote's branch alone will do if no other remote has one of that name.
        """
        sha = self._sha(name) or self._sha_at_a_remote(name)
        if not re.fullmatch(r"[0-9a-f]{40,64}", sha):  # that of ^v1 has a ^ as well
            is_shallow = _git(self.source, "rev-parse", "--is-shallow-repository").strip() == "true"
            fetch = "; it is a shallow clone: git fetch --unshallow --tags" if is_shallow else ""
            raise StudyError(f"{self.source} has no commit {name!r}{fetch}.")
        output = _git(self.source, "show", "-s", "--format=%H%x00%as%x00%an%x00%s", sha)
        sha, date, author, subject = output.rstrip("\n").split("\0", 3)
        # Commits of CVS's time have a first paragraph in its place.
        subject = textwrap.shorten(subject, _SUBJECT_LENGTH, placeholder=" ...")
        return Commit(sha, date, author, subject)

    def _sha(self, name: str) -> str:
        which = ["--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
        return _git(self.source, "rev-parse", *which, check=False).strip() if name else ""

    def _sha_at_a_remote(self, name: str) -> str:
        if not re.fullmatch(r"\w[\w./-]*", name):
            return ""
        pattern = f"refs/remotes/*/{name}"
        found = set(_git(self.source, "for-each-ref", "--format=%(objectname)", pattern).split())
        return found.pop() if len(found) == 1 else ""

    @property
    def trunk(self) -> str:
        """The branch that patches are made for; raises StudyError where there is none."""
        for name in ("refs/remotes/origin/HEAD", "master", "main"):
            if self._sha(name):
                return name.removeprefix("refs/remotes/")
        raise StudyError(f"{self.source} has no branch master or main: name a commit to start at.")

    def text(self, sha: str, path: str) -> str:
        """A file of a commit; empty where it has none."""
        return _git(self.source, "show", f"{sha}:{path}", check=False)

    def uncommitted(self, sha: str) -> list[str]:
        """The files that differ from a commit that is checked out; none of another commit.

        By the times and sizes in the index: git itself would run filters, and look into submodules.
        """
        top = _git(self.source, "rev-parse", "--show-toplevel", check=False).removesuffix("\n")
        if self._sha("HEAD") != sha or not top:
            return []
        staged = _git(self.source, "diff-index", "--cached", "--name-only", "-z", sha, check=False)
        found = set(filter(None, staged.split("\0")))
        known = _git(self.source, "ls-files", "--full-name", "--debug", "-z", ":/")
        for name, seconds, ns, size in _INDEXED.findall(known):
            is_same = seconds == "0"  # a submodule, of which nothing is known
            with contextlib.suppress(OSError):
                state = (Path(top) / name).lstat()
                times = (state.st_mtime_ns, state.st_size)
                is_same |= times == (int(seconds + ns.zfill(9)), int(size))
            found |= set() if is_same else {name}
        return sorted(found)

    def parent(self, sha: str) -> str:
        """The first parent of a commit."""
        return _git(self.source, "rev-parse", f"{sha}^").strip()

    def merge_base(self, one: str, other: str) -> str:
        """The merge base of two commits; raises StudyError where they have none."""
        names = [self.commit(name).sha for name in (one, other)]
        found = _git(self.source, "merge-base", *names, check=False).strip()
        if not found:
            raise StudyError(
                f"{one} and {other} have no commit in common in {self.source}: a shallow clone "
                f"needs its history (git fetch --unshallow)."
            )
        return found

    def every(self, since: str, until: str, number: int) -> list[str]:
        """Both ends and every n-th commit between them, by first parents, oldest first.

        Raises StudyError where nothing is between them.
        """
        first, last = self.merge_base(since, until), self.commit(until).sha
        order = ["rev-list", "--first-parent", "--reverse", f"{first}..{last}"]
        path = [first, *_git(self.source, *order).split()]
        if len(path) == 1:
            raise StudyError(f"All commits of {until} are in {since}: name a later end.")
        return [*path[:-1:number], path[-1]]

    def checkout(self, sha: str) -> Path:
        """The files of a commit, in the clone."""
        self.git("checkout", "--quiet", "--force", "--detach", sha)
        self.git("clean", "--quiet", "-dffx")
        return self.clone

    def git(self, *arguments: str, check: bool = True) -> str:
        """The output of git in the clone."""
        return _git(self.clone, *arguments, check=check, home=self.place)


_INDEXED = re.compile(r"([^\0]+)\0  ctime: .*\n  mtime: (\d+):(\d+)\n.*\n.*\n  size: (\d+)\t.*\n")
"""An entry of the index: name, seconds, nanoseconds, size."""

_SETTINGS = {
    "color.ui": "false",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.quotePath": "false",
    "i18n.logOutputEncoding": "UTF-8",
    "log.showSignature": "false",
}
"""Settings that override those of the user, the machine and the repository."""

_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # a commit that is missing would be fetched, by any program
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",  # which our clone would not have
    "GIT_TERMINAL_PROMPT": "0",
}

_KEPT_VARIABLES = (
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_SYSTEM",
    "SUDO_UID",
    "XDG_CONFIG_HOME",
)
"""The variables by which git checks who owns a repository, and finds safe.directory."""


def _git(
    directory: Path,
    *arguments: str,
    check: bool = True,
    errors: str = "replace",
    home: Path | None = None,
) -> str:
    """The output of git; in our clone with a ``home`` that hides the user's own settings."""
    environment = build_environment() | _ENVIRONMENT
    if home is None:
        environment |= {n: os.environ[n] for n in _KEPT_VARIABLES if n in os.environ}
    else:
        environment |= {"HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    fixed = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    command = ["git", *fixed, *arguments]
    done = run_with_us(command, cwd=directory, environment=environment)
    if check and done.returncode != 0:
        output = (done.stderr or done.stdout).decode(errors="replace")
        raise _failure(directory, output, ours=home is not None)
    return done.stdout.decode(errors=errors)


def _failure(directory: Path, output: str, *, ours: bool) -> StudyError:
    lines = [printable(line) for line in output.strip().splitlines()] or ["it failed"]
    message = next((line for line in lines if line.startswith(("fatal: ", "error: "))), lines[0])
    # Of its own configuration it does not say why it cannot be written.
    is_full = ours and shutil.disk_usage(directory).free < ROOM_BYTES
    if is_full or any(map(says_full, lines)):
        return SpaceError(
            f"No space left while git writes to {directory} ({message}): free some, or set "
            f"PGSTUDIES_CACHE to a directory on another disk."
        )
    if any(map(says_no_processes, lines)):
        return StudyError(NO_PROCESSES)
    if "dubious ownership" in message:
        return StudyError(
            f"{directory} belongs to another account: if you trust it, tell git so (git config "
            f"--global --add safe.directory {directory})."
        )
    return StudyError(f"git in {directory}: {message.rstrip('.')}.")
