"""A user's git repository, read through a clone of ours, so that nothing in it changes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import StudyError
from ..files import cannot_write
from ..paths import cache_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Commit:
    """One commit, as the answer names it."""

    sha: str
    date: str
    author: str
    subject: str

    @property
    def short(self) -> str:
        """The first letters of its name, as git shows it."""
        return self.sha[:10]

    @property
    def about(self) -> str:
        """Date, author and subject."""
        return f"{self.date} {self.author}: {self.subject}"


class Repository:
    """The commits of a repository, and a checkout of ours of any of them.

    The checkout is that of a clone in the cache which borrows the repository's objects: its working
    tree, its index and its branches stay as they are.  Raises StudyError where there is no git or
    no repository.
    """

    def __init__(self, source: Path) -> None:
        self.source = source.expanduser().resolve()
        if shutil.which("git") is None:
            raise StudyError("git is not installed: install it first.")
        top = _git(self.source, "rev-parse", "--absolute-git-dir").strip()
        name = hashlib.sha256(top.encode()).hexdigest()[:12]
        self.place = cache_dir() / "commits" / name
        self.clone = self.place / "source"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep others from the clone meanwhile; raises StudyError where another has it."""
        try:
            self.place.mkdir(parents=True, exist_ok=True)
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
            if not (self.clone / ".git" / "HEAD").exists():
                shutil.rmtree(self.clone, ignore_errors=True)
                how = ["clone", "--quiet", "--shared", "--no-checkout"]
                _git(self.place, *how, str(self.source), str(self.clone))
            yield
        finally:
            os.close(lock)

    def commit(self, name: str) -> Commit:
        """The commit that a name stands for; raises StudyError where there is none."""
        try:
            sha = _git(self.source, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        except StudyError:
            raise StudyError(f"{self.source} has no commit {name!r}.") from None
        told = _git(self.source, "show", "-s", "--format=%H%x00%as%x00%an%x00%s", sha.strip())
        return Commit(*told.rstrip("\n").split("\0", 3))

    def parent(self, sha: str) -> str:
        """The first parent of a commit."""
        return _git(self.source, "rev-parse", f"{sha}^").strip()

    def merge_base(self, one: str, other: str) -> str:
        """Where two commits branched off; raises StudyError where they have nothing in common."""
        names = [self.commit(name).sha for name in (one, other)]
        found = _git(self.source, "merge-base", *names, check=False).strip()
        if not found:
            raise StudyError(
                f"{one} and {other} have no commit in common in {self.source}: a shallow clone "
                f"needs its history (git fetch --unshallow)."
            )
        return found

    def every(self, since: str, until: str, number: int) -> list[str]:
        """Both ends and each so-many-th commit between them, by first parents, oldest first.

        Raises StudyError where nothing is between them.
        """
        first, last = self.merge_base(since, until), self.commit(until).sha
        order = ["rev-list", "--first-parent", "--reverse", f"{first}..{last}"]
        path = [first, *_git(self.source, *order).split()]
        if len(path) == 1:
            raise StudyError(f"{until} has no commit that {since} lacks.")
        return [*path[:-1:number], path[-1]]

    def checkout(self, sha: str) -> Path:
        """The files of a commit, in the clone."""
        _git(self.clone, "checkout", "--quiet", "--force", "--detach", sha)
        _git(self.clone, "clean", "--quiet", "-dfx")
        return self.clone

    def git(self, *arguments: str, check: bool = True) -> str:
        """What git says in the clone."""
        return _git(self.clone, *arguments, check=check)


def _git(directory: Path, *arguments: str, check: bool = True) -> str:
    # A bisection, or hooks, of the user's shell are not ours.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(directory), "-c", "core.hooksPath=/dev/null", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=environment | {"LC_ALL": "C"},
    )
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise StudyError(f"git in {directory}: {said[0] if said else 'it failed'}.")
    return done.stdout
