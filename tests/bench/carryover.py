"""The check of carry-over on the simulated machines: planted ones found, and false alarms.

The table in book/method.md: ``python -m tests.bench.carryover``, some minutes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pgstudies.analysis.diagnostics import CARRY_OVER, diagnose
from tests.machines import ALL_AT_ONCE, GOOD, TWO_SPEEDS, Machine, after_others

if TYPE_CHECKING:
    import polars as pl

RUNS = 200
FEWEST_RUNS = 60  # where something is planted
COPIES = ("baseline", "baseline (again)")
SUFFERS = math.log(1.15)

DESIGNS = {
    "two servers": ({"candidate": 0.0}, 20),
    "five arms": ({f"arm {number}": 0.0 for number in range(1, 4)}, 20),
}


def alarm(values: pl.DataFrame) -> bool:
    """Whether the run is said to have carry-over."""
    found = diagnose(values, baseline=COPIES[0], by=())
    return CARRY_OVER in found["check"]


def share(
    machine: Machine,
    others: dict[str, float],
    rounds: int,
    runs: int,
    left: dict[str, float],
    **suffer: float,
) -> float:
    """The share of the runs in which the check fails; ``suffer`` says of whom the cost is."""
    alarms = 0
    for run in range(runs):
        rng = np.random.default_rng([run, 7])
        arms = dict.fromkeys([*COPIES, *others], suffer.get("all_arms", 0.0))
        last = list(others)[-1]
        arms[last] = suffer.get("last", arms[last])
        alarms += alarm(after_others(rng, machine, arms, left=left, rounds=rounds))
    return alarms / runs


def main() -> None:
    machines = {"good": GOOD, "two speeds": TWO_SPEEDS, "all at once": ALL_AT_ONCE}
    for design, (others, rounds) in DESIGNS.items():
        for name, machine in machines.items():
            none = share(machine, others, rounds, RUNS, {})
            alike = share(machine, others, rounds, RUNS, {}, all_arms=SUFFERS)
            bound = share(machine, others, rounds, FEWEST_RUNS, {}, last=SUFFERS)
            one = "-"
            if len(others) > 1:
                only = dict.fromkeys([*COPIES, *others], 0.0) | {"arm 1": 1.0}
                found = share(machine, others, rounds, FEWEST_RUNS, only, last=math.log(1.3))
                one = f"{found:.2f}"
            print(
                f"| {design} | {name} | {none:.3f} | {alike:.3f} | {bound:.2f} | {one} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
