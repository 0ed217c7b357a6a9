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
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from pgstudies.analysis.families import DRAWS, of_sums
from pgstudies.analysis.intervals import MINIMUM_BLOCKS, Estimates, estimate_rows
from pgstudies.analysis.pairing import DECIMALS, copies_of, log_ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pgstudies.analysis.effects import Intervals

    Numbers = NDArray[np.float64]
    Truths = NDArray[np.bool_]

_SEED = 20261128  # the same samples always get the same verdicts

_HALVINGS = 24

_SLACK = 1e-9


def by_names(values: pl.DataFrame, *, baseline: str, by: Sequence[str]) -> Intervals:
    """The ``intervals`` of ``paired_effects`` by exchanging names (second copies: signed ranks).

    ``values``, ``baseline`` and ``by`` are the same.
    """
    copies = copies_of(values, baseline, "arm")

    def estimates(rows: pl.DataFrame, level: float) -> Estimates:
        found = Estimates(*map(np.copy, estimate_rows(rows["log_ratio"].to_list(), level)))
        of_candidates = ~rows["candidate"].is_in(copies).to_numpy()
        if of_candidates.any():
            theirs = in_each_place(values, rows.filter(of_candidates), baseline=baseline, by=by)
            complete = np.stack([row[~np.isnan(row[:, 0])] for row in theirs])
            for every, own in zip(found, renamed_rows(complete, level), strict=True):
                every[of_candidates] = own
        return found

    return estimates


def in_each_place(
    values: pl.DataFrame, rows: pl.DataFrame, *, baseline: str, by: Sequence[str]
) -> Numbers:
    """Each block's log-ratio, as measured and with the names exchanged: rows × blocks × 3.

    ``rows`` have the ``by`` columns and candidate.  The three are ``log_ratios`` of the candidate,
    of the baseline and of its second copy, each against the other two.  Where one of them lacks,
    they are d, −d and NaN, and where d lacks all are NaN.
    """
    numbers = {block: n for n, block in enumerate(values["block"].unique().sort())}
    found = np.full((rows.height, len(numbers), 3), np.nan)
    every = rows.select("candidate", *by).with_row_index("row")
    how: Any = {"on": list(by), "nulls_equal": True} if by else {"how": "cross"}
    for candidate, part in every.partition_by("candidate", as_dict=True).items():
        three = [*candidate, baseline, *copies_of(values, baseline, "arm")[:1]]
        some = values.filter(pl.col("arm").is_in(three))
        for place, name in enumerate(three):
            against = _against(some, name, [other for other in three if other != name], by)
            for row, block, d in part.join(against, **how).select("row", *_D).iter_rows():
                found[row, numbers[block], place] = d
    d = found[:, :, 0]
    is_short = np.isnan(found).any(axis=2)
    found[is_short] = np.stack([d, -d, np.full_like(d, np.nan)], axis=2)[is_short]
    return found


_D = ("block", "log_ratio")


def _against(
    values: pl.DataFrame, name: str, others: Sequence[str], by: Sequence[str]
) -> pl.DataFrame:
    copy_of = pl.when(pl.col("arm").is_in(others[1:])).then(pl.lit(others[0]))
    found = log_ratios(values.with_columns(copy_of=copy_of), baseline=others[0], by=by)
    return found.filter(pl.col("candidate") == name).select(*by, *_D).drop_nulls("log_ratio")


def family(values: Numbers) -> Numbers:
    """As of ``families.flipped``, corrected p-values: the same exchange of names in all rows.

    ``values`` are those of ``in_each_place``.  Where one of the rows has no second copy, only two
    names are exchanged in any.
    """
    count = (~np.isnan(values[:, :, 0])).sum(axis=1)
    lacks = np.isnan(values[:, :, 2]) & ~np.isnan(values[:, :, 0])
    drawn = _exchanges(values.shape[1], 2 if lacks.any() else 3)
    return of_sums(np.abs(_studentized(values, drawn)), count)


def renamed_rows(values: Numbers, level: float = 0.95) -> Estimates:
    """As ``intervals.estimate_rows``: comparisons × blocks × three names, the candidate's first.

    The values of a block add up to 0; NaN in the third place where there is no second copy.  The
    interval has the differences that the test would not reject at half of 1 − ``level`` on either
    side; p_value is at most 1 − level exactly when 0 lies outside of it.
    """
    found = values.shape[1] >= MINIMUM_BLOCKS
    names = 2 if np.isnan(values).any() else 3
    drawn = _exchanges(values.shape[1], names) if found else np.zeros((1, values.shape[1]), int)
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
        t = sign * _studentized(moved(by), drawn)
        share: Numbers = (t >= t[0] - _SLACK).mean(axis=0)
        return share

    def leans(by: Numbers, than: float) -> Truths:
        is_more: Truths = _studentized(moved(by), drawn[:1])[0] > than
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


def _studentized(values: Numbers, drawn: NDArray[np.int64]) -> Numbers:
    """The statistic of each comparison under each exchange of names: draws × comparisons.

    ``values`` as for ``renamed_rows``, NaN where a comparison lacks a block.  It is the sum of the
    ranks of whoever is named the candidate over the root of the sum of their squares: at most the
    root of the number of blocks.
    """
    from scipy.stats import rankdata  # noqa: PLC0415, its import takes half a second

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


def _exchanges(blocks: int, names: int) -> NDArray[np.int64]:
    """Which of three is named candidate in each block: a row per draw, the first as measured."""
    if names**blocks <= DRAWS:
        return np.array(list(itertools.product(range(names), repeat=blocks)))
    drawn = np.random.default_rng(_SEED).integers(0, names, (DRAWS, blocks))
    drawn[0] = 0
    return drawn


def _edge(
    is_below: Callable[[Numbers], Truths], start: Numbers, end: Numbers, inside: int = 1
) -> Numbers:
    """The number up to which ``is_below`` is true, or just below it (``inside`` 0).

    0 is tried first, so that what is asked there is what the end says.
    """
    ends = [start.copy(), end.copy()]
    middle = np.clip(0.0, *ends)
    for _ in range(_HALVINGS):
        below = is_below(middle)
        ends = [np.where(below, middle, ends[0]), np.where(below, ends[1], middle)]
        middle = (ends[0] + ends[1]) / 2
    return ends[inside]
