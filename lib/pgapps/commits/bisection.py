"""Bisection by a number that every commit has exactly, such as the instructions of a unit."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pgservers.errors import CannotRun, StudyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..builds.repository import Commit, Repository

ALIKE = 0.001
"""Numbers that differ by less (relative) count as the same: two counts differ by as much."""

WORTH = 0.1
"""Smaller steps, relative to the whole change, are not searched for."""


@dataclass(frozen=True)
class Step:
    """A commit at which the number changes.

    Attributes:
        commit: That commit, or the last of those it may be.
        before: The number of its parent, or of the last commit before that has one.
        after: The number from it on.
        among: All it may be, where commits between could not be built or measured; else one.
        since: The name of the commit that has the number before it.

    """

    commit: Commit
    before: float
    after: float
    among: tuple[Commit, ...]
    since: str

    def as_dict(self) -> dict[str, Any]:
        """The step in the types of JSON."""
        return asdict(self)


@dataclass
class Found:
    """What a bisection found.

    Attributes:
        steps: Where the number changes, the largest first.
        levels: The number of every commit that was measured, by name, in the order of measuring.
        skipped: Why others were not measured, by name.

    """

    steps: list[Step] = field(default_factory=list)
    levels: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def bisect(
    repository: Repository,
    good: str,
    bad: str,
    measure: Callable[[str], float],
    *,
    show: Callable[[str, int], object] = lambda _, __: None,
) -> Found:
    """Find the commits between ``good`` and ``bad`` at which a number changes.

    ``measure`` gives the number of a commit, and raises CannotRun for one that has none: it is
    skipped.  Each commit is measured once, and is good or bad by the end that its number is nearer
    to, as a ratio.  If a third level lies between, what remains on either side is searched in the
    same way, as long as it is at least the part ``WORTH`` of the whole.  Raises StudyError where an
    end cannot be measured, where both have the same number (two steps may cancel out), and where
    git finds no path from one to the other.

    Where ``good`` is on a branch of its own, such as a release's, both ends are compared with the
    commit where it branched off.  ``show`` gets what is measured next, and how many commits are
    left to measure.
    """
    found = Found()
    search = _Search(repository, measure, show, found)
    ends = (repository.commit(good).sha, repository.commit(bad).sha)
    origin = repository.merge_base(*ends)
    names = {ends[0]: good, ends[1]: bad}
    names.setdefault(origin, f"{origin[:10]}, where {good} branched off,")
    with repository.held():
        for sha, name in names.items():
            try:
                search.level(sha)
            except CannotRun as reason:
                raise StudyError(f"{name} cannot be measured: {reason}.") from None
        whole = search.apart(*ends)
        if whole <= ALIKE:
            first, last = (found.levels[sha] for sha in ends)
            raise StudyError(
                f"{good} and {bad} do not differ: {first:,.0f} and {last:,.0f}.  Steps "
                f"between them may cancel out: try other ends."
            )
        search.worth = max(ALIKE, WORTH * whole)
        for end in dict.fromkeys(ends):
            if search.apart(origin, end) > search.worth:
                search.between(origin, end)
    found.steps.sort(key=lambda step: abs(math.log(step.after / step.before)), reverse=True)
    return found


@dataclass
class _Search:
    """The state of a bisection, and its measurements."""

    repository: Repository
    measure: Callable[[str], float]
    show: Callable[[str, int], object]
    found: Found
    worth: float = ALIKE

    def level(self, sha: str) -> float:
        """The number of a commit, measured once; raises CannotRun where it has none."""
        found = self.found
        if sha in found.skipped:
            raise CannotRun(found.skipped[sha])
        if sha not in found.levels:
            try:
                found.levels[sha] = self.measure(sha)
            except CannotRun as reason:
                found.skipped[sha] = str(reason)
                raise
        return found.levels[sha]

    def apart(self, one: str, other: str) -> float:
        """The difference between the numbers of two measured commits."""
        return abs(math.log(self.found.levels[one] / self.found.levels[other]))

    def between(self, good: str, bad: str) -> None:
        """Add the steps between two commits to ``found``."""
        among = self._first_bad(good, bad)
        last, levels = among[-1], self.found.levels
        before = good
        if len(among) > 1:
            before = self._last_measured(good, among[0])
        elif (parent := self.repository.parent(last)) != good:
            try:
                self.level(parent)
                before = parent
            except CannotRun:
                before = self._last_measured(good, last)
        after = last if last in levels else bad
        commits = tuple(self.repository.commit(sha) for sha in among)
        step = Step(commits[-1], levels[before], levels[after], commits, before)
        self.found.steps.append(step)
        for one, other in ((good, before), (after, bad)):
            if one != other and self.apart(one, other) > self.worth:
                self.between(one, other)

    def _last_measured(self, good: str, until: str) -> str:
        """The last measured commit from ``good`` up to, and without, ``until``."""
        path = self.repository.git("rev-list", "--first-parent", f"{good}..{until}").split()
        return next((sha for sha in path[1:] if sha in self.found.levels), good)

    def _first_bad(self, good: str, bad: str) -> list[str]:
        """The first commit nearer to the bad end, by git's own bisection; or all candidates."""
        git = self.repository.git
        output = git("bisect", "start", "--no-checkout", bad, good)
        try:
            while "is the first bad commit" not in output:
                sha = git("rev-parse", "--verify", "BISECT_HEAD").strip()
                self.show(f"{_remaining(output)}, now {sha[:10]}", _steps(output))
                # With commits skipped that it may be, git ends with an error.
                output = git("bisect", self._word(sha, good, bad), sha, check=False)
                if "'skip'ped commits left" in output:
                    left = {line.strip() for line in output.splitlines()}
                    order = git("rev-list", "--topo-order", "--reverse", f"{good}..{bad}")
                    return [commit for commit in order.split() if commit in left]
                if not output.strip():
                    raise StudyError(f"git cannot bisect from {good[:10]} to {bad[:10]}.")
            return [git("rev-parse", "--verify", "refs/bisect/bad").strip()]
        finally:
            git("bisect", "reset", check=False)

    def _word(self, sha: str, good: str, bad: str) -> str:
        try:
            self.level(sha)
        except CannotRun:
            return "skip"
        return "good" if self.apart(sha, good) < self.apart(sha, bad) else "bad"


def _remaining(output: str) -> str:
    """Git's own text about how much is left."""
    line = next((line for line in output.splitlines() if line.startswith("Bisecting: ")), "")
    return line.removeprefix("Bisecting: ") or "the last commits"


def _steps(output: str) -> int:
    """The number of commits that git expects to need, this one included."""
    estimate = re.search(r"roughly (\d+) step", output)
    return 1 + int(estimate[1]) if estimate else 1
