"""How often several runs, judged as blocks are, miss where each run has a luck of its own.

The table in book/simulations.md: ``python -m book.bench.runs``, a minute.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pgstudies.analysis.families import flipped
from pgstudies.analysis.intervals import estimate_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLAIMS, BLOCKS, BLOCK, MARGIN = 18, 6, 0.01, 0.02
"""Of a study, whose true log ratios are all 0; BLOCK is the standard deviation of a block's."""

UNEVEN = np.repeat([0.5, 1.0, 2.0], CLAIMS // 3)[:, None]

LUCKS = (
    (0.0, "none"),
    (0.03, "normal"),
    (0.03, "heavy tails"),
    (0.03, "unequal"),
    (0.03, "correlated"),
    (0.03, "of three boots"),
)
"""Standard deviation of what all blocks of a run share, and how it is spread over runs and claims:
Student's t of 3; half, once or twice as much by claim; 0.9 between claims; the same in every run of
one of three boots."""


class Missed(NamedTuple):
    """The share of intervals that miss, and of studies with a false verdict; the half-width."""

    intervals: float
    studies: float
    half: float  # median, on the log scale


def missed(runs: int, studies: int, luck: float, how: str, *, seed: int = 1) -> Missed:
    """What so many runs of each of ``studies`` say of claims that are all without a difference.

    False is *holds*, in any degree, and *reversed*: all of the interval on one side of 1, the
    estimate past the margin, and evident among all claims.
    """
    rng = np.random.default_rng(seed)
    outside = false = 0
    halves = []
    for _ in range(studies):
        ratios = drawn(rng, runs, luck, how)
        found = estimate_rows(ratios)
        is_off = (found.low > 0) | (found.high < 0)
        is_far = np.abs(found.centre) > math.log1p(MARGIN)
        is_evident = flipped(ratios.tolist()).p_value <= 0.05
        outside += int(is_off.sum())
        false += int((is_off & is_far & is_evident).any())
        halves.append(np.median(found.high - found.low) / 2)
    return Missed(outside / (studies * CLAIMS), false / studies, float(np.median(halves)))


def drawn(rng: np.random.Generator, runs: int, luck: float, how: str) -> NDArray[np.float64]:
    """The log ratios of a study, claims × runs, each run's estimated from its blocks."""
    own = rng.standard_normal((CLAIMS, runs))
    if how == "heavy tails":
        own = rng.standard_t(3, own.shape) / math.sqrt(3)
    elif how == "unequal":
        own *= UNEVEN
    elif how == "correlated":
        own = math.sqrt(0.9) * rng.standard_normal(runs) + math.sqrt(0.1) * own
    elif how == "of three boots":
        own = own[:, np.arange(runs) % 3]
    blocks = BLOCK * rng.standard_normal((own.size, BLOCKS))
    return luck * own + estimate_rows(blocks).centre.reshape(own.shape)


def main() -> None:
    print("| luck | runs | intervals that miss | studies with a false verdict | half-width |")
    print("|---|---|---|---|---|")
    for luck, how in LUCKS:
        for runs in (6, 7, 8):
            found = missed(runs, 2_000, luck, how)
            shares = [f"{100 * share:.1f} %" for share in found]
            name = f"{100 * luck:g} %, {how}" if luck else "0"
            print(f"| {' | '.join([name, str(runs), *shares])} |", flush=True)


if __name__ == "__main__":
    main()
