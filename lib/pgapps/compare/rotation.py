"""The order of blocks in a comparison: one of every study in turn, until the time is up."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pgservers.errors import StudyError
from pgstudies.analysis.intervals import MOST_BLOCKS
from pgstudies.measuring.session import session
from pgstudies.run_options import RunOptions

from .design import designed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pgservers.terminal import Progress
    from pgstudies.measuring.session import Measurement, Session

    from .design import Comparison


FEWEST_ROUNDS = 12
"""Blocks that every study shall have: if fewer fit into the time, arms are left out.  Every
guard needs nine; six decide as well, but an interval of six is as wide as they differ."""

NO_TIME = "there was no time, see --minutes"


class ComparedStudy:
    """A study that is being compared: a context manager that ends its session."""

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

    def __enter__(self) -> ComparedStudy:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def enter(
        self, comparison: Comparison, profile: str, *, links: str, fresh: bool, **how: Any
    ) -> None:
        """Begin its session; arms that an earlier run left out for time stay out."""
        options = RunOptions(server=comparison.baseline.server, profile=profile)
        chosen = [arm for arm in self.what.arms if arm.name in self.arms and arm.server is None]
        design = designed(self.name, chosen, comparison, links=links, fresh=fresh)
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
    def count(self) -> int:
        """How many arms it has, on all sides."""
        return len(self.session.arms) if self.session else 0

    @property
    def block_s(self) -> float:
        """How long a block takes, by the blocks of this run (s)."""
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
        """The study's arm that these sides are of."""
        assert self.session is not None
        return self.session.design.own(self.session.arms[unit[0]]).name

    def costs(self) -> dict[tuple[str, ...], float]:
        """How long the sides of each arm take in a block (s), by their names."""
        assert self.session is not None
        able = {a.name: a for a in self.session.design.arms if a.name not in self.session.not_run}
        busy = dict.fromkeys(able, 0.0)
        for entry in self.session.info["timeline"]:
            if entry["arm"] in busy:  # and not left out: a block no longer takes that
                busy[entry["arm"]] += entry["busy_s"]
        whole = sum(busy.values()) or 1.0
        _, units = self.session.design.units([*able.values()])
        return {
            tuple(arm.name for arm in unit): self.block_s
            * sum(busy[arm.name] for arm in unit)
            / whole
            for unit in units
        }

    def leave_out(self, names: Collection[str]) -> None:
        """Leave out these arms; a block then takes less, by what they cost."""
        assert self.session is not None
        saved = self.costs()[tuple(names)]
        self.session.leave_out(names, NO_TIME)
        self.took = [self.block_s - saved]


class Rotation:
    """A block of every study in turn, the one with the fewest blocks next.

    Attributes:
        left: The studies that go on.
        blocks: How many each is to have; None for as many as fit.
        ends_at: When the time is up, by the monotonic clock.
        enter: Begins a study's session.
        failed: Is told a study that cannot go on, and why.
        progress: Is told how much there will be.

    """

    def __init__(
        self,
        studies: Sequence[ComparedStudy],
        *,
        blocks: int | None,
        ends_at: float,
        enter: Callable[[ComparedStudy], None],
        failed: Callable[[str, StudyError], None],
        progress: Progress,
    ) -> None:
        self.left = list(studies)
        self.most = blocks or MOST_BLOCKS
        self.ends_at = ends_at
        self.enter = enter
        self.failed = failed
        self.progress = progress

    def first_round(self) -> None:
        """Prepare every study and measure its first block, which says how long a block takes."""
        for study in list(self.left):
            self._measure(study, is_first=True)

    def leave_out_arms(self) -> list[tuple[str, float]]:
        """Leave out the dearest arms until ``FEWEST_ROUNDS`` blocks fit, but one of each study.

        Returns their names and what they take in a block (s).
        """
        lacking = FEWEST_ROUNDS - min((study.done for study in self.left), default=0)
        left_s = self.ends_at - time.monotonic()
        gone = []
        while lacking * sum(study.block_s for study in self.left) > left_s:
            costs = {
                (study, unit): cost
                for study in self.left
                if len(arms := study.costs()) > 1
                for unit, cost in arms.items()
            }
            if not costs:
                break
            study, unit = max(costs, key=lambda place: costs[place])
            gone.append((f"{study.name}, {study.arm_of(unit)}", costs[study, unit]))
            study.leave_out(unit)
        return gone

    def rounds(self) -> Iterable[int]:
        """Measure until the time is up, or there are the blocks wanted; yields after each round.

        No study gets more than one block more than another.
        """
        self._foretell()
        while self.left:
            study = min(self.left, key=lambda study: study.done)
            if study.done >= self.most:
                return
            if time.monotonic() + study.block_s > self.ends_at:
                self.left.remove(study)
                self.most = min(self.most, study.done + 1)
                continue
            self._measure(study)
            done = {study.done for study in self.left}
            if len(done) == 1:
                self._foretell()
                yield done.pop()

    def _measure(self, study: ComparedStudy, *, is_first: bool = False) -> None:
        """Measure a study's next block; a study that cannot go on is left out."""
        try:
            if is_first:
                self.enter(study)
            if study.done < self.most:
                study.block()
        except StudyError as error:
            study.__exit__(type(error), error, error.__traceback__)
            self.left.remove(study)
            self.failed(study.name, error)

    def _foretell(self) -> None:
        """Set the total of the progress bar."""
        round_s = sum(study.block_s for study in self.left)
        rounds = self.most - min((study.done for study in self.left), default=self.most)
        if round_s and not math.isinf(self.ends_at):
            rounds = min(rounds, int(max(0, self.ends_at - time.monotonic()) / round_s))
        self.progress.expect_more(rounds * sum(study.count for study in self.left))
