"""Arms on the servers of the commits that a study is about, built from a user's clone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pgservers.errors import CannotRun

from .builder import built
from .repository import Repository

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgstudies.measuring.arms import Arm

NO_REPOSITORY = "no clone of PostgreSQL's repository (repo)"


def on_commits(repo: str, arms: Sequence[tuple[Arm, str]]) -> list[Arm]:
    """The arms, each on the server of its commit, which is built if it is not there.

    All are built by one compiler and the same flags.  Without a ``repo``, or where one cannot be
    built, they are not run.  Raises StudyError where ``repo`` is no clone, lacks a commit, or the
    tools are missing.
    """
    reason: str | None = NO_REPOSITORY
    if repo:
        repository = Repository(Path(repo).expanduser())
        found = [repository.commit(commit) for commit in dict.fromkeys(c for _, c in arms)]
        try:
            built(repository, found, ())
            reason = None
        except CannotRun as why:
            reason = str(why)
    return [replace(arm, server=f"commit-{commit[:10]}", not_run=reason) for arm, commit in arms]
