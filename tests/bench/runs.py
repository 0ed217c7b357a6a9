"""How often an interval misses where each run has a luck of its own: one run, and several together.

The tables in book/method.md: ``python -m tests.bench.runs``, a minute.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pgapps.scorecard.pooling import luck, pooled
from pgstudies.analysis.intervals import estimate_rows

BLOCK = 0.01
"""Standard deviation of a block's log ratio."""


class Missed(NamedTuple):
    """The share of 95 % intervals that miss, and their median half-width on the log scale."""

    alone: float  # of one run, by its blocks
    widened: float  # of one run, by the luck of all
    pooled: float  # of all runs
    half: float  # of all runs


def missed(
    claims: int,
    runs: int,
    sigma: float,
    studies: int,
    *,
    common: float = 0.0,
    uneven: float = 1.0,
    blocks: int = 6,
    seed: int = 1,
) -> Missed:
    """Of ``studies`` with so many claims of one kind and runs, each true log ratio 0.

    ``sigma`` is the standard deviation of what all blocks of a claim have in common in one run,
    ``common`` its correlation between the claims of a run, and ``uneven`` by how much the first
    claim has more of it; the shares are then of the first alone.
    """
    rng = np.random.default_rng(seed)
    outside, widths = np.zeros(3), []
    sizes = sigma * np.array([uneven] + [1.0] * (claims - 1))[:, None]
    counted = 1 if uneven > 1 else claims
    for _ in range(studies):
        shared = math.sqrt(common) * rng.standard_normal(runs)
        own = math.sqrt(1 - common) * rng.standard_normal((claims, runs))
        true = (sizes * (shared + own)).reshape(-1, 1)
        found = estimate_rows(true + BLOCK * rng.standard_normal((claims * runs, blocks)))
        ratios = found.centre.reshape(claims, runs)
        errors = ((found.high - found.low) / (2 * 1.96)).reshape(claims, runs)
        variances, freedom = luck(ratios, errors)
        for n in range(counted):
            of_claim = [*zip(ratios[n], errors[n], strict=True)]
            all_runs, one = (pooled(of_claim[:k], variances[n], freedom) for k in (runs, 1))
            alone = abs(ratios[n, 0]) > 1.96 * errors[n, 0]
            outside += [alone, *(not r["low"] <= 1 <= r["high"] for r in (one, all_runs))]
            widths.append(math.log(all_runs["high"] / all_runs["low"]) / 2)
    alone, widened, of_all = (outside / (studies * counted)).tolist()
    return Missed(alone, widened, of_all, float(np.median(widths)))


def main() -> None:
    print("luck | claims × runs, correlation, uneven | one run: alone, widened | all runs")
    for sigma in (0.0, 0.005, 0.01, 0.03, 0.1):
        for claims, runs, common, uneven in (
            *((7, 2, 0.0, 1), (7, 3, 0.0, 1), (7, 3, 0.9, 1), (7, 2, 0.9, 1)),
            *((1, 3, 0.0, 1), (1, 2, 0.0, 1), (7, 3, 0.0, 3)),
        ):
            found = missed(claims, runs, sigma, 1_000, common=common, uneven=uneven)
            shares = [f"{100 * share:.1f} %" for share in found[:3]]
            cells = [f"{100 * sigma:g} %", f"{claims} × {runs}, {common:g}, {uneven}", *shares]
            print(f"| {' | '.join(cells)} (±{100 * found.half:.1f}) |", flush=True)


if __name__ == "__main__":
    main()
