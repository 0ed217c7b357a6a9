"""The command ``new-workload``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer()


@commands.command(short_help="Write an example of a workload of your own.")
def new_workload(
    directory: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
) -> None:
    """Write a directory with a schema and scripts, for `pgstudies compare --workload DIR`.

    It runs as it is; put your own schema, or a dump, and your own queries in its place.

    \b
    Examples:
      pgstudies new-workload shop
    """  # noqa: D301
    from pgservers.paths import for_display

    from .example import new_workload as write

    for file in write(directory):
        typer.echo(for_display(file))
    typer.echo(
        f"Compare two servers by it with `pgstudies compare --baseline 17 --candidate 18 "
        f"--workload {directory}`."
    )
