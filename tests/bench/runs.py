"""How often an interval misses where each run has a luck of its own: one run, and several together.

The tables in book/method.md: ``python -m tests.bench.runs``, a minute.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pgapps.scorecard.pooling import luck, pooled
from pgstudies.analysis.intervals import estimate_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 0.01
"""Standard deviation of a block's log ratio."""

KINDS = (0.003, 0.02, 0.2)
"""The luck of three kinds of step of one study."""


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
    sizes = sigma * np.array([uneven] + [1.0] * (claims - 1))
    counted = 1 if uneven > 1 else claims
    for _ in range(studies):
        ratios, errors = drawn(rng, sizes, runs, common, blocks)
        variances, freedom = luck(ratios, errors)
        for n in range(counted):
            of_claim = [*zip(ratios[n], errors[n], strict=True)]
            all_runs, one = (pooled(of_claim[:k], variances[n], freedom) for k in (runs, 1))
            alone = abs(ratios[n, 0]) > 1.96 * errors[n, 0]
            outside += [alone, *(not r["low"] <= 1 <= r["high"] for r in (one, all_runs))]
            widths.append(math.log(all_runs["high"] / all_runs["low"]) / 2)
    alone, widened, of_all = (outside / (studies * counted)).tolist()
    return Missed(alone, widened, of_all, float(np.median(widths)))


def drawn(
    rng: np.random.Generator, sizes: NDArray[np.float64], runs: int, common: float, blocks: int = 6
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The log ratios of one kind of step and their errors, claims × runs; ``sizes`` are of luck."""
    shared = math.sqrt(common) * rng.standard_normal(runs)
    own = math.sqrt(1 - common) * rng.standard_normal((len(sizes), runs))
    true = (sizes[:, None] * (shared + own)).reshape(-1, 1)
    found = estimate_rows(true + BLOCK * rng.standard_normal((true.size, blocks)))
    errors = (found.high - found.low) / (2 * 1.96)
    return found.centre.reshape(own.shape), errors.reshape(own.shape)


def shrunk(runs: int, common: float, studies: int, *, seed: int = 1) -> list[list[float]]:
    """Of one run of kinds of ``KINDS``: missed and median half-width, without shrinking and with.

    Shrunk is the variance of a kind towards the mean of the others', which has two degrees of
    freedom beside its own.
    """
    rng = np.random.default_rng(seed)
    outside = np.zeros((len(KINDS), 2))
    widths: list[tuple[list[float], list[float]]] = [([], []) for _ in KINDS]
    for _ in range(studies):
        kinds = [drawn(rng, np.full(5, sigma), runs, common) for sigma in KINDS]
        lucks = [luck(*kind) for kind in kinds]
        for n, ((ratios, errors), (variances, freedom)) in enumerate(
            zip(kinds, lucks, strict=True)
        ):
            others = np.mean([v.mean() for m, (v, _) in enumerate(lucks) if m != n])
            towards = (freedom * variances[0] + 2 * others) / (freedom + 2)
            run = [(ratios[0, 0], errors[0, 0])]
            for m, how in enumerate(((variances[0], freedom), (towards, freedom + 2))):
                found = pooled(run, *how)
                outside[n, m] += not found["low"] <= 1 <= found["high"]
                widths[n][m].append(math.log(found["high"] / found["low"]) / 2)
    halves = [[float(np.median(half)) for half in kind] for kind in widths]
    return [
        [missed_a, half_a, missed_b, half_b]
        for (missed_a, missed_b), (half_a, half_b) in zip(
            (outside / studies).tolist(), halves, strict=True
        )
    ]


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
    print("one run of a kind beside others: luck, runs, correlation: as it is, and shrunk")
    for runs, common in ((2, 0.0), (2, 0.9), (3, 0.0), (3, 0.9)):
        for sigma, (missed_a, half_a, missed_b, half_b) in zip(
            KINDS, shrunk(runs, common, 1_000), strict=True
        ):
            alone = f"{100 * missed_a:.1f} % (±{100 * half_a:.1f})"
            towards = f"{100 * missed_b:.1f} % (±{100 * half_b:.1f})"
            print(f"{100 * sigma:g} %, {runs}, {common:g}: {alone}, {towards}", flush=True)


if __name__ == "__main__":
    main()
