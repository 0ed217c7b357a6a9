"""The reference records of a study, pooled."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from scipy.special import ndtri, stdtrit
from scipy.stats import t as student

from pgstudies.analysis.agreement import (
    DEPENDS_ON_SIZE,
    FAMILY,
    HOLDS,
    NOT_JUDGED,
    NOT_REPLICATED,
    NOT_TESTED,
    gated,
    side,
)
from pgstudies.analysis.claims import rules
from pgstudies.analysis.families import holm
from pgstudies.analysis.pairing import TIMES
from pgstudies.records.reading import (
    UNDISTURBED,
    conditions,
    cores_of,
    newest_on_most_cores,
    read_info,
    read_record,
    size_of,
)
from pgstudies.records.verdicts import VERDICTS, read_verdicts, verdict_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pgstudies.records.info import Info, Setup

    Rows = Mapping[str, Mapping[str, Any]]  # of a table of ``judge``, by claim

LEAST = 1e-6
"""The least error of a log ratio: an interval without width would weigh infinitely much."""

SHARED, NOISE = 3, 0.5
"""With few runs, what all claims share looks small by chance, so it is taken so many times as
large; and of what blocks explain that part is taken off, but nothing of a single deviation.  With
these two intervals miss as often as they should, simulated (``tests.bench.runs``)."""


def of_reference(study: str) -> tuple[Path, pl.DataFrame] | None:
    """The newest reference record of a study, and its verdicts pooled over all like it.

    The newest is that of ``newest_on_most_cores``.  None where no record has verdicts beside it.
    """
    files = verdict_files(study)
    newest = newest_on_most_cores((file.parent, read_info(file.parent)) for file in files)
    if newest is None:
        return None
    return newest, of_all_runs(study, newest, read_verdicts(newest / VERDICTS))


def of_all_runs(study: str, record: Path, judged: pl.DataFrame) -> pl.DataFrame:
    """The verdicts on a reference record by all reference records that are alike in what matters.

    ``judged`` is the table of ``judge`` on ``record``; the result is that with two more columns:
    runs, how many records judge the claim, and luck, the standard deviation of the true log ratio
    between runs, null where no claim of its kind was measured twice.

    Records judge a claim together that are alike in its step: of one size, with the same parameters
    but blocks and seed, the same settings, the same major release, as many cores, the same code of
    the procedure and of extensions, and both or neither with passes that do not count before a turn
    of the step.  A record that does not know its code is like no other.

    Luck is what all blocks of a run share, so that its own interval has nothing of it.  It has one
    variance for each kind of step, which is its name, and times or one kind of count: see ``luck``.
    The runs that show it are alike but for their code; where there is one only, and it has times,
    they are all of the size's name on as many cores.  What was changed between them counts as luck,
    which is then too large rather than too small.  It widens claims by one run, too.

    No claim of ``FAMILY`` then holds or is reversed unless the p-value among them allows it, Holm's
    where several runs judge and else the run's own; and none is judged where that hangs on how far
    two copies of one arm differ: see ``gated``.

    Whoever looks at a run and then adds a few blocks at a time until a verdict appears finds
    differences that are not there.  So a record that was begun when others alike were complete,
    with fewer blocks than any of them, judges with them only if it has as many as one of their
    claims was said to need: see ``has_planned_blocks``.

    A claim is *not replicated* where another record of its size says the opposite: it holds by one
    and is gone or reversed by the other, or gone by one and reversed by the other.  Where the
    parameters of the two differ otherwise than in blocks and seed, it *depends on size*.  A record
    by which it is open, or not tested, agrees with all.  One on another number of cores says
    nothing of that.
    """
    own = read_info(record)
    others = {
        file.parent: (info, read_verdicts(file))
        for file in verdict_files(study)
        if file.parent.name != record.name
        and (info := read_info(file.parent)).get("profile") == own.get("profile")
        and cores_of(info) == cores_of(own)
    }
    alike = {place: run for place, run in others.items() if conditions(run[0]) == conditions(own)}
    runs = {**alike, record: (own, judged)}
    planned = [
        place
        for place, (info, _) in alike.items()
        if has_planned_blocks(info, {p.name: run for p, run in runs.items() if p != place})
    ]
    rows = {place: _tested(table) for place, (_, table) in others.items()}
    kinds: dict[tuple[str, str | None], list[Compared]] = {}
    of_claims = {rule["id"]: rule["comparison"] for rule in rules(study)}
    for claim, row in _tested(judged).items():
        step = of_claims[claim].get("step") or of_claims[claim].get("what")
        in_parts = _in_parts(record, str(own["sha256"]), step)
        near = [p for p in planned if _in_parts(p, str(alike[p][0]["sha256"]), step) == in_parts]
        is_time = row["metric"] in TIMES
        compared = Compared(
            row,
            [rows[place] for place in near if _same_code(alike[place][0], own)],
            {place.name: rows[place] for place in near or (others if is_time else ())},
        )
        kinds.setdefault(("times" if is_time else row["metric"], step), []).append(compared)
    by_all = {claim: found for kind in kinds.values() for claim, found in _pooled(kind).items()}
    together = [
        {**row, "runs": None, "luck": None} | by_all.get(row["claim"], {})
        for row in judged.iter_rows(named=True)
    ]
    _judge_again(study, [row for row in together if row["luck"] is not None])
    elsewhere: dict[str, list[tuple[str, str, dict[str, Any], list[str]]]] = {}
    for place, (info, table) in others.items():
        for claim, verdict in table.select("claim", "verdict").iter_rows():
            elsewhere.setdefault(claim, []).append((place.name, verdict, *_otherwise(own, info)))
    for row, alone in zip(together, judged["verdict"], strict=True):
        beside = _beside(alone, elsewhere.get(row["claim"], ()))
        row["verdict"] = beside or row["verdict"]
    schema = dict(judged.schema) | {"runs": pl.Int64(), "luck": pl.Float64()}
    return pl.DataFrame([{name: row[name] for name in schema} for row in together], schema=schema)


def _same_code(one: Setup, other: Setup) -> bool:
    """Whether two runs are known to be of the same code of the procedure and of extensions."""
    return one.get("code") is not None and one["code"] == other.get("code")


@lru_cache(maxsize=1024)
def _in_parts(record: Path, sums: str, step: str | None) -> frozenset[tuple[str, str]]:
    """The steps and cases of a record whose turns begin with passes that do not count.

    Of the step alone, where the record has one of that name: others are what a page makes of them.
    """
    steps, parts = _parts(record, sums)
    return frozenset(part for part in parts if part[0] == step) if step in steps else parts


@lru_cache(maxsize=256)
def _parts(record: Path, _sums: str) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """The steps of a record, and those with their cases that have turns in parts.

    The checksums of its samples distinguish it, in the cache, from an earlier record at that path.
    """
    samples = read_record(record).samples
    parts = samples.filter(pl.col("part") == UNDISTURBED).select("step", "case").unique()
    return frozenset(samples["step"].unique()), frozenset(parts.iter_rows())


def _otherwise(own: Setup, other: Setup) -> tuple[dict[str, Any], list[str]]:
    """The parameters of another record that differ from this one's, and those that it lacks.

    It lacks parameters that the study did not have yet when it was measured.
    """
    ours, theirs = size_of(own), size_of(other)
    differ = {k: theirs[k] for k, v in ours.items() if k in theirs and theirs[k] != v}
    return differ, [k for k in ours if k not in theirs]


def has_planned_blocks(info: Info, others: Mapping[str, tuple[Info, pl.DataFrame]]) -> bool:
    """Whether a record's number of blocks was not chosen to get a verdict.

    ``others`` are the records alike, by name, each with its verdicts.  Those that were complete
    when this one was begun could be looked at: the record lists them, or, if it is older, they are
    those finished before it.  It needs as many blocks as the smallest of them, or exactly the
    additional blocks that a verdict on one of their claims asked for.
    """
    seen = info.get("seen")
    if seen is None:
        began = info["started_at"]
        seen = [n for n, (other, _) in others.items() if (other.get("finished_at") or "~") < began]
    looked_at = [others[name] for name in seen if name in others]
    wanted = {
        needed - blocks
        for _, table in looked_at
        for needed, blocks in table.select("blocks_needed", "blocks").drop_nulls().iter_rows()
    }
    fewest = min((other["blocks"] for other, _ in looked_at), default=0)
    return bool(info["blocks"] >= fewest or info["blocks"] in wanted)


class Compared:
    """A claim's log ratios, with their standard errors by the blocks of each run.

    ``runs`` are those that judge it, ``repeats`` those that show its luck, by record; the record
    itself is in both, without a name in the second.
    """

    def __init__(
        self, own: Mapping[str, Any], judging: Iterable[Rows], repeats: Mapping[str, Rows]
    ) -> None:
        def of_run(rows: Rows) -> list[tuple[float, float]]:
            row = rows.get(own["claim"], {})
            alike = all(row.get(name) == own.get(name) for name in ("metric", "commit"))
            return [_log_ratio(row)] if row and alike else []

        self.claim: str = own["claim"]
        self.runs = [_log_ratio(own), *(run for rows in judging for run in of_run(rows))]
        self.repeats = {"": self.runs[0]}
        self.repeats |= {name: run for name, rows in repeats.items() for run in of_run(rows)}


def _tested(table: pl.DataFrame) -> Rows:
    """The rows of ``judge`` that have an interval and were judged, by claim."""
    is_tested = ~pl.col("verdict").str.contains(f"^({NOT_TESTED}|{NOT_JUDGED})")
    rows = table.filter(is_tested).drop_nulls(["ratio", "low", "high"])
    return {row["claim"]: row for row in rows.iter_rows(named=True)}


def _log_ratio(row: Mapping[str, Any]) -> tuple[float, float]:
    error = math.log(row["high"] / row["low"]) / (2 * float(ndtri(0.975)))
    return math.log(row["ratio"]), max(error, LEAST)


def _pooled(kind: Sequence[Compared]) -> dict[str, dict[str, Any]]:
    """What becomes of the rows of the claims of one kind of step, by claim."""
    names = {name: n for n, name in enumerate(sorted({n for c in kind for n in c.repeats}))}
    table = np.full((2, len(kind), len(names)), np.nan)
    for n, claim in enumerate(kind):
        for name, run in claim.repeats.items():
            table[:, n, names[name]] = run
    variances, freedom = luck(*table)
    found: dict[str, dict[str, Any]] = {}
    for claim, tau2 in zip(kind, variances.tolist(), strict=True):
        found[claim.claim] = {"runs": len(claim.runs)}
        if freedom:
            found[claim.claim] |= pooled(claim.runs, tau2, freedom) | {"blocks_needed": None}
    return found


def luck(
    ratios: NDArray[np.float64], errors: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """The variance of each claim's true log ratio between runs, and its degrees of freedom.

    ``ratios``, and their standard ``errors``, have a row for each claim and a column for each run;
    NaN is what a run does not have.  The variance is that of all claims together, the mean of the
    squared deviations from the means of claims less ``NOISE`` of that of errors, or the claim's own
    where that is larger.  What a run moves in all claims alike was drawn once for each run, however
    many claims there are: the degrees of freedom are Satterthwaite's of the two parts, with one for
    each run beyond the first in the common part (as in a two-way analysis of variance).  That part
    is taken ``SHARED`` times as large as it looks.  None, where nothing was measured twice.
    """
    seen = np.isfinite(ratios)
    has_twice = seen.sum(axis=1) > 1
    if not has_twice.any():
        return np.zeros(len(ratios)), 0.0
    off = np.where(seen, ratios - np.nanmean(ratios, axis=1, keepdims=True), np.nan)[has_twice]
    of_runs = [column[np.isfinite(column)] for column in off.T if np.isfinite(column).any()]
    each = np.isfinite(off).sum(axis=1) - 1.0
    total = float(np.nansum(off**2) / each.sum())
    noise = (NOISE if each.sum() > 1 else 0.0) * errors[has_twice] ** 2
    own = np.nansum(off**2, axis=1) / each - np.nanmean(noise, axis=1)
    variances = np.full(len(ratios), max(total - float(np.nanmean(noise)), 0.0))
    variances[has_twice] = np.maximum(variances[has_twice], own)
    if total <= LEAST**2:
        return variances, float(each.sum())
    beyond = len(of_runs) - 1
    common = sum(len(run) * float(run.mean()) ** 2 for run in of_runs) / beyond
    common = min(SHARED * common / float(np.mean([len(run) for run in of_runs])), total)
    parts = common**2 / beyond
    if each.sum() > beyond:
        parts += (total - common) ** 2 / float(each.sum() - beyond)
    return variances, total**2 / parts


def pooled(runs: Sequence[tuple[float, float]], tau2: float, freedom: float) -> dict[str, float]:
    """Ratio, low and high of all runs; luck, and p_run, the p-value of "no difference".

    A mean on the log scale, weighted as in a random-effects analysis.  What blocks explain of its
    error is known well, and luck with few degrees of freedom: each has its own quantile.
    """
    y, error = np.array(runs).T
    weights = 1 / (error**2 + tau2)
    weights /= weights.sum()
    centre = float(weights @ y)
    of_blocks, of_luck = float(weights**2 @ error**2), float(weights @ weights) * tau2
    half = math.hypot(
        float(ndtri(0.975)) * math.sqrt(of_blocks),
        float(stdtrit(freedom, 0.975)) * math.sqrt(of_luck),
    )
    if np.ptp(y) == 0 and error.max() <= LEAST and tau2 == 0:
        half = 0.0  # the same count in every block of every run
    both = of_blocks + of_luck
    in_all = freedom * (both / of_luck) ** 2 if of_luck > LEAST**2 * both else math.inf
    return {
        "ratio": math.exp(centre),
        "low": math.exp(centre - half),
        "high": math.exp(centre + half),
        "luck": math.sqrt(tau2),
        "p_run": float(2 * student.sf(abs(centre) / math.sqrt(both), in_all)),
    }


def _judge_again(study: str, rows: list[dict[str, Any]]) -> None:
    """Put in the rows, which have the p_run of all runs, the verdict of all runs.

    Where one run judges, the family's p-value stays its own: luck is in the interval.
    """
    thresholds = {rule["id"]: rule.get("threshold") for rule in rules(study)}
    for row in rows:
        threshold = thresholds[row["claim"]]
        claimed = 1.0 if row["kind"] == "alike" else threshold or row["published_ratio"]
        row["verdict"] = gated(claimed, row, is_threshold=threshold is not None)
    family = [row for row in rows if row["kind"] in FAMILY]
    several = [row for row in family if row["runs"] > 1]
    adjusted = holm([row["p_run"] for row in several]).tolist() if several else []
    for row, p_family in zip(several, adjusted, strict=True):
        row["p_family"] = p_family
    for row in family:
        if row["verdict"] in (*HOLDS, "reversed") and (row["p_family"] or 1) > 0.05:
            row["verdict"] = "inconclusive: evident on its own, not among all claims"


def _beside(
    verdict: str, others: Iterable[tuple[str, str, dict[str, Any], list[str]]]
) -> str | None:
    """A verdict that names another record with the opposite one, preferably of the same size."""
    own = side(verdict)
    for name, other, differ, lacks in sorted(others, key=lambda other: bool(other[2])):
        if own and side(other) not in {own, None}:
            word = DEPENDS_ON_SIZE if differ else NOT_REPLICATED
            where = f"{name[:4]}-{name[4:6]}-{name[6:8]}"
            if differ:
                where += f", with {', '.join(f'{k} = {v}' for k, v in differ.items())}"
            if lacks:
                where += f", without {' and '.join(lacks)}"
            return f"{word}: {verdict} by this record, {other} by that of {where}"
    return None
