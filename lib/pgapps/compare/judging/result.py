"""The result of a comparison, computed once for its text and its report."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers.errors import StudyError
from pgstudies.analysis.verdicts import OPEN

from ..design import BASELINE, CANDIDATE
from .failures import failed_transactions
from .guards import beyond_cpu, check, differing_plans, differing_rows, not_compared, step_name
from .layout import with_layout
from .measured import PLACE, TIME, compared_effects, reasons

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..counted import Counted
    from ..design import Comparison
    from .measured import Measured


@dataclass(frozen=True)
class Result:
    """A comparison that was measured.

    Attributes:
        comparison: What was compared.
        measured: The studies with at least one finished block.
        effects: As of ``compared_effects``, ``with_layout`` and ``with_guards``.
        reasons: As of ``reasons``.
        guards: As of ``guards.check``.
        plans: As of ``differing_plans``.
        rows: As of ``differing_rows``.
        failed: As of ``failed_transactions``.
        margin: The declared margin, a fraction.
        profile: The size of the run.
        anytime: Whether the intervals are confidence sequences, as it was looked at on the way.
        counted: Instructions of both sides, where they were asked for.
        failures: The studies that could not be compared.

    """

    comparison: Comparison
    measured: tuple[Measured, ...]
    effects: pl.DataFrame
    reasons: pl.DataFrame
    guards: pl.DataFrame
    plans: pl.DataFrame
    rows: pl.DataFrame
    failed: pl.DataFrame
    margin: float
    profile: str
    anytime: bool = False
    counted: Counted | None = None
    failures: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The exit code: see ``exit_code``; undecided also if a study could not be compared."""
        return exit_code(self.effects) or (UNDECIDED if self.failures else 0)

    @property
    def host(self) -> Mapping[str, Any]:
        """The machine, as in record.json."""
        return dict(self.measured[0].infos[-1]["host"])

    @property
    def started_at(self) -> str:
        """When the first block was begun."""
        return min(str(info["started_at"]) for m in self.measured for info in m.infos)

    @property
    def builds(self) -> dict[str, dict[str, Any]]:
        """The facts of both sides' servers, by side: version, build, flags."""
        info = self.measured[0].infos[-1]
        servers = {BASELINE: info["server"]}
        servers[CANDIDATE] = info["servers"].get(self.comparison.candidate.server, info["server"])
        facts = {
            arm["side"]: info["facts"][arm["name"]]
            for arm in info["arms"]
            if arm["name"] in info["facts"]
        }
        return {
            side: facts.get(side, {}) | {k: v for k, v in server.items() if v is not None}
            for side, server in servers.items()
        }


def result_of(
    comparison: Comparison,
    measured: Sequence[Measured],
    *,
    case: str | None,
    margin: float,
    until_decided: bool = False,
    profile: str,
    counted: Counted | None = None,
    failures: Sequence[str] = (),
) -> Result:
    """Judge the comparison; raises StudyError when no block is finished.

    A run with ``until_decided``, or one continued after a look, is judged by confidence sequences.
    """
    finished = tuple(m for m in measured if not m.samples.is_empty())
    if not any(TIME in m.samples["metric"] for m in finished):
        raise nothing_measured(measured)
    anytime = until_decided or any(m.was_looked_at for m in finished)
    judge = partial(compared_effects, finished, case=case, margin=margin, anytime=anytime)
    timed = judge()
    waiting = beyond_cpu(finished, timed)[0].filter(pl.col("factor") > 1)
    if waiting.height:
        timed = judge(waiting=waiting)
    effects = _with_waits(with_layout(timed, finished, counted), waiting)
    guards = check(finished, effects)
    return Result(
        comparison=comparison,
        measured=finished,
        effects=with_guards(effects, guards),
        reasons=reasons(finished, timed),
        guards=guards,
        plans=differing_plans(finished),
        rows=differing_rows(finished),
        failed=failed_transactions(finished),
        margin=margin,
        profile=profile,
        anytime=anytime,
        counted=counted,
        failures=tuple(failures),
    )


def _with_waits(effects: pl.DataFrame, waiting: pl.DataFrame) -> pl.DataFrame:
    """The effects, with the notes of ``waiting`` on steps that wait longer."""
    note = pl.format(
        "waits longer: wall time is {} times what CPU time explains", pl.col("factor").round(3)
    )
    known = effects.join(waiting, on=PLACE, how="left", maintain_order="left")
    return known.with_columns(note=pl.coalesce(note, "note")).drop("factor")


def nothing_measured(measured: Sequence[Measured]) -> StudyError:
    """The error of a comparison that timed nothing, with the known reasons."""
    missing = not_compared(measured)
    why = f"  Not compared: {'; '.join(missing)}." if missing else ""
    return StudyError(f"No block was finished, so there is nothing to compare.{why}")


def decisive_failures(guards: pl.DataFrame) -> pl.DataFrame:
    """The failed guards that decide; a guard that was not checked has not failed."""
    return guards.filter("decisive", pl.col("passed").not_())


def with_guards(effects: pl.DataFrame, guards: pl.DataFrame) -> pl.DataFrame:
    """The effects with the column failed: the guards that failed for the step, or null."""
    failed = decisive_failures(guards).select("guard", "steps").rows()
    names = [
        ", ".join(g for g, steps in failed if steps is None or step_name(place) in steps) or None
        for place in effects.select(PLACE).rows()
    ]
    return effects.with_columns(pl.Series("failed", names, dtype=pl.String()))


IS_DECIDED = pl.col("failed").is_null() & ~pl.col("verdict").is_in([*OPEN, "not comparable"])
"""Whether a step of ``with_guards`` is decided: it has a verdict, and no guard failed for it."""


def undecided(result: Result) -> list[str]:
    """The studies with an open step that more blocks would probably decide."""
    is_open = (
        pl.col("failed").is_null()
        & pl.col("verdict").is_in(OPEN)
        & pl.col("blocks_needed").is_not_null()
    )
    return result.effects.filter(is_open)["study"].unique(maintain_order=True).to_list()


IS_HIDDEN = (
    pl.col("failed").is_null()
    & pl.col("doubt").is_null()
    & pl.col("verdict").is_in(OPEN)
    & pl.col("low").is_not_null()
)
"""Whether a step without a finding has an interval wider than the margin allows."""


UNDECIDED = 2


def exit_code(effects: pl.DataFrame) -> int:
    """0: no step was found to be slower; 1: one was, whatever else is undecided; 2: undecided.

    ``effects`` are those of ``with_guards``.  A comparison is undecided if for one of its steps a
    guard failed, or there is a doubt of ``with_layout`` or no interval.
    """
    decided = effects.filter(IS_DECIDED)
    if "slower" in decided["verdict"]:
        return 1
    hidden = effects.filter(IS_HIDDEN)
    return 0 if decided.height + hidden.height == effects.height else UNDECIDED
