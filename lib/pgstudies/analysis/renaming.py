"""Renaming: a candidate against two copies of the baseline, exact however skewed the noise is.

A candidate against the mean of two is not symmetric about no difference where noise is skewed, so
that tests by signs call it faster too often.  But of three equal arms in random order, each value
of a block may have been any of the three's.  So the test exchanges the names within each block.
Its statistic is the candidate's ranks among all values less their block's mean (aligned ranks:
Hodges and Lehmann, Annals of Mathematical Statistics 33, 1962), studentized, so that arms of
unequal noise are judged well from some blocks on (Janssen, Statistics and Probability Letters 36,
1997).  Where there is no second copy, two names are exchanged: that is flipping signs.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.stats import rankdata

from .intervals import MINIMUM_BLOCKS, Estimates
from .pairing import DECIMALS, copies_of, log_ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Truths = NDArray[np.bool_]

DRAWS = 4096
"""So many ways to exchange the names, where there are more of them than can all be tried."""

_SEED = 20261128  # the same samples always get the same verdicts

_HALVINGS = 24

_SLACK = 1e-9


def in_each_place(
    values: pl.DataFrame, *, baseline: str | int, key: str, by: Sequence[str]
) -> pl.DataFrame:
    """Each block's log-ratio of every candidate, and what it is if the names are exchanged.

    ``values`` are those of ``paired_effects``.  Columns: the ``by`` columns, candidate, block and
    renamed, a list of three: ``log_ratios`` of the candidate, of the baseline and of its second
    copy, each against the other two.  Where one of these lacks, they are two: d and −d.
    """
    copies = copies_of(values, baseline, key)
    keys = [*by, "candidate", "block"]
    schema = {name: values.schema[name] for name in (*by, "block")}
    schema |= {"candidate": values.schema[key], "renamed": pl.List(pl.Float64())}
    parts = [pl.DataFrame(schema=schema).select(*keys, "renamed")]
    d, is_whole = pl.col("d"), pl.col("first").is_not_null() & pl.col("again").is_not_null()
    for candidate in values[key].unique(maintain_order=True):
        three = [candidate, baseline, *copies[:1]]
        if candidate in three[1:]:
            continue
        some = values.filter(pl.col(key).is_in(three))
        places = [_against(some, name, [n for n in three if n != name], key, by) for name in three]
        found = places[0].rename({"log_ratio": "d"})
        for place, name in zip(places[1:], ("first", "again"), strict=False):
            known = place.select(*by, "block", pl.col("log_ratio").fill_nan(None).alias(name))
            found = found.join(known, on=[*by, "block"], how="left", nulls_equal=True)
        lacking = [pl.lit(None, pl.Float64).alias("again")] if not copies else []
        known = found.with_columns(*lacking).filter(pl.col("d").is_not_null())
        renamed = pl.when(is_whole).then(pl.concat_list(d, "first", "again"))
        parts.append(known.select(*keys, renamed=renamed.otherwise(pl.concat_list(d, -d))))
    return pl.concat(parts)


def three_names(renamed: pl.Series) -> Numbers:
    """Lists of blocks' ``renamed`` as an array: comparisons × blocks × 3, NaN for what lacks."""
    rows = renamed.to_list()
    found = np.full((len(rows), max(map(len, rows), default=0), 3), np.nan)
    for row, block in ((r, b) for r, blocks in enumerate(rows) for b in range(len(blocks))):
        held = rows[row][block] or []
        found[row, block, : len(held)] = held
    return found


def _against(
    values: pl.DataFrame, name: str | int, others: Sequence[str | int], key: str, by: Sequence[str]
) -> pl.DataFrame:
    copy_of = pl.when(pl.col(key).is_in(others[1:])).then(pl.lit(str(others[0])))
    found = log_ratios(values.with_columns(copy_of=copy_of), baseline=others[0], key=key, by=by)
    return found.filter(pl.col("candidate") == name).select(*by, "candidate", "block", "log_ratio")


def renamed_rows(values: Numbers, level: float = 0.95) -> Estimates:
    """As ``intervals.estimate_rows``: comparisons × blocks × three names, the candidate's first.

    The values of a block add up to 0; NaN in the third place where there is no second copy.  The
    interval has the differences that the test would not reject at half of 1 − ``level`` on either
    side; p_value is at most 1 − level exactly when 0 lies outside of it.
    """
    found = values.shape[1] >= MINIMUM_BLOCKS
    names = 2 if np.isnan(values).any() else 3
    drawn = exchanges(values.shape[1], names) if found else np.zeros((1, values.shape[1]), int)
    half = (1 - level) / 2
    k = values.shape[2] - np.isnan(values).sum(axis=2, keepdims=True)
    apart = (values[:, :, :1] - values[:, :, 1:]) * (k - 1) / k
    ends = np.nanmin(apart, axis=(1, 2)) - _SLACK, np.nanmax(apart, axis=(1, 2)) + _SLACK

    def moved(by: Numbers) -> Numbers:
        shift: Numbers = values + by[:, None, None] * np.array([-1.0, 1.0, 1.0]) / np.concatenate(
            [np.ones_like(k), k - 1, k - 1], axis=2
        )
        return shift

    def reached(by: Numbers, sign: float) -> Numbers:
        t = sign * studentized(moved(by), drawn)
        share: Numbers = (t >= t[0] - _SLACK).mean(axis=0)
        return share

    def leans(by: Numbers, than: float) -> Truths:
        is_more: Truths = studentized(moved(by), drawn[:1])[0] > than
        return is_more

    left = _edge(lambda by: leans(by, _SLACK), *ends)
    right = _edge(lambda by: leans(by, -_SLACK), *ends)
    centre = (left + right) / 2
    if not found:
        nothing = np.full(len(values), np.nan)
        return Estimates(centre, nothing, nothing, nothing)
    low = _edge(lambda by: np.less_equal(reached(by, 1.0), half), *ends)
    high = _edge(lambda by: np.greater(reached(by, -1.0), half), *ends, inside=0)
    zero = np.zeros(len(values))
    p_value = np.minimum(1, 2 * np.minimum(reached(zero, 1.0), reached(zero, -1.0)))
    return Estimates(centre, low, high, p_value)


def studentized(values: Numbers, drawn: NDArray[np.int64]) -> Numbers:
    """The statistic of each comparison under each exchange of names: draws × comparisons.

    ``values`` as for ``renamed_rows``, NaN where a comparison lacks a block.  It is the sum of the
    ranks of whoever is named the candidate over the root of the sum of their squares: at most the
    root of the number of blocks.
    """
    rows, blocks, names = values.shape
    is_there = ~np.isnan(values)
    last = np.where(is_there, values, np.inf).round(DECIMALS)
    ranks = rankdata(last.reshape(rows, -1), axis=1).reshape(values.shape)
    held = np.where(is_there, ranks, 0.0)
    count = np.maximum(is_there.sum(axis=2, keepdims=True), 1)
    held = np.where(is_there, held - held.sum(axis=2, keepdims=True) / count, 0.0)
    held = held.reshape(rows, blocks * names).T.astype(np.float32)  # of half ranks it is exact
    chosen = (drawn[:, :, None] == np.arange(names)).reshape(len(drawn), -1).astype(np.float32)
    squares = np.maximum(chosen @ held**2, 1e-9)
    found: Numbers = (chosen @ held / np.sqrt(squares)).astype(np.float64)
    return found


def exchanges(blocks: int, names: int) -> NDArray[np.int64]:
    """Who is named the candidate in each block, one row per draw, the first as it was."""
    if names**blocks <= DRAWS:
        return np.array(list(itertools.product(range(names), repeat=blocks)))
    drawn = np.random.default_rng(_SEED).integers(0, names, (DRAWS, blocks))
    drawn[0] = 0
    return drawn


def _edge(
    is_below: Callable[[Numbers], Truths], start: Numbers, end: Numbers, inside: int = 1
) -> Numbers:
    """The number at which ``is_below`` ends to be true, or just before it (``inside`` 0).

    0 is tried first, so that what is asked there is what the end says.
    """
    ends = [start.copy(), end.copy()]
    middle = np.clip(0.0, *ends)
    for _ in range(_HALVINGS):
        below = is_below(middle)
        ends = [np.where(below, middle, ends[0]), np.where(below, ends[1], middle)]
        middle = (ends[0] + ends[1]) / 2
    return ends[inside]
