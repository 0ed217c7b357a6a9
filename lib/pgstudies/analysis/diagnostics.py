"""Diagnostics: signs that the blocks of a run were not alike, and what that does to its effects."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from warnings import catch_warnings

import numpy as np
import polars as pl

from .families import Family, flipped, permuted
from .intervals import MINIMUM_BLOCKS, hodges_lehmann
from .pairing import BY, copies_of, log_ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Turn = tuple[str, float]  # the arm before, and the logarithm of the value


ALPHA = 0.05
"""The rate at which a check warns by chance, over all comparisons of a run."""

CARRY_OVER = "carry-over"


def diagnose(
    values: pl.DataFrame,
    *,
    baseline: str | int,
    key: str = "arm",
    by: Sequence[str] = BY,
    margin: float = 0.02,
) -> pl.DataFrame:
    """The rows of ``checks`` with p ≤ 5 %; of settling and carry-over those past ``margin``."""
    is_small = pl.col("check").is_in(["settling", CARRY_OVER]) & (
        pl.col("change").log1p().abs() <= math.log1p(margin)
    )
    found = checks(values, baseline=baseline, key=key, by=by)
    return found.filter(pl.col("p_family") <= ALPHA, ~is_small).drop("least")


def checks(
    values: pl.DataFrame, *, baseline: str | int, key: str = "arm", by: Sequence[str] = BY
) -> pl.DataFrame:
    """The result of every check in every comparison of a run, one row each.

    Columns: the ``by`` columns, candidate, check, blocks, change (a fraction), p_family, least (the
    smallest p-value that so few blocks could have given), sentence. The comparisons are one family
    to each check, by joint flips or permutations: see ``families``. The checks are

    - order: the log-ratio depends on whether the candidate ran after the baseline or before it;
      change is how much slower the later one is.
    - drift: the log-ratio rises or falls from block to block (Theil–Sen for the slope), as one arm
      drifts away from the other; change is that of the ratio over the whole run.
    - A/A: the two copies of the baseline differ; change is that difference.
    - settling: within a block, the log-ratio of the last third of all turns differs from that of
      the first, as while one arm still warms up; change is that difference. Only in values of
      ``round_values``, from 9 turns on.
    - carry-over: what the turn before left behind costs the candidate more than the baseline, or
      less; change is what it adds to the ratio, the most evident that ``carried`` finds. Only in
      values of ``round_values``, from 6 blocks on in which either arm's turns followed that one.

    Comparisons of fewer than 6 complete blocks are not checked. Errors as for ``paired_effects``.
    """
    pairs = log_ratios(values, baseline=baseline, key=key, by=by)
    blocks = {block: at for at, block in enumerate(pairs["block"].unique().sort())}
    comparisons = (
        pairs.filter(pl.col("log_ratio").is_not_null())
        .with_columns(
            (pl.col("candidate_position") - pl.col("baseline_position")).sign().alias("after"),
            at=pl.col("block").replace_strict(blocks, return_dtype=pl.Int64),
        )
        .group_by(*by, "candidate")
        .agg(
            *("log_ratio", "at", "block", "after", "log_settling"),
            pl.len().cast(pl.Int64).alias("blocks"),
        )
        .filter(pl.col("blocks") >= MINIMUM_BLOCKS, ~pl.col("log_ratio").list.contains(math.nan))
        .sort(*by, "candidate")
    )
    copies = comparisons.filter(pl.col("candidate").is_in(copies_of(values, baseline, key)))
    in_turns = comparisons.filter(~pl.col("log_settling").list.contains(None))
    checked = [
        _checked(comparisons, "order", order_effect, _ORDER, against="after"),
        _checked(comparisons, "drift", drift, _DRIFT, against="block"),
        _checked(copies, "A/A", _centre, _AA),
        _checked(in_turns, "settling", _centre, _SETTLING, of="log_settling"),
    ]
    found = _carry_over(values, pairs, baseline=baseline, key=key, by=by)
    return pl.concat([*checked, found]).sort("check", *by, "candidate")


def _carry_over(
    values: pl.DataFrame, pairs: pl.DataFrame, *, baseline: str | int, key: str, by: Sequence[str]
) -> pl.DataFrame:
    """The check of carry-over, with all arms that may have been before as one family."""
    blocks = {block: at for at, block in enumerate(pairs["block"].unique().sort())}
    keys = [*by, "candidate", "before"]
    looked = (
        carried(values, baseline=str(baseline), key=key, by=by)
        .with_columns(at=pl.col("block").replace_strict(blocks, return_dtype=pl.Int64))
        .group_by(keys, maintain_order=True)
        .agg("log_carried", "at", blocks=pl.len().cast(pl.Int64))
        .filter(pl.col("blocks") >= MINIMUM_BLOCKS)
    )
    changes = [math.expm1(hodges_lehmann(np.asarray(d))) for d in looked["log_carried"]]
    turns = ["another arm's turn" if b == OTHERS else f"a turn of {b}" for b in looked["before"]]
    sentences = [
        _in_words(_CARRIED, c) + _AFTER.format(turn) for c, turn in zip(changes, turns, strict=True)
    ]
    family = flipped(_placed(looked["log_carried"], looked["at"]))
    return (
        _table(looked, CARRY_OVER, changes, family, sentences)
        .sort("p_family", pl.col("change").abs(), descending=[False, True], maintain_order=True)
        .unique([*by, "candidate"], keep="first", maintain_order=True)
        .cast({"candidate": pairs.schema["candidate"]})
        .select(*by, "candidate", *_FOUND)
    )


_FOUND = ("check", "blocks", "change", "p_family", "least", "sentence")


def _in_words(sentence: str, change: float) -> str:
    return sentence.format(abs(100 * change), "higher" if change > 0 else "lower")


def _table(
    rows: pl.DataFrame, check: str, changes: list[float], family: Family, sentences: list[str]
) -> pl.DataFrame:
    """The comparisons of ``rows`` with what a check found in them."""
    return rows.with_columns(
        pl.lit(check).alias("check"),
        pl.Series("change", changes, dtype=pl.Float64),
        pl.Series("p_family", family.p_value, dtype=pl.Float64),
        pl.Series("least", family.least, dtype=pl.Float64),
        pl.Series("sentence", sentences, dtype=pl.String),
    )


def order_effect(d: Numbers, after: Numbers) -> float:
    """By how much the later of two arms reads higher, on the log scale.

    ``d`` are log-ratios, ``after`` is 1 where the candidate ran after the baseline and −1 where it
    ran before. 0 when only one order occurs.
    """
    later, earlier = d[after > 0], d[after < 0]
    if not later.size or not earlier.size:
        return 0.0
    # Both orders carry the position effect, with opposite signs.
    return float(np.median(np.subtract.outer(later, earlier))) / 2


def drift(d: Numbers, block: Numbers) -> float:
    """The change of the log-ratio from the first block to the last."""
    from scipy.stats import theilslopes  # noqa: PLC0415, its import takes half a second

    return float(theilslopes(d, block)[0]) * float(np.ptp(block))


def _centre(d: Numbers, _: Numbers) -> float:
    return hodges_lehmann(d)


def _checked(
    comparisons: pl.DataFrame,
    name: str,
    change_of: Callable[[Numbers, Numbers], float],
    sentence: str,
    *,
    of: str = "log_ratio",
    against: str | None = None,
) -> pl.DataFrame:
    """One check of all comparisons: the centres of ``of``, or how it goes with ``against``."""
    found = comparisons.select(of, other=against or of)
    changes = [
        math.expm1(change_of(np.asarray(d, dtype=np.float64), np.asarray(x, dtype=np.float64)))
        for d, x in found.iter_rows()
    ]
    d, x = (_placed(found[column], comparisons["at"]) for column in (of, "other"))
    family = permuted(d, x) if against else flipped(d)
    table = _table(comparisons, name, changes, family, [_in_words(sentence, c) for c in changes])
    return table.drop("log_ratio", "at", "block", "after", "log_settling").select(
        pl.exclude(_FOUND), *_FOUND
    )


def _placed(lists: pl.Series, places: pl.Series) -> list[list[float | None]]:
    """The values of each list at their blocks' places, the same in every comparison."""
    rows: list[list[float | None]] = []
    for values, at in zip(lists, places, strict=True):
        row: list[float | None] = [None] * (max(at) + 1)
        for place, value in zip(at, values, strict=True):
            row[place] = value
        rows.append(row)
    return rows


_ORDER = "the arm that runs later in a block reads {:.1f} % {}: one arm leaves something behind"

_DRIFT = "the ratio ends the run {:.1f} % {} than it began: the arms do not drift alike"

_SETTLING = (
    "the ratio of a block's last turns is {:.1f} % {} than that of its first: one arm still warms "
    "up, or pays for what came before"
)

_CARRIED = "carry-over makes the ratio {:.1f} % {}: "

_AFTER = "one arm's turns suffer more from {} before them"

_AA = "the second copy of the baseline reads {:.1f} % {}: trust no difference of that size here"

OTHERS = "another arm"
"""The value of ``before`` where turns after any other arm are compared with those after its own."""

_FAR = 2.0
"""A round farther from what is fitted than this many standard deviations, which the median gives,
counts as so far (Huber): a machine that changes its speed in a round says nothing of caches."""

_SPARE = 2
"""Rounds of a block, at least, beyond the numbers that are fitted to them."""


def carried(
    values: pl.DataFrame, *, baseline: str, key: str = "arm", by: Sequence[str] = ()
) -> pl.DataFrame:
    """How much the turn before moves each comparison's ratio, block by block.

    ``values`` are those of ``round_values``, with the column after.  In every block the rounds'
    log-ratios are fitted with what either arm's turn came after: a turn after another arm's finds
    its caches cold, which costs more the more an arm uses them.  A copy of an arm, which has a
    server and memory of its own, is another arm.

    Columns: the ``by`` columns, candidate, before, block and log_carried: the part of the block's
    log-ratio that is there because the candidate's turn suffers more (above 0) or less than the
    baseline's from what ``before`` left behind: any other arm (``OTHERS``, beside an arm's own
    turn), or one that is neither of the two (beside the rest).  Blocks in which one of them has not
    followed what is asked, or always has, have no row.
    """
    schema = {name: values.schema[name] for name in by}
    schema |= dict.fromkeys(["candidate", "before"], pl.String())
    schema |= {"block": pl.Int32(), "log_carried": pl.Float64()}
    if "after" not in values.columns:
        return pl.DataFrame(schema=schema)
    own = [baseline, *map(str, copies_of(values, baseline, key))]
    kept = values.filter(
        pl.col("block") > 0, pl.col("value").is_finite() & (pl.col("value") > 0)
    ).drop_nulls("after")
    parts = kept.partition_by(*by, maintain_order=True) if by else [kept]
    rows = [
        (*(part[name][0] for name in by), *found)
        for part in parts
        if part.height
        for found in _of_comparisons(part, own, key)
    ]
    return pl.DataFrame(rows, schema=schema, orient="row")


def _of_comparisons(
    values: pl.DataFrame, own: Sequence[str], key: str
) -> list[tuple[str, str, int, float]]:
    rows = []
    columns = ["round", "after", "value"]
    for (block,), part in values.group_by("block", maintain_order=True):
        turns = {
            str(name): {r: (after, math.log(v)) for r, after, v in held.select(columns).rows()}
            for (name,), held in part.group_by(key, maintain_order=True)
        }
        baselines = {name: turns[name] for name in own if name in turns}
        if own[0] not in baselines:
            continue
        for candidate in sorted(turns.keys() - set(own)):
            found = _of_block(turns[candidate], baselines, candidate)
            rows += [(candidate, before, int(str(block)), d) for before, d in found.items()]
    return rows


def _of_block(
    mine: Mapping[str, Turn], baselines: Mapping[str, Mapping[str, Turn]], candidate: str
) -> dict[str, float]:
    """How much each arm that was before moves a block's log-ratio; turns are by round."""
    rounds = [r for r in mine if all(r in turns for turns in baselines.values())]
    if not rounds:
        return {}
    others = {name: [turns[r] for r in rounds] for name, turns in baselines.items()}
    d = np.array([mine[r][1] for r in rounds])
    d -= np.mean([[log for _, log in turns] for turns in others.values()], axis=0)

    def followed(before: str | None) -> tuple[Numbers, Numbers]:
        """By round, whether the candidate's turn came after it, and the share of the baselines'.

        None is an arm's own turn.
        """
        of_mine = [float(mine[r][0] == (before or candidate)) for r in rounds]
        of_others = [
            [float(after == (before or name)) for after, _ in turns]
            for name, turns in others.items()
        ]
        return np.array(of_mine), np.mean(of_others, axis=0)

    own = followed(None)
    found = {OTHERS: _slopes(d, own) * (float(own[0].mean()) - 1)}
    for before in sorted({after for after, _ in mine.values()} - {candidate, *baselines}):
        columns = followed(before)
        found[before] = _slopes(d, columns, own) * float(columns[0].mean())
    return {before: change for before, change in found.items() if not math.isnan(change)}


def _slopes(d: Numbers, columns: Sequence[Numbers], beside: Sequence[Numbers] = ()) -> float:
    """The sum of the columns' slopes, fitted with those of ``beside``; NaN if not determined."""
    from statsmodels.robust import norms, robust_linear_model  # noqa: PLC0415, takes a second
    from statsmodels.tools.sm_exceptions import ConvergenceWarning  # noqa: PLC0415

    design = [np.ones_like(d), *columns, *(column for column in beside if np.ptp(column))]
    matrix = np.column_stack(design)
    if d.size < len(design) + _SPARE or np.linalg.matrix_rank(matrix) < len(design):
        return math.nan
    with catch_warnings(action="ignore", category=ConvergenceWarning):  # all lie on the line
        slopes = robust_linear_model.RLM(d, matrix, M=norms.HuberT(_FAR)).fit(conv="coefs").params
    return float(slopes[1 : 1 + len(columns)].sum())
