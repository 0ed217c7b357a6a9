"""What ``instrument.ipynb`` plants as a carry-over: turns that empty caches, or live in them."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

import pgstudies as pg
from pgstudies.analysis.diagnostics import ALPHA, CARRY_OVER, checks
from pgstudies.records.samples import AMONG_OTHERS, UNDISTURBED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgstudies.measuring.arms import Arm
    from pgstudies.measuring.trial import Trial


STEP = "carry-over"
MARGIN = 0.02
LEVEL = 0.01
"""How often a check accuses by chance, one of the ten that the page has."""

_ENTRY = 24  # bytes of memory touched for one number: itself, its place, and the copy
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
    cache = second_level()
    if does == "empties":
        memory = np.zeros(max(2**24, 4 * cache), dtype=np.uint8)
        return lambda: memory.fill(1)
    if does == "lives":
        numbers = np.arange(cache // 2 // _ENTRY)
        places = np.random.default_rng(1).permutation(numbers.size)
        return lambda: int(numbers[places].sum())
    return lambda: sum(_WORK)


def second_level() -> int:
    """Bytes of the second-level cache of a core; 256 kB, which any has, where it is not told."""
    told = "SC_LEVEL2_CACHE_SIZE"
    size = os.sysconf(told) if told in os.sysconf_names else 0
    return size if size > 0 else 2**18


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
        if looked.filter(pl.col("least") <= LEVEL).is_empty():
            return None, "carry-over is judged from 8 blocks on"
        found[part] = looked.filter(
            pl.col("p_family") <= (LEVEL if part == UNDISTURBED else ALPHA),
            pl.col("change").log1p().abs() > math.log1p(MARGIN),
        )
    among = found[AMONG_OTHERS].filter(candidate=planted)["change"]
    said = (
        f"adds {100 * among.item():.0f} % to its ratio among others"
        if among.len()
        else "is not found among others"
    )
    left = found[UNDISTURBED]["candidate"].to_list()
    arms = " and ".join(f'"{name}"' for name in left)
    told = f"is left in {arms}" if left else "is left in no arm"
    return (
        bool(among.len() and not left),
        f'what is planted in "{planted}" {said}; undisturbed, carry-over {told}',
    )
