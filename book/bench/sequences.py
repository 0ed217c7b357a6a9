"""Confidence sequences on the simulated machines, with a look after every block.

The table in book/simulations.md: ``python -m book.bench.sequences``, five minutes.
"""

from __future__ import annotations

import math

import numpy as np

from book.bench.machines import MACHINES, Machine, in_turns
from pgapps.compare.judging.sequences import anytime_rows, evidence
from pgstudies.analysis.intervals import MINIMUM_BLOCKS, estimate_rows
from pgstudies.analysis.pairing import TRIMMED

ROUNDS = 12
TURN_S = 0.05
BLOCKS = 60
RUNS = 1000
MARGIN = math.log(1.02)
MOVED = math.log(1.05)


def simulated(machine: Machine, runs: int, blocks: int, *, seed: int = 1) -> np.ndarray:
    """The log-ratios of two equal arms: a row for each run, a column per block."""
    rng = np.random.default_rng(seed)
    slots = machine.slots(rng, (runs, blocks, ROUNDS * 3), TURN_S)
    log = in_turns(rng, slots, 3) + machine.starts(rng, (runs, blocks, 1, 3))
    ratios = np.sort(log[..., 2:] - log[..., :2], axis=-2)
    cut = int(TRIMMED * ROUNDS)
    found: np.ndarray = ratios[..., cut : ROUNDS - cut, :].mean(axis=(-1, -2))
    return found


def ever_missed(d: np.ndarray, *, anytime: bool) -> float:
    """The share of runs whose interval misses the truth after any of the blocks."""
    missed = np.zeros(len(d), dtype=bool)
    for blocks in range(MINIMUM_BLOCKS, d.shape[1] + 1):
        if anytime:
            missed |= evidence(d[:, :blocks], np.zeros(len(d))) >= math.log(20)
        else:
            missed |= estimate_rows(d[:, :blocks]).p_value <= 0.05
    return float(missed.mean())


def until_found(d: np.ndarray, *, anytime: bool) -> float:
    """The median of the blocks after which a step that moved by 5 % is slower, for good or once."""
    first = np.full(len(d), np.inf)
    for blocks in range(d.shape[1], MINIMUM_BLOCKS - 1, -1):
        part = d[:, :blocks] + MOVED
        found = anytime_rows(part) if anytime else estimate_rows(part)
        first[(found.low > 0) & (found.centre > MARGIN)] = blocks
    return float(np.median(first))


def main() -> None:
    for name, machine in MACHINES.items():
        d = simulated(machine, RUNS, BLOCKS)
        few = d[:200]
        widths = []
        for blocks in (8, 20, 60):
            fixed, anytime = estimate_rows(few[:, :blocks]), anytime_rows(few[:, :blocks])
            widths.append(np.median((anytime.high - anytime.low) / (fixed.high - fixed.low)))
        print(
            f"| {name} | {ever_missed(d, anytime=True):.3f} | {ever_missed(d, anytime=False):.3f} "
            f"| {', '.join(f'{width:.2f}' for width in widths)} "
            f"| {until_found(few, anytime=True):.0f} | {until_found(few, anytime=False):.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
