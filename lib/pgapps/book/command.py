"""The command ``book``."""

from __future__ import annotations

from typing import Annotated

import typer

from pgservers import paths
from pgservers.terminal import tell

commands = typer.Typer()


@commands.command(short_help="Build the report from the executed notebooks.")
def book(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", show_default=False)] = None,
) -> None:
    """Build the report from the executed notebooks: _build/html/index.html.

    With STUDY only its page is built, in seconds, to look at it: its links to
    other pages lead nowhere.

    \b
    Examples:
      pgstudies book
      pgstudies book STUDY
    """  # noqa: D301
    from .build import build

    tell(build(study))


def clean() -> None:
    """Mark the first page as finished if a killed run left it unfinished."""
    if (paths.BUILD / "first-page.lock").exists():
        from .first_page import settle_first_page

        settle_first_page()
