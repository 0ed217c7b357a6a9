"""The reference records of a study, pooled."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from scipy.optimize import brentq
from scipy.special import ndtri, stdtr, stdtrit

from pgstudies.analysis.agreement import (
    DEPENDS_ON_SIZE,
    FAMILY,
    HOLDS,
    NOT_JUDGED,
    NOT_REPLICATED,
    NOT_TESTED,
    agreement,
    side,
)
from pgstudies.analysis.claims import rules
from pgstudies.analysis.families import holm
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
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from pgstudies.records.info import Info, Setup


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
    between runs, null where nothing was run twice.  Alike are records of one size, with the same
    parameters but blocks and seed, the same settings, the same major release, as many cores, and
    the same steps whose turns begin with passes that do not count.

    Where a claim or another of its kind (times, or one kind of count) was run twice, ratio, low and
    high are those of all runs: random effects on the log scale, with one variance between runs for
    all claims of the kind, the one by which their squared deviations are what they should be (Paule
    and Mandel, 1982, over all claims), and Student's t of as many degrees of freedom as there are
    runs beyond the first of each.  One run is one draw of the luck that is common to a run, and its
    own interval has nothing of that.  No claim of ``FAMILY`` then holds or is reversed unless
    Holm's p-value among them allows it.

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
    others = [
        (info, read_verdicts(file), file.parent.name)
        for file in verdict_files(study)
        if file.parent.name != record.name
        and (info := read_info(file.parent)).get("profile") == own.get("profile")
    ]
    of_own = _in_parts(record, str(own["sha256"]))
    alike = {
        name: (info, table)
        for info, table, name in others
        if conditions(info) == conditions(own)
        and _in_parts(record.parent / name, str(info["sha256"])) == of_own
    }
    runs = alike | {record.name: (own, judged)}
    kept = [
        table
        for name, (info, table) in alike.items()
        if has_planned_blocks(info, {other: runs[other] for other in runs if other != name})
    ]
    together = _together(study, [judged, *kept])
    elsewhere: dict[str, list[tuple[str, str, dict[str, Any], list[str]]]] = {}
    for info, table, name in others:
        if cores_of(info) != cores_of(own):
            continue
        for claim, verdict in table.select("claim", "verdict").iter_rows():
            elsewhere.setdefault(claim, []).append((name, verdict, *_otherwise(own, info)))
    verdicts = [
        _beside(verdict, elsewhere.get(claim, ())) or by_all
        for (claim, verdict), by_all in zip(
            judged.select("claim", "verdict").iter_rows(), together["verdict"], strict=True
        )
    ]
    return together.with_columns(verdict=pl.Series(verdicts, dtype=pl.String()))


@lru_cache(maxsize=256)
def _in_parts(record: Path, _sums: str) -> frozenset[tuple[str, str]]:
    """The steps and cases of a record whose turns begin with passes that do not count.

    The checksums of its samples distinguish it, in the cache, from an earlier record at that path.
    """
    counts = read_record(record).samples.filter(pl.col("part") == UNDISTURBED)
    return frozenset(counts.select("step", "case").unique().iter_rows())


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


class Runs:
    """The log ratios of one claim, one of each run, and their standard errors."""

    def __init__(self, bounds: list[tuple[float, float, float]]) -> None:
        self.y: NDArray[np.float64]
        self.error: NDArray[np.float64]
        self.y, low, high = np.log(bounds).T
        # An interval without width, as of counts, would weigh infinitely much.
        self.error = np.maximum((high - low) / (2 * ndtri(0.975)), 1e-6)

    def weights(self, tau2: float) -> NDArray[np.float64]:
        """The weight of each run, by its error and the variance between runs."""
        return 1.0 / (self.error**2 + tau2)

    def deviations(self, tau2: float) -> float:
        """The weighted sum of squared deviations from the mean."""
        weights = self.weights(tau2)
        return float((weights * (self.y - np.average(self.y, weights=weights)) ** 2).sum())

    def pooled(self, tau2: float, freedom: int) -> dict[str, float]:
        """Ratio, low and high of all runs; luck, and p_run, the p-value of "no difference"."""
        weights = self.weights(tau2)
        centre = float(np.average(self.y, weights=weights))
        error = 1 / math.sqrt(weights.sum())
        half = float(stdtrit(freedom, 0.975)) * error
        if np.ptp(self.y) == 0 and self.error.max() <= 1e-6 and tau2 == 0:
            half = 0.0  # the same count in every block of every run
        return {
            "ratio": math.exp(centre),
            "low": math.exp(centre - half),
            "high": math.exp(centre + half),
            "luck": math.sqrt(tau2),
            "p_run": float(2 * stdtr(freedom, -abs(centre) / error)),
        }


_TIMES = ("cpu_s", "duration_s")


def _together(study: str, tables: list[pl.DataFrame]) -> pl.DataFrame:
    """The first table, with ratio, low, high and verdict by all of them, and runs and luck."""
    is_tested = ~pl.col("verdict").str.contains(f"^({NOT_TESTED}|{NOT_JUDGED})")
    named = ["claim", "metric", "ratio", "low", "high"]
    first = tables[0].filter(is_tested).select(named).drop_nulls()
    bounds: dict[str, list[tuple[float, float, float]]] = {}
    for table in tables:
        found = table.filter(is_tested).select(named).drop_nulls()
        for claim, _, *three in found.join(first, on=named[:2], how="semi").iter_rows():
            bounds.setdefault(claim, []).append(tuple(three))
    runs = {claim: Runs(of_claim) for claim, of_claim in bounds.items()}
    kinds: dict[str, list[str]] = {}
    for claim, metric in first.select("claim", "metric").iter_rows():
        kinds.setdefault("times" if metric in _TIMES else metric, []).append(claim)
    by_all: dict[str, dict[str, Any]] = {}
    for claims in kinds.values():
        tau2, freedom = luck([runs[claim] for claim in claims])
        for claim in claims:
            by_all[claim] = {"runs": len(runs[claim].y)}
            if freedom:
                by_all[claim] |= runs[claim].pooled(tau2, freedom) | {"blocks_needed": None}
    rows = [
        row | {"runs": None, "luck": None} | by_all.get(row["claim"], {})
        for row in tables[0].iter_rows(named=True)
    ]
    _judge_again(study, [row for row in rows if row["luck"] is not None])
    schema = dict(tables[0].schema) | {"runs": pl.Int64(), "luck": pl.Float64()}
    return pl.DataFrame([{name: row[name] for name in schema} for row in rows], schema=schema)


def luck(claims: list[Runs]) -> tuple[float, int]:
    """The variance between runs, and its degrees of freedom: none where nothing was run twice."""
    freedom = sum(len(runs.y) - 1 for runs in claims)

    def excess(tau2: float) -> float:
        return sum(runs.deviations(tau2) for runs in claims) - freedom

    if not freedom or excess(0.0) <= 0:
        return 0.0, freedom
    most = sum(float(((runs.y - runs.y.mean()) ** 2).sum()) for runs in claims)
    return float(brentq(excess, 0.0, most)), freedom


def _judge_again(study: str, rows: list[dict[str, Any]]) -> None:
    """Put in the rows, which have the p_run of all runs, the verdict of all runs."""
    thresholds = {rule["id"]: rule.get("threshold") for rule in rules(study)}
    for row in rows:
        threshold = thresholds[row["claim"]]
        claimed = 1.0 if row["kind"] == "alike" else threshold or row["published_ratio"]
        interval = [row[name] for name in ("ratio", "low", "high", "margin")]
        how: Any = {"is_threshold": threshold is not None, "published": row["published_ratio"]}
        row["verdict"] = agreement(claimed, *interval, **how)
    family = [row for row in rows if row["kind"] in FAMILY]
    if not family:
        return
    adjusted = holm([row["p_run"] for row in family]).tolist()
    for row, p_family in zip(family, adjusted, strict=True):
        row["p_family"] = p_family
        if row["verdict"] in (*HOLDS, "reversed") and p_family > 0.05:
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
