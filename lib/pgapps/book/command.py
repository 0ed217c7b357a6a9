"""The command ``book``."""

from __future__ import annotations

import typer

from pgservers import paths
from pgservers.terminal import tell

commands = typer.Typer()


@commands.command(short_help="Build the report from the executed notebooks.")
def book() -> None:
    """Build the report from the executed notebooks: _build/html/index.html."""
    from .build import build

    tell(build())


def clean() -> None:
    """Mark the first page as finished if a killed run left it unfinished."""
    if (paths.BUILD / "first-page.lock").exists():
        from .first_page import settle_first_page

        settle_first_page()
