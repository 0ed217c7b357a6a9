"""Arms, and the design of a run: which arms, which blocks, when to stop.

A study's own run and one block of a sweep are a ``Design``, a comparison of two servers is a
``ComparisonDesign``; all are measured in one way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import polars as pl

from pgservers.errors import StudyError
from pgservers.paths import records_dir
from pgservers.servers.settings import merged

from ..checking import checked
from ..records.reading import infos_below, is_of_this_host, read_info

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ..orders import Orders
    from ..records.info import ArmFacts, Setup


@dataclass(frozen=True)
class Arm:
    """One way of doing it: a prepared state, server settings, options for the procedure.

    Attributes:
        name: What the pages call it.
        description: One sentence for the page.
        state: Which prepared state it starts from; arms naming the same state share it.
        settings: Server settings that differ from the study's.
        options: Values that the study's own procedure looks up.
        server: The server it runs on, in the words of ``serve``; None is the study's own.
        copy_of: The arm this one is a second copy of (the A/A pair).
        not_run: Why it cannot run here, known beforehand.
        memory_bytes: What it takes beside shared buffers, for all arms are up at once.
        extension: One of our C extensions that it needs, built for the server that it runs on.
        own_programs: Whether it runs from a copy of its server's programs, which no other arm warms
            the processor's caches for.

    """

    name: str
    description: str = ""
    state: str = "plain"
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    server: str | None = None
    copy_of: str | None = None
    not_run: str | None = None
    memory_bytes: int = 0
    extension: str | None = None
    own_programs: bool = False


def arm_table(arms: Sequence[Arm]) -> pl.DataFrame:
    """The arms for readers: arm, what it is, not run (why, or null)."""
    schema = dict.fromkeys(["arm", "what it is", "not run"], pl.String())
    rows = [(arm.name, arm.description, arm.not_run) for arm in arms]
    return pl.DataFrame(rows, schema=schema, orient="row")


def baseline_of(arms: Sequence[Arm]) -> Arm:
    """The first arm that can run, as far as is known; the first where none can."""
    return next((arm for arm in arms if arm.not_run is None), arms[0])


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
    1949.  Every second of these turns begins with the arm that ended the one before, so that there
    are turns after an arm's own as well.  Which arm is which, the order of these pairs and which of
    a pair is first are drawn anew for each such cycle.  An arm that ends leaves the others with the
    rest of a cycle of their own, then whole ones.
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
    """What a run measures: a study's own arms, in all its blocks or in one block of a sweep.

    Attributes:
        study: The name of its records' study.
        arms: Every arm.
        blocks: The numbers of the blocks wanted.
        pin: Whether client and managed servers share a core, where the study lets them.
        seconds: No block but the first begins that would probably end later than this after the
            first began; 0 is no limit.
        fresh: Whether an unfinished record is left alone.
        observed: Whether plans, results, waits and the servers' facts are kept as well.

    """

    study: str
    arms: tuple[Arm, ...]
    blocks: tuple[int, ...]
    pin: bool = True
    seconds: float = 0.0
    fresh: bool = False

    observed: ClassVar[bool] = False

    @property
    def needed(self) -> Arm | None:
        """The arm without which nothing can be measured: the baseline."""
        return baseline_of(self.arms)

    def in_force(
        self, settings: Mapping[str, str], as_then: Mapping[str, str]
    ) -> Mapping[str, str]:
        """The study's settings, with those that make a server work as that of the post did."""
        return merged(settings, as_then)

    def own(self, arm: Arm) -> Arm:
        """The arm as the study's procedure knows it."""
        return arm

    def served(
        self, errors: Mapping[str | None, StudyError], lacking: Mapping[str, str] = {}
    ) -> Self:
        """The design for the servers that could be started, with a second copy of the baseline.

        ``errors`` has the others, by the words that arms use for them, ``lacking`` what arms lack
        on their servers, by the arm's name.
        """
        arms = [
            replace(arm, not_run=str(errors.get(arm.server) or lacking[arm.name]))
            if arm.not_run is None and (arm.server in errors or arm.name in lacking)
            else arm
            for arm in self.arms
        ]
        return replace(self, arms=tuple(with_repeat(arms)))

    def units(self, arms: Sequence[Arm]) -> tuple[list[Arm], list[list[Arm]]]:
        """The arms of every group, which are the baseline's copies; and what stays together.

        ``arms`` are those that can run.
        """
        baseline = baseline_of(arms)
        always = [arm for arm in arms if arm is baseline or arm.copy_of == baseline.name]
        return always, [[arm] for arm in arms if arm not in always]

    def fails_on(self, arm: Arm) -> str | None:  # noqa: ARG002  (a comparison asks for it)
        """Where a statement that fails is a reason to leave the arm out; None: it is an error."""
        return None

    def missing(self, mark: str) -> tuple[int, ...]:  # noqa: ARG002  (a comparison asks for it)
        """The blocks that no earlier record with this fingerprint holds."""
        return self.blocks

    def describe(self, arm: Arm) -> ArmFacts:
        """What record.json has for an arm."""
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
        """What a record of this design knows before its first block."""
        return setup


BASELINE, COPY, CANDIDATE = "baseline", "baseline (again)", "candidate"
"""The sides of a comparison; records name them so."""


SIDES = (BASELINE, COPY, CANDIDATE)


COMPARED = "compare_"
"""How the records of comparisons are named: before the study's name, so that no page takes them."""


class Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the two: a server in the words of ``serve``, and settings that only it has."""

    server: str
    settings: dict[str, str] = {}

    def __str__(self) -> str:
        declared = ", ".join(f"{name} = {value}" for name, value in self.settings.items())
        return f"{self.server} with {declared}" if declared else self.server


@dataclass(frozen=True)
class Comparison:
    """What is compared, in which arms of a study, and for how long.

    Attributes:
        baseline: The side that is divided by.
        candidate: The other one.
        arms: The names of the study's arms; empty for all that run on the study's own server.
        copies: Whether a second copy of the baseline runs as well (A/A).
        pin: Whether studies may keep client and server on one core.
        seconds: No block but the first begins that would probably end later than this; 0 for no
            limit.
        since: Blocks measured before this time (UTC) do not count; empty for all.
        fitted: Whether the arms are those for which there was time, not all that were asked for.

    """

    baseline: Side
    candidate: Side
    arms: tuple[str, ...] = ()
    copies: bool = True
    pin: bool = True
    seconds: float = 0.0
    since: str = ""
    fitted: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The comparison in the types of JSON."""
        about: dict[str, Any] = msgspec.to_builtins(self)
        return about

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """The comparison of which ``as_dict`` made this; raises StudyError for anything else."""
        return checked(values, cls, "A comparison is invalid")


@dataclass(frozen=True, kw_only=True)
class ComparisonDesign(Design):
    """Every arm chosen on both sides, the baseline twice.

    Attributes:
        comparison: What is compared.
        stands_for: By the name of an arm, the study's own arm and the side it is on.

    """

    comparison: Comparison
    stands_for: Mapping[str, tuple[Arm, str]]

    observed: ClassVar[bool] = True

    @property
    def needed(self) -> None:
        """Any arm may be left out, on all sides."""
        return

    def in_force(
        self,
        settings: Mapping[str, str],
        as_then: Mapping[str, str],  # noqa: ARG002  (a study's own run has them)
    ) -> Mapping[str, str]:
        """The study's settings alone: the two servers are compared as they are."""
        return settings

    def own(self, arm: Arm) -> Arm:
        """The study's arm that this one stands for."""
        return self.stands_for[arm.name][0]

    def served(
        self, errors: Mapping[str | None, StudyError], lacking: Mapping[str, str] = {}
    ) -> Self:
        """The same without arms that one side lacks something for; raises StudyError with none.

        Without one of its servers there is nothing to compare.
        """
        for error in errors.values():
            raise error
        reasons: dict[str, str] = {}
        for name, reason in lacking.items():
            own, side = self.stands_for[name]
            reasons.setdefault(own.name, f"{reason}, on the {side}")
        arms = [
            replace(arm, not_run=arm.not_run or reasons.get(self.own(arm).name))
            for arm in self.arms
        ]
        if all(arm.not_run for arm in arms):
            raise StudyError(f"No arm can be compared: {arms[0].not_run}.")
        return replace(self, arms=tuple(arms))

    def units(self, arms: Sequence[Arm]) -> tuple[list[Arm], list[list[Arm]]]:
        """No arm that every group has; all sides of an arm stay together, and run or do not."""
        names = dict.fromkeys(self.own(arm).name for arm in arms)
        return [], [[arm for arm in arms if self.own(arm).name == name] for name in names]

    def fails_on(self, arm: Arm) -> str:
        """The side: what fails on one is not compared."""
        return f"the {self.stands_for[arm.name][1]}"

    def missing(self, mark: str) -> tuple[int, ...]:
        """The blocks that come after those of earlier records."""
        return self.blocks[_blocks_compared(self.study, mark, self.comparison.since) :]

    def describe(self, arm: Arm) -> ArmFacts:
        """What record.json has for an arm, with the study's arm (``of``) and the side."""
        own, side = self.stands_for[arm.name]
        return {**super().describe(arm), "of": own.name, "side": side}

    def completed(self, setup: Setup) -> Setup:
        """The same, with the comparison; the rest is added to it."""
        about = self.comparison.as_dict()
        return {**setup, "comparison": about, "facts": {}, "plans": {}, "rows": []}


def planned(study: str, arms: Sequence[Arm], blocks: int, orders: Orders) -> Design:
    """The design of a study's run by its orders.

    Raises StudyError for a comparison of arms that there are not, or that cannot run.
    """
    numbers = (orders.block,) if orders.block else tuple(range(1, blocks + 1))
    if orders.comparison is None:
        return Design(study=study, arms=tuple(arms), blocks=numbers, fresh=orders.fresh)
    comparison = Comparison.from_dict(orders.comparison)
    stands_for = _on_both_sides(comparison, arms)
    return ComparisonDesign(
        study=f"{COMPARED}{study}",
        arms=tuple(_on_side(comparison, name, *what) for name, what in stands_for.items()),
        blocks=numbers,
        pin=comparison.pin,
        seconds=comparison.seconds,
        fresh=orders.fresh or bool(comparison.since),
        comparison=comparison,
        stands_for=stands_for,
    )


def _on_both_sides(comparison: Comparison, arms: Sequence[Arm]) -> dict[str, tuple[Arm, str]]:
    """Every chosen arm of a study on every side, by the name that it has there."""
    own = {arm.name: arm for arm in arms if arm.server is None}
    unknown = [name for name in comparison.arms if name not in own]
    if unknown:
        raise StudyError(
            f"The study has no arm {unknown[0]!r} to compare; there is {', '.join(own)}."
        )
    chosen = [own[name] for name in comparison.arms or own]
    if all(arm.not_run for arm in chosen):
        raise StudyError(f"No arm can be compared: {chosen[0].not_run}.")
    sides = [name for name in SIDES if comparison.copies or name != COPY]
    return {f"{arm.name}, {side}": (arm, side) for arm in chosen for side in sides}


def _on_side(comparison: Comparison, name: str, arm: Arm, side: str) -> Arm:
    settings, server = comparison.baseline.settings, None
    # Where only settings differ, both are the same server's.
    are_two = comparison.candidate.server != comparison.baseline.server
    if side == CANDIDATE:
        settings = comparison.candidate.settings
        server = comparison.candidate.server if are_two else None
    return replace(
        arm,
        name=name,
        server=server,
        settings=merged(arm.settings, settings),
        copy_of=f"{arm.name}, {BASELINE}" if side == COPY else None,
        # Else the baseline would find its code in the caches, from its copy's turns, and the
        # candidate would not: 4 to 6 % for a statement of a millisecond.
        own_programs=are_two and side == COPY,
    )


def records_of(study: str, mark: str, since: str = "") -> list[Path]:
    """The records of one comparison, oldest first; ``study`` is its name in the records.

    ``mark`` is their fingerprint, or the part of it that tells the conditions without the code.
    ``since`` leaves out those begun before.  Those of another host are left out.
    """
    found = infos_below(records_dir(), study)
    return [
        directory
        for directory, info in found
        if info.get("fingerprint", "").startswith(mark)
        and str(info["started_at"]) >= since
        and is_of_this_host(info)
    ]


def _blocks_compared(study: str, mark: str, since: str) -> int:
    """How many blocks the complete records of a comparison have; the next begins after them."""
    infos = [read_info(directory) for directory in records_of(study, mark, since)]
    done = [entry["block"] for i in infos if i["status"] == "complete" for entry in i["timeline"]]
    return max(done, default=0)
