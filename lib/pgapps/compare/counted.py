"""Exact counts of instructions on both sides, unit by unit, beside the times of a comparison."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers.errors import CannotRun
from pgservers.servers.settings import merged
from pgservers.terminal import Progress

from ..counting.by_function import moved
from ..counting.counter import Counter
from ..counting.frames import EXACT
from ..counting.units import units
from .design import BASELINE, CANDIDATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..counting.units import Unit
    from .request import Request


_UNITS: dict[str, pl.DataType] = {
    **dict.fromkeys(("study", "unit"), pl.String()),
    **dict.fromkeys((BASELINE, CANDIDATE, "ratio"), pl.Float64()),
    **dict.fromkeys(("reason", "arm"), pl.String()),
    "steps": pl.List(pl.String()),
}

_MOVED: dict[str, pl.DataType] = {
    **dict.fromkeys(("unit", "function"), pl.String()),
    **dict.fromkeys(("before", "after", "change"), pl.Float64()),
}

_RAN: dict[str, pl.DataType] = {
    "unit": pl.String(),
    "function": pl.String(),
    "own": pl.Float64(),
}

_WORTH_NAMING, _SHARE = 0.005, 0.2
"""A function is listed if it changed by this part of the unit's count, or of the unit's change."""


@dataclass(frozen=True)
class Counted:
    """The instructions that both sides execute for one unit of each kind of work.

    Attributes:
        units: Columns: study, unit, baseline and candidate (instructions), ratio, reason (why it
            was not counted, or null), arm and steps (as of ``Unit``).  If there is a baseline as
            well as a reason, only the candidate failed.
        moved: The functions that changed most in the units that differ, at most ten of each.
            Columns: unit, function, before, after, change (instructions).
        ran: The functions that each unit runs on the candidate.  Columns: unit, function, own
            (instructions).

    """

    units: pl.DataFrame
    moved: pl.DataFrame
    ran: pl.DataFrame = field(default_factory=partial(pl.DataFrame, schema=_RAN))


def counted(
    request: Request, wanted: Sequence[Unit] | None = None, *, seconds: float = math.inf
) -> Counted:
    """Count the units of the request's studies (or those ``wanted``) on both sides.

    With a case only units that have it in their names are counted; with arms only units of these
    arms, or of no arm.  Units of compared steps come first.  Both sides are counted at once, as a
    count does not depend on other load.  A unit that cannot be counted has a reason.  After
    ``seconds`` no further unit is begun.
    """
    if wanted is None:
        asked = [
            unit
            for study in request.studies
            for unit in units(study)
            if not request.arms or unit.arm in {"", *request.arms}
            if (request.case or "") in unit.name
        ]
        wanted = sorted(asked, key=lambda unit: not unit.steps)
    sides = {BASELINE: request.baseline, CANDIDATE: request.candidate}
    rows: list[dict[str, Any]] = []
    functions: list[dict[str, Any]] = []
    ran = [pl.DataFrame(schema=_RAN)]
    total = len(sides) * sum(unit.runs for unit in wanted)
    with (
        Progress("counting", total=total) as progress,
        ExitStack() as stack,
        ThreadPoolExecutor(len(sides)) as pool,
    ):
        counters: dict[str, Counter] = {}
        end = time.monotonic() + seconds
        for unit in wanted:
            row: dict[str, Any] = {"study": unit.study, "unit": unit.name}
            row |= {"arm": unit.arm, "steps": list(unit.steps)}
            rows.append(row)
            if len(rows) > 1 and time.monotonic() > end:
                row["reason"] = "no time was left, see --minutes"
                continue
            try:
                for name, side in sides.items():
                    if name not in counters:
                        made = Counter(side.server, show=progress.show, advance=progress.advance)
                        counters[name] = stack.enter_context(made)
                begun = {}
                for name, side in sides.items():
                    on_side = replace(unit, settings=merged(unit.settings, side.settings))
                    begun[name] = pool.submit(counters[name].count, on_side, twice=False)
                wait(begun.values())
                found = []
                for name, count in begun.items():
                    found.append(count.result())
                    row[name] = float(found[-1]["inclusive"][0])
            except CannotRun as reason:
                row["reason"] = str(reason)
                continue
            row["ratio"] = row[CANDIDATE] / row[BASELINE]
            functions += _moved(unit, *found)
            of_unit = found[-1].slice(1).with_columns(unit=pl.lit(unit.name))
            ran.append(of_unit.select(pl.col(n).cast(t) for n, t in _RAN.items()))
    changes = pl.DataFrame(functions, schema=_MOVED)
    return Counted(pl.DataFrame(rows, schema=_UNITS), changes, pl.concat(ran))


def _moved(unit: Unit, before: pl.DataFrame, after: pl.DataFrame) -> list[dict[str, Any]]:
    """The functions that changed enough to be listed; none if the unit's counts are alike."""
    one, other = (float(counts["inclusive"][0]) for counts in (before, after))
    if abs(other / one - 1) <= EXACT:
        return []
    least = max(0.5, min(_WORTH_NAMING * one, _SHARE * abs(other - one)))
    found = moved(before.slice(1), after.slice(1)).filter(pl.col("change").abs() >= least)
    return found.with_columns(unit=pl.lit(unit.name)).to_dicts()


def of_steps(counted: Counted | None, effects: pl.DataFrame) -> list[float | None]:
    """For each row of ``effects`` the ratio of the instructions of all its units together.

    None for a row without a unit, and for one with a unit that was not counted on both sides.
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
            before, after = (sum(unit[side] for unit in mine) for side in (BASELINE, CANDIDATE))
            found.append(after / before)
        else:
            found.append(None)
    return found
