"""Comparisons of a server with itself, simulated: false alarms of verdicts and of every guard.

The table in book/simulations.md: ``python -m book.bench.comparisons``, 20 minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from book.bench.machines import MACHINES, in_turns
from pgapps.compare.design import BASELINE, SIDES
from pgapps.compare.judging.guards import diagnosed
from pgapps.compare.judging.measured import effects_by_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from book.bench.machines import Machine

BY = ("study", "of", "case", "step", "metric")
ROUNDS = 12
TURN_S = 0.05
STEPS = 20
COMPARISONS = 300


def round_times(machine: Machine, rng: np.random.Generator, blocks: int) -> pl.DataFrame:
    """What ``rounds_of`` gives of a comparison of 20 steps, none of which differs."""
    shape = (STEPS, blocks, ROUNDS * len(SIDES))
    log = in_turns(rng, machine.slots(rng, shape, TURN_S), len(SIDES))
    log = log + machine.starts(rng, (STEPS, blocks, 1, len(SIDES)))
    step, block, turn, side = (axis.ravel() for axis in np.indices(log.shape))
    position = rng.permuted(np.broadcast_to(np.arange(3), (STEPS, blocks, 3)), axis=-1)
    return pl.DataFrame(
        {
            "block": (block + 1).astype(np.int32),
            "round": turn.astype(str),
            "arm": np.array(SIDES)[side],
            **dict.fromkeys(("study", "of", "case"), "made_up"),
            "step": step.astype(str),
            "metric": "duration_s",
            "unit": "s",
            "position": position[step, block, side].astype(np.int32),
            "value": np.exp(log).ravel(),
        }
    ).with_columns(copy_of=pl.when(arm=SIDES[1]).then(pl.lit(BASELINE)))


def outcomes(machine: Machine, blocks: int, *, seed: int = 1) -> Iterator[dict[str, float]]:
    """Of each comparison: intervals that miss 1, and whether a verdict or a guard is wrong."""
    rng = np.random.default_rng(seed)
    for _ in range(COMPARISONS):
        times = round_times(machine, rng, blocks)
        effects = effects_by_names(times, by=BY)
        failed = {
            name: float(outcome.passed is False)
            for name, decides, outcome in diagnosed(times, margin=0.02)
            if decides
        }
        yield {
            "missed": effects.select((pl.col("low") > 1) | (pl.col("high") < 1)).mean().item(),
            "verdict": float(effects["verdict"].is_in(["slower", "faster"]).any()),
            **failed,
            "any guard": float(any(failed.values())),
        }


def main() -> None:
    for name, machine in MACHINES.items():
        found = pl.DataFrame(list(outcomes(machine, 9))).mean().row(0, named=True)
        print(f"| {name} | {' | '.join(f'{share:.3f}' for share in found.values())} |", flush=True)


if __name__ == "__main__":
    main()
