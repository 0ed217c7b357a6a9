"""What work takes on every release, relative to the release you run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

import pgstudies as pg
from pgapps.scorecard.advice import counted_releases
from pgservers.order import version_key
from pgstudies.analysis.claims import origins
from pgstudies.records.counts import units_counted
from pgstudies.records.reading import read_record
from pgstudies.records.verdicts import reference_verdicts

if TYPE_CHECKING:
    from pgstudies.records.reading import Record


def counted_by_release(run: str) -> pl.DataFrame:
    """Instructions of each class of work in every release, relative to the release you run.

    Columns: work, the unit without what is in brackets; units, their number; then the releases, the
    newest first: the geometric mean of the units' ratios, without open transactions.  Raises
    StudyError for a release that was not counted.
    """
    record, known = counted_releases(run)
    counts = units_counted(record).filter(
        pl.col("open") == 0, pl.col("arm").is_in(known)
    )
    one = counts.filter(arm=run).select("unit", here="instructions")
    ratios = counts.join(one, on="unit", maintain_order="left").with_columns(
        ratio=(pl.col("instructions") / pl.col("here")).log(),
        work=pl.col("unit").str.replace(r" \(.*\)$", ""),
    )
    means = ratios.group_by("work", "arm", maintain_order=True).agg(
        pl.col("ratio").mean().exp(), units=pl.len()
    )
    return means.pivot(
        "arm",
        on_columns=known[::-1],
        index=["work", "units"],
        values="ratio",
        maintain_order=True,
    )


def timed_by_release(run: str) -> pl.DataFrame:
    """CPU time of each class of work in other releases, relative to the release you run.

    The times are of the newest reference records whose arms are releases that were built alike.
    Columns: study; work, the step with its case of the most samples; the releases, the newest
    first: the ratio with its 95 % interval.  No rows if there is no such record.
    """
    place = dict.fromkeys(["study", "work"], pl.String())
    found = [pl.DataFrame(schema=place)]
    for study in origins():
        known = reference_verdicts(study)
        record = read_record(known.record) if known else None
        arms = _built_alike(record, run) if record else []
        if record and len(arms) > 1:
            found.append(_timed(record, arms, run).with_columns(study=pl.lit(study)))
    table = pl.concat(found, how="diagonal")
    releases = sorted(
        (name for name in table.columns if name not in place), key=version_key
    )
    return table.select(*place, *releases[::-1])


def _built_alike(record: Record, run: str) -> list[str]:
    """The arms that differ from that of ``run`` only in their release, and are built alike."""
    arms = record.arms.filter(pl.col("copy_of").is_null(), pl.col("not_run").is_null())[
        "name"
    ]
    own = next((arm for arm in arms if _release(arm) == run), None)
    if own is None:
        return []
    suffix, built = own.removeprefix(run), record.built_with
    return [
        arm
        for arm in arms
        if arm == f"{_release(arm)}{suffix}"
        and built.get(arm) == built.get(own) is not None
    ]


def _release(arm: str) -> str:
    return arm.partition(",")[0]


def _timed(record: Record, arms: list[str], run: str) -> pl.DataFrame:
    samples = record.samples.filter(
        pl.col("arm").is_in(arms), pl.col("metric") == "cpu_s"
    )
    most = pl.len().over("step", "case")
    samples = samples.filter(most == most.max().over("step")).filter(
        pl.col("case") == pl.col("case").min().over("step")
    )
    (own,) = (arm for arm in arms if _release(arm) == run)
    by = ["step", "case", "metric"]
    effects = pg.paired_effects(pg.round_values(samples, by=by), baseline=own, by=by)
    return effects.select(
        pl.format("{} ({})", "step", "case").alias("work"),
        release=pl.col("candidate").str.split(",").list.first(),
        ratio=pg.with_interval(),
    ).pivot("release", index="work", values="ratio", maintain_order=True)
