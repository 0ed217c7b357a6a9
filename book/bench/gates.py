"""What the copies' gate shuts where nothing is wrong, and what it lets through where something is.

The table in book/simulations.md: ``python -m book.bench.gates``, a minute.  A claim of 0.9 is
judged in runs of ten blocks; the two copies of the baseline and the candidate each have noise, and
luck that stays for the run.
"""

from __future__ import annotations

import numpy as np

from pgstudies.analysis.agreement import NOT_JUDGED, agreement, gated
from pgstudies.analysis.intervals import estimate_rows

RUNS, BLOCKS, MARGIN, CLAIMED = 2000, 10, 0.02, 0.9


def simulated(true: float, sd: float, luck: float, seed: int = 1) -> tuple[int, int, int]:
    """Of ``RUNS``, how many are decided, how many of them the gate shuts, and how many are wrong.

    ``sd`` is that of a block's log-ratio, ``luck`` that of an arm's constant error.
    """
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, sd / np.sqrt(1.5), (3, RUNS, BLOCKS))
    first, second, candidate = noise + rng.normal(0, luck, (3, RUNS, 1))
    effect = estimate_rows(candidate + np.log(true) - (first + second) / 2)
    copies = estimate_rows(second - first)
    decided = shut = wrong = 0
    for at in range(RUNS):
        ratio, low, high = (float(np.exp(x[at])) for x in effect[:3])
        aa = {
            name: float(np.exp(x[at]))
            for name, x in zip(("aa", "aa_low", "aa_high"), copies[:3], strict=True)
        }
        claim = {"published_ratio": CLAIMED, "kind": "direction"}
        row = {"ratio": ratio, "low": low, "high": high, "margin": MARGIN, **aa, **claim}
        if agreement(CLAIMED, ratio, low, high, MARGIN) == "inconclusive":
            continue
        verdict = gated("faster", None, row)
        decided += 1
        if verdict.startswith(NOT_JUDGED):
            shut += 1
        elif true == 1:
            wrong += verdict != "gone"
    return decided, shut, wrong


def main() -> None:
    print("| true ratio | noise of a block | luck of an arm | decided | of them shut | wrong |")
    print("|---|---|---|---|---|---|")
    for true in (0.95, 0.9, 1.0):
        for sd in (0.02, 0.03, 0.05):
            for luck in (0.0, 0.005, 0.02):
                decided, shut, wrong = simulated(true, sd, luck)
                shares = [100 * decided / RUNS, 100 * shut / max(decided, 1), 100 * wrong / RUNS]
                told = " | ".join(f"{share:.1f} %" for share in shares)
                told = told if true == 1 else told.rsplit(" | ", 1)[0] + " | –"
                print(f"| {true:g} | {100 * sd:g} % | {100 * luck:g} % | {told} |")


if __name__ == "__main__":
    main()
