"""The command ``bisect``, and the revisions that ``servers build`` makes."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import CannotRun, StudyError
from ..terminal import Progress, rough_duration, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from ..commits import Builder, Repository
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
      130  interrupted; run the same command to continue
    """  # noqa: D301
    from ..commits import Builder, Repository

    wanted = find_unit(unit)
    repository = Repository(repo)
    with Progress("bisecting", None, unit="commit") as progress:
        builder = Builder(repository, configure=configure or (), show=progress.show)
        text, path = bisected(builder, progress, repository, (good, bad), wanted)
    typer.echo(text)
    say(f"{builder.built} built; the builds are in {repository.place}, the record is {path}.")


def bisected(
    builder: Builder,
    progress: Progress,
    repository: Repository,
    ends: tuple[str, str],
    wanted: Unit,
) -> tuple[str, Path]:
    """The answer of a bisection, and the record that has it."""
    from ..commits import Kept, as_text, moved_functions
    from ..commits import bisect as search
    from ..counting import Counter

    took: list[float] = []

    def counted(sha: str) -> tuple[pl.DataFrame, str]:
        with Counter(str(builder.build(sha)), show=progress.show) as counter:
            return counter.count(wanted, twice=False), counter.version_text

    def measure(sha: str) -> float:
        if (sha, wanted.name) in kept.levels:
            return kept.levels[sha, wanted.name]
        if sha in kept.reasons:
            raise CannotRun(kept.reasons[sha])
        began, about = time.monotonic(), repository.commit(sha).about
        try:
            table, version = counted(sha)
        except CannotRun as reason:
            kept.skip(sha, about, str(reason))
            raise
        kept.add(sha, {wanted.name: table}, description=about, version_text=version)
        took.append(time.monotonic() - began)
        progress.advance()
        return kept.levels[sha, wanted.name]

    def show(what: str, steps: int) -> None:
        left = f", {rough_duration(steps * sum(took) / len(took))} left" if took else ""
        progress.show(f"{what}{left}")

    good, bad = ends
    parameters = {
        "repo": str(repository.source),
        "good": repository.commit(good).sha,
        "bad": repository.commit(bad).sha,
        "unit": wanted.name,
    }
    same = wanted.what_counts()
    with continued(), Kept("bisect", parameters, built=builder.how, same=same) as kept:
        found = search(repository, good, bad, measure, show=show)
        with repository.held():
            functions = {
                step.commit.sha: moved_functions(step, lambda sha: counted(sha)[0])
                for step in found.steps
                if step.commit.sha in found.levels
            }
        text = as_text(found, wanted.name, functions)
        path = kept.finish(steps=[step.as_dict() for step in found.steps], answer=text)
    return text, path


@contextmanager
def continued() -> Iterator[None]:
    """End after Ctrl-C with a sentence and the code for it."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; what is counted is kept: run it again to continue.")
        raise typer.Exit(130) from None


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
