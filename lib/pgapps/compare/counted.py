"""Exact counts of instructions on both sides, unit by unit, beside the times of a comparison."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers.errors import CannotRun
from pgservers.servers.settings import merged
from pgservers.terminal import Progress

from ..counting.by_function import hint_of_names, moved
from ..counting.counter import Counter
from ..counting.frames import EXACT
from ..counting.units import units
from ..workload.statements import statements_in
from .design import BASELINE, CANDIDATE
from .wording import COLUMNS, named, ratio_text, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..counting.units import Unit
    from .design import Side
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

_MOST_UNITS, _MOST_FUNCTIONS = 12, 5
"""The number of units that are listed, those that changed most, and of functions of each."""

_NO_TIME = "no time was left, see --minutes"

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
    ``seconds`` counting ends, also within a unit.
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
        ExitStack() as stopping,  # before the pool's end, which waits for its threads
    ):
        counters: dict[str, Counter] = {}
        end = time.monotonic() + seconds
        for unit in wanted:
            row: dict[str, Any] = {"study": unit.study, "unit": unit.name}
            row |= {"arm": unit.arm, "steps": list(unit.steps)}
            rows.append(row)
            if time.monotonic() > end:
                row["reason"] = _NO_TIME
                continue
            try:
                for name, side in sides.items():
                    if name not in counters:
                        made = Counter(side.server, show=progress.show, advance=progress.advance)
                        counters[name] = stack.enter_context(made)
                        stopping.callback(made.stop)
                begun = {}
                for name, side in sides.items():
                    on_side = replace(unit, settings=merged(unit.settings, side.settings))
                    on_side = replace(on_side, prepare=(*_own(side), *unit.prepare))
                    begun[name] = pool.submit(counters[name].count, on_side, twice=False)
                left_s = None if math.isinf(seconds) else max(0.0, end - time.monotonic())
                if wait(begun.values(), timeout=left_s).not_done:
                    stopping.close()
                    row["reason"] = _NO_TIME
                    continue
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


def _own(side: Side) -> list[str]:
    """The statements of a side's SQL, and what collects statistics after them."""
    found = statements_in(side.sql, Path("SQL"))
    return [*(statement.text.decode() for statement in found), *(["ANALYZE"] if found else [])]


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
    found: list[float | None] = []
    for row in effects.select("study", "of", "step", "case").iter_rows(named=True):
        mine = units_of(counted, row)
        before, after = (sum(unit[side] for unit in mine) for side in (BASELINE, CANDIDATE))
        found.append(after / before if mine else None)
    return found


def units_of(counted: Counted | None, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The units of a step, as rows; none if one of them was not counted on both sides.

    ``row`` has the columns study, of, step and case.
    """
    if counted is None:
        return []
    place = f"{row['step']}, {row['case']}" if row["case"] else row["step"]
    mine = [
        unit
        for unit in counted.units.filter(study=row["study"]).iter_rows(named=True)
        if unit["arm"] in {"", row["of"]} and place in unit["steps"]
    ]
    return mine if all(unit["ratio"] for unit in mine) else []


def work(counted: Counted | None) -> str:
    """A sentence on the units whose instructions differ; empty if none was counted."""
    if counted is None or not (ratios := counted.units["ratio"].drop_nulls()).len():
        return ""
    differing = ratios.filter((ratios - 1).abs() > EXACT)
    few = f"by no more than {100 * EXACT:g} %"
    if differing.is_empty():
        return f"Instructions of {ratios.len()} units of work differ {few}."
    ends = f"{ratio_text(differing.min())} to {ratio_text(differing.max())}"  # type: ignore[arg-type]
    return f"Instructions of {differing.len()} of {ratios.len()} units differ: {ends}."


def instructions(counted: Counted | None) -> list[str]:
    """The instructions of each unit on both sides, and the functions that changed most."""
    if counted is None or counted.units.is_empty():
        return []
    done = counted.units.filter(pl.col("reason").is_null())
    differing, told = done.filter((pl.col("ratio") - 1).abs() > EXACT), done
    if done.height > _MOST_UNITS:
        top = differing.sort(-pl.col("ratio").log().abs()).head(_MOST_UNITS)
        told = done.join(top, on=["study", "unit"], how="semi", maintain_order="left")
    lines = ["Instructions for one unit of work, counted in a lone backend:"]
    for row in told.iter_rows(named=True):
        figures = f"{row['baseline']:,.0f} -> {row['candidate']:,.0f}  {row['ratio']:7.4f}"
        unit, width = row["unit"], COLUMNS - len(figures) - 3
        if len(unit) > width:
            lines += wrapped(f"  {unit}", 4)
            unit = ""
        lines.append(f"  {unit:{width}} {figures}")
        lines += [line for most in changed_most(counted, row) for line in wrapped(f"    {most}", 6)]
    if told.height < done.height:
        less = differing.height - told.height
        same = done.height - differing.height
        lines.append(f"  {less} more changed less, {same} by no more than 0.1 %: see the report.")
    for reason, part in counted.units.drop_nulls("reason").group_by("reason", maintain_order=True):
        lines += wrapped(f"  not run ({named(part['unit'].to_list())}): {reason[0]}", 4)
    hints = (hint_of_names(part) for _, part in counted.moved.group_by("unit"))
    for hint in {hint for hint in hints if hint}:
        lines += wrapped(hint, 0)
    return lines


def changed_most(counted: Counted | None, unit: Mapping[str, Any]) -> Iterator[str]:
    """The functions that changed most in a unit, and what all others changed together."""
    parts = counted.moved.filter(unit=unit["unit"]) if counted is not None else pl.DataFrame()
    if parts.height:
        most = parts.head(_MOST_FUNCTIONS)
        others = unit["candidate"] - unit["baseline"] - most["change"].sum()
        changes = [*most.select("function", "change").rows(), ("all others", others)]
        listed = (f"{name} {change:+,.0f}" for name, change in changes if round(change))
        yield f"changed most: {', '.join(listed)}"
