"""Measuring a comparison: the notebooks of the studies, each with both servers in its blocks."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from pgservers.addresses import Address
from pgservers.errors import NotebookError, ServerDied, StudyError
from pgservers.files import temporary_directory
from pgservers.servers.instance import place_for_states
from pgstudies.analysis.intervals import MINIMUM_BLOCKS
from pgstudies.rooms import rooms
from pgstudies.run_options import Replies, RunOptions

from ..counting.valgrind import reason_no_valgrind
from ..execution.run import run_study
from ..workload.counting import statement_units
from .counted import counted
from .judging.measured import read_measured
from .judging.result import IS_DECIDED, nothing_measured, result_of, undecided
from .plan import (
    FIRST_LOOK,
    GOAL_BLOCKS,
    REPORT_S,
    as_before,
    by_time,
    fit,
    fit_lines,
    forecast_lines,
    forecast_of,
    next_look,
    of_asked,
    of_blocks,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .counted import Counted
    from .judging.measured import Measured
    from .judging.result import Result
    from .plan import Fit, Forecast
    from .request import Request


DEFAULT_MINUTES = 10.0

ASKED_PART, UNASKED_PART = 1 / 2, 1 / 5
"""Of the time, what counting instructions may take where it is asked for, and where it is not."""


@dataclass(frozen=True)
class ComparisonRun:
    """What a comparison has measured.

    Attributes:
        measured: The studies with blocks, finished ones of earlier runs among them.
        counts: Instructions of both sides, where they were counted.
        failures: The studies that could not be compared.
        interrupted: Whether Ctrl-C ended it.

    """

    measured: tuple[Measured, ...]
    counts: Counted | None
    failures: tuple[str, ...]
    interrupted: bool


def compared(
    request: Request,
    *,
    only_plan: bool = False,
    fresh: bool = False,
    tell: Callable[[str], None],
    warn: Callable[[str], None],
    agree: Callable[[int], object],
) -> ComparisonRun | None:
    """Plan and measure a comparison, judging it on the way if it runs until decided.

    ``tell`` gets the lines of the plan and of each look, ``warn`` why a study cannot be compared,
    as soon as that is known.  Where the time decides nothing, ``agree`` gets the minutes that
    would, and raises StudyError unless they may be taken.  With ``only_plan`` nothing is measured
    and None returned; with ``fresh`` only what is measured now counts.
    """
    measured: dict[str, Measured] = {}
    failures: list[str] = []

    def failed(study: str, error: StudyError) -> None:
        warn(f"{study}: {error}")
        failures.append(study)

    counts = None
    began = time.monotonic()
    since = datetime.now(UTC).isoformat() if fresh else ""
    interrupted = False
    try:
        if not only_plan:
            counts = _counts(request, warn)
        with _states() as states:
            measures = partial(
                measured_blocks,
                request,
                since=since,
                failed=failed,
                fresh=RunOptions.given().fresh,
                states=states,
            )
            spent = time.monotonic() - began
            planned, minutes = _planned(
                request, measures, spent, only_plan=only_plan, since=since, tell=tell, agree=agree
            )
            if only_plan:
                return None
            look: Fit | None = planned
            while look is not None:
                for found in measures(look, ends_at=began + 60 * minutes - REPORT_S):
                    measured[found.study] = found
                left_s = 60 * minutes - (time.monotonic() - began)
                look = _next(request, list(measured.values()), look, left_s, tell)
    except KeyboardInterrupt:
        interrupted = True
    return ComparisonRun(tuple(measured.values()), counts, tuple(failures), interrupted)


@contextmanager
def _states() -> Iterator[str]:
    """The directory in which looks at a study share prepared states; empty where they cannot."""
    try:
        place = place_for_states()
    except StudyError:  # the first block will say it, if it needs one
        yield ""
        return
    try:
        yield str(place.snapshots)
    finally:
        place.remove()


def result_for(
    request: Request,
    measured: Iterable[Measured],
    counts: Counted | None = None,
    failures: Sequence[str] = (),
) -> Result:
    """What was measured, judged as the request asks for; errors as of ``result_of``."""
    return result_of(
        request.comparison,
        tuple(measured),
        case=request.case,
        margin=request.margin,
        clock=request.clock,
        strict=request.strict,
        until_decided=request.until_decided,
        profile=request.profile,
        counted=counts,
        failures=failures,
    )


def _counts(request: Request, warn: Callable[[str], None]) -> Counted | None:
    """The instructions, where they are asked for, or can be had for little of the time."""
    if request.instructions is None and not _is_worth_counting(request):
        return None
    if request.instructions is False:
        return None
    seconds = 60 * (request.minutes or DEFAULT_MINUTES)
    seconds *= ASKED_PART if request.instructions else UNASKED_PART
    if request.instructions and request.blocks is not None and request.minutes is None:
        seconds = math.inf
    try:
        wanted = [
            unit
            for study in request.studies
            if study in rooms("workload")
            for unit in statement_units(study, request.baseline.server, request.parameters)
            if (request.case or "") in unit.name
        ]
        return counted(request, wanted or None, seconds=seconds)
    except StudyError as error:
        if request.instructions:
            raise
        # What is wrong with a script leaves that script out, and what is wrong with a server or a
        # disk ends the measuring as well.
        warn(f"No instructions are counted: {error}")
        return None


def _is_worth_counting(request: Request) -> bool:
    """Whether two programs differ that can be run under the valgrind that is here."""
    servers = {request.baseline.server, request.candidate.server}
    is_external = any(Address.parse(server).is_dsn for server in servers)
    return len(servers) > 1 and not is_external and reason_no_valgrind() is None


def _planned(
    request: Request,
    measures: Callable[[Fit], Iterator[Measured]],
    spent_s: float,
    *,
    only_plan: bool,
    since: str,
    tell: Callable[[str], None],
    agree: Callable[[int], object],
) -> tuple[Fit, float]:
    """Print the plan for the time left after ``spent_s``; returns it, and its minutes.

    Without a record that says how long a block takes, ``measures`` measures one first.
    """

    def forecasts(studies: Iterable[str]) -> list[Forecast]:
        found = [
            forecast_of(
                study,
                request.comparison,
                profile=request.profile,
                case=request.case,
                given=request.parameters,
            )
            for study in studies
        ]
        found = of_asked(found, request.arms)
        if since:
            return found
        return [
            as_before(
                plan,
                request.comparison,
                request.profile,
                given=request.parameters,
                seconds=60 * (request.minutes or DEFAULT_MINUTES) - spent_s - REPORT_S,
            )
            for plan in found
        ]

    began = time.monotonic()
    plans = forecasts(request.studies)
    unknown = [plan for plan in plans if not plan.arms_s]
    if request.blocks is None and unknown and not only_plan:
        names = ", ".join(plan.study for plan in unknown)
        tell(f"No record says how long a block takes, so one is measured first, of {names}.")
        looks = list(measures(of_blocks(unknown, 1)))
        looked_at = {plan.study for plan in unknown}
        plans = [
            plan.with_states_kept() if plan.study in looked_at else plan
            for plan in forecasts(request.studies)
            if plan.arms_s
        ]
        if looks and not plans:
            raise nothing_measured(looks)
    minutes = request.minutes or DEFAULT_MINUTES
    if request.blocks is not None:
        fitted = of_blocks(plans, request.blocks)
    else:
        spent_s += time.monotonic() - began + REPORT_S
        fitted = fit(plans, 60 * minutes - spent_s)
    for line in forecast_lines(
        request.comparison, plans, blocks=fitted.blocks, margin=request.margin
    ):
        tell(line)
    if request.blocks is None and any(plan.arms_s for plan in plans):
        for line in fit_lines(fitted, plans, minutes):
            tell(line)
        if fitted.blocks < MINIMUM_BLOCKS:
            enough = fitted.minutes_that_decide(spent_s)
            tell(
                f"That decides nothing: an interval needs {MINIMUM_BLOCKS} blocks. {enough} "
                f"minutes are enough for {GOAL_BLOCKS}."
            )
            if not only_plan:
                agree(enough)
                fitted, minutes = fit(plans, 60 * enough - spent_s), enough
                for line in fit_lines(fitted, plans, minutes):
                    tell(line)
    if request.blocks is None and only_plan and unknown:
        tell("Without --plan one block of these is measured first, and the plan made from it.")
    tell("")
    return _first_look(request, fitted, plans), minutes


def _first_look(request: Request, fitted: Fit, plans: Iterable[Forecast]) -> Fit:
    """What is measured before the first look; for a run that looks but once, all of it."""
    if request.until_decided:
        return replace(fitted, blocks=min(fitted.blocks, FIRST_LOOK))
    if request.blocks is not None or any(plan.before for plan in plans):
        return fitted
    return by_time(fitted)


def _next(
    request: Request,
    measured: list[Measured],
    look: Fit,
    left_s: float,
    tell: Callable[[str], None],
) -> Fit | None:
    """What to measure before the next look; None after the last one."""
    if not request.until_decided:
        return None
    result = result_for(request, measured)
    still = undecided(result)
    decided = result.effects.filter(IS_DECIDED).height
    tell(f"{look.blocks} blocks: {decided} of {result.effects.height} steps are decided.")
    return next_look(look, still, left_s) if still else None


def measured_blocks(
    request: Request,
    fitted: Fit,
    *,
    since: str = "",
    failed: Callable[[str, StudyError], None] | None = None,
    fresh: bool = False,
    states: str = "",
    ends_at: float = math.inf,
) -> Iterator[Measured]:
    """Measure every study of ``fitted`` in turn; yields its blocks, those of earlier runs included.

    Blocks from before ``since`` (UTC) do not count; with ``fresh`` no record is continued.
    ``states`` is the directory in which runs leave each other prepared states, or empty.  What is
    timed ends at ``ends_at``, of the monotonic clock.  After Ctrl-C the finished blocks are yielded
    as well, and then KeyboardInterrupt is raised.
    ``failed`` is called for a study that cannot be compared, or whose server died, and the others
    continue; without it, and for an error that concerns all studies (a server that cannot be
    started, a disk), the error is raised.
    """
    for study, arms in fitted.arms.items():
        seconds = fitted.limit_s.get(study, 0.0)
        if fitted.is_timed:
            seconds = time_of(fitted, study, ends_at - time.monotonic())
        comparison = replace(
            request.comparison,
            arms=arms or request.comparison.arms,
            seconds=seconds,
            since=since,
            fitted=bool(arms) and arms != fitted.asked.get(study),
        )
        parameters = dict(fitted.parameters.get(study, {})) | dict(request.parameters)
        interrupted = False
        with temporary_directory() as scratch:
            replies = scratch / "replies"
            replies.mkdir()
            try:
                done = run_study(
                    study,
                    profile=request.profile,
                    fresh=fresh,
                    server=request.baseline.server,
                    parameters=parameters | {"blocks": fitted.blocks},
                    design=comparison.as_run_options(),
                    states={"directory": states, "code": ""} if states else None,
                    replies=replies,
                    output=scratch / f"{study}.ipynb",
                )
                if done.record is None:
                    raise StudyError(f"The notebook of {study} measures nothing to compare.")
            except KeyboardInterrupt:
                interrupted = True
            except StudyError as error:
                if failed is None or type(error) not in {StudyError, NotebookError, ServerDied}:
                    raise
                failed(study, error)
                continue
            records = Replies(replies).records
        if records:
            yield read_measured(study, records)
        if interrupted:
            raise KeyboardInterrupt
