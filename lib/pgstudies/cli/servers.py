"""The commands ``pgstudies servers``: list the PostgreSQL releases there are, and fetch them."""

from __future__ import annotations

from typing import Annotated

import typer

from ..terminal import say

servers_app = typer.Typer(rich_markup_mode=None)


@servers_app.callback()
def servers(context: typer.Context) -> None:
    """List the PostgreSQL that can be asked for by --server, and which of it is here already.

    A release that is not is fetched by Maven (mvn) when a run first asks for it,
    checked against data/releases.toml, and kept.  Fetch ahead where there will be
    no network.

    \b
    Examples:
      pgstudies servers
      pgstudies servers fetch 9.3 9.6
      pgstudies servers fetch all
      pgstudies run STUDY --server 9.6
    """  # noqa: D301
    if context.invoked_subcommand is None:
        from . import listing

        typer.echo(listing.servers())


@servers_app.command("fetch", short_help="Fetch releases into the cache.")
def fetch_releases(
    names: Annotated[list[str], typer.Argument(metavar="RELEASE|all", show_default=False)],
) -> None:
    """Fetch releases into the cache, which $PGSTUDIES_CACHE places elsewhere.

    What is there already is not fetched again.  One that is interrupted leaves
    nothing half done.

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
