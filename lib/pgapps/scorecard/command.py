"""The commands ``scorecard`` and ``advise``."""

from __future__ import annotations

from typing import Annotated

import typer

commands = typer.Typer()


@commands.command(short_help="Print which of the posts' claims still hold.")
def scorecard(
    study: Annotated[
        str | None, typer.Option(metavar="STUDY", help="Only the claims of this study.")
    ] = None,
) -> None:
    """Print the verdict on every claim of the posts, as plain text that can be mailed.

    Each is judged by the project's reference records, and beside them by the record
    that its study's page shows, or else by your newest one.  A record that was never
    judged is replayed first, which takes ten seconds.

    \b
    Examples:
      pgstudies scorecard
      pgstudies scorecard --study STUDY
    """  # noqa: D301
    from .scorecard import scorecard as of_study
    from .table import in_text

    typer.echo(in_text(of_study(study, records="reference")))


@commands.command(short_help="Print what the findings mean for an upgrade or a setting.")
def advise(
    before: Annotated[
        str | None,
        typer.Option("--from", metavar="RELEASE|DIR", help="What runs now, such as 14."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--to", metavar="RELEASE|DIR", help="What to go to, such as 18."),
    ] = None,
) -> None:
    """Print what changes with an upgrade, by how much, how sure that is and where it was measured.

    Without releases, print what the studies found about settings and habits.  All
    of it comes from the project's reference records, but for counts of other releases
    and of directories of programs, which `pgstudies run releases` makes.

    \b
    Examples:
      pgstudies advise --from 14 --to 18
      pgstudies advise --from 18 --to /usr/lib/postgresql/19
      pgstudies advise
    """  # noqa: D301
    from .advice import advice_text

    typer.echo(advice_text(before, after))
