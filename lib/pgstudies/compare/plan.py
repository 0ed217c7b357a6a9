"""What a comparison will take and show, as far as an earlier record of the study tells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import polars as pl

from ..analysis.intervals import (
    MINIMUM_BLOCKS,
    MOST_BLOCKS,
    blocks_to_detect,
    smallest_detectable,
)
from ..analysis.pairing import log_ratios, round_values
from ..measuring import BASELINE, COMPARED
from ..records.reading import list_records, readable_records
from ..terminal import rough_duration
from .measured import CPU, TIME, judging

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..measuring import Comparison
    from ..records.reading import Record


_MOST_SHOWN = 6


_BY = ["case", "step", "metric"]


_NOTEBOOK_S = 6.0
"""What starting a notebook and its servers takes, where no record tells more."""


@dataclass(frozen=True)
class Forecast:
    """What is known beforehand of one study; ``noise`` is empty where no record tells.

    Attributes:
        study: The study's name.
        record: The directory of the record it is taken from, or None.
        start_s: How long it takes until the first block begins (s).
        arms_s: How long a block of each of the study's arms will take, on all sides (s); empty
            where no record tells.
        comparisons: How many steps will be judged, or None.
        noise: step, case, sd (of the log-ratio of two equal arms), one row per step.

    """

    study: str
    record: str | None
    start_s: float
    arms_s: Mapping[str, float]
    comparisons: int | None
    noise: pl.DataFrame

    @property
    def block_s(self) -> float:
        """How long a block will take (s)."""
        return sum(self.arms_s.values())


_NOISE = {"step": pl.String(), "case": pl.String(), "sd": pl.Float64()}


def forecast_of(study: str, comparison: Comparison, *, profile: str, case: str | None) -> Forecast:
    """What the newest record of the study at this profile tells of a comparison."""
    record = _newest(study, profile)
    empty = pl.DataFrame(schema=_NOISE)
    if record is None:
        return Forecast(study, None, _NOTEBOOK_S, {}, None, empty)
    is_comparison = "comparison" in record.info
    own = {
        arm["name"]: arm.get("of") or arm["name"]
        for arm in record.info["arms"]
        if (is_comparison or arm.get("server") is None) and not arm["not_run"]
    }
    own = {name: of for name, of in own.items() if of in (comparison.arms or own.values())}
    copies = {arm["name"] for arm in record.info["arms"] if arm["copy_of"]}
    once = {
        name: of
        for name, of in own.items()
        if name == (f"{of}, {BASELINE}" if is_comparison else of) and name not in copies
    }
    timed = _timed(record).filter(pl.col("arm").is_in(list(once)))
    if case is not None:
        timed = timed.filter((pl.col("case") == case) | (pl.col("step") == case))
    comparisons = timed.select("arm", "case", "step").n_unique() or None
    sides = 3 if comparison.copies else 2
    busy = dict(record.timeline.group_by("arm").agg(pl.col("busy_s").sum()).rows())
    whole_s = sum(busy.values()) or 1.0
    # Blocks are told by the clock of day, which may have jumped; what arms did is not.
    each_s = max(record.block_s or 0.0, whole_s / max(record.blocks, 1)) / whole_s
    arms_s = {of: sides * busy.get(name, 0.0) * each_s for name, of in once.items()}
    has_noise = record.blocks >= MINIMUM_BLOCKS
    noise = _noise(record, case) if has_noise else empty
    return Forecast(study, str(record.path), _start_s(record), arms_s, comparisons, noise)


def _start_s(record: Record) -> float:
    began = record.timeline["started_at"].min()
    if not isinstance(began, datetime):
        return _NOTEBOOK_S
    took = began - datetime.fromisoformat(record.info["started_at"])
    return _NOTEBOOK_S + max(0.0, took.total_seconds())


def _newest(study: str, profile: str) -> Record | None:
    """The newest complete record, of those that tell the noise if there is one."""
    records = pl.concat([list_records(study), list_records(f"{COMPARED}{study}")])
    usable = records.filter(pl.col("profile") == profile, pl.col("status") == "complete").sort(
        pl.col("blocks_done") >= MINIMUM_BLOCKS, "started_at", descending=True
    )
    return next(readable_records(usable["path"]), None)


@dataclass(frozen=True)
class Fit:
    """What is measured in a given time.

    Attributes:
        blocks: The blocks of every study.
        arms: The studies, each with its arms that are left; empty for all of them.
        seconds: The time that each study may take, with a quarter to spare (s).
        left_out: The arms that are not measured, with the time that a block of each takes (s).
        whole_s: How long as many blocks of everything would take as can decide (s).

    """

    blocks: int
    arms: Mapping[str, tuple[str, ...]]
    seconds: Mapping[str, float]
    left_out: tuple[tuple[str, str, float], ...]
    whole_s: float


def fit(plans: Sequence[Forecast], seconds: float) -> Fit:
    """As many blocks of every study as fit into ``seconds``; the same number of each.

    Where these are too few to decide anything, the dearest arms are left out, until they are not.
    """
    kept = {(plan.study, arm): cost for plan in plans for arm, cost in plan.arms_s.items()}
    starts = {plan.study: plan.start_s for plan in plans}

    def takes(blocks: int) -> float:
        studies = {study for study, _ in kept}
        return sum(starts[study] for study in studies) + blocks * sum(kept.values())

    whole_s = takes(MINIMUM_BLOCKS)
    left_out = []
    while takes(MINIMUM_BLOCKS) > seconds and len(kept) > 1:
        study, arm = max(kept, key=lambda name: kept[name])
        left_out.append((study, arm, kept.pop((study, arm))))
    room = seconds - takes(0)
    blocks = max(1, min(MOST_BLOCKS, int(room / (sum(kept.values()) or room or 1.0))))
    costs = {study: sum(kept[n] for n in kept if n[0] == study) for study, _ in kept}
    return Fit(
        blocks=blocks,
        arms={
            study: tuple(arm for of, arm in kept if of == study)
            if any(of == study for of, _, _ in left_out)
            else ()
            for study in costs
        },
        seconds={study: _SPARE * blocks * cost for study, cost in costs.items()},
        left_out=tuple(left_out),
        whole_s=whole_s,
    )


_SPARE = 1.25


def fit_lines(found: Fit, plans: Sequence[Forecast], minutes: float) -> Iterator[str]:
    """What is measured in ``minutes``, and what is not, as lines for a terminal."""
    count = sum(len(plan.arms_s) for plan in plans) - len(found.left_out)
    arms = f"{count} arm{'s' if count != 1 else ''}"
    number = f"{found.blocks} block{'s' if found.blocks != 1 else ''}"
    yield f"{minutes:g} minutes: {number} of {arms}."
    if found.left_out:
        names = "; ".join(f"{study}, {arm} ({s:.3g} s)" for study, arm, s in found.left_out)
        yield (
            f"An interval needs {MINIMUM_BLOCKS} blocks. Left out, as there is no time for them: "
            f"{names} in each block. To measure them as well: "
            f"--minutes {math.ceil(found.whole_s / 60)}."
        )
    if found.blocks < MINIMUM_BLOCKS:
        costs = [plan.start_s + MINIMUM_BLOCKS * plan.block_s for plan in plans]
        yield (
            f"That decides nothing: an interval needs {MINIMUM_BLOCKS} blocks, and those of the "
            f"cheapest study take {rough_duration(min(costs))}."
        )


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


def forecast_lines(
    comparison: Comparison, plans: Sequence[Forecast], *, blocks: int, margin: float
) -> Iterator[str]:
    """The plan as lines for a terminal; ``blocks`` are those of each study."""
    yield f"Baseline:  {comparison.baseline}"
    yield f"Candidate: {comparison.candidate}"
    for plan in plans:
        yield f"{plan.study}:"
        yield from (f"  {line}" for line in _of_study(plan, blocks, margin))


def _of_study(plan: Forecast, blocks: int, margin: float) -> Iterator[str]:
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
    if not plan.arms_s:
        yield "no record of this size tells how long a block takes, or how noisy it is"
        return
    took = rough_duration(plan.start_s + blocks * plan.block_s)
    yield f"{blocks} block{'s' if blocks > 1 else ''} in all, {took} where that record was made"
