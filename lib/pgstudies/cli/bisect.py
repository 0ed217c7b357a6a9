"""The command ``bisect``, and the releases that ``servers build`` makes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import StudyError
from ..terminal import Progress, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from ..counting import Unit


Repo = Annotated[
    Path,
    typer.Option(metavar="DIR", help="A clone of PostgreSQL's git repository.", show_default=False),
]


Configure = Annotated[
    list[str] | None,
    typer.Option(metavar="ARGUMENT", help="One more argument for configure; may be repeated."),
]


def bisect(
    *,
    repo: Repo,
    good: Annotated[str, typer.Option(metavar="COMMIT", help="The older end.", show_default=False)],
    bad: Annotated[str, typer.Option(metavar="COMMIT", help="The newer end.", show_default=False)],
    unit: Annotated[
        str,
        typer.Option(
            metavar="UNIT",
            help="What is counted: a unit of work, or a part of its name that no other has.",
            show_default=False,
        ),
    ],
    configure: Configure = None,
) -> None:
    """Find the commit that made a unit of work dearer or cheaper, by counting instructions.

    Commits between two ends are built, all by one compiler and with -O2, and one backend of each
    does the unit's work under valgrind.  Counts do not depend on what else the machine does, so one
    for each commit is enough.  Your checkout and index stay as they are.  Builds and counts are
    kept: the same command continues after Ctrl-C.  A commit that does not build is skipped.

    A name that does not exist lists all units.

    \b
    Examples:
      pgstudies bisect --repo ~/src/postgresql --good REL_17_0 --bad REL_18_0 \\
        --unit "one session started"

    \b
    Exit codes:
      0    found
      2    the ends do not differ, or the request is wrong
    """  # noqa: D301
    from ..commits import Builder, Repository, as_text, moved_functions
    from ..commits import bisect as search
    from ..counting import Counter

    wanted = find_unit(unit)
    repository = Repository(repo)
    with Progress("bisecting", None, unit="commit") as progress:
        builder = Builder(repository, configure=configure or (), show=progress.show)
        counts: dict[str, pl.DataFrame] = {}

        def table(sha: str) -> pl.DataFrame:
            if sha not in counts:
                directory = builder.build(sha)
                with Counter(str(directory), show=progress.show) as counter:
                    counts[sha] = counter.count(wanted, twice=False)
            return counts[sha]

        def measure(sha: str) -> float:
            number = float(table(sha)["inclusive"][0])
            progress.advance()
            return number

        found = search(repository, good, bad, measure, show=progress.show)
        functions = {
            step.commit.sha: moved_functions(step, table)
            for step in found.steps
            if step.commit.sha in found.levels
        }
    typer.echo(as_text(found, wanted.name, functions))
    say(f"{builder.built} built; the builds are in {repository.place}.")


def find_unit(name: str) -> Unit:
    """The unit of that name, or the only one with it in its name; raises StudyError otherwise."""
    from ..counting import units
    from ..rooms import rooms

    known = [unit for study in rooms("study") for unit in units(study)]
    fits = [u for u in known if u.name == name] or [u for u in known if name in u.name]
    if len(fits) == 1:
        return fits[0]
    listed = fits or known
    about = f"{len(fits)} units have {name!r} in their names" if fits else f"no unit is {name!r}"
    names = "".join(f"\n  {unit.name}" for unit in listed)
    raise StudyError(f"Name one unit: {about}.  There are:{names}")


def build_revisions(names: Sequence[str], repo: Path, configure: Sequence[str]) -> None:
    """Build commits, and print where each is."""
    from ..commits import Builder, Repository

    repository = Repository(repo)
    commits = [repository.commit(name) for name in names]
    with repository.held(), Progress("building", len(commits), unit="build") as progress:
        builder = Builder(repository, configure=configure, show=progress.show)
        places = []
        for commit in commits:
            places.append(builder.build(commit.sha))
            progress.advance()
    for name, place in zip(names, places, strict=True):
        typer.echo(f"{name}: {place}")
