"""How ``releases.ipynb`` counts: units of work, as what an arm does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from pgapps.counting.by_function import count_samples
from pgapps.counting.counter import Counter
from pgapps.counting.units import units
from pgservers.errors import CannotRun, StudyError
from pgstudies.records.counts import INSTRUCTIONS, open_case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgapps.counting.units import Unit
    from pgstudies.measuring.trial import Trial


def chosen(what: str) -> list[Unit]:
    """The units that ``what`` names, or whose study it names; raises StudyError for an unknown."""
    wanted = set(what.split(", "))
    found = [unit for unit in units() if wanted & {unit.name, unit.study, "all"}]
    known = {"all"} | {name for unit in found for name in (unit.name, unit.study)}
    if unknown := wanted - known:
        raise StudyError(
            f"There is no unit {min(unknown)!r}; the units.toml of the studies list them."
        )
    return found


def in_a_table(units: Sequence[Unit]) -> pl.DataFrame:
    """The units: unit, study, sizes and SQL."""
    rows = [
        {
            "unit": unit.name,
            "study": unit.study,
            "sizes": f"{unit.sizes[0]:,}, {unit.sizes[1]:,}",
            "SQL": " ; ".join(unit.script.splitlines()),
        }
        for unit in units
    ]
    return pl.DataFrame(rows)


def count_arm(
    trial: Trial,
    units: Sequence[Unit],
    holders: Sequence[tuple[int, int]] = ((0, 0),),
    *,
    twice: bool = True,
    fresh: bool = False,
) -> None:
    """Count units on a server like the trial's, and record them; what cannot be is left out.

    Those that vary are counted with each of the ``holders``: so many open transactions, with so
    many subtransactions each.  ``twice`` and ``fresh`` are those of ``Counter.count``.
    """
    wanted = [
        (unit.with_open(*held), open_case(*held))
        for unit in units
        for held in (holders if unit.varies else ((0, 0),))
    ]
    try:
        counter = Counter(trial.server.spec, show=trial.show)
    except CannotRun as reason:
        trial.leave_out("all", "", str(reason))
        return
    with counter:
        for unit, case in wanted:
            try:
                counts = counter.count(unit, twice=twice, fresh=fresh)
            except CannotRun as reason:
                trial.leave_out(unit.name, case, str(reason))
                continue
            for metric, iteration, value in count_samples(counts):
                trial.record(
                    unit.name,
                    metric,
                    value,
                    INSTRUCTIONS,
                    case=case,
                    iteration=iteration,
                )
