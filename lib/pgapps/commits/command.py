"""The commands ``bisect``, ``history``, ``gate`` and ``servers build``."""

from __future__ import annotations

from typing import Annotated

import typer

from pgservers.terminal import tell

from ..options import Configure
from .bisect import Repo, bisect
from .gate_command import gate
from .history_command import history

commands = typer.Typer()
commands.command(short_help="Find the commit that changed instructions.")(bisect)
commands.command(short_help="Count units of work over commits or releases.")(history)
commands.command(short_help="Fail if a change executes more instructions.")(gate)

_servers = typer.Typer()
commands.add_typer(_servers, name="servers")


@_servers.command("build", short_help="Build revisions of a git repository.")
def build_revisions(
    names: Annotated[list[str], typer.Argument(metavar="COMMIT", show_default=False)],
    *,
    repo: Repo,
    configure: Configure = None,
) -> None:
    """Build revisions with one compiler and the same flags, and print their directories.

    Fetched releases were built with different compilers and flags, so times of two of them should
    not be compared; times of two builds of this command can be.  Builds are kept in the cache.
    Building a commit runs its code with your privileges.

    \b
    Example:
      pgstudies servers build REL_17_0 REL_18_0 --repo ~/src/postgresql
    """  # noqa: D301
    from ..builds.builder import built
    from ..builds.repository import Repository

    repository = Repository(repo)
    commits = [repository.commit(name) for name in names]
    places = built(repository, commits, configure or ())
    for name, place in zip(names, places, strict=True):
        tell(f"{name}: {place}")
