"""The result of a comparison, computed once for its text and its report."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers.errors import StudyError
from pgstudies.analysis.intervals import signed_rank_interval
from pgstudies.analysis.verdicts import OPEN
from pgstudies.measuring.pgbench import FAILURES
from pgstudies.rooms import rooms

from ..design import BASELINE, CANDIDATE
from .expectations import expectations
from .guards import analyzed, beyond_cpu, check, differing_plans, not_compared, step_name
from .layout import with_layout
from .measured import IS_COMPARED_SIDE, PLACE, TIME, compared_effects, reasons

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..counted import Counted
    from ..design import Comparison
    from .measured import Measured

_TURN = ("of", "side", "step", "block", "turn")

_FAILED: dict[str, pl.DataType] = {
    **dict.fromkeys((*PLACE, "failure"), pl.String()),
    **dict.fromkeys((BASELINE, CANDIDATE, "low", "high"), pl.Float64()),
}


@dataclass(frozen=True)
class Result:
    """A comparison that was measured.

    Attributes:
        measured: The studies with at least one finished block.
        effects: By ``compared_effects``, ``with_layout`` and ``with_guards``.
        reasons, guards, plans, analyzed, rows, failed, expected: By ``reasons``, ``check``,
            ``differing_plans``, ``analyzed``, ``differing_rows``, ``failed_transactions`` and
            ``expectations``.
        margin: The declared margin, a fraction.
        profile: The size of the run.
        anytime: Whether the intervals are confidence sequences.
        counted: Instructions of both sides, if they were counted.
        failures: The studies that could not be compared.
        crashes: The sides whose servers crashed in this run, and how.

    """

    comparison: Comparison
    measured: tuple[Measured, ...]
    effects: pl.DataFrame
    reasons: pl.DataFrame
    guards: pl.DataFrame
    plans: pl.DataFrame
    analyzed: pl.DataFrame
    rows: pl.DataFrame
    failed: pl.DataFrame
    expected: pl.DataFrame
    margin: float
    profile: str
    anytime: bool = False
    counted: Counted | None = None
    failures: tuple[str, ...] = ()
    crashes: tuple[tuple[str, str], ...] = ()

    @property
    def code(self) -> int:
        """The exit code: 1 if a step is slower, an expectation not met or the candidate crashed.

        Else it is 2 if something is undecided: a step with a failed guard, a doubt of
        ``with_layout`` or no interval, an open expectation, a crash, a script that was not
        measured, or a study that could not be compared.  Otherwise it is 0.
        """
        decided, is_met = self.effects.filter(IS_DECIDED), self.expected["is_met"]
        has_crashed = any(side == CANDIDATE for side, _ in self.crashes)
        if has_crashed or "slower" in decided["verdict"] or False in is_met:
            return 1
        known = decided.height + self.effects.filter(IS_HIDDEN).height
        is_open = known < self.effects.height or is_met.has_nulls()
        is_whole = not (self.failures or self.crashes or self.scripts_left_out)
        return 2 if is_open or not is_whole else 0

    @property
    def left_out(self) -> set[tuple[str, str]]:
        """The study and the name of each step that was left out, on one side or on both."""
        found = {
            (m.study, out["step"]) for m in self.measured for i in m.infos for out in i["left_out"]
        }
        return found - set(self.effects.select("study", "step").iter_rows())

    @property
    def scripts_left_out(self) -> list[str]:
        """The scripts of a workload that were not measured."""
        return sorted(step for study, step in self.left_out if study in rooms("workload"))

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
    crashes: Sequence[tuple[str, str]] = (),
) -> Result:
    """Judge the comparison; raises StudyError when no block is finished.

    A run with ``until_decided``, or one continued after a look, is judged by confidence sequences.
    """
    finished = tuple(m for m in measured if not m.samples.is_empty())
    if not any(TIME in m.samples["metric"] for m in finished):
        missing = not_compared(measured)
        why = f"  Not compared: {'; '.join(missing)}." if missing else ""
        raise StudyError(f"No block was finished, so there is nothing to compare.{why}")
    anytime = until_decided or any(m.was_looked_at for m in finished)
    judge = partial(compared_effects, finished, case=case, margin=margin, anytime=anytime)
    timed = judge()
    waiting = beyond_cpu(finished, timed)[0].filter(pl.col("factor") > 1)
    if waiting.height:
        timed = judge(waiting=waiting)
    effects = _with_waits(with_layout(timed, finished, counted), waiting)
    guards = check(finished, effects)
    effects = with_guards(effects, guards)
    return Result(
        comparison=comparison,
        measured=finished,
        effects=effects,
        reasons=reasons(finished, timed),
        guards=guards,
        plans=differing_plans(finished),
        analyzed=analyzed(finished),
        rows=differing_rows(finished),
        failed=failed_transactions(finished),
        expected=expectations(finished, effects),
        margin=margin,
        profile=profile,
        anytime=anytime,
        counted=counted,
        failures=tuple(failures),
        crashes=tuple(crashes),
    )


def _with_waits(effects: pl.DataFrame, waiting: pl.DataFrame) -> pl.DataFrame:
    """The effects, with the notes of ``waiting`` on steps that wait longer."""
    note = pl.format(
        "waits longer: wall time is {} times what CPU time explains", pl.col("factor").round(3)
    )
    known = effects.join(waiting, on=PLACE, how="left", maintain_order="left")
    return known.with_columns(note=pl.coalesce(note, "note")).drop("factor")


def differing_rows(measured: Sequence[Measured]) -> pl.DataFrame:
    """Rows that only one side returned: study, of, step (with the case), side, row."""
    rows = [
        (m.study, entry["of"], entry["step"], *row)
        for m in measured
        for info in m.infos[-1:]
        for entry in info.get("rows", [])  # older records lack it
        for row in entry["rows"]
    ]
    columns = ["study", "of", "step", "side", "row"]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()), orient="row")


def failed_transactions(measured: Iterable[Measured]) -> pl.DataFrame:
    """The fraction of failed transactions: one row per step and kind of failure.

    Columns: ``PLACE``, failure (of ``FAILURES``), baseline and candidate (means of the blocks), low
    and high (95 % interval of the difference from baseline to candidate, null with too few blocks).
    """
    rows: list[dict[str, Any]] = []
    for m, failure in product(measured, FAILURES.values()):
        # A turn without any has no such sample.
        failed = m.samples.filter(metric=failure, case="").select(*_TURN, share="value")
        turns = m.samples.filter(IS_COMPARED_SIDE, metric=TIME, case="")
        parts = (
            turns.join(failed, on=["of", "step"], how="semi")
            .join(failed, on=_TURN, how="left")
            .group_by(*PLACE, "side", "block", maintain_order=True)
            .agg(pl.col("share").fill_null(0.0).mean())
        )
        for place, part in parts.group_by(*PLACE, maintain_order=True):
            sides = part.pivot("side", index="block", values="share")
            if not {BASELINE, CANDIDATE} <= set(sides.columns):
                continue
            both = sides.drop_nulls()
            interval = signed_rank_interval((both[CANDIDATE] - both[BASELINE]).to_numpy())
            low, high = interval or (None, None)
            means = {side: both[side].mean() for side in (BASELINE, CANDIDATE)}
            at = dict(zip(PLACE, place, strict=True)) | {"failure": failure}
            rows.append(at | means | {"low": low, "high": high})
    return pl.DataFrame(rows, schema=_FAILED)


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
    is_open = pl.col("failed").is_null() & pl.col("verdict").is_in(OPEN)
    found = result.effects.filter(is_open).drop_nulls("blocks_needed")
    return found["study"].unique(maintain_order=True).to_list()


IS_HIDDEN = (
    pl.col("failed").is_null()
    & pl.col("doubt").is_null()
    & pl.col("verdict").is_in(OPEN)
    & pl.col("low").is_not_null()
)
"""Whether a step without a finding has an interval wider than the margin allows."""
