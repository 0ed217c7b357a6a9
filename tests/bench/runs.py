"""How often an interval misses where each run has a luck of its own: one run, and several together.

The table in book/method.md: ``python -m tests.bench.runs``, half a minute.
"""

from __future__ import annotations

import math

import numpy as np

from pgapps.scorecard.pooling import Runs, luck
from pgstudies.analysis.intervals import estimate_rows

BLOCK = 0.01
"""Standard deviation of a block's log ratio."""


def missed(
    claims: int, runs: int, sigma: float, studies: int, *, blocks: int = 6, seed: int = 1
) -> tuple[float, float]:
    """The share of 95 % intervals that miss, and their median half-width on the log scale.

    Of ``studies`` with so many claims and runs, each claim's true log ratio 0, and ``sigma`` the
    standard deviation of what all blocks of one claim have in common in one run.
    """
    rng = np.random.default_rng(seed)
    outside, widths = 0, []
    for _ in range(studies):
        common = sigma * rng.standard_normal((claims * runs, 1))
        found = estimate_rows(common + BLOCK * rng.standard_normal((claims * runs, blocks)))
        bounds = np.exp([found.centre, found.low, found.high]).T.reshape(claims, runs, 3)
        of_claims = [Runs([tuple(run) for run in claim]) for claim in bounds.tolist()]
        variance, freedom = luck(of_claims)
        for claim, (alone, *_) in zip(of_claims, bounds.tolist(), strict=True):
            low, high = alone[1:]
            if freedom:
                pooled = claim.pooled(variance, freedom)
                low, high = pooled["low"], pooled["high"]
            outside += not low <= 1 <= high
            widths.append(math.log(high / low) / 2)
    return outside / (studies * claims), float(np.median(widths))


def main() -> None:
    for sigma in (0.0, 0.005, 0.01, 0.015, 0.03):
        cells = [f"{100 * sigma:g} %"]
        for claims, runs in ((7, 1), (7, 2), (7, 4), (2, 2), (2, 4)):
            share, width = missed(claims, runs, sigma, 1_000)
            cells.append(f"{100 * share:.1f} % (±{100 * width:.1f})")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
