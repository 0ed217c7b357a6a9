"""The commands ``run`` and ``book``."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from pgservers import paths
from pgservers.errors import NotebookError, StudyError
from pgservers.terminal import say, tell
from pgstudies.run_options import RunOptions

from ..options import Parameters, Profile, Server, assignments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgstudies.rooms import Kind

    from ..execution.plan import PlannedRun


commands = typer.Typer()

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
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of continuing an interrupted run.")
    ] = False,
    replay: Annotated[
        str | None,
        typer.Option(
            metavar="RECORD",
            envvar="PGSTUDIES_REPLAY",
            help="Analyse this record instead of measuring.",
        ),
    ] = None,
) -> None:
    """Run one study or all."""
    from pgstudies.analysis.claims import headlines
    from pgstudies.rooms import rooms

    from ..execution.plan import plan
    from ..execution.run import run_study
    from ..scorecard.judging import keep
    from ..scorecard.table import ended as last_lines

    given = assignments(parameter or [])
    kinds: tuple[Kind, ...] = ("study", "check", "counts") if replay else ("study", "check")
    every = [*rooms(*kinds)]
    names = every if study == _ALL else [study]
    # Before the first one starts, an hour perhaps before the last.
    options = RunOptions.given()
    plans = [
        plan(name, profile=profile, server=server, parameters=given, usual_server=options.server)
        for name in names
    ]
    list(map(headlines, names))  # a mistake in claims.toml is told before anything is measured
    if not replay:
        _require_server(plans[0].server.text or options.server)
    failures: list[StudyError] = []
    whole = study == _ALL and not replay
    noting = _all_of(plans, options, fresh=fresh) if whole else nullcontext(_NOTHING)
    with noting as (before, ended):
        for name, planned in zip(names, plans, strict=True):
            if name in before:
                continue
            if not replay:
                _foretell(planned)
            try:
                done = run_study(
                    name,
                    profile=profile,
                    server=server,
                    parameters=given,
                    fresh=fresh,
                    replay=replay,
                    given=options,
                )
            except KeyboardInterrupt:
                again = "run the command again without --fresh" if fresh else "run it again"
                say(f"interrupted; what is finished is kept: {again} to continue.")
                raise typer.Exit(130) from None
            except StudyError as error:
                # The other studies would meet the same server and the same disk.
                if type(error) not in {NotebookError, StudyError} or len(names) == 1:
                    raise
                say(str(error))
                failures.append(error)
                ended(name, False)
            else:
                keep(done)
                for line in last_lines(name, done):
                    tell(line)
                ended(name, True)
    if study == _ALL:
        _sum_up(names)
    if failures:
        say(f"{len(failures)} of {len(names)} studies failed.")
        raise typer.Exit(failures[0].exit_code)


def _require_server(asked: str) -> None:
    """Raise StudyError or ServerError before a kernel is started, which takes long."""
    from pgservers.addresses import EMBEDDED
    from pgservers.servers.serve import require_server

    if not asked and os.environ.get("PGHOST"):
        say(
            "Ignoring PGHOST and measuring the embedded server; use --server postgresql:// for "
            "yours."
        )
    require_server(asked or EMBEDDED)


_NOTHING: tuple[list[str], Callable[[str, bool], None]] = [], lambda *_: None


@contextmanager
def _all_of(
    plans: list[PlannedRun], options: RunOptions, *, fresh: bool
) -> Iterator[tuple[list[str], Callable[[str, bool], None]]]:
    """Yields what an interrupted run has done, and what to call with each that has ended.

    That is told whether it came to its end without an error.
    """
    from pgservers.terminal import rough_duration

    from ..execution.durations import expected_seconds
    from ..execution.journal import journal, mark_of
    from .first_page import first_page

    marks = {planned.study: mark_of(planned, options.server) for planned in plans}
    with journal(marks, fresh=fresh or options.fresh) as (before, note):
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
    """Print how many of all claims came to what, where any of these studies has claims."""
    from pgstudies.analysis.claims import origins

    from ..scorecard.scorecard import scorecard
    from ..scorecard.table import in_sentence, wrapped

    if not origins().keys().isdisjoint(names):
        for line in wrapped(in_sentence(scorecard(records="reference"))):
            tell(line)


def _foretell(planned: PlannedRun) -> None:
    """Print what will be measured, and how long it took before."""
    from pgservers.terminal import rough_duration

    from ..execution.durations import all_blocks_seconds

    if planned.about:
        tell(f"{planned.study}, {planned.profile}: {planned.about}", err=True)
    if took_s := all_blocks_seconds(planned):
        took = f"{planned.parameters['blocks']} blocks: {rough_duration(took_s)}"
        estimate = f"{took} where the newest record of this size was made"
        tell(f"{planned.study}, {planned.profile}: {estimate}", err=True)


@commands.command(short_help="Build the report from the executed notebooks.")
def book() -> None:
    """Build the report from the executed notebooks: _build/html/index.html."""
    from ..book.build import build

    tell(build())


def clean() -> None:
    """Settle the first page that a run which was killed has left unfinished."""
    if (paths.BUILD / "first-page.lock").exists():
        from .first_page import settle_first_page

        settle_first_page()
