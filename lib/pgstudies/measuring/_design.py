"""Arms, and the design of a run: which arms, which blocks, when to stop.

A study's own run, one block of a sweep and a comparison of two servers are three designs; all are
measured in one way.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from ..errors import StudyError
from ..paths import records_dir
from ..records.reading import infos_below, read_info
from ..servers.settings import merged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ..orders import Orders


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
        plays: In a comparison, the name of the study's arm that this one is on one side.
        side: In a comparison, that side.

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
    plays: str | None = None
    side: str | None = None


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
    """The order in which arms take one turn: random, and the same for the same numbers."""
    order = list(arms)
    random.Random(f"{seed} {block} {turn}").shuffle(order)  # noqa: S311  (an experiment's order, not a secret)
    return order


BASELINE, AGAIN, CANDIDATE = "baseline", "baseline (again)", "candidate"


SIDES = (BASELINE, AGAIN, CANDIDATE)


COMPARED = "compare_"
"""How the records of comparisons are named: before the study's name, so that no page takes them."""


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

    """

    baseline: Side
    candidate: Side
    arms: tuple[str, ...] = ()
    copies: bool = True
    pin: bool = True
    seconds: float = 0.0
    since: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The comparison in the types of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """The comparison of which ``as_dict`` made this."""
        sides = {name: Side(**values[name]) for name in (BASELINE, CANDIDATE)}
        return cls(**{**values, **sides, "arms": tuple(values["arms"])})


def played(arm: Arm) -> Arm:
    """The study's own arm, as its procedure knows it."""
    return replace(arm, name=arm.plays, server=None, copy_of=None) if arm.plays else arm


def records_of(study: str, mark: str, since: str = "") -> list[Path]:
    """The records of one comparison, oldest first; ``study`` is its name in the records.

    ``since`` leaves out those begun before.
    """
    found = infos_below(records_dir(), study)
    return [d for d, i in found if i.get("fingerprint") == mark and str(i["started_at"]) >= since]


def blocks_compared(study: str, mark: str, since: str = "") -> int:
    """How many blocks the complete records of a comparison have; the next begins after them."""
    infos = [read_info(directory) for directory in records_of(study, mark, since)]
    done = [entry["block"] for i in infos if i["status"] == "complete" for entry in i["timeline"]]
    return max(done, default=0)


@dataclass(frozen=True)
class Side:
    """One of the two: a server in the words of ``serve``, and settings that only it has."""

    server: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        declared = ", ".join(f"{name} = {value}" for name, value in self.settings.items())
        return f"{self.server} with {declared}" if declared else self.server


@dataclass(frozen=True)
class Design:
    """What a run measures.

    Attributes:
        study: The name of its records' study.
        arms: Every arm, the copies of baselines included.
        blocks: The numbers of the blocks wanted.
        pin: Whether client and owned servers share a core, where the study lets them.
        seconds: No block but the first begins that would probably end later than this after the
            first began; 0 is no limit.
        fresh: Whether an unfinished record is left alone.
        comparison: The comparison whose arms these are, or None.

    """

    study: str
    arms: tuple[Arm, ...]
    blocks: tuple[int, ...]
    pin: bool = True
    seconds: float = 0.0
    fresh: bool = False
    comparison: Comparison | None = None

    def missing(self, fingerprint: str) -> tuple[int, ...]:
        """The blocks that no earlier record with this fingerprint holds."""
        if self.comparison is None:
            return self.blocks
        return self.blocks[blocks_compared(self.study, fingerprint, self.comparison.since) :]

    def info(self) -> dict[str, Any]:
        """What record.json has for this design alone; facts and plans are added to it."""
        if self.comparison is None:
            return {}
        return {"comparison": self.comparison.as_dict() | {"facts": {}}, "plans": {}}


def planned(study: str, arms: Sequence[Arm], blocks: int, orders: Orders) -> Design:
    """The design of a study's run by its orders, with no copy of the baseline yet.

    Raises StudyError for a comparison of arms that there are not, or that cannot run.
    """
    numbers = (orders.block,) if orders.block else tuple(range(1, blocks + 1))
    if orders.comparison is None:
        return Design(study, tuple(arms), numbers, fresh=orders.fresh)
    comparison = Comparison.from_dict(orders.comparison)
    return Design(
        f"{COMPARED}{study}",
        tuple(_both_sides(comparison, arms)),
        numbers,
        pin=comparison.pin,
        seconds=comparison.seconds,
        fresh=orders.fresh or bool(comparison.since),
        comparison=comparison,
    )


def with_copies(design: Design) -> Design:
    """The design with a second copy of the baseline, now that it is known which arm that is."""
    if design.comparison is not None:  # whose copies are among its sides
        return design
    return replace(design, arms=tuple(with_repeat(design.arms)))


def _both_sides(comparison: Comparison, arms: Sequence[Arm]) -> list[Arm]:
    """Every chosen arm of a study on both servers, the baseline twice.

    The baseline is the study's own server.
    """
    own = {arm.name: arm for arm in arms if arm.server is None}
    unknown = [name for name in comparison.arms if name not in own]
    if unknown:
        raise StudyError(
            f"The study has no arm {unknown[0]!r} to compare; there is {', '.join(own)}."
        )
    chosen = [own[name] for name in comparison.arms or own]
    if all(arm.not_run for arm in chosen):
        raise StudyError(f"No arm can be compared: {chosen[0].not_run}.")
    # Where only settings differ, both are the same server's.
    other = comparison.candidate.server
    servers = {CANDIDATE: None if other == comparison.baseline.server else other}
    settings = {CANDIDATE: comparison.candidate.settings}
    return [
        replace(
            arm,
            name=f"{arm.name}, {name}",
            plays=arm.name,
            side=name,
            server=servers.get(name),
            settings=merged(arm.settings, settings.get(name, comparison.baseline.settings)),
            copy_of=f"{arm.name}, {BASELINE}" if name == AGAIN else None,
        )
        for arm in chosen
        for name in SIDES
        if comparison.copies or name != AGAIN
    ]
