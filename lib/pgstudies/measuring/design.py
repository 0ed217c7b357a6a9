"""The design of a block: which arms, on which servers, in which order they take turns."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from pgservers.servers.settings import merged

from .arms import Arm, baseline_of
from .trial import Trial

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgservers.errors import StudyError
    from pgservers.servers.serve import Server

    from ..records.info import ArmFacts, Info, Setup


def with_repeat(arms: Sequence[Arm]) -> list[Arm]:
    """The arms, and after the baseline a second copy of it: the A/A pair."""
    baseline = baseline_of(arms)
    again = replace(
        baseline,
        name=f"{baseline.name} (again)",
        description=f"The same as {baseline.name}: what differs between the two is noise.",
        copy_of=baseline.name,
    )
    place = arms.index(baseline) + 1
    return [*arms[:place], again, *arms[place:]]


def turn_order(arms: Sequence[str], seed: int, block: int, turn: int) -> list[str]:
    """The order in which arms take one turn: random, and the same for the same numbers.

    Over n turns, 2n for an odd number n of arms, every arm comes directly before every other one
    equally often, and is equally often at each place: Williams, Experimental designs balanced for
    the estimation of residual effects of treatments, Australian Journal of Scientific Research A 2,
    1949.  Every second turn begins with the arm that ended the one before, so that arms also follow
    themselves.  Which arm is which, the order of these pairs of turns and the order within a pair
    are drawn anew for each such cycle.  When an arm ends, the others go on in a cycle of their own.
    """
    count = len(arms)
    pairs = _williams(count)
    cycle, at = divmod(turn - 1, sum(map(len, pairs)))
    draw = random.Random(f"{seed} {block} {count} {cycle}")  # noqa: S311  (an experiment's order, not a secret)
    names, drawn = draw.sample(list(arms), count), draw.sample(pairs, len(pairs))
    rows = [row for pair in drawn for row in draw.sample(pair, len(pair))]
    return [names[number] for number in rows[at]]


def _williams(count: int) -> list[list[list[int]]]:
    """The rows of a Latin square in which each number follows each other one once, in pairs.

    For an odd number of rows, those of two squares: each follows twice.  Of two rows that are a
    pair, either begins with the number that ends the other.
    """
    zigzag = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(count)]
    square = [[(start + step) % count for step in zigzag] for start in range(count)]
    if count % 2:
        return [[row, row[::-1]] for row in square]
    half = count // 2
    return [list(pair) for pair in zip(square[:half], square[half:], strict=True)]


@dataclass(frozen=True, kw_only=True)
class Design:
    """What is measured in a block: a study's own arms; other designs derive from it.

    Attributes:
        study: The name of its records' study.
        arms: Every arm.
        pin: Whether client and managed servers share a core, where the study lets them.
        fresh: Whether an unfinished record is left alone.

    """

    study: str
    arms: tuple[Arm, ...]
    pin: bool = True
    fresh: bool = False

    @property
    def needed(self) -> Arm | None:
        """The arm without which nothing can be measured: the baseline."""
        return baseline_of(self.arms)

    def in_force(
        self, settings: Mapping[str, str], as_then: Mapping[str, str]
    ) -> Mapping[str, str]:
        """The study's settings, with ``as_then``, which make a server work as the post's did."""
        return merged(settings, as_then)

    def own(self, arm: Arm) -> Arm:
        """The arm as the study's procedure knows it."""
        return arm

    def served(
        self, errors: Mapping[str | None, StudyError], lacking: Mapping[str, str] = {}
    ) -> Self:
        """The design with a second copy of the baseline, and the reasons of arms that cannot run.

        ``errors`` has the servers that did not start, by the words that arms use for them;
        ``lacking`` what arms lack on their servers, by the arm's name.
        """
        arms = [
            replace(arm, not_run=str(errors.get(arm.server) or lacking[arm.name]))
            if arm.not_run is None and (arm.server in errors or arm.name in lacking)
            else arm
            for arm in self.arms
        ]
        return replace(self, arms=tuple(with_repeat(arms)))

    def units(self, arms: Sequence[Arm]) -> tuple[list[Arm], list[list[Arm]]]:
        """The arms of every group, here the baseline's copies; and the arms that stay together."""
        baseline = baseline_of(arms)
        always = [arm for arm in arms if arm is baseline or arm.copy_of == baseline.name]
        units: dict[str, list[Arm]] = {}
        for arm in arms:
            if arm not in always:
                units.setdefault(arm.together or arm.name, []).append(arm)
        return always, [*units.values()]

    def fall_with(self, arm: Arm) -> list[Arm]:
        """The arms that are left out if this one cannot run, itself included."""
        return [arm]

    def fails_on(self, arm: Arm) -> str | None:  # noqa: ARG002
        """Where a failing statement fails, if it leaves the arm out; None if it ends the run."""
        return None

    def continues(self, info: Info) -> bool:
        """Whether a run adds its blocks to those of an earlier record that is alike."""
        return info["status"] != "complete"

    def begin(self, info: Info, block: int, arm: Arm, server: Server) -> None:
        """Prepare a server before its start in a block (0: preparation), and record how."""

    def trial(self, server: Server, arm: Arm, **where: Any) -> Trial:
        """Where an arm is run in a block; ``where`` is passed to ``Trial``."""
        return Trial(server, arm, own=self.own(arm), **where)

    def note(self, info: Info, trials: Mapping[str, Trial]) -> None:
        """Add to the record what else was found in a block, while its servers still run."""

    def describe(self, arm: Arm) -> ArmFacts:
        """The facts of an arm in record.json."""
        return {
            "name": arm.name,
            "description": arm.description,
            "baseline": arm is baseline_of(self.arms),
            "copy_of": arm.copy_of,
            "state": arm.state,
            "settings": dict(arm.settings),
            "options": dict(arm.options),
            "server": arm.server,
            "not_run": arm.not_run,
        }

    def completed(self, setup: Setup) -> Setup:
        """The setup with what this design adds to it before the first block."""
        return setup
