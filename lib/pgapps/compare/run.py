"""Measuring a comparison: a block of every study in turn, until the time is up."""

from __future__ import annotations

import math
import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from pgservers.addresses import Address
from pgservers.errors import NotebookError, ServerDied, StudyError
from pgservers.terminal import Progress, printable
from pgstudies.analysis.intervals import MOST_BLOCKS
from pgstudies.measuring.measure import measuring_here
from pgstudies.rooms import find_room, rooms

from ..counting.valgrind import reason_no_valgrind
from ..execution.cells import measurement_of
from ..execution.plan import plan
from ..workload.counting import statement_units
from ..workload.schema import beginning
from ..workload.statements import without_comments
from ..workload.steps import runnable
from .counted import counted, instructions
from .design import SIDES
from .judging.measured import read_measured
from .judging.result import IS_DECIDED, result_of, undecided
from .rotation import FEWEST_ROUNDS, ComparedStudy, Rotation
from .text import SCHEMA

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
"""Reserved for judging the blocks of all studies and for the report (s), at most a twentieth of
the time."""

EVERY = "all"
"""The word for every arm."""

_OF_A_WORKLOAD = 0.7
"""The part of a workload's block for its scripts; restoring and starting take the rest."""


@dataclass(frozen=True)
class ComparisonRun:
    """What a comparison has measured.

    Attributes:
        measured: The studies with blocks, including finished blocks of earlier runs.
        counts: The instructions of both sides, if they were counted.
        failures: The studies that could not be compared.
        crashes: The sides whose servers crashed, and how.
        interrupted: Whether Ctrl-C ended it.

    """

    measured: tuple[Measured, ...]
    counts: Counted | None
    failures: tuple[str, ...]
    crashes: tuple[tuple[str, str], ...]
    interrupted: bool


def compared(
    request: Request,
    *,
    fresh: bool = False,
    tell: Callable[[str], None],
    warn: Callable[[str], None],
) -> ComparisonRun:
    """Measure a comparison until its time is up, or every study has its blocks.

    ``tell`` gets what is measured, ``warn`` at once why a study cannot be compared.  With ``fresh``
    no earlier block counts.  After Ctrl-C the finished blocks are returned.  Raises StudyError for
    an arm that no study has, and for an error of all studies, such as a full disk.
    """
    ends_at = _ends_at(request)
    failures: list[str] = []
    studies: list[ComparedStudy] = []
    counts = None
    interrupted = False

    def failed(study: str, error: StudyError) -> None:
        if type(error) not in {StudyError, NotebookError, ServerDied}:
            raise error
        warn(f"{study}: {error}")
        failures.append(study)

    try:
        for name in request.studies:
            try:
                studies.append(_planned(name, request))
            except StudyError as error:
                failed(name, error)
        for line in _intention(request, studies):
            tell(line)
        studies = [study for study in studies if study.arms]
        counts = _counts(request, tell, warn)
        with (
            measuring_here("a comparison") as findings,
            Progress("comparing", None) as progress,
            ExitStack() as stack,
        ):
            for study in studies:
                stack.push(study)
            enter = partial(
                ComparedStudy.enter,
                comparison=request.comparison,
                profile=request.profile,
                # Drawn, because otherwise every comparison would have the same links.
                links=str(request.parameters.get("seed", secrets.randbits(31))),
                fresh=fresh,
                findings=findings,
                progress=progress,
            )
            most = request.blocks or MOST_BLOCKS
            _rotate(request, Rotation([*studies], enter, failed, progress, ends_at, most))
    except KeyboardInterrupt:
        interrupted = True
    found = _measured(study for study in studies if study.name not in failures)
    crashes = tuple(crash for study in studies for crash in study.crashes)
    return ComparisonRun(tuple(found), counts, tuple(failures), crashes, interrupted)


def _seconds(request: Request) -> float:
    """The time for everything (s); infinite if only a number of blocks is given."""
    if request.minutes is None and request.blocks:
        return math.inf
    return 60 * (request.minutes or DEFAULT_MINUTES)


def _ends_at(request: Request) -> float:
    """When the last block shall have ended, by the monotonic clock."""
    seconds = _seconds(request)
    return time.monotonic() + seconds - min(REPORT_S, seconds / 20)


def _rotate(request: Request, rotation: Rotation) -> None:
    """Measure all blocks; with ``until_decided`` only of studies that are still open."""
    rotation.first_round()
    if request.arms in {(), (EVERY,)} and (gone := rotation.leave_out_arms()):
        rotation.progress.note(_left_out(gone, _seconds(request)))
    for done in rotation.rounds():
        if request.until_decided and done >= FIRST_LOOK:
            result = result_for(request, _measured(rotation.left))
            decided = result.effects.filter(IS_DECIDED).height
            rotation.progress.note(
                f"{done} blocks: {decided} of {result.effects.height} steps are decided."
            )
            still = undecided(result)
            rotation.left = [study for study in rotation.left if study.name in still]


def _planned(name: str, request: Request) -> ComparedStudy:
    """The study with the arms that are compared; raises the StudyError of its notebook."""
    parameters = dict(request.parameters)
    room = find_room(name)
    if room.kind == "workload":
        arm_s = _OF_A_WORKLOAD * _seconds(request) / FEWEST_ROUNDS / len(SIDES)
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


def _intention(request: Request, studies: Sequence[ComparedStudy]) -> Iterator[str]:
    """What is measured, and until when, in lines; raises StudyError for an arm no study has."""
    for arm in request.arms:
        if arm != EVERY and not any(arm in study.known for study in studies):
            known = "; ".join(f"{study.name}: {', '.join(study.known)}" for study in studies)
            raise StudyError(f"There is no arm {arm!r} to compare; there is {known}.")
    yield f"Baseline:  {request.baseline}"
    yield f"Candidate: {request.candidate}"
    seconds = _seconds(request)
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


def _measured(studies: Iterable[ComparedStudy]) -> list[Measured]:
    """The blocks of each study that has a record."""
    records = [(study.name, study.session.records) for study in studies if study.session]
    return [read_measured(name, paths) for name, paths in records if paths]


def result_for(
    request: Request,
    measured: Iterable[Measured],
    counts: Counted | None = None,
    failures: Sequence[str] = (),
    crashes: Sequence[tuple[str, str]] = (),
) -> Result:
    """Judge what was measured as the request asks; raises as ``result_of`` does."""
    return result_of(
        request.comparison,
        tuple(measured),
        case=request.case,
        margin=request.margin,
        until_decided=request.until_decided,
        profile=request.profile,
        counted=counts,
        failures=failures,
        crashes=crashes,
    )


def _counts(
    request: Request, tell: Callable[[str], None], warn: Callable[[str], None]
) -> Counted | None:
    """The counts if asked for; without either option, if they are worth a part of the time."""
    asked = request.instructions
    if asked is False or (asked is None and not _is_worth_counting(request)):
        return None
    seconds = _seconds(request)
    if not asked and math.isinf(seconds):
        seconds = 60 * DEFAULT_MINUTES
    try:
        counts = counts_of(request, (ASKED_PART if asked else UNASKED_PART) * seconds)
    except StudyError as error:
        if asked:
            raise
        # An error of a script leaves that script out later; one of a server or a disk ends the
        # measuring as well.
        warn(f"No instructions are counted: {error}")
        return None
    for line in instructions(counts):
        tell(printable(line))
    return counts


def counts_of(request: Request, seconds: float = math.inf) -> Counted:
    """The instructions of the units of the request's studies or workload, as ``counted``.

    Loading a workload is part of ``seconds``.
    """
    begun = time.monotonic()
    wanted = [
        unit
        for study in request.studies
        if study in rooms("workload")
        for unit in statement_units(study, request.baseline.server, request.parameters)
        if (request.case or "") in unit.name
    ]
    return counted(request, wanted or None, seconds=seconds - (time.monotonic() - begun))


def _is_worth_counting(request: Request) -> bool:
    """Whether the two sides differ in programs or SQL, and valgrind can run both."""
    servers = {request.baseline.server, request.candidate.server}
    is_external = any(Address.parse(server).is_dsn for server in servers)
    differ = len(servers) > 1 or request.baseline.sql != request.candidate.sql
    return differ and not is_external and reason_no_valgrind() is None


def scripts_of(request: Request) -> dict[str, str]:
    """The SQL of a workload's scripts, by their names, and of its schema; empty for studies."""
    if "directory" not in request.parameters:
        return {}
    workload = runnable(request.parameters)
    found = {script.name: without_comments(script.text) for script in workload.scripts}
    begins = beginning(workload.schema) if workload.schema is not None else ""
    return {SCHEMA: begins, **found} if begins else found
