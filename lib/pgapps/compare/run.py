"""Measuring a comparison: a block of every study in turn, until the time is up."""

from __future__ import annotations

import math
import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pgservers.addresses import Address
from pgservers.errors import NotebookError, ServerDied, StudyError
from pgservers.terminal import Progress
from pgstudies.measuring.measure import measuring_here
from pgstudies.rooms import find_room, rooms

from ..counting.valgrind import reason_no_valgrind
from ..execution.cells import measurement_of
from ..execution.plan import plan
from ..workload.counting import statement_units
from .counted import counted
from .design import SIDES
from .judging.measured import read_measured
from .judging.result import IS_DECIDED, result_of, undecided
from .rotation import FEWEST_ROUNDS, ComparedStudy, Rotation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .counted import Counted
    from .judging.measured import Measured
    from .judging.result import Result
    from .request import Request


DEFAULT_MINUTES = 10.0

ASKED_PART, UNASKED_PART = 1 / 2, 1 / 5
"""The part of the time that counting instructions may take, if asked for and if not."""

FIRST_LOOK = 7
"""The fewest blocks of a confidence sequence of 95 %."""

REPORT_S = 15.0
"""What judging the blocks of all studies and writing the report takes (s); at most a twentieth of
the time is kept for it."""

EVERY = "all"
"""Stands for every arm."""

_OF_A_WORKLOAD = 0.7
"""The part of a workload's block for its scripts; the rest is for restoring and starting."""


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
    fresh: bool = False,
    tell: Callable[[str], None],
    warn: Callable[[str], None],
) -> ComparisonRun:
    """Measure a comparison until its time is up, or every study has its blocks.

    ``tell`` gets what is measured and what is left out, ``warn`` why a study cannot be compared, as
    soon as that is known.  With ``fresh`` only what is measured now counts.  What was finished
    before Ctrl-C is there as well.  Raises StudyError for an arm that no study has, and for what
    concerns all studies, such as a server that cannot be started, or a disk.
    """
    began = time.monotonic()
    seconds = 60 * (request.minutes or DEFAULT_MINUTES)
    report_s = min(REPORT_S, seconds / 20)
    ends_at = math.inf if request.minutes is None and request.blocks else began + seconds - report_s
    failures: list[str] = []
    studies: list[ComparedStudy] = []
    counts = None

    def failed(study: str, error: StudyError) -> None:
        if type(error) not in {StudyError, NotebookError, ServerDied}:
            raise error
        warn(f"{study}: {error}")
        failures.append(study)

    interrupted = False
    try:
        for name in request.studies:
            try:
                studies.append(_planned(name, request, seconds))
            except StudyError as error:
                failed(name, error)
        _require_arms(request, studies)
        for line in _intention(request, studies, ends_at - began + report_s):
            tell(line)
        studies = [study for study in studies if study.arms]
        counts = _counts(request, warn)
        with measuring_here("a comparison") as findings, ExitStack() as stack:
            progress = stack.enter_context(Progress("comparing", None))
            for study in studies:
                stack.push(study)
            # Else every comparison would have the same links.
            links = str(request.parameters.get("seed", secrets.randbits(31)))

            def enter(study: ComparedStudy) -> None:
                how: Any = {"findings": findings, "progress": progress, "fresh": fresh}
                study.enter(request.comparison, request.profile, links=links, **how)

            rotation = Rotation(
                studies,
                blocks=request.blocks,
                ends_at=ends_at,
                enter=enter,
                failed=failed,
                progress=progress,
            )
            rotation.first_round()
            if request.arms in {(), (EVERY,)} and (gone := rotation.leave_out_arms()):
                progress.note(_left_out(gone, seconds))
            for done in rotation.rounds():
                if request.until_decided and done >= FIRST_LOOK:
                    rotation.left = _undecided(request, rotation.left, progress)
    except KeyboardInterrupt:
        interrupted = True
    found = [_measured(study) for study in studies if study.name not in failures]
    return ComparisonRun(
        tuple(m for m in found if m is not None), counts, tuple(failures), interrupted
    )


def _planned(name: str, request: Request, seconds: float) -> ComparedStudy:
    """The study with the arms that are compared; raises StudyError where its notebook does."""
    parameters = dict(request.parameters)
    room = find_room(name)
    if room.kind == "workload":
        arm_s = _OF_A_WORKLOAD * seconds / FEWEST_ROUNDS / len(SIDES)
        parameters.setdefault("arm_s", 0.0 if request.blocks else arm_s)
    planned = plan(
        name, profile=request.profile, server=request.baseline.server, parameters=parameters
    )
    what = measurement_of(planned)
    known = [arm.name for arm in what.arms if arm.server is None]
    wanted = request.arms or room.about.get("compare", ())
    chosen = [arm for arm in known if arm in wanted]
    if request.arms == (EVERY,) or not (chosen or request.arms):
        chosen = known
    return ComparedStudy(name, what, known, chosen)


def _require_arms(request: Request, studies: Sequence[ComparedStudy]) -> None:
    """Raise StudyError for an arm that no study has."""
    for arm in request.arms:
        if arm != EVERY and not any(arm in study.known for study in studies):
            known = "; ".join(f"{study.name}: {', '.join(study.known)}" for study in studies)
            raise StudyError(f"There is no arm {arm!r} to compare; there is {known}.")


def _intention(request: Request, studies: Sequence[ComparedStudy], seconds: float) -> Iterator[str]:
    """What is measured, and until when, as lines for a terminal."""
    yield f"Baseline:  {request.baseline}"
    yield f"Candidate: {request.candidate}"
    if math.isinf(seconds):
        yield f"A block of each study in turn, {request.blocks} of each:"
    else:
        ends = datetime.now(UTC).astimezone() + timedelta(seconds=seconds)
        yield f"A block of each study in turn, until {ends:%H:%M:%S}:"
    for study in studies:
        left = len(study.known) - len(study.arms)
        more = f" ({left} more: --arm {EVERY})" if left and not request.arms else ""
        yield f"  {study.name}: {', '.join(study.arms) or 'not compared, has no such arm'}{more}"


def _left_out(arms: Sequence[tuple[str, float]], seconds: float) -> str:
    """A sentence on what is left out, and how long everything would take."""
    names = "; ".join(f"{name} ({took:.1f} s)" for name, took in arms)
    more = FEWEST_ROUNDS * sum(took for _, took in arms)
    return (
        f"Left out, so that {FEWEST_ROUNDS} blocks fit: {names} in each block.  To measure them as "
        f"well: --minutes {math.ceil((seconds + more) / 60)}."
    )


def _undecided(
    request: Request, studies: Sequence[ComparedStudy], progress: Progress
) -> list[ComparedStudy]:
    """The studies with an open step that more blocks would probably decide."""
    measured = [m for study in studies if (m := _measured(study)) is not None]
    result = result_for(request, measured)
    still = undecided(result)
    decided = result.effects.filter(IS_DECIDED).height
    blocks = studies[0].done
    progress.note(f"{blocks} blocks: {decided} of {result.effects.height} steps are decided.")
    return [study for study in studies if study.name in still]


def _measured(study: ComparedStudy) -> Measured | None:
    """The record with its blocks; None if none was begun."""
    records = study.session.records if study.session else []
    return read_measured(study.name, records) if records else None


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
        until_decided=request.until_decided,
        profile=request.profile,
        counted=counts,
        failures=failures,
    )


def _counts(request: Request, warn: Callable[[str], None]) -> Counted | None:
    """The counts, if asked for, or if they take little of the time."""
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
    """Whether the two sides have different programs, and valgrind can run both."""
    servers = {request.baseline.server, request.candidate.server}
    is_external = any(Address.parse(server).is_dsn for server in servers)
    return len(servers) > 1 and not is_external and reason_no_valgrind() is None
