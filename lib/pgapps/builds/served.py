"""Servers of the commits that a study is about, built from a user's clone of the repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pgservers.errors import CannotRun

from .builder import built
from .repository import Repository

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_REPOSITORY = "no clone of PostgreSQL's repository (repo)"


@dataclass(frozen=True)
class Served:
    """A commit's server as an arm names it, and why it cannot be run, or None."""

    server: str
    not_run: str | None


def served(repo: str, commits: Sequence[str]) -> list[Served]:
    """The servers of commits, each named by the first ten letters; built if they are not there.

    All are built by one compiler and the same flags.  Without a ``repo``, or where one cannot be
    built, they are not run.  Raises StudyError where ``repo`` is no clone, lacks a commit, or the
    tools are missing.
    """
    reason: str | None = NO_REPOSITORY
    if repo:
        repository = Repository(Path(repo).expanduser())
        found = [repository.commit(name) for name in commits]
        try:
            with repository.held():
                built(repository, found, ())
            reason = None
        except CannotRun as why:
            reason = str(why)
    return [Served(f"commit-{name[:10]}", reason) for name in commits]
