"""Bisection by a number that every commit has exactly, and its answer as text for a mail."""

from __future__ import annotations

import math
import re
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgservers.errors import CannotRun, StudyError
from pgservers.terminal import printable

from ..counting.by_function import moved
from ..counting.frames import EXACT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl

    from ..builds.repository import Commit, Repository

WORTH = 0.1
"""Smaller steps, relative to the whole change, are not searched for."""

WIDTH = 79

LIMITS = "Counts of one backend under callgrind; waiting, contention and caches are not in them."

_WORTH_NAMING = 0.005
"""The least change of a function that is listed, as a part of the whole count."""


@dataclass(frozen=True)
class Step:
    """A commit at which the number changes.

    Attributes:
        commit: That commit, or the last of ``among``.
        before: The number of its parent, or of the last earlier commit that has one.
        after: The number from it on.
        among: All commits that it may be: several if some could not be built or measured.
        since: The commit that ``before`` is of.

    """

    commit: Commit
    before: float
    after: float
    among: tuple[Commit, ...]
    since: str


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
    if ends[0] == ends[1]:
        raise StudyError(f"{good} and {bad} are the same commit, {ends[0][:10]}: name two.")
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
        if whole <= EXACT:
            first, last = (found.levels[sha] for sha in ends)
            raise StudyError(
                f"{good} and {bad} do not differ: {first:,.0f} and {last:,.0f}.  Steps "
                f"between them may cancel out: try other ends."
            )
        search.worth = max(EXACT, WORTH * whole)
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
    worth: float = EXACT

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


def moved_functions(step: Step, counts: Callable[[str], pl.DataFrame]) -> pl.DataFrame:
    """The functions that a step moved: function, before, after, change; at most ten.

    ``counts`` returns a commit's table of ``instructions``.
    """
    one, other = (counts(sha).slice(1) for sha in (step.since, step.commit.sha))
    table = moved(one, other)
    return table.filter(table["change"].abs() >= _WORTH_NAMING * step.before)


def as_text(found: Found, what: str, functions: Mapping[str, pl.DataFrame]) -> str:
    """The steps with commit, date, author, subject, both numbers and the functions that moved.

    ``what`` names what was counted, ``functions`` has the tables of ``moved_functions`` by commit.
    """
    lines = []
    for step in found.steps:
        percent = 100 * (step.after / step.before - 1)
        lines.append(f"{what}: {_count(step.before)} -> {_count(step.after)} ({percent:+.1f} %)")
        if len(step.among) > 1:
            lines.append(f"by one of {len(step.among)} commits: the others could not be measured")
        for commit in step.among:
            lines += [f"  {commit.short}  {commit.date}  {commit.author}"]
            lines += textwrap.wrap(
                commit.subject, WIDTH, initial_indent="    ", subsequent_indent="    "
            )
        table = functions.get(step.commit.sha)
        if table is not None and table.height:
            lines.append("  in these functions (instructions of their own, for one unit):")
            for name, before, after, change_of in table.iter_rows():
                both = f"{_count(before):>10} -> {_count(after):>10}"
                lines.append(f"    {name[:40]:40} {both}  {change_of:+,.0f}")
        lines.append("")
    lines.append(f"{len(found.levels)} commits measured, {len(found.skipped)} skipped.")
    lines += [f"  skipped {sha[:10]}: {reason}" for sha, reason in found.skipped.items()]
    lines += textwrap.wrap(LIMITS, WIDTH)
    return "\n".join(map(printable, lines))


def _count(number: float) -> str:
    """Instructions with three digits: 13.2 million, 4,320."""
    if number >= 1e6:
        return f"{number / 1e6:.3g} million"
    return f"{number:,.0f}"
