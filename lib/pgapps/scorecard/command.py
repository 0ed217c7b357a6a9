"""The commands ``scorecard`` and ``advise``."""

from __future__ import annotations

from typing import Annotated

import typer

from pgservers.terminal import tell

commands = typer.Typer()


@commands.command(short_help="Print which of the posts' claims still hold.")
def scorecard(
    study: Annotated[
        str | None, typer.Option(metavar="STUDY", help="Only the claims of this study.")
    ] = None,
) -> None:
    """Print the verdict on every claim of the posts, as plain text that can be mailed.

    Each claim has two verdicts: that of the project's own measurements, and that of
    your run, the one that the study's page shows or else your newest.  A run that
    was not judged yet is analysed first, which takes ten seconds.

    \b
    Examples:
      pgstudies scorecard
      pgstudies scorecard --study STUDY
    """  # noqa: D301
    from .scorecard import scorecard as of_study
    from .table import in_text

    tell(in_text(of_study(study, records="reference")))


@commands.command(short_help="Print what the findings mean for an upgrade or a setting.")
def advise(
    before: Annotated[
        str | None,
        typer.Option("--from", metavar="RELEASE|DIR", help="The release that you use, such as 14."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--to", metavar="RELEASE|DIR", help="The new release, such as 18."),
    ] = None,
) -> None:
    """Print what changes with an upgrade, by how much, how sure that is and where it was measured.

    Without releases, print what the studies found about settings and usage.  The
    figures are those of the project's own measurements.  For other releases and
    directories of programs, first count instructions by `pgstudies run releases`.

    \b
    Examples:
      pgstudies advise --from 14 --to 18
      pgstudies advise --from 18 --to /usr/lib/postgresql/19
      pgstudies advise
    """  # noqa: D301
    from .advice import advice_text

    tell(advice_text(before, after))
