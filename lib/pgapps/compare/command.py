"""The commands ``compare`` and ``rerun``."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgservers.errors import SpaceError, StudyError
from pgservers.terminal import printable, say, tell
from pgstudies.run_options import RunOptions

from ..options import BisectRun, Parameters, Pgbench, Profile, assignments, for_git

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..builds.repository import Repository
    from .request import Request

commands = typer.Typer()

CANNOT_RUN = 3

HELP = """\
Compare two builds, releases or settings files: is the candidate slower?

The same work is done on both servers and on a second copy of the baseline, in
random order, a block of every study in turn, for ten minutes or --minutes.
After Ctrl-C the same command continues; with more --minutes, or more --blocks,
it adds to the blocks that are done.

A side is embedded (the PostgreSQL 18 that comes with pgstudies), a release such
as 17, a directory of programs, the address of a running server, a settings file
like postgresql.conf, or a server with such a file: 17+my.conf. A file named
*.sql, such as index.sql or 17+index.sql, is executed on its side alone once the
workload is loaded: does this index pay?
With --repo both sides are commits, built with one compiler and the same flags.
Such builds are relinked in every block, with their object files in another
order, because the place of code in a binary changes its speed; so are the
programs of a directory, if their build tree still exists.

\b
Examples:
  pgstudies compare --candidate ~/build/patched --baseline ~/build/master
  pgstudies compare --candidate my.conf --study STUDY --blocks 20
  pgstudies compare --baseline 17 --candidate 18 --minutes 30
  pgstudies compare --baseline 14 --candidate 18 --workload DIR
  pgstudies compare --candidate index.sql --workload DIR
  pgstudies compare --candidate my.conf --pgbench "-f a.sql@3 -f b.sql -s 10"
  pgstudies compare --repo ~/src/pg --baseline master --candidate patch
  pgstudies compare --repo DIR --baseline B --candidate C --minutes 0

\b
Exit codes:
  0    no regression found; the first line says how precisely steps are known
  1    a step is slower: a regression; or the candidate's server crashed, or a
       script is not as it was expected;
       with --minutes 0, a unit takes more instructions, by more than --margin
  2    not decided, and the first line says why: a guard failed, layout may
       explain a difference, only times or instructions differ, a step has no
       interval, an expectation is open, or something was left out
  3    the comparison could not be run
  5    the disk is full, or cannot be written to
  125  with --bisect-run, in place of 2 and 3; 133, in place of 5
  130  interrupted; the report has the finished blocks
"""


@commands.command(help=HELP, short_help="Compare two builds, releases or settings.")
def compare(  # noqa: D103  (its help is above)
    *,
    candidate: Annotated[
        str, typer.Option(metavar="SIDE", help="The side under test.", show_default=False)
    ],
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="SIDE",
            help="The side it is compared with.  [default: $PGSTUDIES_SERVER, else embedded; with "
            "--repo where the candidate branched off]",
        ),
    ] = None,
    repo: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A clone of PostgreSQL's git repository, of which both sides are commits.  "
            "Building a commit runs its code with your privileges.",
            show_default=False,
        ),
    ] = None,
    study: Annotated[
        list[str] | None,
        typer.Option(metavar="STUDY", help="A study to run; may be repeated.  [default: all]"),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Your own schema and scripts instead of a study, or pgbench:NAME for a built-in "
            "script of pgbench; `pgstudies new-workload` writes an example.",
            show_default=False,
        ),
    ] = None,
    pgbench: Pgbench = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM",
            help="Run this arm (one of the alternatives that the study measures), or all; may be "
            "repeated.  [default: a few of each study, that fit into ten minutes]",
        ),
    ] = None,
    case: Annotated[
        str | None, typer.Option(metavar="CASE", help="Judge only this step or case.")
    ] = None,
    profile: Profile = "quick",
    parameter: Parameters = None,
    blocks: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, metavar="N", help="Blocks in total, including earlier runs."
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100_000,
            metavar="M",
            help="Measure as many blocks as fit into this time; 0: only count instructions.  "
            "[default: 10, unless --blocks is given]",
        ),
    ] = None,
    until_decided: Annotated[
        bool,
        typer.Option(
            "--until-decided",
            help="Look at the result after every block, and stop when all steps are decided, or "
            "after --minutes.  Intervals are then wider, so that they are valid however often one "
            "looks.",
        ),
    ] = False,
    leave_out: Annotated[
        bool,
        typer.Option(
            "--leave-out",
            help="Leave out the settings of a file that are not accepted or not known to its "
            "server, and print the reason for each.",
        ),
    ] = False,
    margin: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=1.0,
            metavar="FRACTION",
            help="Smallest relative change that counts as slower or faster.",
        ),
    ] = 0.02,
    instructions: Annotated[
        bool | None,
        typer.Option(
            "--instructions/--no-instructions",
            help="First count the instructions of each unit of work, under valgrind, for at most "
            "half of the time.  [default: for a fifth, if valgrind is installed and the programs "
            "differ]",
            show_default=False,
        ),
    ] = None,
    bisect_run: BisectRun = False,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The report.  [default: comparison-<time>.html]"),
    ] = None,
) -> None:
    try:
        from pgstudies.rooms import rooms

        from ..workload.pgbench_options import parameters_of
        from .request import Request, reason_too_old, share_cores_alike, side, without_rejected

        if until_decided and blocks is not None:
            raise StudyError("--until-decided chooses the number of blocks: leave out --blocks.")
        parameters = assignments(parameter or [])
        _require_unset(parameters)
        studies = study or list(rooms("study"))
        if workload is not None or pgbench is not None:
            if study:
                raise StudyError("A workload takes the place of a study: leave out --study.")
            studies = list(rooms("workload"))
            parameters = parameters_of(workload, pgbench, parameters, tell)
        if repo is not None:
            baseline, candidate = _built(repo, baseline, candidate)

        left_out = tell if leave_out else None
        usual = RunOptions.given().server_for(baseline)
        before = side(usual, otherwise="embedded", tell=left_out)
        after = side(candidate, otherwise=before.server, tell=left_out)
        if leave_out:
            before, after = without_rejected(before, tell), without_rejected(after, tell)
        pin = share_cores_alike(before, after)
        if not pin:
            tell("Not both sides have I/O workers, so no server is pinned to one core.")
        for name in list(studies):
            reason = reason_too_old(name, (before, after))
            if reason is None:
                continue
            if study:
                raise StudyError(f"{name} cannot be compared: {reason}.")
            tell(f"{name} is left out: {reason}.")
            studies.remove(name)
        if (before.sql or after.sql) and not set(studies) & set(rooms("workload")):
            raise StudyError("SQL of one side needs a workload: add --workload DIR or --pgbench.")
        request = Request(
            baseline=before,
            candidate=after,
            studies=tuple(studies),
            profile=profile,
            parameters=parameters,
            arms=tuple(arm or ()),
            case=case,
            pin=pin,
            margin=margin,
            blocks=blocks,
            minutes=minutes or None,
            until_decided=until_decided,
            instructions=instructions,
        )
        code = _compare(request, report, only_counts=minutes == 0)
    except StudyError as error:
        code = _told(error)
    raise typer.Exit(for_git(code, bisect_run=bisect_run))


@commands.command(short_help="Measure a comparison again from its report.")
def rerun(
    report: Annotated[Path, typer.Argument(metavar="REPORT", show_default=False)],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", help="The new report.  [default: comparison-<time>.html]"
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="SIDE", help="Baseline to use instead of the report's."),
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option(metavar="SIDE", help="Candidate to use instead of the report's."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before measuring.")] = False,
) -> None:
    """Measure a comparison again, from its report.

    The report has the request; its measurements are not used.  What would be run is
    printed first.  A directory of programs or an address is not taken from a
    report: pass --baseline or --candidate.

    \b
    Examples:
      pgstudies rerun comparison-20261121T204500Z.html
      pgstudies rerun comparison-20261121T204500Z.html --candidate ~/build/patched
    Exit codes are those of `pgstudies compare`.
    """  # noqa: D301
    try:
        from pgstudies.rooms import rooms

        from .report import request_in

        reported = request_in(report)
        _require_unset(reported.parameters)
        if set(reported.studies) & set(rooms("workload")):
            raise StudyError(
                "The report is of a workload, and its directory is not in it: measure yours by "
                "`pgstudies compare --workload DIR`."
            )
        request = reported.with_servers(baseline, candidate)
        for line in _asked(request):
            tell(line)
        if not (yes or sys.stdin.isatty()):
            raise StudyError("Nothing was compared: pass --yes to run what is listed above.")
        if not (yes or typer.confirm("Measure this?")):
            raise StudyError("Nothing was compared.")
        code = _compare(request, output, fresh=True)
    except StudyError as error:
        code = _told(error)
    raise typer.Exit(code)


def _built(repo: Path, baseline: str | None, candidate: str) -> tuple[str, str]:
    """Build two commits; returns each one's directory, with "+" and each of its files."""
    from ..builds.builder import built
    from ..builds.repository import Repository
    from .request import divided
    from .wording import named

    repository = Repository(repo)
    if baseline is None:
        baseline = _merge_base(repository, candidate)
    parts = [divided(text) for text in (baseline, candidate)]
    commits = [
        repository.commit(name or text)
        for (name, _), text in zip(parts, (baseline, candidate), strict=True)
    ]
    if commits[0] == commits[1]:
        tell("Both sides are the same commit: what differs is chance, or the settings.")
    if files := repository.uncommitted(commits[1].sha):
        tell(f"Not measured: changes that are not committed, in {named(files)}.")
    before, after = built(repository, commits, [])
    for (name, _), place in zip(parts, (before, after), strict=True):
        tell(f"{name} is built in {place}.")
    first, second = ("".join(f"+{file}" for file in files) for _, files in parts)
    return f"{before}{first}", f"{after}{second}"


def _merge_base(repository: Repository, candidate: str) -> str:
    """Where the candidate branched off; raises StudyError if it did not."""
    from .request import divided

    head = divided(candidate)[0] or candidate
    trunk = repository.trunk
    base = repository.commit(repository.merge_base(trunk, head))
    if base == repository.commit(head):
        raise StudyError(f"{trunk} has all of {head}: name a --baseline.")
    tell(f"Baseline: where {head} left {trunk}, {base.short} ({base.about}).")
    return base.sha


def _require_unset(parameters: Mapping[str, object]) -> None:
    """Raise StudyError for a parameter of a study that a comparison sets itself."""
    for name, instead in (("blocks", "--blocks"), ("server", "--baseline and --candidate")):
        if name in parameters:
            raise StudyError(f"In a comparison {name} is not a parameter: use {instead}.")


def _asked(request: Request) -> Iterator[str]:
    """What a report's request would run, in lines."""
    for name, side in (("Baseline", request.baseline), ("Candidate", request.candidate)):
        yield f"{name}: {side.server}"
        yield from (f"    {setting} = {value}" for setting, value in side.settings.items())
    yield f"Studies: {', '.join(request.studies)}, at {request.profile} size"
    yield from (f"    {name} = {value}" for name, value in request.parameters.items())
    if request.arms or request.case:
        yield f"Only: {', '.join(filter(None, [*request.arms, request.case]))}"


def _told(error: StudyError) -> int:
    """Print an error and return its exit code; a full disk keeps its own."""
    say(str(error))
    return error.exit_code if isinstance(error, SpaceError) else CANNOT_RUN


def _compare(
    request: Request, report: Path | None, *, fresh: bool = False, only_counts: bool = False
) -> int:
    from pgservers.programs.installations import require_alike_builds
    from pgservers.servers.serve import require_server

    from ..builds.trees import keep_links
    from .design import CANDIDATE
    from .report import write_report
    from .request import typed
    from .run import compared, result_for, scripts_of
    from .text import as_text

    target = _target(report)
    request = typed(request)
    if "directory" in request.parameters:
        request = _of_workload(request)
    servers = request.baseline.server, request.candidate.server
    for server in dict.fromkeys(servers):
        require_server(server)
    require_alike_builds(*servers)
    if only_counts:
        return _counted(request)
    for line in keep_links(servers):
        tell(line)
    fresh = fresh or RunOptions.given().fresh
    found = compared(request, fresh=fresh, tell=tell, warn=say)
    if found.interrupted:
        say("interrupted; what is finished is kept: run it again to continue.")
        if not any(m.samples.height for m in found.measured):
            return 130
    for side, how in found.crashes:
        say(f"the {side}'s server crashed: {how}")
    if found.crashes and not any(m.samples.height for m in found.measured):
        return 1 if CANDIDATE in dict(found.crashes) else CANNOT_RUN
    result = result_for(request, found.measured, found.counts, found.failures, found.crashes)
    text = as_text(result, _for_others(sys.argv[1:]), scripts_of(request))
    tell(f"{text}\n\nReport: {write_report(result, request, text, target)}")
    if found.failures:
        say(f"not compared: {', '.join(found.failures)}, for the reasons above.")
    return 130 if found.interrupted else result.code


_OF_PLACES = ("rerun", "--repo", "--workload", "--report")


def _for_others(words: Sequence[str]) -> str:
    """The command with names in place of the paths of a clone, a workload and a report."""
    pairs = pairwise(["pgstudies", *words])
    named = ((Path(word).name or word) if option in _OF_PLACES else word for option, word in pairs)
    return shlex.join(["pgstudies", *named])


def _counted(request: Request) -> int:
    """Count the instructions of both sides, and nothing else; returns the exit code."""
    from .counted import instructions
    from .run import counts_of

    counts = counts_of(request)
    for line in instructions(counts):
        tell(printable(line))
    if (counts.units["ratio"] > 1 + request.margin).any():
        return 1
    return 2 if counts.units["ratio"].has_nulls() or counts.units.is_empty() else 0


def _of_workload(request: Request) -> Request:
    """The request without the extensions that a side lacks; raises StudyError for a bad workload.

    Prints what is left out: these extensions, and settings that a side does not know.
    """
    from msgspec.structs import replace

    from ..workload.loading import lacking
    from ..workload.steps import altered, runnable
    from .request import check_settings

    parameters: dict[str, Any] = dict(request.parameters)
    workload = runnable(parameters)
    unable = altered(workload, parameters.get("protocol", "prepared"))
    for name, why in unable.items():
        tell(f"{name} cannot run: {why}.")
    if len(unable) == len(workload.scripts):
        raise StudyError("No script of the workload can run, for the reasons above.")
    for name, releases in check_settings(workload.settings, request).items():
        tell(f"Left out of settings.conf: {name}: it is not known to {releases}.")
    found = lacking(workload.schema, (request.baseline.server, request.candidate.server))
    for extension, server in found.items():
        tell(
            f"Left out on both sides: the extension {extension}, which cannot be created on "
            f"{server}, and every statement of the schema that needs it."
        )
    if not found:
        return request
    without = [*dict.fromkeys((*parameters.get("without", ()), *found))]
    return replace(request, parameters=parameters | {"without": without})


def _target(report: Path | None) -> Path:
    """The path of the report, checked before anything is measured."""
    target = report or Path(f"comparison-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.html")
    target = target.expanduser().resolve()
    if target.is_dir() or target.suffix != ".html":
        raise StudyError(f"The report must be a file named *.html, and {target} is not.")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise StudyError(f"The report cannot be written into {target.parent}: name another file.")
    return target
