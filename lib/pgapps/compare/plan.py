"""The time and precision of a comparison, estimated from an earlier record of the study."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from pgservers import paths
from pgservers.errors import StudyError
from pgservers.paths import records_dir
from pgservers.terminal import rough_duration
from pgstudies.analysis.intervals import (
    MINIMUM_BLOCKS,
    MOST_BLOCKS,
    blocks_to_detect,
    smallest_detectable,
)
from pgstudies.analysis.pairing import log_ratios, round_values
from pgstudies.records.reading import infos_below, is_of_this_host, list_records, readable_records

from .design import BASELINE, COMPARED, Comparison
from .judging.measured import JUDGING, is_compared, judging
from .turns import copied_arms, repeated, repeats_in, shares_of_steps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pgstudies.records.reading import Record

    from .turns import Repeats


_MOST_SHOWN = 6

LEAVE = "leave"
"""The parameter of a study that has the steps which it is to leave out, for want of time."""

_BY = ["case", "step", "metric"]

_NOTEBOOK_S = 12.0
"""The start and end of a notebook, which no record has (s)."""

ELSEWHERE = 1.5
"""How much longer things may take here than in a record of another machine."""

REPORT_S = 20.0
"""What judging the blocks and writing the report takes (s)."""


class Before(NamedTuple):
    """The arms of an earlier run, empty for all, and its parameters that a plan chooses."""

    arms: tuple[str, ...]
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Forecast:
    """What is known of one study before it is compared.

    Attributes:
        study: The study's name.
        record: The directory of the record it is taken from, or None.
        start_s: How long it takes until the first block begins (s).
        arms_s: How long a block of each of the study's arms will take, on all sides (s); empty
            without a record.
        comparisons: How many steps will be judged, or None.
        noise: step, case, sd (of the log-ratio of two equal arms), one row per step; empty without
            a record.
        repeats: The turns that a block repeats, and whose number is to be chosen.
        before: What an earlier run of this comparison chose; None without one.
        steps_s: How long a step takes in each block, on all sides (s), where the study can leave
            out steps by its parameter ``LEAVE``; else empty.
        asked: The arms that are asked for, where other studies have others; empty for all.
        is_own: Whether the record is of this user and machine, not one that the project keeps.

    """

    study: str
    record: str | None
    start_s: float
    arms_s: Mapping[str, float]
    comparisons: int | None
    noise: pl.DataFrame
    repeats: tuple[Repeats, ...] = ()
    before: Before | None = None
    steps_s: Mapping[str, float] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    is_own: bool = True

    def with_turns(self, part: float) -> tuple[dict[str, float], dict[str, Any]]:
        """``arms_s`` and the parameters that repeat turns, with that part of the turns wanted."""
        values: dict[str, Any] = {r.parameter: r.at(part) for r in self.repeats}
        arms_s = {
            arm: seconds * (1 + sum(r.more(arm, values[r.parameter]) for r in self.repeats))
            for arm, seconds in self.arms_s.items()
        }
        return arms_s, values | dict(self.before.parameters if self.before else {})

    def with_states_kept(self) -> Forecast:
        """The same with prepared states, whose copies take half of the time."""
        return replace(self, start_s=_NOTEBOOK_S + (self.start_s - _NOTEBOOK_S) / 2)

    def start_of(self, arms: Collection[str]) -> float:
        """How long it takes until the first block of these arms begins (s)."""
        prepares_s = max(0.0, self.start_s - _NOTEBOOK_S)
        part = sum(self.arms_s[arm] for arm in arms) / (self.block_s or 1.0)
        return self.start_s - (1 - part) * prepares_s

    @property
    def block_s(self) -> float:
        """How long a block will take (s)."""
        return sum(self.arms_s.values())


_NOISE = {"step": pl.String(), "case": pl.String(), "sd": pl.Float64()}


def forecast_of(
    study: str,
    comparison: Comparison,
    *,
    profile: str,
    case: str | None,
    given: Mapping[str, Any] = {},
) -> Forecast:
    """The forecast of a comparison, from the newest record of the study at this profile.

    ``given`` are parameters with fixed values; records with other values are not used.  Times of
    another machine are taken for half as long again: one that is slower still measures more than
    six blocks in the time for twelve, and a faster one has time for more.
    """
    record = _newest(study, profile, comparison.arms, given)
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
    # Times of blocks are by the system clock, which may have jumped; busy times are not.
    each_s = max(record.block_s or 0.0, whole_s / max(record.blocks, 1)) / whole_s
    is_own = is_of_this_host(record.info) and record.path.is_relative_to(records_dir())
    each_s *= 1 if is_own else ELSEWHERE
    arms_s = {of: sides * busy.get(name, 0.0) * each_s for name, of in once.items()}
    has_noise = record.blocks >= MINIMUM_BLOCKS
    noise = _noise(record, case) if has_noise else empty
    repeats = tuple(r for r in repeats_in(record, once) if r.parameter not in given)
    shares = shares_of_steps(record) if LEAVE not in given and LEAVE in repeated(study) else {}
    return Forecast(
        study=study,
        record=str(record.path),
        start_s=_start_s(record) * (1 if is_own else ELSEWHERE),
        arms_s=arms_s,
        comparisons=comparisons,
        noise=noise,
        repeats=repeats,
        steps_s={step: share * sum(arms_s.values()) for step, share in shares.items()},
        is_own=is_own,
    )


def of_asked(plans: Sequence[Forecast], arms: Collection[str]) -> list[Forecast]:
    """Of several studies, each with those of these arms that it has.

    One that has none will say so.  Raises StudyError for an arm that is in none of the records.
    """
    if len(plans) == 1 or not arms:
        return list(plans)
    for arm in arms:
        if not any(arm in plan.arms_s for plan in plans):
            raise StudyError(
                f"No record of these studies has an arm {arm!r}: name its study alone, by --study."
            )
    return [replace(plan, asked=tuple(plan.arms_s)) for plan in plans]


def as_before(
    plan: Forecast,
    comparison: Comparison,
    profile: str,
    *,
    given: Mapping[str, Any] = {},
    seconds: float = 0.0,
) -> Forecast:
    """The plan, with the arms and turns of the newest run of this comparison, if there is one.

    A comparison is continued only with blocks of the same arms, turns and ``given`` parameters; one
    that left out steps not if all of them fit into ``seconds`` now.
    """
    fits = plan.start_s + GOAL_BLOCKS * sum(plan.with_turns(_PARTS[-1])[0].values()) <= seconds
    infos = (i for _, i in infos_below(records_dir(), f"{COMPARED}{plan.study}"))
    for info in sorted(infos, key=lambda i: str(i["started_at"]), reverse=True):
        found = Comparison.from_dict(info["comparison"])
        is_part = found.fitted or (plan.asked and found.arms == plan.asked)
        asked = comparison.arms if is_part else found.arms
        like = replace(found, arms=asked, seconds=0.0, since="", fitted=False)
        is_pilot = info["blocks"] == 1
        if like != comparison or is_pilot or info["profile"] != profile:
            continue
        if not given.items() <= info["parameters"].items():
            continue
        if not is_of_this_host(info) or not set(asked or found.arms) >= set(found.arms):
            continue
        left = info["parameters"].get(LEAVE, []) if plan.steps_s else []
        if left and fits:
            continue
        before = {r.parameter: info["parameters"][r.parameter] for r in plan.repeats}
        part = 1 - sum(plan.steps_s.get(step, 0.0) for step in left) / (plan.block_s or 1.0)
        arms_s = {
            arm: part * s * (1 + sum(r.more(arm, before[r.parameter]) for r in plan.repeats))
            for arm, s in plan.arms_s.items()
            if not found.arms or arm in found.arms
        }
        chosen = Before(found.arms, before | ({LEAVE: left} if left else {}))
        return replace(plan, arms_s=arms_s, repeats=(), steps_s={}, before=chosen)
    return plan


def _start_s(record: Record) -> float:
    began = record.timeline["started_at"].min()
    if not isinstance(began, datetime):
        return _NOTEBOOK_S
    took = began - datetime.fromisoformat(record.info["started_at"])
    return _NOTEBOOK_S + max(0.0, took.total_seconds())


def _newest(
    study: str, profile: str, arms: Collection[str], given: Mapping[str, Any]
) -> Record | None:
    """The newest complete record with times, preferably one with an estimate of the noise.

    Records that this project keeps count where the user has none.  A comparison that left out arms
    counts only if ``arms`` asks for none of those.  A record with other parameters than those
    ``given``, such as another workload, does not count.
    """
    records = pl.concat(
        [
            list_records(study),
            list_records(f"{COMPARED}{study}"),
            list_records(f"{COMPARED}{study}", below=paths.LAYOUT_RECORDS),
        ]
    )
    usable = records.filter(pl.col("profile") == profile, pl.col("status") == "complete").sort(
        pl.col("path").str.starts_with(str(records_dir())),
        pl.col("blocks_done") >= MINIMUM_BLOCKS,
        "started_at",
        descending=True,
    )
    found = readable_records(usable["path"])
    alike = (
        record
        for record in found
        if _has_arms(record, arms)
        and given.items() <= record.parameters.items()
        and (LEAVE in given or not record.parameters.get(LEAVE))
    )
    return next((record for record in alike if not _timed(record).is_empty()), None)


def _has_arms(record: Record, arms: Collection[str]) -> bool:
    left = set((record.info.get("comparison") or {}).get("arms") or ())
    return not left or (bool(arms) and left >= set(arms))


@dataclass(frozen=True)
class Fit:
    """What is measured.

    Attributes:
        blocks: The blocks of every study, in all.
        arms: The studies, each with its arms that are left; empty for all of them.
        block_s: By study, how long a block takes (s), as far as is known.
        limit_s: By study, the time that it may take (s); empty for any.
        parameters: By study, those that a plan chooses, with their values.
        left_out: The arms, or steps, that are not measured, with their time in each block (s).
        whole_s: How long ``GOAL_BLOCKS`` blocks of everything would take (s).
        kept_s: How long they would take of what is left (s).
        asked: By study, the arms that were asked for; empty for all.
        start_s: By study, how long it takes until the first block begins (s).
        is_timed: Whether time ends it, and not the number of blocks: see ``time_of``.

    """

    blocks: int
    arms: Mapping[str, tuple[str, ...]]
    block_s: Mapping[str, float] = field(default_factory=dict)
    limit_s: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: tuple[tuple[str, str, float], ...] = ()
    whole_s: float = 0.0
    kept_s: float = 0.0
    asked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start_s: Mapping[str, float] = field(default_factory=dict)
    is_timed: bool = False

    def minutes_that_decide(self, lost_s: float) -> int:
        """The minutes in which every guard has its blocks, if ``lost_s`` go into other things."""
        return math.ceil((self.kept_s + lost_s) / 60)


def of_blocks(plans: Sequence[Forecast], blocks: int) -> Fit:
    """That number of blocks of every study, however long they take."""
    return Fit(
        blocks=blocks,
        arms={plan.study: plan.before.arms if plan.before else plan.asked for plan in plans},
        parameters={plan.study: plan.before.parameters if plan.before else {} for plan in plans},
        asked={plan.study: plan.asked for plan in plans},
    )


def next_look(fitted: Fit, studies: Collection[str], seconds: float) -> Fit | None:
    """Half as many blocks more of these studies, or as many as fit; None where no block does."""
    each_s = sum(fitted.block_s.get(study, 0.0) for study in studies) or math.inf
    more = int((seconds - len(studies) * _NOTEBOOK_S) / each_s)
    if more < 1 or fitted.blocks >= MOST_BLOCKS:
        return None
    blocks = fitted.blocks + min(more, math.ceil(fitted.blocks / 2))
    return replace(
        fitted,
        blocks=blocks,
        arms={study: fitted.arms[study] for study in studies},
        limit_s=dict.fromkeys(studies, seconds),
    )


def by_time(fitted: Fit) -> Fit:
    """The same with as many blocks as its time has, at most twice those planned.

    A record that was made beside other work makes the plan expect too few.  Fewer than the goal
    stay as they are.
    """
    if fitted.blocks < GOAL_BLOCKS:
        return fitted
    return replace(fitted, blocks=min(MOST_BLOCKS, 2 * fitted.blocks), is_timed=True)


def time_of(fitted: Fit, study: str, left_s: float) -> float:
    """What the blocks of a study may take (s) of what is left for it and those after it.

    Each has the part of the time that its blocks have of the plan's, however far those before it
    were from theirs.
    """
    own = list(fitted.arms)
    rest = [name for name in own[own.index(study) :] if name in fitted.block_s]
    left_s -= sum(fitted.start_s.get(name, 0.0) for name in rest)
    part = fitted.block_s[study] / sum(fitted.block_s[name] for name in rest)
    return max(1.0, part * left_s)


GOAL_BLOCKS = 12
"""Blocks that every study is to have, before time goes into more turns or more arms.  Every guard
needs nine, which are left of them where a machine is a third slower than when it was planned.  Six
decide as well, but an interval of six is as wide as they differ."""

FIRST_LOOK = 8
"""Blocks until the first look of a run that goes on until all steps are decided."""


def fit(plans: Sequence[Forecast], seconds: float) -> Fit:
    """The largest number of blocks that fit into ``seconds``, the same for every study.

    The turns of a block suit its costs and variances, or are fewer if 12 blocks fit only so.  If 12
    do not fit at all, steps are left out until they do, where a study can do that, the most
    expensive first, and then arms: the most expensive arm of the study that takes longest, and the
    last arm of a study only when no other study has two.  Those that fit then are taken back.
    """

    def starts(costs: Collection[tuple[str, str]]) -> dict[str, float]:
        return {
            plan.study: plan.start_of([arm for study, arm in costs if study == plan.study])
            for plan in plans
            if any(study == plan.study for study, _ in costs)
        }

    def takes(blocks: int, costs: Mapping[tuple[str, str], float]) -> float:
        return sum(starts(costs).values()) + blocks * sum(costs.values())

    def arms_with(part: float) -> dict[tuple[str, str], float]:
        return {(p.study, arm): s for p in plans for arm, s in p.with_turns(part)[0].items()}

    part = next(
        (p for p in _PARTS if takes(GOAL_BLOCKS, arms_with(p)) <= seconds), _PARTS[-1]
    )  # of the turns wanted
    kept = arms_with(part)
    whole_s = takes(GOAL_BLOCKS, kept)
    steps = _steps_left_out(plans, kept, takes(GOAL_BLOCKS, kept) - seconds)
    every = dict(kept)
    arms_left_out = []
    settled = {plan.study: plan.before.arms for plan in plans if plan.before is not None}
    while takes(GOAL_BLOCKS, kept) > seconds and len(kept) > 1:
        free = [name for name in kept if name[0] not in settled]
        if not free:
            break
        studies = [study for study, _ in kept]
        _, _, dearest = max(
            (
                studies.count(study) > 1,
                sum(s for (of, _), s in kept.items() if of == study),
                (kept[study, arm], study, arm),
            )
            for study, arm in free
        )
        arms_left_out.append((*dearest[1:], kept.pop(dearest[1:])))
    for entry in arms_left_out[::-1]:  # the last one may have been much more than was over
        with_it = {name: s for name, s in every.items() if name in kept or name == entry[:2]}
        if takes(GOAL_BLOCKS, with_it) <= seconds:
            kept = with_it
            arms_left_out.remove(entry)
    room = seconds - takes(0, kept)
    blocks = max(1, min(MOST_BLOCKS, int(room / (sum(kept.values()) or room or 1.0))))
    costs = {study: sum(kept[n] for n in kept if n[0] == study) for study, _ in kept}
    # On a machine that has become slower, fewer than these would have been measured for nothing.
    least = 2 * MINIMUM_BLOCKS if blocks >= MINIMUM_BLOCKS else 0
    return Fit(
        blocks=blocks,
        arms={plan.study: plan.asked for plan in plans if plan.study in costs}
        | {
            out: tuple(arm for of, arm in kept if of == out)
            for out, _, _ in arms_left_out
            if out in costs
        }
        | settled,
        block_s=costs,
        limit_s={study: max(_SPARE * blocks, least) * cost for study, cost in costs.items()},
        left_out=(*steps, *arms_left_out),
        whole_s=whole_s,
        kept_s=takes(GOAL_BLOCKS, kept),
        asked={plan.study: plan.asked for plan in plans},
        start_s=starts(kept),
        parameters={
            plan.study: plan.with_turns(part)[1]
            | ({LEAVE: gone} if (gone := [step for s, step, _ in steps if s == plan.study]) else {})
            for plan in plans
            if plan.study in costs
        },
    )


def _steps_left_out(
    plans: Sequence[Forecast], kept: dict[tuple[str, str], float], over_s: float
) -> list[tuple[str, str, float]]:
    """The dearest steps, with their time in a block (s), until ``over_s`` less are taken.

    Every study keeps one.  What they take is taken off ``kept``, the time of arms in a block.
    """
    found = []
    for plan in plans:
        mine = [name for name in kept if name[0] == plan.study]
        grown = sum(kept[name] for name in mine) / (plan.block_s or 1.0)
        dearest = sorted(plan.steps_s.items(), key=lambda entry: -entry[1])
        for step, seconds in dearest[:-1]:
            if over_s <= 0:
                break
            whole_s = sum(kept[name] for name in mine)
            for name in mine:
                kept[name] *= 1 - grown * seconds / whole_s
            found.append((plan.study, step, grown * seconds))
            over_s -= GOAL_BLOCKS * grown * seconds
    return found


_PARTS = [0.9**n for n in range(30)]

_SPARE = 1.25


def fit_lines(found: Fit, plans: Sequence[Forecast], minutes: float) -> Iterator[str]:
    """What is measured in ``minutes``, and what is not, as lines for a terminal."""
    known = {(plan.study, arm) for plan in plans for arm in plan.arms_s}
    count = len(known - {(study, name) for study, name, _ in found.left_out})
    arms = f"{count} arm{'s' if count != 1 else ''}"
    number = f"{found.blocks} block{'s' if found.blocks != 1 else ''}"
    yield f"{minutes:g} minute{'s' * (minutes != 1)}: {number} of {arms}."
    turns = {
        study: [f"{name} = {value}" for name, value in chosen.items() if name != LEAVE]
        for study, chosen in found.parameters.items()
    }
    if any(turns.values()):
        numbers = "; ".join(
            f"{study} {', '.join(values)}" for study, values in turns.items() if values
        )
        yield f"Turns in a block, by their cost and variance: {numbers}."
    if found.left_out:
        names = "; ".join(f"{study}, {what} ({s:.3g} s)" for study, what, s in found.left_out)
        enough = max(math.ceil(found.whole_s / 60), math.floor(minutes) + 1)
        yield (
            f"Left out, so that {GOAL_BLOCKS} blocks fit: {names} in each block. "
            f"To measure them as well: --minutes {enough}."
        )


def _timed(record: Record) -> pl.DataFrame:
    """The times that a comparison judges."""
    return record.measured.filter(pl.col("metric").is_in(JUDGING), is_compared(record.info))


def _noise(record: Record, case: str | None) -> pl.DataFrame:
    """How far two equal arms differ from block to block, by step: the median over the arms."""
    pairs = copied_arms(record)
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
    if strange := [plan.study for plan in plans if plan.arms_s and not plan.is_own]:
        yield (
            f"No record of this machine tells how long a block of {', '.join(strange)} takes: "
            "planned by records of another, for a machine that takes half as long again."
        )
    for plan in plans:
        yield f"{plan.study}:"
        yield from (f"  {line}" for line in _of_study(plan, blocks, margin))


def _of_study(plan: Forecast, blocks: int, margin: float) -> Iterator[str]:
    for step, case, sd in plan.noise.head(_MOST_SHOWN).iter_rows():
        least = smallest_detectable(sd, blocks)
        place = f"{step}, {case}" if case else step
        so_many = "too few for an interval" if least is None else f"show {100 * least:.1f} %"
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
    all_blocks = "one block" if blocks == 1 else f"{blocks} blocks"
    yield f"{all_blocks} would take {took} where that record was made"
