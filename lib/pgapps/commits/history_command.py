"""The command ``history``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgservers.errors import CannotRun, StudyError
from pgservers.terminal import Progress, say, tell

from ..options import Configure, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from ..counting.units import Unit
    from .record import CommitRecord

_MOST_TIMED = 5
"""The number of commands that are proposed for changes in time."""

_Repo = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A clone of PostgreSQL's git repository.", show_default=False),
]

_Since = Annotated[
    str | None,
    typer.Option(
        metavar="COMMIT",
        help="With --repo: the oldest commit.  [default: where --until branched off]",
        show_default=False,
    ),
]

_Until = Annotated[str, typer.Option(metavar="COMMIT", help="With --repo: the newest commit.")]

_Every = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="With --repo: count every Nth commit.  [default: 200, without --since 1]",
        show_default=False,
    ),
]

_Narrow = Annotated[
    int, typer.Option(min=0, metavar="N", help="With --repo: bisect the N largest changes.")
]

_Releases = Annotated[
    str | None,
    typer.Option(
        metavar="all|NAME,NAME",
        help="Count releases and directories of programs instead, such as 17,18,~/pg/19rc1; "
        "or all releases, minor ones included.",
        show_default=False,
    ),
]

_Units = Annotated[
    list[str] | None,
    typer.Option(
        metavar="UNIT",
        help="A unit of work; may be repeated.  [default: one of each study]",
        show_default=False,
    ),
]

_Chart = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw the unit with the largest change (.svg, .png, .json).",
        show_default=False,
    ),
]


def history(
    *,
    repo: _Repo = None,
    since: _Since = None,
    until: _Until = "HEAD",
    every: _Every = None,
    releases: _Releases = None,
    unit: _Units = None,
    workload: Workload = None,
    narrow: _Narrow = 0,
    chart: _Chart = None,
    configure: Configure = None,
) -> None:
    """Count units of work over the commits of a repository, or over releases and builds.

    The answer lists where a count of instructions changes by more than 0.1 %.  Commits are built
    with one compiler and the same flags; neighbouring releases are compared only if they were, too.
    Counts are kept in a record, which the book's page History draws.

    \b
    Examples:
      pgstudies history --repo ~/src/postgresql --since REL_17_0 --every 200
      pgstudies history --repo ~/src/pg --until my-patches --workload shop
      pgstudies history --releases all --unit "one session started"
      pgstudies history --releases 17,18,/usr/lib/postgresql/19

    \b
    Exit codes:
      0    done
      2    nothing could be counted, or the request is wrong
      5    the disk is full
      130  interrupted; run the same command to continue
    """  # noqa: D301
    from pgstudies.records.reading import read_record

    from .history import history_text, lines_of, steps_of
    from .strategies import find_unit, statements

    if (repo is None) == (releases is None) or (repo is None and since is not None):
        raise StudyError("Give either --repo or --releases; --since goes with --repo.")
    if unit and workload is not None:
        raise StudyError("A workload takes the place of units: leave out --unit.")
    if workload is not None:
        wanted = statements(workload)
    else:
        wanted = [find_unit(name) for name in unit or ()] or _one_of_each_study()
    if repo is not None:
        path, narrowed = _commits(
            repo, since, until, wanted, every=every, configure=configure or (), narrow=narrow
        )
    elif narrow:
        raise StudyError("Releases have no commits to bisect: --narrow needs --repo.")
    else:
        path, narrowed = _releases(str(releases), wanted), []
    lines = lines_of(read_record(path))
    if lines.is_empty():
        raise StudyError(f"Nothing could be counted; {path} has the reasons.")
    tell(history_text(lines))
    for text in narrowed:
        tell(f"\n{text}")
    if repo is not None and (steps := steps_of(lines)).height:
        tell("\nTo time what changed:")
        for line in _comparisons(steps, wanted, repo, workload)[:_MOST_TIMED]:
            tell(f"  {line}")
    if chart is not None:
        _draw(lines, chart)
    say(f"the record is {path}; `pgstudies book` draws it on the page History.")


def _comparisons(
    steps: pl.DataFrame, wanted: Sequence[Unit], repo: Path, workload: str | None
) -> list[str]:
    """The commands that time the commits at which a count changed, the largest change first."""
    studies = {unit.name: f"--study {unit.study}" for unit in wanted}
    workloads = f"--workload {shlex.quote(workload)}" if workload is not None else ""
    lines = [
        f"pgstudies compare --repo {shlex.quote(str(repo))} --baseline {before[:10]} "
        f"--candidate {after[:10]} {workloads or studies[unit]}"
        for unit, before, after in steps.select("unit", "from", "to").iter_rows()
    ]
    return list(dict.fromkeys(lines))


def _draw(lines: pl.DataFrame, chart: Path) -> None:
    """Draw the unit with the largest change."""
    import polars as pl

    from ..markup import save
    from .history import history_chart, steps_of

    steps = steps_of(lines)
    largest = steps["unit"][0] if steps.height else lines["unit"][0]
    drawn = history_chart(lines.filter(unit=largest))
    if isinstance(drawn, pl.DataFrame):
        raise StudyError("There is only one count, so no chart was drawn.")
    tell(f"Chart: {save(drawn, chart)}")


def _one_of_each_study() -> list[Unit]:
    from pgstudies.rooms import rooms

    from ..counting.units import units

    plain = [[u for u in units(study) if not u.extension] for study in rooms("study")]
    return [found[0] for found in plain if found]


def _releases(names: str, wanted: Sequence[Unit]) -> Path:
    from pgservers.order import version_key
    from pgservers.programs.releases import minor_releases
    from pgservers.programs.releases import releases as known

    from ..counting.points import points
    from .history import NOT_KNOWN
    from .record import CommitRecord
    from .strategies import continued

    listed = (
        [name.strip() for name in names.split(",")]
        if names != "all"
        else [release.name for release in (*known(), *minor_releases())]
    )
    found = sorted(points(listed), key=lambda point: version_key(point.version))
    parameters = {"releases": [p.name for p in found], "units": [u.name for u in wanted]}
    same = [*(unit.what_counts() for unit in wanted), *(p.digest for p in found if p.digest)]
    with (
        continued(),
        Progress("counting", len(found)) as progress,
        CommitRecord("history", parameters, built="as released", same=same) as record,
    ):
        for point in found:
            if point.reason:
                record.skip(point.name, point.built or "", point.reason)
            elif not record.has(point.name):
                about = {"description": point.version, "built": point.built or NOT_KNOWN}
                try:
                    _count(record, progress, wanted, point.name, point.server, **about)
                except CannotRun as reason:
                    record.skip(point.name, point.version, str(reason))
            progress.advance()
        return record.finish([point.name for point in found])


def _commits(
    repo: Path,
    since: str | None,
    until: str,
    wanted: Sequence[Unit],
    *,
    every: int | None,
    configure: Sequence[str],
    narrow: int,
) -> tuple[Path, list[str]]:
    """The record of a repository's history, and the answers of the bisections of its steps."""
    from pgstudies.records.reading import read_record

    from ..builds.builder import Builder
    from ..builds.repository import Repository
    from .history import lines_of, steps_of
    from .record import CommitRecord
    from .strategies import bisected, continued

    repository = Repository(repo)
    points = repository.every(since or repository.trunk, until, every or (200 if since else 1))
    parameters = {
        "repo": str(repository.source),
        "commits": points,
        "units": [unit.name for unit in wanted],
    }
    same = [unit.what_counts() for unit in wanted]
    with Progress("counting", len(points)) as progress:
        oldest_newest = [points[0], points[-1]]
        builder = Builder(repository, ends=oldest_newest, configure=configure, show=progress.show)
        with (
            continued(),
            repository.held(),
            CommitRecord("history", parameters, built=builder.how, same=same) as record,
        ):
            for sha in points:
                if not record.has(sha):
                    about = repository.commit(sha).about
                    try:
                        place = str(builder.build(sha))
                        _count(record, progress, wanted, sha, place, description=about)
                    except CannotRun as reason:
                        record.skip(sha, about, str(reason))
                progress.advance()
            path = record.finish(points)
        texts = []
        for row in steps_of(lines_of(read_record(path))).head(narrow).iter_rows(named=True):
            (unit,) = [unit for unit in wanted if unit.name == row["unit"]]
            text, _ = bisected(builder, progress, row["from"], row["to"], unit)
            texts.append(text)
    return path, texts


def _count(
    record: CommitRecord,
    progress: Progress,
    wanted: Sequence[Unit],
    name: str,
    server: str,
    **about: str,
) -> None:
    """Count the units at one point, and write them; raises CannotRun if its server cannot run."""
    from ..counting.counter import Counter

    counts, left_out = {}, {}
    with Counter(server, show=progress.show) as counter:
        for unit in wanted:
            try:
                counts[unit.name] = counter.count(unit, twice=False)
            except CannotRun as reason:
                left_out[unit.name] = str(reason)
    record.add(name, counts, version_text=counter.version_text, left_out=left_out, **about)
