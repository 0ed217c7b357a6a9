"""What ``instrument.ipynb`` plants as a carry-over: turns that empty caches, or live in them."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

import pgstudies as pg
from pgstudies.analysis.diagnostics import ALPHA, CARRY_OVER, checks
from pgstudies.records.reading import AMONG_OTHERS, UNDISTURBED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgstudies.measuring.arms import Arm
    from pgstudies.measuring.trial import Trial


STEP = "carry-over"
MARGIN = 0.02

_KEPT = 2**18  # bytes: all of it fits into the second-level cache of any server
_SWEPT = 2**24  # and this into none
_WORK = range(5_000)
_TURNS = 100  # in a block


def carry(trial: Trial, arm: Arm) -> Iterator[None]:
    """The turns of the planted carry-over."""
    work = work_of(arm)
    for _ in range(_TURNS):
        take_turn(trial, work)
        yield


def work_of(arm: Arm) -> Callable[[], object]:
    """What an arm does in a pass: it sweeps memory, or reads some, or counts."""
    does = arm.options.get("does")
    if does == "empties":
        memory = np.zeros(_SWEPT, dtype=np.uint8)
        return lambda: memory.fill(1)
    if does == "lives":
        numbers = np.arange(_KEPT // 8)
        places = np.random.default_rng(1).permutation(numbers.size)
        return lambda: int(numbers[places].sum())
    return lambda: sum(_WORK)


def take_turn(trial: Trial, work: Callable[[], object]) -> None:
    """Work once among others and once undisturbed; records the wall time of each."""
    for _ in trial.parts(1):
        start = time.perf_counter()
        work()
        took_s = time.perf_counter() - start
        trial.record(STEP, "duration_s", took_s, "s")


def judged(
    samples: pl.DataFrame, *, baseline: str, planted: str
) -> tuple[bool | None, str]:
    """Whether the planted carry-over is found among others, and none undisturbed; and a sentence.

    ``planted`` is the arm that suffers.  None for too few blocks.
    """
    found = {}
    for part in (AMONG_OTHERS, UNDISTURBED):
        of_part = samples.filter(pl.col("step") == STEP, part=part)
        if baseline not in of_part["arm"]:
            return None, "no carry-over was planted"
        looked = checks(pg.round_values(of_part), baseline=baseline).filter(
            check=CARRY_OVER
        )
        if looked.filter(pl.col("least") <= ALPHA).is_empty():
            return None, "carry-over is judged from 6 blocks on"
        found[part] = looked.filter(
            pl.col("p_family") <= ALPHA,
            pl.col("change").log1p().abs() > math.log1p(MARGIN),
        )
    among = found[AMONG_OTHERS].filter(candidate=planted)["change"]
    said = (
        f"among others, it adds {100 * among.item():.0f} % to the ratio of an arm that {planted}"
        if among.len()
        else f"among others, it is not found in an arm that {planted}"
    )
    left = found[UNDISTURBED]["candidate"].to_list()
    told = f"undisturbed, it is found in {', '.join(left) or 'none'}"
    return bool(among.len() and not left), f"{said}; {told}"
