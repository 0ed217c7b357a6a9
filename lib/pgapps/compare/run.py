"""Measuring a comparison: a block of every study in turn, until the time is up."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pgservers.addresses import Address
from pgservers.errors import NotebookError, ServerDied, StudyError
from pgservers.terminal import Progress
from pgstudies.analysis.intervals import MOST_BLOCKS
from pgstudies.measuring.measure import measuring_here
from pgstudies.measuring.session import session
from pgstudies.rooms import find_room, rooms
from pgstudies.run_options import RunOptions

from ..counting.valgrind import reason_no_valgrind
from ..execution.cells import measurement_of
from ..execution.plan import plan
from ..workload.counting import statement_units
from .counted import counted
from .design import SIDES, designed
from .judging.measured import read_measured
from .judging.result import IS_DECIDED, result_of, undecided

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pgstudies.measuring.session import Measurement, Session

    from .counted import Counted
    from .judging.measured import Measured
    from .judging.result import Result
    from .request import Request


DEFAULT_MINUTES = 10.0

ASKED_PART, UNASKED_PART = 1 / 2, 1 / 5
"""Of the time, what counting instructions may take where it is asked for, and where it is not."""

FEWEST_ROUNDS = 12
"""Blocks that every study is to have: where fewer fit into the time, arms are left out.  Every
guard needs nine; six decide as well, but an interval of six is as wide as they differ."""

FIRST_LOOK = 7
"""Blocks that a confidence sequence of 95 % takes at least."""

REPORT_S = 15.0
"""What judging the blocks and writing the report takes (s)."""

EVERY = "all"
"""In place of the names of arms."""

NO_TIME = "there was no time, see --minutes"

_OF_A_WORKLOAD = 0.7
"""The part of a workload's block that its scripts may take; the rest restores and starts."""


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


class _Study:
    """A study that is being compared; it leaves as a context manager, with its session."""

    def __init__(
        self, name: str, what: Measurement, known: Sequence[str], arms: Sequence[str]
    ) -> None:
        self.name = name
        self.what = what
        self.known = known
        self.arms = tuple(arms)
        self.took: list[float] = []
        self.session: Session | None = None
        self._stack = ExitStack()

    def __enter__(self) -> _Study:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def enter(self, request: Request, *, fresh: bool, **how: Any) -> None:
        """Begin its session, where arms stay left out that an earlier run had no time for."""
        options = RunOptions(server=request.baseline.server, profile=request.profile)
        design = designed(self.what, self.arms, request.comparison, fresh=fresh)
        self.session = self._stack.enter_context(session(self.what, design, options, **how))
        if self.session.records:
            known = self.session.info["arms"]
            late = [arm["name"] for arm in known if arm["not_run"] == NO_TIME]
            self.session.not_run |= dict.fromkeys(late, NO_TIME)

    @property
    def done(self) -> int:
        """How many blocks it has."""
        return len(self.session.finished) if self.session else 0

    @property
    def block_s(self) -> float:
        """How long a block takes, by those of this run (s)."""
        return sum(self.took) / len(self.took) if self.took else 0.0

    def block(self) -> None:
        """Measure its next block."""
        assert self.session is not None
        self.session.begin()
        finished = self.session.finished
        number = next(n for n in range(1, len(finished) + 2) if n not in finished)
        began = time.monotonic()
        self.session.block(number)
        self.took.append(time.monotonic() - began)

    def arm_of(self, unit: Sequence[str]) -> str:
        """The study's arm whose sides these are."""
        assert self.session is not None
        return self.session.design.own(self.session.arms[unit[0]]).name

    def costs(self) -> dict[tuple[str, ...], float]:
        """How long the sides of each arm take in a block (s), by their names."""
        assert self.session is not None
        busy: dict[str, float] = {}
        for entry in self.session.info["timeline"]:
            busy[entry["arm"]] = busy.get(entry["arm"], 0.0) + entry["busy_s"]
        whole = sum(busy.values()) or 1.0
        able = [arm for arm in self.session.design.arms if arm.name not in self.session.not_run]
        _, units = self.session.design.units(able)
        return {
            tuple(arm.name for arm in unit): self.block_s
            * sum(busy.get(arm.name, 0.0) for arm in unit)
            / whole
            for unit in units
        }

    def leave_out(self, names: Collection[str]) -> None:
        """Measure no more of these arms; what takes a block then is known from its costs."""
        assert self.session is not None
        saved = self.costs()[tuple(names)]
        self.session.leave_out(names, NO_TIME)
        self.took = [self.block_s - saved]


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
    ends_at = math.inf if request.minutes is None and request.blocks else began + seconds - REPORT_S
    failures: list[str] = []
    studies: list[_Study] = []
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
        studies = _of_arms(request, studies)
        for line in _intention(request, studies, ends_at - began + REPORT_S):
            tell(line)
        counts = _counts(request, warn)
        with measuring_here("a comparison") as findings, ExitStack() as stack:
            progress = stack.enter_context(Progress("comparing", None))
            how = {"fresh": fresh, "findings": findings, "progress": progress}
            for study in studies:
                stack.push(study)
            rotation = _Rotation(request, studies, ends_at=ends_at, how=how, failed=failed)
            rotation.until_over()
    except KeyboardInterrupt:
        interrupted = True
    found = [_measured(study) for study in studies if study.name not in failures]
    return ComparisonRun(
        tuple(m for m in found if m is not None), counts, tuple(failures), interrupted
    )


def _planned(name: str, request: Request, seconds: float) -> _Study:
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
    return _Study(name, what, known, chosen)


def _of_arms(request: Request, studies: Sequence[_Study]) -> list[_Study]:
    """The studies with an arm to compare; raises StudyError for an arm that none of them has."""
    for arm in request.arms:
        if arm != EVERY and not any(arm in study.known for study in studies):
            known = "; ".join(f"{study.name}: {', '.join(study.known)}" for study in studies)
            raise StudyError(f"There is no arm {arm!r} to compare; there is {known}.")
    return [study for study in studies if study.arms or not request.arms]


def _intention(request: Request, studies: Sequence[_Study], seconds: float) -> Iterator[str]:
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
        yield f"  {study.name}: {', '.join(study.arms)}{more}"


class _Rotation:
    """A block of every study in turn, the one with the fewest blocks next."""

    def __init__(
        self,
        request: Request,
        studies: Sequence[_Study],
        *,
        ends_at: float,
        how: dict[str, Any],
        failed: Callable[[str, StudyError], None],
    ) -> None:
        self.request = request
        self.left = list(studies)
        self.ends_at = ends_at
        self.how = how
        self.failed = failed

    def until_over(self) -> None:
        """Measure until the time is up, or there are the blocks that are asked for."""
        for study in list(self.left):
            self._block(study, is_first=True)
        self._leave_out_arms()
        most = self.request.blocks or MOST_BLOCKS
        while self.left:
            study = min(self.left, key=lambda study: study.done)
            if study.done >= most:
                return
            if time.monotonic() + study.block_s > self.ends_at:
                self.left.remove(study)
                most = min(most, study.done + 1)  # the others get no further than the next
                continue
            self._block(study)
            if len({study.done for study in self.left}) == 1:
                self._foretell()
                self._look()

    def _block(self, study: _Study, *, is_first: bool = False) -> None:
        """Measure a study's next block; one that cannot go on is left, with its reason told."""
        try:
            if is_first:
                study.enter(self.request, **self.how)
            if study.done < (self.request.blocks or MOST_BLOCKS):
                study.block()
        except StudyError as error:
            study.__exit__(type(error), error, error.__traceback__)
            self.left.remove(study)
            self.failed(study.name, error)

    def _leave_out_arms(self) -> None:
        """Leave out the dearest arms until ``FEWEST_ROUNDS`` blocks fit, where arms were not named.

        A study keeps one.
        """
        done = min((study.done for study in self.left), default=0)
        lacking = FEWEST_ROUNDS - done
        left_s = self.ends_at - time.monotonic()
        whole_s = sum(study.block_s for study in self.left)
        gone = []
        while lacking * sum(study.block_s for study in self.left) > left_s:
            costs = {
                (study, unit): cost
                for study in self.left
                for unit, cost in study.costs().items()
                if len(study.costs()) > 1 and self.request.arms in {(), (EVERY,)}
            }
            if not costs:
                break
            study, unit = max(costs, key=lambda place: costs[place])
            gone.append(f"{study.name}, {study.arm_of(unit)} ({costs[study, unit]:.1f} s)")
            study.leave_out(unit)
        if gone:
            over_s = lacking * whole_s - left_s
            minutes = (self.request.minutes or DEFAULT_MINUTES) + over_s / 60
            self._note(
                f"Left out, so that {FEWEST_ROUNDS} blocks fit: {'; '.join(gone)} in each block. "
                f"To measure them as well: --minutes {math.ceil(minutes)}."
            )
        self._foretell()

    def _foretell(self) -> None:
        """Say in the progress bar how much there will be."""
        arms = sum(len(study.session.arms) for study in self.left if study.session)
        round_s = sum(study.block_s for study in self.left)
        done = min((study.done for study in self.left), default=0)
        if self.request.blocks:
            more = self.request.blocks - done
        elif round_s:
            more = max(0, int((self.ends_at - time.monotonic()) / round_s))
        else:
            return
        self.how["progress"].expect_more(more * arms)

    def _look(self) -> None:
        """With --until-decided, go on with the studies that have an open step only."""
        done = self.left[0].done
        if not self.request.until_decided or done < FIRST_LOOK:
            return
        measured = [read_measured(s.name, s.session.records) for s in self.left if s.session]
        result = result_for(self.request, measured)
        still = undecided(result)
        decided = result.effects.filter(IS_DECIDED).height
        self._note(f"{done} blocks: {decided} of {result.effects.height} steps are decided.")
        self.left = [study for study in self.left if study.name in still]

    def _note(self, sentence: str) -> None:
        self.how["progress"].note(sentence)


def _measured(study: _Study) -> Measured | None:
    """Its blocks; None where none was begun."""
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
