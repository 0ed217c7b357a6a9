"""Exact counts of both sides, unit by unit: what a comparison says beside times."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers.errors import CannotRun
from pgservers.servers.settings import merged
from pgservers.terminal import Progress

from ..counting.by_function import moved
from ..counting.counter import Counter
from ..counting.units import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..counting.units import Unit
    from .request import Request


_UNITS = {
    "study": pl.String(),
    "unit": pl.String(),
    "baseline": pl.Float64(),
    "candidate": pl.Float64(),
    "ratio": pl.Float64(),
    "reason": pl.String(),
    "arm": pl.String(),
    "steps": pl.List(pl.String()),
}

_MOVED = {
    "unit": pl.String(),
    "function": pl.String(),
    "before": pl.Float64(),
    "after": pl.Float64(),
    "change": pl.Float64(),
}

_SIDES = ("baseline", "candidate")

ALIKE = 0.001
"""Counts that differ by less (relative) are called the same: two counts differ by as much."""

_WORTH_NAMING, _SHARE = 0.005, 0.2
"""The least change of a listed function, as a part of the unit's count or of its change."""


@dataclass(frozen=True)
class Counted:
    """What both sides execute for one unit of each kind of work.

    Attributes:
        units: study, unit, baseline and candidate (instructions), ratio, reason (why it was not
            counted, or null), arm and steps (as of ``Unit``).  With a reason beside a baseline the
            candidate alone cannot do it.
        moved: Of the units that differ, the functions that changed by half a per cent of the unit,
            or by a fifth of what it changed by: unit, function, before, after, change; at most ten
            each.

    """

    units: pl.DataFrame
    moved: pl.DataFrame


def counted(
    request: Request, wanted: Sequence[Unit] | None = None, *, seconds: float = math.inf
) -> Counted:
    """Count the units of the request's studies (or those ``wanted``) on both sides.

    With a case only units that have it in their names; with arms only units of these arms, or
    of no arm.  Units of steps that are compared come first.  Both sides are counted at the same
    time: a count does not depend on other load.  A unit that cannot be counted has a reason.  After
    ``seconds`` no further unit is begun.
    """
    if wanted is None:
        of_studies = [unit for study in request.studies for unit in units(study)]
        asked = [unit for unit in of_studies if _is_asked(unit, request)]
        wanted = sorted(asked, key=lambda unit: not unit.steps)
    sides = (request.baseline, request.candidate)
    rows: list[dict[str, Any]] = []
    functions: list[dict[str, Any]] = []
    total = len(sides) * sum(unit.runs for unit in wanted)
    with (
        Progress("counting", total=total) as progress,
        ExitStack() as stack,
        ThreadPoolExecutor(len(sides)) as pool,
    ):
        counters: list[Counter] = []
        end = time.monotonic() + seconds
        for unit in wanted:
            place: dict[str, Any] = {"study": unit.study, "unit": unit.name}
            place |= {"arm": unit.arm, "steps": list(unit.steps)}
            if rows and time.monotonic() > end:
                rows.append(place | {"reason": "no time was left, see --minutes"})
                continue
            numbers: dict[str, float] = {}
            try:
                for side in sides[len(counters) :]:
                    counter = Counter(side.server, show=progress.show, advance=progress.advance)
                    counters.append(stack.enter_context(counter))
                begun = [
                    pool.submit(
                        counter.count,
                        replace(unit, settings=merged(unit.settings, side.settings)),
                        twice=False,
                    )
                    for counter, side in zip(counters, sides, strict=True)
                ]
                wait(begun)
                found = []
                for name, side_count in zip(_SIDES, begun, strict=True):
                    found.append(side_count.result())
                    numbers[name] = float(found[-1]["inclusive"][0])
            except CannotRun as reason:
                rows.append(place | numbers | {"reason": str(reason)})
                continue
            before, after = found
            one, other = numbers.values()
            rows.append(place | numbers | {"ratio": other / one})
            if abs(other / one - 1) > ALIKE:
                least = max(0.5, min(_WORTH_NAMING * one, _SHARE * abs(other - one)))
                functions += (
                    moved(before.slice(1), after.slice(1))
                    .filter(pl.col("change").abs() >= least)
                    .with_columns(unit=pl.lit(unit.name))
                    .to_dicts()
                )
    return Counted(pl.DataFrame(rows, schema=_UNITS), pl.DataFrame(functions, schema=_MOVED))


def of_steps(counted: Counted | None, effects: pl.DataFrame) -> list[float | None]:
    """For each row of ``effects`` the ratio of the instructions of all its units together.

    None where it has no unit, or one that was not counted on both sides.
    """
    units = counted.units.to_dicts() if counted is not None else []
    found: list[float | None] = []
    for study, of, step, case in effects.select("study", "of", "step", "case").iter_rows():
        place = f"{step}, {case}" if case else step
        mine = [
            unit
            for unit in units
            if unit["study"] == study and unit["arm"] in {"", of} and place in unit["steps"]
        ]
        if mine and all(unit["ratio"] for unit in mine):
            before, after = (sum(unit[side] for unit in mine) for side in _SIDES)
            found.append(after / before)
        else:
            found.append(None)
    return found


def _is_asked(unit: Unit, request: Request) -> bool:
    is_of_arms = not request.arms or unit.arm in {"", *request.arms}
    return is_of_arms and (request.case or "") in unit.name
