"""The commands ``pgstudies servers``: list PostgreSQL releases, fetch and update them."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer reads it)
from typing import Annotated

import typer

from ..terminal import say

servers_app = typer.Typer(rich_markup_mode=None)


@servers_app.callback()
def servers(context: typer.Context) -> None:
    """List the PostgreSQL releases that --server accepts, and which are in the cache.

    A run fetches a release that it needs with Maven (mvn), verifies it against
    data/releases.toml, and keeps it.  Fetch ahead if there will be no network.

    \b
    Examples:
      pgstudies servers
      pgstudies servers fetch 9.3 9.6
      pgstudies servers fetch all
      pgstudies servers update
      pgstudies run STUDY --server 9.6
    """  # noqa: D301
    if context.invoked_subcommand is None:
        from . import listing

        typer.echo(listing.servers())


@servers_app.command("fetch", short_help="Fetch releases into the cache.")
def fetch_releases(
    names: Annotated[list[str], typer.Argument(metavar="RELEASE|all", show_default=False)],
) -> None:
    """Fetch releases into the cache, whose place $PGSTUDIES_CACHE can change.

    Releases in the cache are not fetched again.

    \b
    Examples:
      pgstudies servers fetch 9.3 9.6
      pgstudies servers fetch all
    """  # noqa: D301
    from ..programs import find_release, releases
    from ..programs.fetching import fetch

    wanted = releases() if names == ["all"] else [find_release(name) for name in names]
    for release in wanted:
        try:
            typer.echo(f"{release.name}: {fetch(release.name)}")
        except KeyboardInterrupt:
            say(f"interrupted; {release.name} was not fetched: run it again.")
            raise typer.Exit(130) from None


@servers_app.command("build", short_help="Build revisions of a git repository.")
def build_revisions(
    names: Annotated[list[str], typer.Argument(metavar="COMMIT", show_default=False)],
    *,
    repo: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="A clone of PostgreSQL's git repository.", show_default=False
        ),
    ],
    configure: Annotated[
        list[str] | None,
        typer.Option(metavar="ARGUMENT", help="One more argument for configure; may be repeated."),
    ] = None,
) -> None:
    """Build revisions by one compiler and with the same flags, and print where they are.

    Releases that are fetched come from different builders, so times of two of them should not be
    compared; those that are built here may be.  They are kept by commit, in the cache.  To build
    a commit is to run its code as yourself.

    \b
    Example:
      pgstudies servers build REL_17_0 REL_18_0 --repo ~/src/postgresql
    """  # noqa: D301
    from . import bisect

    bisect.build_revisions(names, repo, configure or ())


@servers_app.command("update", short_help="Look for newer minor versions.")
def update() -> None:
    """Look for newer minor versions of the releases, and write them into data/releases.toml.

    Maven (mvn) fetches each jar that is new, for its size and checksum.  Start a new one before
    it is committed: pytest tests/programs/test_releases.py -k NAME.

    \b
    Example:
      pgstudies servers update
    """  # noqa: D301
    from ..programs.updating import update_releases

    for sentence in update_releases():
        typer.echo(sentence)
