"""The command ``gate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgservers.errors import StudyError
from pgservers.files import read_regular
from pgservers.terminal import say, tell

from ..options import BisectRun, Configure, Workload, for_git

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import polars as pl

_MOST_DIFF = 200_000_000
"""The longest diff that is read (bytes)."""

_Base = Annotated[
    str,
    typer.Option(
        metavar="COMMIT|SERVER",
        help="What the change is compared with; with --repo, the commit where --head branched "
        "off from it.",
        show_default=False,
    ),
]

_Head = Annotated[
    str, typer.Option(metavar="COMMIT|SERVER", help="The change.", show_default=False)
]

_Repo = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="A clone of PostgreSQL's git repository; base and head are commits of it.  "
        "Without it they are releases or directories of programs.",
        show_default=False,
    ),
]

_Diff = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Without --repo: the change as a diff; the work that it touches is counted first.",
        show_default=False,
    ),
]


def gate(
    *,
    base: _Base,
    head: _Head,
    repo: _Repo = None,
    diff: _Diff = None,
    limit: Annotated[
        str, typer.Option(metavar="PERCENT", help="By how much a count may grow.")
    ] = "0.5%",
    most: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Count at most N units of work.")
    ] = 8,
    unit: Annotated[
        list[str] | None,
        typer.Option(metavar="UNIT", help="Count this unit of work; may be repeated."),
    ] = None,
    workload: Workload = None,
    configure: Configure = None,
    bisect_run: BisectRun = False,
) -> None:
    """Compare the instructions that a change and its base execute, and fail if a count grows.

    This is a check for pull requests on shared machines, where times are too noisy.  Both sides
    are built with one compiler and the same flags.  Units of work that run functions which the diff
    changes are counted first, then some of every study.  The answer is markdown, for a comment.
    Waiting and contention are not counted.

    \b
    Examples:
      pgstudies gate --repo ~/src/postgresql --base master --head my-patch
      pgstudies gate --base ~/build/master --head ~/build/patched --diff my.patch
      pgstudies gate --base 17 --head ~/build/17 --unit "one session started"
      pgstudies gate --repo ~/src/pg --base master --head my-patch --workload shop

    \b
    Exit codes:
      0    no count grows by more than the limit
      1    a count grows by more
      2    a side cannot be built or run, no unit runs a changed function, or the
           request is wrong
      3    a build in the cache was modified, or another account could modify it
      5    the disk is full
      125  with --bisect-run, in place of 2, 3 and 4; 133, in place of 5
    """  # noqa: D301
    from .gate import changed_functions, limit_of

    try:
        if repo is not None and diff is not None:
            raise StudyError("The diff of two commits comes from --repo: leave out --diff.")
        if unit and workload is not None:
            raise StudyError("A workload takes the place of units: leave out --unit.")
        part = limit_of(limit)
        sides, names, text = (base, head), (base, head), ""
        if repo is not None:
            sides, names, text = _built(repo, base, head, configure or ())
        elif diff is not None:
            text = read_regular(diff, _MOST_DIFF, "a diff").decode(errors="replace")
        code = _judged(
            sides,
            names,
            changed_functions(text),
            part,
            most=most,
            asked=unit or (),
            workload=workload,
        )
    except StudyError as error:
        if not bisect_run:
            raise
        say(str(error))
        code = error.exit_code
    raise typer.Exit(for_git(code, bisect_run=bisect_run))


def _judged(
    sides: tuple[str, str],
    names: tuple[str, str],
    changed: Collection[str],
    limit: float,
    *,
    most: int,
    asked: Sequence[str],
    workload: str | None,
) -> int:
    """Count both sides, print the table and return the exit code."""
    from pgstudies.rooms import rooms

    from ..compare.counted import counted
    from ..compare.design import Side
    from ..compare.request import Request
    from ..counting.units import units
    from ..workload.counting import statement_units
    from ..workload.pgbench_options import parameters_of
    from .gate import as_markdown, runs_none, shares_of, touched_first, verdict
    from .strategies import find_unit

    if workload is not None:
        parameters = parameters_of(workload, None, {}, say)
        order = wanted = [*statement_units("workload", sides[0], parameters)]
    else:
        known = [unit for study in rooms("study") for unit in units(study)]
        known = [find_unit(name) for name in asked] or known
        order = [unit for unit, _ in touched_first(known, changed, _functions())]
        wanted = order if asked else order[:most]
    request = Request(Side(sides[0]), Side(sides[1]), studies=())
    found = counted(request, wanted)
    shares = shares_of(found.ran, changed)
    tell(
        as_markdown(
            found.units,
            found.moved,
            sides=names,
            limit=limit,
            changed=changed,
            shares=shares,
            left=len(order) - len(wanted),
        )
    )
    code = verdict(found.units, limit)
    return 2 if code == 0 and runs_none(found.units, changed, shares) else code


def _built(
    repo: Path, base: str, head: str, configure: Sequence[str]
) -> tuple[tuple[str, str], tuple[str, str], str]:
    """Both sides' directories, their names, and the diff between them."""
    from ..builds.builder import built
    from ..builds.repository import Repository

    repository = Repository(repo)
    newest = repository.commit(head)
    oldest = repository.commit(repository.merge_base(base, head))
    if oldest == newest:
        raise StudyError(f"All commits of {head} are in {base}: there is nothing to compare.")
    before, after = built(repository, (oldest, newest), configure)
    with repository.held():
        no_programs = ("--no-ext-diff", "--no-textconv")
        text = repository.git("diff", "--unified=0", *no_programs, oldest.sha, newest.sha)
    return (str(before), str(after)), (oldest.short, newest.short), text


def _functions() -> pl.DataFrame:
    """The functions that each unit executes, by the newest server of the largest record."""
    import polars as pl

    from pgstudies.records.counts import fullest_counts

    from ..counting.by_function import functions_counted

    record = fullest_counts()
    if record is None:
        return pl.DataFrame(schema={"unit": pl.String, "function": pl.String, "own": pl.Float64})
    order = pl.Enum([arm["name"] for arm in record.info["arms"]])
    found = functions_counted(record).filter(pl.col("open") == 0)
    newest = pl.col("arm").cast(order)
    return found.filter(newest == newest.max().over("unit")).select("unit", "function", "own")
