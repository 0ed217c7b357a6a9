"""What ``instrument.ipynb`` reads from its record: shares of right answers, and the checks.

A statistical check fails only when its interval is on the wrong side: one comparison too many in
twenty is what chance brings.  One with too little to go on is *not judged*, which is not passed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from IPython.display import Markdown
from statsmodels.stats.proportion import proportion_confint

from pgapps.scorecard.checks import SCHEMA
from pgservers.shown import markdown
from pgstudies.analysis.diagnostics import ALPHA, drift
from pgstudies.analysis.families import flipped, permuted
from pgstudies.analysis.intervals import (
    MINIMUM_BLOCKS,
    fewest_blocks,
    hodges_lehmann,
    signed_rank_interval,
)
from pgstudies.analysis.pairing import log_ratios, round_values
from pgstudies.analysis.verdicts import DIRECTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


BY = ("step", "metric", "experiment", "iteration")
"""What tells one comparison from another: an experiment is a number of blocks of its own, and its
iterations share these blocks."""


def deviations(
    values: pl.DataFrame, truths: pl.DataFrame, *, baseline: str
) -> pl.DataFrame:
    """How far each block's log-ratio is off the truth.

    ``values`` holds one value per block, arm and ``BY``, as from ``block_values``; ``truths`` has
    step, metric, candidate and truth, a ratio; what it does not name is left out.  Columns: ``BY``,
    candidate, block and deviation, on the log scale.
    """
    deviation = pl.col("log_ratio") - pl.col("truth").log()
    return (
        log_ratios(values, baseline=baseline, by=BY)
        .join(truths, on=["step", "metric", "candidate"])
        .select(*BY, "candidate", "block", deviation=deviation)
        .filter(pl.col("deviation").is_finite())
    )


def effective_number(found: pl.DataFrame) -> float:
    """As how many independent comparisons those of ``deviations`` count, as to hits and misses.

    Comparisons that share blocks share these blocks' luck.  Whether a two-sided interval misses is
    an even function of the estimate, so two misses correlate at most like the square of the
    estimates' correlation (Mehler's expansion, for normal estimates).  That is taken from the
    blocks, less what it comes to by chance.  At least one for each experiment, at most all.
    """
    if found.is_empty():
        return 0.0
    comparison = pl.struct("step", "metric", "candidate", "iteration").rank("dense")
    wide = found.select("block", comparison.alias("comparison"), "deviation").pivot(
        "comparison", index="block", values="deviation"
    )
    d = wide.drop("block").drop_nulls().to_numpy()
    blocks, comparisons = d.shape
    related = _mean_squared_correlation(d) if blocks >= MINIMUM_BLOCKS else 1.0
    worth = comparisons / (1 + (comparisons - 1) * related)
    return float(worth * found["experiment"].n_unique())


def _mean_squared_correlation(d: NDArray[np.float64]) -> float:
    """Of all pairs of columns, adjusted so that it is 0 in the mean for unrelated ones."""
    blocks, comparisons = d.shape
    if comparisons == 1:
        return 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.asarray(np.corrcoef(d, rowvar=False))
    r = np.nan_to_num(r, nan=1.0)  # columns without any spread
    squared = r[np.triu_indices(comparisons, 1)] ** 2
    adjusted = float(np.mean(squared - (1 - squared) / (blocks - 2)))
    return min(max(adjusted, 0.0), 1.0)


def share_table(
    effects: pl.DataFrame,
    found: pl.DataFrame,
    hit: pl.Expr,
    *,
    by: Sequence[str] = (),
    alpha: float = 0.05,
) -> pl.DataFrame:
    """How often ``hit`` is true of the comparisons that have an interval.

    ``effects`` are rows of ``paired_effects`` by ``BY``, ``found`` their ``deviations``.  Columns:
    ``by``, comparisons, hits, share, effective (see ``effective_number``), and low, high: the
    interval of Clopper and Pearson at 1 − ``alpha`` for that effective number (Korn and Graubard,
    Survey Methodology 24, 1998).  One row without ``by``, also where there is no comparison: share
    is null then.
    """
    known = effects.filter(pl.col("low").is_not_null())
    keys = known.select(by).unique(maintain_order=True).rows(named=True) if by else [{}]
    rows = []
    for key in keys:
        same = [pl.col(name) == value for name, value in key.items()]
        rows.append(key | _share(known.filter(*same), found.filter(*same), hit, alpha))
    kinds = {name: effects.schema[name] for name in by}
    return pl.DataFrame(rows, schema=kinds | _SHARE)


def _share(
    effects: pl.DataFrame, found: pl.DataFrame, hit: pl.Expr, alpha: float
) -> dict[str, float | None]:
    comparisons, hits = effects.height, effects.filter(hit).height
    if not comparisons:
        return {"comparisons": 0, "hits": 0, "effective": 0.0}
    effective = min(effective_number(found), comparisons)
    count = hits / comparisons * effective  # neither number need be whole
    low, high = proportion_confint(count, effective, alpha=alpha, method="beta")
    return {
        "comparisons": comparisons,
        "hits": hits,
        "share": hits / comparisons,
        "effective": effective,
        "low": float(low),
        "high": float(high),
    }


_SHARE: dict[str, pl.DataType] = {
    "comparisons": pl.Int64(),
    "hits": pl.Int64(),
    "share": pl.Float64(),
    "effective": pl.Float64(),
    "low": pl.Float64(),
    "high": pl.Float64(),
}

PROMISED_ALARMS = 0.05
"""What a 95 % interval allows itself: so often it may miss the truth."""

ENOUGH = 10.0
"""Independent comparisons that it takes to judge a share: of ten, an instrument with 40 % of false
alarms raises four, and the interval of 4 in 10 begins above 5 %."""

CHECKS = 10
"""So many does the page have: what one of them finds by chance must be as much rarer."""

RARELY = 0.01
"""The level of each: of ten, five that are judged by an interval on one side err half as often,
and the others have to find something past a limit as well: together at most 5 % (tests)."""

LARGEST_BIAS = 0.005
"""A fourth of the margin of 2 % that studies declare: a larger one would decide verdicts."""

WIDEST_BIAS = 0.02
"""An instrument that finds half of the planted 2 and 10 % is off by more than that, in the
mean: where noise leaves room for it, nobody knows whether the instrument is any better."""

LEAST_SPEED = 0.9
"""Of a bare loop over libpq. What is slower than that measures itself on a statement of 10 µs."""

UNKNOWN_SPEED = 0.5
"""Where noise leaves room for a loop that costs double, its speed is not known."""

MARGIN = 0.02
"""What studies declare, if they say nothing else: a smaller fault decides no verdict."""

PARTS = 4
"""A block's turns are compared in so many parts, every fourth turn in each: as the order of arms is
drawn anew for each turn, chance makes either of two equal arms the slower one in each."""

UNKNOWN_SPEEDS = 0.1
"""Where chance leaves room for so large a difference between two arms, it is not known."""

FAR_APART = 0.2
"""Neighbours in a round that differ by more than this ran at two speeds of the machine."""

EXCLUDES_ONE = (pl.col("low") > 1) | (pl.col("high") < 1)

IS_CLAIM = pl.col("verdict").is_in(DIRECTIONS)

HOLDS_TRUTH = pl.col("truth").is_between("low", "high")

Judged = tuple[bool | None, str]


def instrument_checks(
    equal: pl.DataFrame,
    planted: pl.DataFrame,
    found: pl.DataFrame,
    costs: pl.DataFrame,
    machine: pl.DataFrame,
    *,
    carried: Judged,
    baseline: str,
) -> pl.DataFrame:
    """The table of checks: check, passed (null: not judged), sentence.

    ``equal`` are effects of the A/A pair and ``planted`` of known ones, with the column truth, both
    by ``shares.BY``; ``found`` the ``deviations`` of both.  ``costs`` are effects of ways to run a
    statement, against the bare loop, with candidate *repeated* among them.  ``machine`` are samples
    that ``watched`` recorded of all arms, of which ``baseline`` is one.  ``carried`` is what
    ``caches.judged`` says of the planted carry-over.
    """
    keys = ["step", "metric", "experiment", "iteration", "candidate"]
    of_equal = found.join(equal, on=keys, how="semi")
    of_planted = found.join(planted, on=keys, how="semi")
    checks = {
        "false alarms": _alarms(equal, of_equal, EXCLUDES_ONE, "came out different"),
        "false verdicts": _alarms(
            equal, of_equal, IS_CLAIM, "were called faster or slower"
        ),
        "coverage": _coverage(planted, of_planted),
        "recovery": _recovery(of_planted),
        "carry-over": carried,
        "cost": _cost(costs),
        "stolen time": _loss(machine, "stolen", "went to other guests of the host"),
        "neighbours": _loss(machine, "waited", "went to other processes"),
        "speed": _speed(machine, baseline),
        "drift": _drift(machine, baseline),
    }
    rows = [(name, *judged) for name, judged in checks.items()]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def reach_in_words(
    reach: pl.DataFrame, machine: pl.DataFrame, baseline: str
) -> Markdown:
    """The smallest effects that ten blocks show, and what of the noise is the machine's own."""
    of_ten = reach.filter(pl.col("blocks") == 10).drop_nulls()
    told = [
        f"{row['detectable']:.2g} % in {row['seconds']:.1f} s (*{markdown(row['step'])}*)"
        for row in of_ten.sort("detectable").iter_rows(named=True)
    ]
    said = []
    if told:
        effects = ", ".join(told)
        said = [
            f"The smallest effect that ten blocks show four times in five: {effects}."
        ]
    loops = _loops(machine, baseline)
    spread = loops["log_ratio"].std() if loops.height > 1 else None
    if spread is not None:
        said.append(
            f"A loop that is always the same spreads by {100 * spread:.2g} % from block to block "
            f"(standard deviation of its ratio), which is the machine's part of the noise."
        )
    return Markdown(" ".join(said))  # type: ignore[no-untyped-call]


def mean_bias(
    found: pl.DataFrame, level: float = 0.95
) -> tuple[float, float, float] | None:
    """The bias of the estimates and its interval, as fractions; None below 6 blocks.

    One number per block, the mean of all its deviations, treated like any other effect.
    """
    of_block = found.group_by("block", maintain_order=True).agg(
        pl.col("deviation").mean()
    )
    d = of_block["deviation"].to_numpy()
    interval = signed_rank_interval(d, level) if len(d) else None
    if interval is None:
        return None
    centre, low, high = (math.expm1(x) for x in (hodges_lehmann(d), *interval))
    return centre, low, high


def _alarms(
    equal: pl.DataFrame, found: pl.DataFrame, hit: pl.Expr, what: str
) -> Judged:
    row = share_table(equal, found, hit, alpha=RARELY).row(0, named=True)
    if row["effective"] < ENOUGH:
        return None, _too_few(row)
    said = f"{row['hits']} of {row['comparisons']} comparisons of two equal arms {what}"
    return row[
        "low"
    ] <= PROMISED_ALARMS, f"{said}: {_interval(row)}, and 5 % are allowed"


def _coverage(planted: pl.DataFrame, found: pl.DataFrame) -> Judged:
    row = share_table(planted, found, HOLDS_TRUTH, alpha=RARELY).row(0, named=True)
    if row["effective"] < ENOUGH:
        return None, _too_few(row)
    said = f"{row['hits']} of {row['comparisons']} intervals hold the planted effect"
    return (
        row["high"] >= 1 - PROMISED_ALARMS,
        f"{said}: {_interval(row)}, and 95 % are promised",
    )


def _recovery(found: pl.DataFrame) -> Judged:
    bias = mean_bias(found, 1 - RARELY)
    if bias is None:
        return None, f"a bias is judged from {fewest_blocks(1 - RARELY)} blocks on"
    centre, low, high = bias
    said = (
        f"what is found is {_points(centre)} percentage points off what was planted "
        f"({_points(low)} to {_points(high)})"
    )
    if low > LARGEST_BIAS or high < -LARGEST_BIAS:
        return False, f"{said}, and {100 * LARGEST_BIAS:g} are allowed"
    if max(-low, high) > WIDEST_BIAS:
        return None, f"{said}, too uncertain to judge"
    return True, f"{said}, and {100 * LARGEST_BIAS:g} are allowed"


def _cost(costs: pl.DataFrame) -> Judged:
    row = next(
        costs.filter(pl.col("candidate") == "repeated").iter_rows(named=True),
        None,
    )
    if row is None or row["low"] is None:
        return None, f"the cost is judged from {MINIMUM_BLOCKS} blocks on"
    said = (
        f"a short statement runs at {1 / row['ratio']:.2f} of the speed of a bare loop "
        f"({1 / row['high']:.2f} to {1 / row['low']:.2f})"
    )
    if 1 / row["low"] < LEAST_SPEED:
        return False, f"{said}, and {LEAST_SPEED:g} is the least"
    if 1 / row["high"] < UNKNOWN_SPEED:
        return None, f"{said}, too uncertain to judge"
    return True, f"{said}, and {LEAST_SPEED:g} is the least"


def _loss(machine: pl.DataFrame, metric: str, what: str) -> Judged:
    values = machine.filter(pl.col("metric") == metric)
    if values.is_empty():
        return None, "this system does not tell"
    of_trial = _by_trial(values, pl.col("value").mean())
    share, most = float(of_trial.mean()), float(of_trial.max())
    return share <= MARGIN, (
        f"{_percent(share)} of the core's time {what} (in the worst trial {_percent(most)}), "
        f"and {_percent(MARGIN)} are allowed"
    )


def _speed(machine: pl.DataFrame, baseline: str) -> Judged:
    """Whether one arm has more of the machine's speed than another: what noise evens out is none.

    The loop is the same in every arm, so whatever its ratio shows the machine has planted.
    """
    pairs = _loops(_in_parts(machine), baseline)
    if pairs["block"].n_unique() < MINIMUM_BLOCKS * PARTS:
        return None, f"the speed is judged from {MINIMUM_BLOCKS} blocks on"
    of_arms = pairs.pivot("candidate", index="block", values="log_ratio").drop("block")
    evident = flipped([arm.to_list() for arm in of_arms]).p_value <= RARELY
    measured = [arm.drop_nulls().to_numpy() for arm in of_arms]
    bounds = [signed_rank_interval(d, 1 - RARELY) for d in measured]
    centres = [hodges_lehmann(d) for d in measured]
    worst = max(centres, key=abs)
    room = max(abs(x) for both in bounds for x in (both or (math.inf,)))
    far = float(np.mean(_between_neighbours(machine) > math.log1p(FAR_APART)))
    said = (
        f"a loop that is always the same differs by at most {_apart(worst)} between two "
        f"arms (by chance {_apart(room)}); of turns next to each other, {_percent(far)} differ by "
        f"more than {100 * FAR_APART:g} %, which turns even out"
    )
    if any(
        e and abs(c) > math.log1p(MARGIN) for e, c in zip(evident, centres, strict=True)
    ):
        return False, f"{said}, and {_percent(MARGIN)} are allowed"
    if room > math.log1p(UNKNOWN_SPEEDS):
        return None, f"{said}, too uncertain to judge"
    return True, f"{said}, and {_percent(MARGIN)} are allowed"


def _in_parts(machine: pl.DataFrame) -> pl.DataFrame:
    """The machine's samples, each block divided into ``PARTS``, which count as blocks."""
    part = pl.col("turn") % PARTS
    return machine.with_columns(block=pl.col("block") * PARTS + part)


def _apart(log_ratio: float) -> str:
    return _percent(math.expm1(abs(log_ratio)))


def _drift(machine: pl.DataFrame, baseline: str) -> Judged:
    """Whether the machine's speed drifts from block to block for one arm and not for another."""
    pairs = _loops(machine, baseline)
    if pairs["block"].n_unique() < MINIMUM_BLOCKS:
        return None, f"a drift is judged from {MINIMUM_BLOCKS} blocks on"
    arms = pairs.partition_by("candidate")
    d, block = (
        [arm[column].to_list() for arm in arms] for column in ("log_ratio", "block")
    )
    evident = permuted(d, block).p_value <= ALPHA / CHECKS
    changes = [
        drift(arm["log_ratio"].to_numpy(), arm["block"].to_numpy()) for arm in arms
    ]
    largest = max(
        (abs(c) for c, e in zip(changes, evident, strict=True) if e),
        default=0.0,
    )
    if largest == 0:
        return (
            True,
            "from the first block to the last, that loop drifts evidently in no arm",
        )
    change = math.expm1(largest)
    return change <= MARGIN, (
        f"from the first block to the last, that loop drifts by {_percent(change)} in one arm "
        f"against another, and {_percent(MARGIN)} are allowed"
    )


def _loops(machine: pl.DataFrame, baseline: str) -> pl.DataFrame:
    """The loop's log-ratio of each arm in each block, from its rounds as for any step."""
    loops = machine.filter(pl.col("metric") == "spin_s")
    if baseline not in loops["arm"]:
        return pl.DataFrame(schema={"candidate": pl.String(), "block": pl.Int32()})
    pairs = log_ratios(
        round_values(loops, by=["metric"]),
        baseline=baseline,
        by=["metric"],
    )
    return pairs.drop_nulls("log_ratio")


def _between_neighbours(machine: pl.DataFrame) -> Any:
    """How far apart the loop is in turns that follow each other in a round, on the log scale."""
    loops = round_values(machine.filter(pl.col("metric") == "spin_s"), by=["metric"])
    step = pl.col("value").log().diff().over("block", "round", order_by="position")
    return loops.select(step.abs().alias("apart")).drop_nulls()["apart"].to_numpy()


def _by_trial(values: pl.DataFrame, statistic: pl.Expr) -> Any:
    return values.group_by("block", "arm").agg(statistic)["value"].to_numpy()


def _too_few(row: dict[str, Any]) -> str:
    return (
        f"{row['comparisons']} comparisons count as {row['effective']:.1f} independent ones, "
        f"and it takes {ENOUGH:g} to judge"
    )


def _interval(row: dict[str, Any]) -> str:
    share, low, high = (_percent(row[name]) for name in ("share", "low", "high"))
    counted = f"counted as {row['effective']:.0f} independent ones"
    return f"{share} ({low} to {high}, {counted})"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.2f}".replace("-", "−")
