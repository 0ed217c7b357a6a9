"""The command ``run``."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgservers.errors import NotebookError, StudyError
from pgservers.files import existing_directory
from pgservers.terminal import say, tell
from pgstudies.run_options import RunOptions

from ..options import Parameters, Profile, Server, assignments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.addresses import Address
    from pgstudies.rooms import Kind

    from ..execution.plan import PlannedRun


commands = typer.Typer()

Repo = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="A clone of PostgreSQL's git repository: the commits that posts are about are "
        "built from it, with your privileges, and measured as well.",
    ),
]

Replay = Annotated[
    str | None,
    typer.Option(
        metavar="RECORD",
        envvar="PGSTUDIES_REPLAY",
        help="Analyse this record instead of measuring.",
    ),
]

_ALL = "all"

_RUN = """\
Measure a study, and put its executed notebook into the book.

STUDY is one that `pgstudies studies` lists, or all.  The same command continues
an interrupted run: with the blocks that are missing, and with all, also with
the studies that are.  --fresh starts over.

\b
Examples:
  pgstudies run STUDY
  pgstudies run all --profile standard
  pgstudies run STUDY --server 16
  pgstudies run STUDY --server ~/build/postgresql-master
  pgstudies run STUDY --server postgresql://me@db.example/postgres
  pgstudies run STUDY -p rows=1_000_000 -p blocks=10
  pgstudies run STUDY --repo ~/src/postgresql
  pgstudies run STUDY --replay data/records

Keep passwords out of the command line, where every user of the machine can read
them: set PGSTUDIES_SERVER, or write them into ~/.pgpass.
"""


@commands.command(help=_RUN)
def run(
    study: Annotated[str, typer.Argument(metavar="STUDY|all", show_default=False)],
    *,
    profile: Profile = "quick",
    server: Server = None,
    parameter: Parameters = None,
    repo: Repo = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of continuing an interrupted run.")
    ] = False,
    replay: Replay = None,
) -> None:
    """Run one study or all."""
    from pgstudies.analysis.claims import headlines
    from pgstudies.rooms import rooms

    from ..execution.plan import plan

    kinds: tuple[Kind, ...] = ("study", "check", "counts") if replay else ("study", "check")
    names = [*rooms(*kinds)] if study == _ALL else [study]
    is_alone = len(names) == 1
    options, given = RunOptions.given(), assignments(parameter or [])
    plans: list[PlannedRun] = []
    failures: list[StudyError] = []
    for name in names:  # all before the first one starts, perhaps an hour before the last
        try:
            planned = plan(
                name,
                profile=profile,
                server=server,
                parameters={**given, **_of_repo(name, repo, is_alone=is_alone)},
                usual_server=options.server,
                replay=replay,
            )
        except StudyError as error:
            if not replay or is_alone:  # of all studies, some may have no record there
                raise
            _note(error, failures)
        else:
            plans.append(planned)
    for name in names:
        headlines(name)  # which raises for a mistake in claims.toml, before anything is measured
    if not replay:
        _require_server(plans[0].server)
    fresh = fresh or options.fresh
    whole = study == _ALL and not replay
    with _all_of(plans, fresh=fresh) if whole else nullcontext(_NOTHING) as (before, ended):
        for planned in plans:
            if planned.study not in before:
                failed = _measured(planned, fresh=fresh, is_alone=is_alone)
                if failed is not None:
                    _note(failed, failures)
                ended(planned.study, failed is None)
    if study == _ALL:
        _sum_up(names)
    if failures:
        say(f"{len(failures)} of {len(names)} studies failed.")
        raise typer.Exit(failures[0].exit_code)


def _of_repo(study: str, repo: Path | None, *, is_alone: bool) -> dict[str, str]:
    """The parameter ``repo``, if the study has it; StudyError for a single study without it."""
    if repo is None:
        return {}
    from pgstudies.parameters import declared
    from pgstudies.rooms import find_room

    if any(parameter.name == "repo" for parameter in declared(find_room(study).notebook)):
        return {"repo": str(existing_directory(repo).absolute())}
    if is_alone:
        raise StudyError(f"{study} is about no commit: leave out --repo.")
    return {}


def _note(error: StudyError, failures: list[StudyError]) -> None:
    say(str(error))
    failures.append(error)


def _measured(planned: PlannedRun, *, fresh: bool, is_alone: bool) -> StudyError | None:
    """Run one study; returns its error if the other studies can still be run."""
    from ..execution.run import run_planned
    from ..scorecard.judging import keep
    from ..scorecard.table import ended

    if planned.replay is None:
        _foretell(planned)
    try:
        done = run_planned(planned, fresh=fresh)
    except KeyboardInterrupt:
        again = "run the command again without --fresh" if fresh else "run it again"
        say(f"interrupted; what is finished is kept: {again} to continue.")
        raise typer.Exit(130) from None
    except StudyError as error:
        # The other studies would meet the same server and the same disk.
        if type(error) not in {NotebookError, StudyError} or is_alone:
            raise
        return error
    keep(done)
    for line in ended(planned.study, done):
        tell(line)
    return None


def _require_server(asked: Address) -> None:
    """Raise StudyError or ServerError before a kernel starts, which takes seconds."""
    from pgservers.addresses import EMBEDDED
    from pgservers.servers.serve import require_server

    if not asked.text and os.environ.get("PGHOST"):
        say(
            "Ignoring PGHOST and measuring the embedded server; use --server postgresql:// for "
            "yours."
        )
    require_server(asked.text or EMBEDDED)


_NOTHING: tuple[list[str], Callable[[str, bool], None]] = [], lambda *_: None


@contextmanager
def _all_of(
    plans: list[PlannedRun], *, fresh: bool
) -> Iterator[tuple[list[str], Callable[[str, bool], None]]]:
    """Yields the studies that an interrupted run has done, and a function for each that has ended.

    It takes the study, and whether that ended without an error.
    """
    from pgservers.terminal import rough_duration

    from ..book.first_page import first_page
    from ..execution.durations import expected_seconds
    from .journal import journal, mark_of

    marks = {planned.study: mark_of(planned) for planned in plans}
    with journal(marks, fresh=fresh) as (before, note):
        if before:
            say(f"{', '.join(before)}: measured before the interruption; --fresh starts over.")
        expected = expected_seconds([p for p in plans if p.study not in before])
        if expected:
            took = rough_duration(sum(expected.values()))
            count = f"{len(expected)} studies"
            say(f"{count}: they took {took} when they were last measured at this size.")
        with first_page([*marks], expected, before) as finished:

            def ended(study: str, well: bool) -> None:
                if well:
                    note(study)
                finished(study)

            yield before, ended


def _sum_up(names: list[str]) -> None:
    """Print the scorecard in a sentence, if any of these studies has claims."""
    from pgstudies.analysis.claims import origins

    from ..scorecard.scorecard import scorecard
    from ..scorecard.table import in_sentence, wrapped

    if not origins().keys().isdisjoint(names):
        for line in wrapped(in_sentence(scorecard(records="reference"))):
            tell(line)


def _foretell(planned: PlannedRun) -> None:
    """Print what will be measured, and how long that took before."""
    from pgservers.terminal import rough_duration

    from ..execution.durations import all_blocks_seconds

    if planned.about:
        tell(f"{planned.study}, {planned.profile}: {planned.about}", err=True)
    if took_s := all_blocks_seconds(planned):
        took = f"{planned.parameters['blocks']} blocks: {rough_duration(took_s)}"
        estimate = f"{took} where the newest record of this size was made"
        tell(f"{planned.study}, {planned.profile}: {estimate}", err=True)
