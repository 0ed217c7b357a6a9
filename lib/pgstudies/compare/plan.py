"""What a comparison will take and show, as far as an earlier record of the study tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from ..analysis.intervals import (
    MINIMUM_BLOCKS,
    blocks_to_detect,
    smallest_detectable,
)
from ..analysis.pairing import log_ratios, round_values
from ..measuring import BASELINE, COMPARED
from ..records.reading import list_records, readable_records
from ..terminal import rough_duration
from .measured import CPU, TIME, judging

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..measuring import Comparison
    from ..records.reading import Record


DEFAULT_BLOCKS = 10


_MOST_SHOWN = 6


_BY = ["case", "step", "metric"]


@dataclass(frozen=True)
class Forecast:
    """What is known beforehand of one study; ``noise`` is empty where no record tells.

    Attributes:
        study: The study's name.
        record: The directory of the record it is taken from, or None.
        block_s: How long a block will take (s), or None.
        comparisons: How many steps will be judged, or None.
        noise: step, case, sd (of the log-ratio of two equal arms), one row per step.
        blocks: The blocks to measure.

    """

    study: str
    record: str | None
    block_s: float | None
    comparisons: int | None
    noise: pl.DataFrame
    blocks: int


_NOISE = {"step": pl.String(), "case": pl.String(), "sd": pl.Float64()}


def forecast_of(
    study: str, comparison: Comparison, *, profile: str, blocks: int | None, case: str | None
) -> Forecast:
    """The plan for one study, from the newest record of it at this profile.

    Without ``blocks``, ten.
    """
    record = _newest(study, profile)
    if record is None:
        empty = pl.DataFrame(schema=_NOISE)
        return Forecast(study, None, None, None, empty, blocks or DEFAULT_BLOCKS)
    is_comparison = "comparison" in record.info
    own = {
        arm["name"]: arm.get("of") or arm["name"]
        for arm in record.info["arms"]
        if (is_comparison or arm.get("server") is None) and not arm["not_run"]
    }
    own = {name: of for name, of in own.items() if of in (comparison.arms or own.values())}
    copies = {arm["name"] for arm in record.info["arms"] if arm["copy_of"]}
    once = [
        name
        for name, of in own.items()
        if name == (f"{of}, {BASELINE}" if is_comparison else of) and name not in copies
    ]
    timed = _timed(record).filter(pl.col("arm").is_in(once))
    if case is not None:
        timed = timed.filter((pl.col("case") == case) | (pl.col("step") == case))
    comparisons = timed.select("arm", "case", "step").n_unique() or None
    is_once = pl.col("arm").is_in(once)
    busy = record.timeline.select(pl.col("busy_s").filter(is_once).sum() / pl.col("busy_s").sum())
    each_s = (record.block_s or 0.0) * float(busy.item() or 0.0)
    noise = _noise(record, case)
    chosen = blocks or DEFAULT_BLOCKS
    sides = 3 if comparison.copies else 2
    return Forecast(study, str(record.path), sides * each_s, comparisons, noise, chosen)


def _newest(study: str, profile: str) -> Record | None:
    records = pl.concat([list_records(study), list_records(f"{COMPARED}{study}")])
    usable = records.filter(
        pl.col("profile") == profile,
        pl.col("blocks_done") >= MINIMUM_BLOCKS,
        pl.col("status") == "complete",
    )
    return next(readable_records(usable.sort("started_at")["path"].reverse()), None)


def _timed(record: Record) -> pl.DataFrame:
    """The times that a comparison judges."""
    is_compared = ~pl.col("step").is_in(record.info["not_compared"])
    return record.measured.filter(pl.col("metric").is_in([TIME, CPU]), is_compared)


def _noise(record: Record, case: str | None) -> pl.DataFrame:
    """How far two equal arms differ from block to block, by step: the median over the arms."""
    pairs = [(arm["copy_of"], arm["name"]) for arm in record.info["arms"] if arm["copy_of"]]
    values = round_values(_timed(record))
    judged = judging(values, place=("step", "case"), baseline=None)
    values = values.join(judged, on=["step", "case", "metric"], how="semi", maintain_order="left")
    found = []
    for baseline, copy in pairs:
        both = values.filter(pl.col("arm").is_in([baseline, copy]))
        if both["arm"].n_unique() == 2:
            found.append(log_ratios(both, baseline=baseline, by=_BY))
    if not found:
        return pl.DataFrame(schema=_NOISE)
    noise = (
        pl.concat(found)
        .drop_nulls("log_ratio")
        .group_by("candidate", "step", "case", maintain_order=True)
        .agg(sd=pl.col("log_ratio").std())
        .group_by("step", "case", maintain_order=True)
        .agg(pl.col("sd").median())
        .drop_nulls("sd")
    )
    if case is not None:
        noise = noise.filter((pl.col("case") == case) | (pl.col("step") == case))
    return noise.select(list(_NOISE)).sort("sd")


def seconds_each(plans: Sequence[Forecast], minutes: float | None) -> dict[str, float]:
    """The part of ``minutes`` that each study gets, so that all get as many blocks; 0 is no limit.

    All steps of all studies are one family, and the study with the fewest blocks decides how many
    it is that can be told from chance.
    """
    known = [plan.block_s for plan in plans if plan.block_s]
    usual = sum(known) / len(known) if known else 1.0
    takes = {plan.study: plan.block_s or usual for plan in plans}
    return {s: 60 * (minutes or 0.0) * t / sum(takes.values()) for s, t in takes.items()}


def forecast_lines(
    comparison: Comparison, plans: Sequence[Forecast], *, minutes: float | None, margin: float
) -> Iterator[str]:
    """The plan as lines for a terminal; ``minutes`` are for all studies together."""
    seconds = seconds_each(plans, minutes)
    comparisons = sum(plan.comparisons or 0 for plan in plans)
    yield f"Baseline:  {comparison.baseline}"
    yield f"Candidate: {comparison.candidate}"
    for plan in plans:
        yield f"{plan.study}:"
        yield from (f"  {line}" for line in _of_study(plan, seconds[plan.study], margin))
    if comparisons:
        yield f"{comparisons} comparisons, which {MINIMUM_BLOCKS} blocks or more can decide"


def _of_study(plan: Forecast, seconds: float, margin: float) -> Iterator[str]:
    blocks = plan.blocks
    if seconds and plan.block_s:
        blocks = max(1, int(seconds / plan.block_s))
    for step, case, sd in plan.noise.head(_MOST_SHOWN).iter_rows():
        shown = smallest_detectable(sd, blocks)
        place = f"{step}, {case}" if case else step
        so_many = "too few for an interval" if shown is None else f"show {100 * shown:.1f} %"
        needed = blocks_to_detect(margin, sd)
        wanted = f"{100 * margin:g} % takes "
        wanted += "more than is reasonable" if needed is None else f"{needed} blocks"
        took = f", {rough_duration(needed * plan.block_s)}" if needed and plan.block_s else ""
        yield f"{place}: {blocks} blocks {so_many}; {wanted}{took}"
    more = plan.noise.height - _MOST_SHOWN
    if more > 0:
        yield f"and {more} noisier step{'s' if more > 1 else ''}"
    if plan.record is None:
        yield "no record of this size tells how long a block takes, or how noisy it is"
    if seconds:
        fit = f": {blocks}" if plan.block_s else ""
        yield f"as many blocks as fit into {rough_duration(seconds).removeprefix('about ')}{fit}"
        return
    took = (
        f", {rough_duration(blocks * plan.block_s)} where that record was made"
        if plan.block_s
        else ""
    )
    yield f"{blocks} block{'s' if blocks > 1 else ''} in all{took}"
