"""Arms: the ways of doing it that a study compares."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        repeats: The arm this one is a second copy of (the A/A pair).
        not_run: Why it cannot run here, known beforehand.
        plays: In a comparison, the name of the study's arm that this one is on one side.
        side: In a comparison, that side.

    """

    name: str
    description: str = ""
    state: str = "plain"
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    server: str | None = None
    repeats: str | None = None
    not_run: str | None = None
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
        repeats=baseline.name,
    )
    place = arms.index(baseline) + 1
    return [*arms[:place], again, *arms[place:]]


def block_orders(arms: Sequence[str], blocks: int, seed: int) -> list[list[str]]:
    """The order of arms in every block, the same for the same seed.

    Blocks come in pairs: the first of a pair is shuffled, the second runs in reverse, so that over
    a pair no arm is on average earlier than another.  The order of a block does not depend on how
    many blocks follow it.
    """
    orders: list[list[str]] = []
    shuffle = random.Random(seed).shuffle  # noqa: S311  (an experiment's order, not a secret)
    while len(orders) < blocks:
        order = list(arms)
        shuffle(order)
        orders += [order, order[::-1]]
    return orders[:blocks]
