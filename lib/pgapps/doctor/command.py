"""The commands ``doctor``, ``studies``, ``records`` and ``servers``."""

from __future__ import annotations

from typing import Annotated

import typer

from pgservers.terminal import say, tell
from pgstudies.run_options import RunOptions

from ..options import Server

commands = typer.Typer()


@commands.command(short_help="Check what this machine and a server can do.")
def doctor(server: Server = None) -> None:
    """Check this machine and a server: what will run, what will not, and why.

    For each study a line says how many of its claims a quick run can judge on
    that server.

    \b
    Examples:
      pgstudies doctor
      pgstudies doctor --server postgresql://me@db.example/postgres
    A line begins with "ok", with "--" if something will be left out, or with "NO"
    if nothing can be run, in which case the exit code is not 0.  If the role may
    only read, a line says whether `pgstudies plans` can be used.
    """  # noqa: D301
    from .doctor import examine, exit_code

    checks = []
    for check in examine(server, otherwise=RunOptions.given().server_for(server)):
        checks.append(check)
        tell(check.line)
    raise typer.Exit(exit_code(checks))


@commands.command(short_help="List the studies, or the parameters of one.")
def studies(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", show_default=False)] = None,
) -> None:
    """List the studies, or the parameters of one, with their values in each profile.

    \b
    Examples:
      pgstudies studies
      pgstudies studies STUDY
    """  # noqa: D301  (a backspace tells the help not to rewrap)
    from . import listing

    tell(listing.studies() if study is None else listing.parameters(study))


@commands.command(short_help="List the records of runs.")
def records(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", show_default=False)] = None,
) -> None:
    """List your records (results of runs) and the project's own, oldest first.

    \b
    Examples:
      pgstudies records
      pgstudies records STUDY
    The second line of each entry is the record's directory, for --replay.
    """  # noqa: D301
    from . import listing

    tell(listing.records(study))


_servers = typer.Typer()
commands.add_typer(
    _servers,
    name="servers",
    short_help="List or fetch PostgreSQL releases to run on.",
    invoke_without_command=True,
)


@_servers.callback()
def servers(context: typer.Context) -> None:
    """List the PostgreSQL releases that --server accepts, and which are in the cache.

    A run fetches a release that it needs with Maven (mvn), verifies it against
    data/releases.toml, and keeps it.  Fetch ahead if there will be no network.

    \b
    Examples:
      pgstudies servers
      pgstudies servers fetch 9.3 9.6
      pgstudies servers fetch all
      pgstudies run STUDY --server 9.6
    """  # noqa: D301
    if context.invoked_subcommand is None:
        from . import listing

        tell(listing.servers())


@_servers.command("fetch", short_help="Fetch releases into the cache.")
def fetch_releases(
    names: Annotated[list[str], typer.Argument(metavar="RELEASE|all", show_default=False)],
) -> None:
    """Fetch releases into the cache directory ($PGSTUDIES_CACHE names another one).

    Releases in the cache are not fetched again.  Of all, those that were not
    built for this machine are left out, and said.

    \b
    Examples:
      pgstudies servers fetch 9.3 9.6
      pgstudies servers fetch all
    """  # noqa: D301
    from pgservers.programs.fetching import fetch
    from pgservers.programs.releases import find_release, reason_not_fetched, releases

    wanted = releases() if names == ["all"] else [find_release(name) for name in names]
    leaves_out = names == ["all"] and any(release.is_for_this_machine for release in wanted)
    for release in wanted:
        if leaves_out and not release.is_for_this_machine:
            tell(f"{release.name}: not fetched: {reason_not_fetched(release.name)}.")
            continue
        try:
            tell(f"{release.name}: {fetch(release.name)}")
        except KeyboardInterrupt:
            say(f"interrupted; {release.name} was not fetched: run it again.")
            raise typer.Exit(130) from None
