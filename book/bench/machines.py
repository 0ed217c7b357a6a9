"""Simulated machines: how long turns take where speed flips, drifts, spikes, and starts have luck.

Times are logarithms, in which a steady machine has 0 for every turn.  The slots in which turns are
taken follow each other in time; a design says which arm has which slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from pgstudies.measuring.design import turn_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

SPEEDS_APART = np.log(1.7)
SPIKE = np.log(1.5)


@dataclass(frozen=True)
class Machine:
    """What is wrong with a machine; the defaults are those of a good one.

    Attributes:
        flips_per_s: How often it goes from one of its two speeds to the other.
        walk: Standard deviation of a random walk of its speed, over one second.
        slowing: How much slower it gets in one second.
        spikes: The share of turns that something disturbs.
        luck: Standard deviation of what one start of an arm has for all its turns.
        noise: Standard deviation of one turn.

    """

    flips_per_s: float = 0.0
    walk: float = 0.0
    slowing: float = 0.0
    spikes: float = 0.0
    luck: float = 0.0
    noise: float = 0.01

    def slots(self, rng: np.random.Generator, shape: tuple[int, ...], turn_s: float) -> Numbers:
        """ln(time) of slots of ``turn_s``, whose last axis is time."""
        odd = (1 - np.exp(-2 * self.flips_per_s * turn_s)) / 2
        flips = rng.random(shape) < odd
        flips[..., 0] = rng.random(shape[:-1]) < 0.5  # either speed may be the first
        log: Numbers = SPEEDS_APART * (flips.cumsum(axis=-1) % 2)
        log += (self.walk * turn_s**0.5 * rng.standard_normal(shape)).cumsum(axis=-1)
        log += self.slowing * turn_s * np.arange(shape[-1])
        log += SPIKE * (rng.random(shape) < self.spikes)
        return log + self.noise * rng.standard_normal(shape)

    def starts(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Numbers:
        """The luck of each start, on the log scale."""
        return self.luck * rng.standard_normal(shape)


GOOD = Machine()

TWO_SPEEDS = Machine(flips_per_s=1.0)
"""As the shared machine of the reference records: 1.7 times apart, about one flip in a second."""

DRIFTING = Machine(walk=0.02, slowing=0.005)

SPIKY = Machine(spikes=0.03)

LUCKY = Machine(luck=0.02)

ALL_AT_ONCE = replace(TWO_SPEEDS, walk=0.02, slowing=0.005, spikes=0.03, luck=0.02)

MACHINES = {
    "good": GOOD,
    "two speeds": TWO_SPEEDS,
    "drift": DRIFTING,
    "spikes": SPIKY,
    "luck of a start": LUCKY,
    "all at once": ALL_AT_ONCE,
}


def in_turns(rng: np.random.Generator, slots: Numbers, arms: int) -> Numbers:
    """The slots of each arm, where all take turns in random order: …, rounds, arms."""
    rounds = slots.reshape(*slots.shape[:-1], -1, arms)
    order = rng.permuted(np.broadcast_to(np.arange(arms), rounds.shape), axis=-1)
    return np.take_along_axis(rounds, order, axis=-1)


def one_after_another(rng: np.random.Generator, slots: Numbers, arms: int) -> Numbers:
    """The slots of each arm, where each takes all of its own at once: …, rounds, arms."""
    each = slots.reshape(*slots.shape[:-1], arms, -1)
    order = rng.permuted(np.broadcast_to(np.arange(arms), each.shape[:-1]), axis=-1)
    return np.swapaxes(np.take_along_axis(each, order[..., np.newaxis], axis=-2), -1, -2)


def after_others(
    rng: np.random.Generator,
    machine: Machine,
    arms: Mapping[str, float],
    *,
    left: Mapping[str, float] = {},
    blocks: int = 10,
    rounds: int = 20,
) -> pl.DataFrame:
    """Round values of arms that are equal but for what another's turn before costs them.

    By name, ``arms`` has the logarithm of what the worst one before costs a turn, and ``left`` how
    much of that an arm leaves to the next: 1 where it is not named.  An arm's own turn leaves
    nothing.
    """
    names = list(arms)
    orders = np.array(
        [
            [
                turn_order(names, int(rng.integers(2**31)), block, turn)
                for turn in range(1, rounds + 1)
            ]
            for block in range(1, blocks + 1)
        ]
    ).reshape(blocks, -1)
    log = machine.slots(rng, orders.shape, 0.02)
    luck = machine.starts(rng, (blocks, len(names)))
    before = np.roll(orders, 1, axis=1)
    before[:, 0] = ""
    rows = []
    for block in range(blocks):
        for at, (name, after) in enumerate(zip(orders[block], before[block], strict=True)):
            cost = arms[name] * left.get(after, 1.0) if after not in {"", name} else 0.0
            value = math.exp(log[block, at] + luck[block, names.index(name)] + cost)
            place = at % len(names) + 1
            rows.append(
                (block + 1, f"1.0.{at // len(names) + 1}", name, place, after or None, value)
            )
    schema = ["block", "round", "arm", "position", "after", "value"]
    copy_of = pl.when(arm="baseline (again)").then(pl.lit("baseline"))
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        unit=pl.lit("s"), copy_of=copy_of
    )
