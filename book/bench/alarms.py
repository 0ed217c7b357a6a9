"""How often a comparison of equal programs calls a step, by the rules of before and of now.

The table in book/compare.md: ``python -m book.bench.alarms``, two minutes.  Each comparison has 12
steps, 12 blocks, two copies of the baseline and a candidate; whatever is calls a step slower or
faster that does no more work.  *Before*: the signed ranks of blocks' differences from the mean of
both copies, flips of their signs for the family, an allowance for each step (that of links, at 95
%), and instructions asked of the interval's near end.  A guard that fails leaves nothing called.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from pgapps.compare.judging.guards import LEVEL
from pgapps.compare.judging.independence import autocorrelation
from pgapps.compare.judging.layout import ALARMS, EXPLAINED, LINKS, allowance
from pgapps.compare.judging.measured import CPU
from pgapps.compare.judging.renaming import family as renamed
from pgapps.compare.judging.renaming import renamed_rows
from pgstudies.analysis.families import flipped
from pgstudies.analysis.intervals import estimate_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

STEPS, BLOCKS, COMPARISONS = 12, 12, 200
MARGIN = math.log(1.02)
NOISE = 0.01
"""The standard deviation of a block of an arm; half-width 0.8 %."""


class Found(NamedTuple):
    """Of comparisons, the shares that call an equal step (and which way), that the guard keeps from
    calling one, and that find step 0."""

    called: float
    faster: float
    slower: float
    guarded: float
    found: float


def noise(kind: str, rng: np.random.Generator, blocks: int = BLOCKS) -> Numbers:
    """ln(time) of steps × blocks × three arms that do not differ."""
    shape = (STEPS, blocks, 3)
    drawn = rng.standard_normal(shape)
    if kind == "skewed":
        return 3 * NOISE * np.exp(drawn)
    if kind == "autocorrelated":
        for block in range(1, blocks):
            drawn[:, block] = 0.7 * drawn[:, block - 1] + math.sqrt(1 - 0.49) * drawn[:, block]
    return NOISE * drawn


def in_places(log: Numbers) -> Numbers:
    """Each arm against the other two, the candidate first."""
    found: Numbers = (log - log.mean(axis=2, keepdims=True)) * 1.5
    return found


def simulated(
    kind: str = "normal",
    *,
    links: float = 0.0,
    work: float = 0.0,
    slower: float = 1.0,
    now: bool,
    blocks: int = BLOCKS,
    comparisons: int = COMPARISONS,
) -> Found:
    """What comparisons call.

    ``links`` is how far two links of a step are apart in 95 % (0: relinked in every block), and
    ``work`` how far instructions are, which time does not follow.
    """
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(comparisons):
        log = noise(kind, rng, blocks)
        moved = rng.normal(0, links / 1.96, STEPS)
        counts = rng.normal(0, work / 1.96, STEPS)
        log[:, :, 0] += moved[:, None]
        log[0, :, 0] += math.log(slower)
        values = in_places(log)
        d = values[:, :, 0]
        family = renamed(values) if now else flipped(d.tolist()).p_value
        seen = np.flatnonzero(family <= ALARMS)  # no other is called, whatever its interval
        centre, low, high = np.zeros(STEPS), np.full(STEPS, -1.0), np.full(STEPS, 1.0)
        if seen.size:
            found = renamed_rows(values[seen]) if now else estimate_rows(d[seen])
            centre[seen], low[seen], high[seen] = found[:3]
        sign = np.sign(centre)
        near = np.where(sign > 0, low, -high)
        past = sign * centre
        calls = (near > 0) & (past > MARGIN)
        if links:
            of_step = -ndtri(ALARMS / 2) * links / 1.96
            edge = math.log1p(allowance(CPU, STEPS)) if now else of_step
            explained = sign * counts >= EXPLAINED * (past if now else near)
            calls &= (near > edge) | ((np.abs(counts) > 0.001) & explained)
        guarded = now and bool(calls.any()) and autocorrelation(d.tolist())[1] <= LEVEL
        calls &= not guarded
        equal = calls[1:] if slower != 1 else calls
        signs = sign[1:] if slower != 1 else sign
        rows.append(
            (
                equal.any(),
                (equal & (signs < 0)).any(),
                (equal & (signs > 0)).any(),
                guarded,
                calls[0],
            )
        )
    return Found(*np.array(rows, dtype=float).mean(axis=0).tolist())


def main() -> None:
    print(f"LINKS {LINKS}, allowance of {STEPS} steps {100 * allowance(CPU, STEPS):.1f} %\n")
    print("| equal programs | called: before | now | +10 % found: before | now | of the equal |")
    cases: dict[str, dict[str, Any]] = {
        "relinked in every block": {},
        "links 2.6 % apart": {"links": 0.026},
        "links 3.9 % apart": {"links": 0.039},
        "links 1.4 %, instructions 1 % apart": {"links": 0.014, "work": 0.01},
        "skewed steps": {"kind": "skewed"},
        "autocorrelation 0.7": {"kind": "autocorrelated"},
    }
    for name, of in cases.items():
        equal = [simulated(**of, now=now) for now in (False, True)]
        more = [simulated(**of, slower=1.1, now=now, comparisons=100) for now in (False, True)]
        shares = [f.called for f in equal] + [f.found for f in more]
        told = " | ".join(f"{100 * share:.1f} %" for share in shares)
        before, now = equal
        ways = f"faster {100 * before.faster:.1f} to {100 * now.faster:.1f}, slower "
        ways += f"{100 * before.slower:.1f} to {100 * now.slower:.1f}"
        print(f"| {name} | {told} | {ways}, guard {100 * now.guarded:.1f} |", flush=True)


if __name__ == "__main__":
    main()
