"""The order of blocks in a comparison: one of every study in turn, until the time is up."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgservers.errors import ServerDied, StudyError
from pgstudies.analysis.intervals import MOST_BLOCKS
from pgstudies.measuring.session import session
from pgstudies.run_options import RunOptions

from .design import designed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pgservers.terminal import Progress
    from pgstudies.measuring.session import Measurement, Session

    from .design import Comparison


FEWEST_ROUNDS = 12
"""The number of blocks that every study shall have: if fewer fit into the time, arms are left out.
Every guard needs nine; six can decide, but their interval is as wide as they differ."""

MOST_CRASHES = 20
"""A study whose servers crash more often is given up."""

NO_TIME = "there was no time, see --minutes"


class ComparedStudy(ExitStack):
    """A study that is being compared; the stack ends its session.

    Attributes:
        known: The study's arms that can be compared.
        arms: Those that are compared.
        took: How long each block of this run took (s).
        crashes: The side whose server crashed, and how, once for each step that it crashed in.

    """

    def __init__(
        self, name: str, what: Measurement, known: Sequence[str], arms: Sequence[str]
    ) -> None:
        super().__init__()
        self.name = name
        self.what = what
        self.known = known
        self.arms = tuple(arms)
        self.took: list[float] = []
        self.crashes: list[tuple[str, str]] = []
        self.session: Session | None = None

    def enter(
        self, *, comparison: Comparison, profile: str, links: str, fresh: bool, **how: Any
    ) -> None:
        """Begin the session; arms that an earlier run left out for lack of time stay out."""
        options = RunOptions(server=comparison.baseline.server, profile=profile)
        chosen = [arm for arm in self.what.arms if arm.name in self.arms and arm.server is None]
        design = designed(self.name, chosen, comparison, links=links, fresh=fresh)
        self.session = self.enter_context(session(self.what, design, options, **how))
        if self.session.records:
            known = self.session.info["arms"]
            late = [arm["name"] for arm in known if arm["not_run"] == NO_TIME]
            self.session.not_run |= dict.fromkeys(late, NO_TIME)

    @property
    def done(self) -> int:
        """The number of its finished blocks."""
        return len(self.session.finished) if self.session else 0

    @property
    def count(self) -> int:
        """The number of its arms, on all sides."""
        return len(self.session.arms) if self.session else 0

    @property
    def block_s(self) -> float:
        """How long a block takes, by the blocks of this run (s)."""
        return sum(self.took) / len(self.took) if self.took else 0.0

    def block(self) -> None:
        """Measure the next block, and if a server crashes, once more without the step.

        Raises ServerDied if it crashes in the same way again.
        """
        assert self.session is not None
        self.session.begin()
        finished = self.session.finished
        number = next(n for n in range(1, len(finished) + 2) if n not in finished)
        began = time.monotonic()
        while True:
            try:
                self.session.block(number)
                break
            except ServerDied as died:
                arm = self.session.arms.get(died.arm)
                where = (self.session.design.fails_on(arm) if arm else None) or ""
                crash = where.removeprefix("the "), str(died)
                is_again = crash in self.crashes or len(self.crashes) >= MOST_CRASHES
                if not where or not died.crashed or is_again:
                    raise
                self.crashes.append(crash)
        self.took.append(time.monotonic() - began)

    def costs(self) -> dict[str, float]:
        """How long each of the study's arms takes in a block, all its sides together (s)."""
        assert self.session is not None
        design, not_run = self.session.design, self.session.not_run
        own = {arm.name: design.own(arm).name for arm in design.arms if arm.name not in not_run}
        busy = dict.fromkeys(own.values(), 0.0)
        for entry in self.session.info["timeline"]:
            if entry["arm"] in own:
                busy[own[entry["arm"]]] += entry["busy_s"]
        whole = sum(busy.values()) or 1.0
        return {arm: self.block_s * busy_s / whole for arm, busy_s in busy.items()}

    def leave_out(self, arm: str) -> None:
        """Leave out an arm on all sides; a block then takes less, by what the arm costs."""
        assert self.session is not None
        saved = self.costs()[arm]
        design = self.session.design
        self.session.leave_out([a.name for a in design.arms if design.own(a).name == arm], NO_TIME)
        self.took = [self.block_s - saved]


@dataclass
class Rotation:
    """A block of every study in turn, the one with the fewest blocks next.

    Attributes:
        left: The studies that go on.
        enter: Begins a study's session.
        failed: Gets the name of a study that cannot go on, and the error.
        progress: The bar, which gets the number of arms to be run.
        ends_at: When the time is up, by the monotonic clock.
        most: The number of blocks that each study shall have.

    """

    left: list[ComparedStudy]
    enter: Callable[[ComparedStudy], None]
    failed: Callable[[str, StudyError], None]
    progress: Progress
    ends_at: float = math.inf
    most: int = MOST_BLOCKS

    def first_round(self) -> None:
        """Prepare every study and measure its first block, which says how long a block takes."""
        for study in list(self.left):
            self._measure(study)

    def leave_out_arms(self) -> list[tuple[str, float]]:
        """Leave out the slowest arms until ``FEWEST_ROUNDS`` blocks fit; each study keeps one arm.

        Returns their names, and how long each takes in a block (s).
        """
        lacking = FEWEST_ROUNDS - min((study.done for study in self.left), default=0)
        left_s = self.ends_at - time.monotonic()
        gone = []
        while lacking * sum(study.block_s for study in self.left) > left_s:
            costs = {
                (study, arm): cost
                for study in self.left
                if len(arms := study.costs()) > 1
                for arm, cost in arms.items()
            }
            if not costs:
                break
            study, arm = max(costs, key=lambda place: costs[place])
            gone.append((f"{study.name}, {arm}", costs[study, arm]))
            study.leave_out(arm)
        return gone

    def rounds(self) -> Iterable[int]:
        """Measure until the time is up, or every study has its blocks.

        Yields the number of blocks whenever all studies have the same; they differ by one at most.
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

    def _measure(self, study: ComparedStudy) -> None:
        """Measure a study's next block; a study that cannot go on is left out."""
        try:
            if study.session is None:
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
