"""Family errors and power on the simulated machines: joint sign flips beside Holm's correction.

The table in book/simulations.md: ``python -m book.bench.families``, 15 minutes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from statsmodels.stats.multitest import multipletests

from book.bench.machines import MACHINES, in_turns
from pgstudies.analysis.families import flipped
from pgstudies.analysis.intervals import estimate_rows
from pgstudies.analysis.pairing import TRIMMED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from book.bench.machines import Machine

ROUNDS = 12
TURN_S = 0.05
MOVED = math.log(1.1)
FAMILIES = 400


class Found(NamedTuple):
    """Shares: families with a false alarm, and the moved steps that are found."""

    error: float
    power: float


def simulated(
    machine: Machine, blocks: int, steps: int, families: int, *, holm: bool = False, seed: int = 1
) -> Found:
    """Of families of ``steps``, none of which differs, and of those of which a fifth does."""
    rng = np.random.default_rng(seed)
    alarms, found = 0, 0.0
    moved = np.arange(steps) < max(1, steps // 5)
    for _ in range(families):
        slots = machine.slots(rng, (steps, blocks, ROUNDS * 3), TURN_S)
        log = in_turns(rng, slots, 3) + machine.starts(rng, (steps, blocks, 1, 3))
        ratios = np.sort(log[..., 2:] - log[..., :2], axis=-2)
        cut = int(TRIMMED * ROUNDS)
        d = ratios[..., cut : ROUNDS - cut, :].mean(axis=(-1, -2))
        alarms += bool((p_values(d, holm=holm) <= 0.05).any())
        found += float((p_values(d + MOVED * moved[:, None], holm=holm)[moved] <= 0.05).mean())
    return Found(alarms / families, found / families)


def p_values(d: NDArray[np.float64], *, holm: bool) -> NDArray[np.float64]:
    """Of the steps, corrected over the family by either way."""
    if not holm:
        return flipped(d.tolist()).p_value
    corrected: NDArray[np.float64] = multipletests(estimate_rows(d).p_value, method="holm")[1]
    return corrected


def main() -> None:
    for name, machine in MACHINES.items():
        for blocks, steps in ((6, 20), (8, 20), (12, 20)):
            flips, holm = (
                simulated(machine, blocks, steps, FAMILIES, holm=by_holm)
                for by_holm in (False, True)
            )
            print(
                f"| {name} | {blocks} × {steps} | {flips.error:.3f} | {holm.error:.3f} | "
                f"{flips.power:.2f} | {holm.power:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
