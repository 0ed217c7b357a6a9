"""The command ``bisect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pgservers.errors import StudyError
from pgservers.terminal import Progress, say, tell

from ..options import Configure, Pgbench, Workload

Repo = Annotated[
    Path,
    typer.Option(metavar="DIR", help="A clone of PostgreSQL's git repository.", show_default=False),
]

_Unit = Annotated[
    str | None,
    typer.Option(
        metavar="UNIT",
        help="What is counted: a unit of work, or a part of its name that no other has.",
        show_default=False,
    ),
]

_Step = Annotated[
    str,
    typer.Option(
        metavar="STEP",
        help="The statement: its name, or a part of it that no other name has.",
        show_default=False,
    ),
]


def bisect(
    *,
    repo: Repo,
    good: Annotated[str, typer.Option(metavar="COMMIT", help="The older end.", show_default=False)],
    bad: Annotated[str, typer.Option(metavar="COMMIT", help="The newer end.", show_default=False)],
    unit: _Unit = None,
    workload: Workload = None,
    pgbench: Pgbench = None,
    step: _Step = "",
    configure: Configure = None,
) -> None:
    """Find the commit that changed how many instructions a unit of work takes.

    Commits between --good and --bad are built with one compiler and -O2, and a backend of each
    does the work under valgrind.  Counts do not depend on the load of the machine, so one count for
    each commit is enough.  Your checkout and index are not changed.  Builds and counts are kept:
    the same command continues after Ctrl-C.  A commit that does not build is skipped.

    To bisect by time, let git do it: git bisect run pgstudies compare --bisect-run ...
    To list all units or steps, give a name that does not exist.

    \b
    Examples:
      pgstudies bisect --repo ~/src/postgresql --good REL_17_0 --bad REL_18_0 \\
        --unit "one session started"
      pgstudies bisect --repo ~/src/postgresql --good REL_17_0 --bad REL_18_0 \\
        --workload shop/ --step upsert

    \b
    Exit codes:
      0    found
      2    the ends do not differ, or the request is wrong
      5    the disk is full
      130  interrupted; run the same command to continue
    """  # noqa: D301
    from ..builds.builder import Builder
    from ..builds.repository import Repository
    from ..workload.pgbench_options import parameters_of
    from .strategies import bisected, find_unit, statement_named

    is_own = workload is not None or pgbench is not None
    if (unit is not None) == is_own:
        raise StudyError(
            "Say what is to be bisected by: --unit UNIT, or --workload DIR --step STEP, or "
            "--pgbench OPTIONS."
        )
    repository = Repository(repo)
    if unit is not None:
        wanted = find_unit(unit)
    else:
        wanted = statement_named(parameters_of(workload, pgbench, {}, say), step)
    with Progress("bisecting", None) as progress:
        ends = [repository.commit(name).sha for name in (good, bad)]
        builder = Builder(repository, ends=ends, configure=configure or (), show=progress.show)
        text, path = bisected(builder, progress, good, bad, wanted)
    tell(text)
    say(f"{builder.built} built; the builds are in {repository.place}, the record is {path}.")
