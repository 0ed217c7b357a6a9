"""The command ``pgstudies``: measure the studies, build the book, list records, check a server."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .. import paths
from ..errors import NotebookError, StudyError
from ..files import space_error, sweep_temporary
from ..orders import Orders
from ..paths import cache_dir, records_dir
from ..terminal import say
from . import bisect as cli_bisect
from . import compare as cli_compare
from . import gate as cli_gate
from . import history as cli_history
from . import plans as cli_plans
from . import sweep as cli_sweep
from .options import assignments
from .servers import servers_app

if TYPE_CHECKING:
    from types import FrameType

    from ..rooms import Kind
    from ..studies import Plan


_ALL = "all"


_HELP = """\
Rerun published PostgreSQL performance studies on a server of your choice.

\b
The usual course:
  pgstudies doctor     what this machine and the server can do
  pgstudies run all    measure every study at quick size
  pgstudies book       build the report, _build/html/index.html
  pgstudies scorecard  which of the old claims still hold
"""


_EXIT_CODES = """\
\b
Exit codes:
  0    done
  1    an error in pgstudies itself; please report it
  2    the request is wrong or cannot be carried out
  3    the server cannot be found, started, reached or used
  4    a notebook stopped with an error
  5    no space left on a disk, or no permission to write
  130  interrupted; run the same command to continue
"""


_RUN = """\
Measure a study, and put its executed notebook into the book.

STUDY is one that `pgstudies studies` lists, or all.  The same command continues
an interrupted run.

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


_SERVER = (
    "Where to measure: embedded, a release such as 16 (`pgstudies servers` lists them), a "
    "directory of PostgreSQL programs, or a postgresql:// address.  "
    "[default: $PGSTUDIES_SERVER, else embedded]"
)


app = typer.Typer(
    name="pgstudies",
    help=_HELP,
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pgstudies {version('pgstudies')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None: ...


@app.command(help=_RUN)
def run(
    study: Annotated[str, typer.Argument(metavar="STUDY|all", show_default=False)],
    *,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="Size of the run: quick, standard, published.")
    ] = "quick",
    server: Annotated[str | None, typer.Option(metavar="SERVER", help=_SERVER)] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", metavar="NAME=VALUE", help="Set a parameter; may be repeated."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of continuing a run.")
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
    from ..book import first_page, keep
    from ..paths import shown
    from ..rooms import rooms
    from ..studies import plan, run_study

    given = assignments(parameter or [])
    kinds: tuple[Kind, ...] = ("study", "check", "counts") if replay else ("study", "check")
    every = [*rooms(*kinds)]
    names = every if study == _ALL else [study]
    # Before the first one starts, an hour perhaps before the last.
    orders = Orders.given()
    plans = [
        plan(name, profile=profile, server=server, parameters=given, usual_server=orders.server)
        for name in names
    ]
    if not (replay or plans[0].server.text or orders.server) and os.environ.get("PGHOST"):
        say(
            "Ignoring PGHOST and measuring the embedded server; use --server postgresql:// for "
            "yours."
        )
    failures: list[StudyError] = []
    shows = study == _ALL and not replay
    with first_page(names) if shows else nullcontext(str) as finished:
        for name, planned in zip(names, plans, strict=True):
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
                    given=orders,
                )
            except KeyboardInterrupt:
                again = "run the command again without --fresh" if fresh else "run it again"
                say(f"interrupted; what is finished is kept: {again} to continue.")
                raise typer.Exit(130) from None
            except (NotebookError, StudyError) as error:
                # The other studies would meet the same server and the same disk.
                if type(error) not in {NotebookError, StudyError} or len(names) == 1:
                    raise
                say(str(error))
                failures.append(error)
            else:
                keep(done)
                typer.echo(f"{name}: {shown(done.notebook)}")
            finished(name)
    if failures:
        say(f"{len(failures)} of {len(names)} studies failed.")
        raise typer.Exit(failures[0].exit_code)


def _foretell(planned: Plan) -> None:
    """Print what will be measured, and how long it took before."""
    from ..records import block_seconds
    from ..terminal import rough_duration

    if planned.about:
        typer.echo(f"{planned.study}, {planned.profile}: {planned.about}", err=True)
    blocks, each_s = planned.parameters.get("blocks"), block_seconds(planned.study, planned.profile)
    if each_s and isinstance(blocks, int):
        took = rough_duration(blocks * each_s)
        told = f"{blocks} blocks: {took} where the newest record of this size was made"
        typer.echo(f"{planned.study}, {planned.profile}: {told}", err=True)


@app.command(short_help="List the studies, or the parameters of one.")
def studies(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", show_default=False)] = None,
) -> None:
    """List the studies, or the parameters of one, with their values in each profile.

    \b
    Examples:
      pgstudies studies
      pgstudies studies STUDY
    """  # noqa: D301  (a backspace tells the help not to rewrap)
    from . import listing

    typer.echo(listing.studies() if study is None else listing.parameters(study))


@app.command(short_help="Create a study of your own.")
def new_study(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
) -> None:
    """Create a study that runs: its notebook, the post's numbers, its claims.

    It measures a toy; replace it part by part.

    \b
    Examples:
      pgstudies new-study btree_deduplication
    """  # noqa: D301
    from ..paths import shown
    from ..studies import new_study as write

    for file in write(name):
        typer.echo(shown(file))
    typer.echo(
        f"Run it with `pgstudies run {name}`, build its page with `pgstudies book`, and list what "
        f"is missing with `pgstudies check {name}`."
    )


@app.command(short_help="Write an example of a workload of your own.")
def new_workload(
    directory: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
) -> None:
    """Write a directory with a schema and scripts, for `pgstudies compare --workload DIR`.

    It runs as it is; put your own schema, or a dump, and your own queries in its place.

    \b
    Examples:
      pgstudies new-workload shop
    """  # noqa: D301
    from ..paths import shown
    from ..studies import new_workload as write

    for file in write(directory):
        typer.echo(shown(file))
    typer.echo(
        f"Compare two servers by it with `pgstudies compare --baseline 17 --candidate 18 "
        f"--workload {directory}`."
    )


@app.command(short_help="List what a study lacks.")
def check(
    study: Annotated[str, typer.Argument(metavar="STUDY", show_default=False)],
    *,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Store what the checked cells printed in the notebook."),
    ] = False,
) -> None:
    """List what a study lacks, one sentence each; the project's tests check the same.

    With --keep, first store in the notebook what the cells tagged
    nbval-check-output printed in the last run: a rerun is compared with it.

    \b
    Examples:
      pgstudies check btree_deduplication
      pgstudies check btree_deduplication --keep
    """  # noqa: D301
    from ..studies import keep_checked, problems

    if keep:
        keep_checked(study)
    found = list(problems(study))
    for problem in found:
        typer.echo(problem)
    if not found:
        typer.echo(f"{study} is complete.")
    raise typer.Exit(1 if found else 0)


@app.command(short_help="Build the report from the executed notebooks.")
def book() -> None:
    """Build the report from the executed notebooks: _build/html/index.html."""
    from ..book import build

    typer.echo(build())


@app.command(short_help="List the records.")
def records(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", show_default=False)] = None,
) -> None:
    """List your records and those that come with the project, oldest first.

    \b
    Examples:
      pgstudies records
      pgstudies records STUDY
    The second line of each entry is the record's directory, for --replay.
    """  # noqa: D301
    from . import listing

    typer.echo(listing.records(study))


@app.command(short_help="Print which of the posts' claims still hold.")
def scorecard(
    study: Annotated[
        str | None, typer.Option(metavar="STUDY", help="Only the claims of this study.")
    ] = None,
) -> None:
    """Print the verdict on every claim of the posts, as plain text that can be mailed.

    Each is judged by the project's reference records, and beside them by the record
    that its study's page shows, or else by your newest one.  A record that was never
    judged is replayed first, which takes ten seconds.

    \b
    Examples:
      pgstudies scorecard
      pgstudies scorecard --study STUDY
    """  # noqa: D301
    from ..book import score_text as scoretext
    from ..book import scorecard as of_study

    typer.echo(scoretext.in_text(of_study(study, records="reference")))


@app.command(short_help="Print what the findings mean for an upgrade or a setting.")
def advise(
    before: Annotated[
        str | None,
        typer.Option("--from", metavar="RELEASE", help="The release that runs now, such as 14."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--to", metavar="RELEASE", help="The release to go to, such as 18."),
    ] = None,
) -> None:
    """Print what changes with an upgrade, by how much, how sure that is and where it was measured.

    Without releases, print what the studies found about settings and habits.  All
    of it comes from the project's reference records.

    \b
    Examples:
      pgstudies advise --from 14 --to 18
      pgstudies advise
    """  # noqa: D301
    from ..book import advice_text

    typer.echo(advice_text(before, after))


@app.command(short_help="Check what this machine and a server can do.")
def doctor(
    server: Annotated[str | None, typer.Option(metavar="SERVER", help=_SERVER)] = None,
) -> None:
    """Check this machine and a server: what will run, what will not, and why.

    The last lines about the server say for each study how many of its claims a
    quick run can judge there.

    \b
    Examples:
      pgstudies doctor
      pgstudies doctor --server postgresql://me@db.example/postgres
    A line begins with "ok", with "--" if something will be left out, or with "NO"
    if no study can run, in which case the exit code is not 0.
    """  # noqa: D301
    from .doctor import examine, exit_code

    checks = []
    for check in examine(server, otherwise=Orders.given().server_for(server)):
        checks.append(check)
        typer.echo(check.line)
    raise typer.Exit(exit_code(checks))


app.add_typer(
    servers_app,
    name="servers",
    short_help="List or fetch PostgreSQL releases to run on.",
    invoke_without_command=True,
)


app.command(help=cli_compare.HELP, short_help="Compare two builds, releases or settings.")(
    cli_compare.compare
)


app.command(short_help="Measure a comparison again from its report.")(cli_compare.rerun)


app.command(short_help="Foresee which queries get another plan.")(cli_plans.plans)


app.command(short_help="Find the commit that changed what a unit of work costs.")(cli_bisect.bisect)


app.command(short_help="Count units of work over commits or releases.")(cli_history.history)


app.command(short_help="Fail where a change executes more instructions.")(cli_gate.gate)


app.command(short_help="Measure over several hosts, or a grid of parameters.")(cli_sweep.sweep)


app.command(short_help="Run this host's sweep worker.")(cli_sweep.worker)


app.command(short_help="Run the scheduler of a sweep and its workers.")(cli_sweep.scheduler)


app.command(short_help="Print on how many hosts a study's claims hold.")(cli_sweep.hosts)


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _sweep() -> None:
    """Remove what runs of this user that were killed have left where no server looks after it.

    It takes a millisecond where there is nothing.
    """
    sweep_temporary(cache_dir() / "extensions", cache_dir() / "locales")
    with suppress(StudyError, OSError):
        for base in (records_dir() / ".dask", records_dir() / ".sweep"):
            if any(base.glob("s-*")):
                from ..servers import sweep

                sweep(base)
        if any(Path("/dev/shm").glob("sem.pgstudies-*")):  # noqa: S108
            from ..host.shared_memory import free_semaphores

            free_semaphores()
        if (paths.BUILD / "first-page.lock").exists():
            from ..book import settle_first_page

            settle_first_page()


def _ignore_signals() -> None:
    """Let nothing disturb the end, unless threads are still at work, for which it waits.

    The interpreter takes half a second to end, without handlers: a second Ctrl-C would kill it.
    """
    if all(thread.daemon for thread in threading.enumerate()[1:]):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def main() -> NoReturn:
    """Run the command line; every error ends in a sentence and an exit code of its own."""
    signal.signal(signal.SIGTERM, _stop)
    os.umask(os.umask(0o077) & 0o077)  # else we could not use what we make
    try:
        try:
            code = _exit_code()
        finally:
            _ignore_signals()
    except KeyboardInterrupt:  # again, while the first one was dealt with
        _ignore_signals()
        code = 130
    sys.exit(code)


def _exit_code() -> int:
    _sweep()
    try:
        app()
    except StudyError as error:
        say(str(error))
        return error.exit_code
    except Exception as error:
        known = (
            space_error(error, error.filename or "the disk") if isinstance(error, OSError) else None
        )
        if known is not None:
            say(str(known))
            return known.exit_code
        traceback.print_exc()
        say("this is an error in pgstudies itself; please report it with the lines above.")
        return 1
    return 0
