"""How often a comparison finds a step that is slower, on the noise that the reference records have.

The table in book/simulations.md: ``python -m book.bench.power``, two minutes.  The noise is what
blocks of the newest reference record of each study are off their own mean: every arm's times
against the mean of the baseline's copies.  A simulated run draws its steps from all of them, and of
each record whole blocks, so that steps which were slow together stay so; the signs of a block's
noise are drawn as well.  A fifth of the steps is slower.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from pgstudies.analysis.claims import origins
from pgstudies.analysis.effects import paired_effects
from pgstudies.analysis.families import flipped
from pgstudies.analysis.intervals import MINIMUM_BLOCKS, estimate_rows
from pgstudies.analysis.pairing import BY, TIMES, round_values
from pgstudies.records.reading import read_record
from pgstudies.records.verdicts import reference_verdicts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

STEPS, RUNS, MARGIN = 70, 200, 0.02
MOVED = STEPS // 5
BLOCKS, TRUE = (6, 8, 12, 24), (1.02, 1.05, 1.10)


def residuals(record: Path) -> Numbers:
    """What each block is off its comparison's mean, in log-ratios: a row for each comparison.

    A mean of n blocks takes a part of their noise away, which is given back.
    """
    read = read_record(record)
    baseline = next(arm["name"] for arm in read.info["arms"] if not arm["not_run"])
    timed = read.measured.filter(pl.col("metric").is_in(TIMES), pl.col("unit") == "s")
    values = round_values(timed, by=list(BY))
    if baseline not in values["arm"]:
        return np.empty((0, 0))
    effects = paired_effects(values, baseline=baseline, by=list(BY))
    copies = read.arms.drop_nulls("copy_of")["name"].to_list()
    rows = effects.filter(~pl.col("candidate").is_in(copies))["log_ratios"].to_list()
    whole = max(map(len, rows), default=0)
    full = [row for row in rows if len(row) == whole and None not in row]
    if whole < MINIMUM_BLOCKS or not full:
        return np.empty((0, 0))
    d = np.array(full, dtype=float)
    found: Numbers = (d - d.mean(axis=1, keepdims=True)) * math.sqrt(whole / (whole - 1))
    varied: Numbers = found[np.ptp(found, axis=1) > 0]
    return varied


def drawn(noise: Sequence[Numbers], blocks: int, rng: np.random.Generator) -> Numbers:
    """The log-ratios of a run of ``STEPS`` equal steps: a row each, a column per block."""
    resampled = [
        rows[:, rng.integers(rows.shape[1], size=blocks)] * rng.choice([-1.0, 1.0], blocks)
        for rows in noise
    ]
    every = np.concatenate(resampled)
    return every[rng.choice(len(every), STEPS, replace=len(every) < STEPS)]


def found(noise: Sequence[Numbers], blocks: int, true: float, runs: int = RUNS) -> tuple[int, int]:
    """Of ``runs``, in how many an equal step differs; and how many of their moved ones are found.

    By the rule for a comparison: the family's p-value, the step's own interval, and its estimate
    past the margin.
    """
    rng = np.random.default_rng(blocks)
    wrong = slower = 0
    for _ in range(runs):
        d = drawn(noise, blocks, rng)
        d[:MOVED] += math.log(true)
        estimate = estimate_rows(d)
        is_seen = (flipped(d.tolist()).p_value <= 0.05) & (estimate.low * estimate.high > 0)
        is_seen &= np.abs(estimate.centre) > math.log1p(MARGIN)
        slower += int((is_seen & (estimate.centre > 0))[:MOVED].sum())
        wrong += bool(is_seen[MOVED:].any())
    return wrong, slower


def main() -> None:
    known = {study: reference_verdicts(study) for study in origins()}
    of = {study: residuals(one.record) for study, one in known.items() if one is not None}
    noise = {study: rows for study, rows in of.items() if rows.size}
    for study, rows in noise.items():
        sd = np.quantile(rows.std(axis=1), [0.25, 0.5, 0.75])
        told = ", ".join(f"{100 * value:.1f} %" for value in sd)
        print(f"{study}: {rows.shape[0]} comparisons of {rows.shape[1]} blocks; sd {told}")
    print("\n| blocks | false alarms | +2 % found | +5 % | +10 % |\n|---|---|---|---|---|")
    for blocks in BLOCKS:
        by_true = [found(list(noise.values()), blocks, true) for true in TRUE]
        wrong = sum(alarms for alarms, _ in by_true) / (len(TRUE) * RUNS)
        shares = " | ".join(f"{100 * many / (MOVED * RUNS):.0f} %" for _, many in by_true)
        print(f"| {blocks} | {100 * wrong:.1f} % | {shares} |")


if __name__ == "__main__":
    main()
