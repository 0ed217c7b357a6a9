"""The commands ``new-study`` and ``check``."""

from __future__ import annotations

from typing import Annotated

import typer

from pgservers.terminal import tell

commands = typer.Typer()


@commands.command(short_help="Create a study of your own.")
def new_study(name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)]) -> None:
    """Create a study that runs: its notebook, the post's numbers, its claims.

    It is a small example; replace it part by part.

    \b
    Examples:
      pgstudies new-study btree_deduplication
    """  # noqa: D301
    from pgservers.paths import for_display

    from .new_study import new_study as write

    for file in write(name):
        tell(for_display(file))
    tell(
        f"Run it with `pgstudies run {name}`, build its page with `pgstudies book`, and list what "
        f"is missing with `pgstudies check {name}`."
    )


@commands.command(short_help="List what is missing in a study.")
def check(
    study: Annotated[str, typer.Argument(metavar="STUDY", show_default=False)],
    *,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Store the last run's output of checked cells first."),
    ] = False,
    strip: Annotated[
        bool,
        typer.Option("--strip", help="Take the outputs of a run out of the notebook first."),
    ] = False,
) -> None:
    """List what is missing in a study, and what `run` and `book` would refuse.

    Before that, print the sentences `headlines` and `today` of its claims.toml
    with numbers filled in, to be read aloud.

    With --keep, first store the output of the last run in the notebook, for cells
    tagged nbval-check-output: a test compares later runs with it.  With --strip,
    first take out all other outputs, which JupyterLab has saved.

    \b
    Examples:
      pgstudies check btree_deduplication
      pgstudies check btree_deduplication --keep
    """  # noqa: D301
    from pgstudies.rooms import find_room

    from .committed import main
    from .new_study import keep_checked, problems
    from .spoken import spoken

    if strip:
        main([str(find_room(study).notebook)])
    if keep:
        keep_checked(study)
    found = list(problems(study))
    sentences = list(spoken(study))
    if sentences:
        tell("What its claims say, with the published ratios in place of measured ones:")
    for sentence in sentences:
        tell(f"  {sentence}")
    for problem in found:
        tell(problem)
    if not found:
        tell(f"{study} is complete.")
    raise typer.Exit(1 if found else 0)
