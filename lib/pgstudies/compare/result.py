"""The result of a comparison: everything that its text and its report show, worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from ..analysis.verdicts import OPEN
from ..errors import StudyError
from ..records import built_with
from ._guards import check, differing_plans
from .measured import compared_effects, reasons

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..measuring import Comparison
    from .counted import Counted
    from .measured import Measured


@dataclass(frozen=True)
class Result:
    """A comparison that was measured.

    Attributes:
        comparison: What was compared.
        measured: The studies with at least one finished block.
        effects: As of ``compared_effects``.
        reasons: As of ``reasons``.
        guards: As of ``guards.check``.
        plans: As of ``differing_plans``.
        margin: The declared margin, a fraction.
        profile: The size of the run.
        counted: Instructions of both sides, where they were asked for.

    """

    comparison: Comparison
    measured: tuple[Measured, ...]
    effects: pl.DataFrame
    reasons: pl.DataFrame
    guards: pl.DataFrame
    plans: pl.DataFrame
    margin: float
    profile: str
    counted: Counted | None = None

    @property
    def host(self) -> Mapping[str, Any]:
        """The machine, as in record.json."""
        return dict(self.measured[0].infos[-1]["host"])

    @property
    def started_at(self) -> str:
        """When the first block was begun."""
        return min(str(info["started_at"]) for m in self.measured for info in m.infos)

    @property
    def versions(self) -> tuple[str, str]:
        """The PostgreSQL of baseline and candidate, and what it was built with."""
        info = self.measured[0].infos[-1]
        other = info["servers"].get(self.comparison.candidate.server, info["server"])
        return _version(info["server"]), _version(other)


def _version(server: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, [server["version_text"], built_with(server)]))


def result_of(
    comparison: Comparison,
    measured: Sequence[Measured],
    *,
    case: str | None,
    margin: float,
    clock: bool = False,
    profile: str,
    counted: Counted | None = None,
) -> Result:
    """Work out everything; raises StudyError when no block is finished."""
    finished = tuple(m for m in measured if not m.samples.is_empty())
    if not finished:
        raise StudyError("No block was finished, so there is nothing to compare.")
    effects = compared_effects(finished, case=case, margin=margin, clock=clock)
    return Result(
        comparison=comparison,
        measured=finished,
        effects=effects,
        reasons=reasons(finished, effects),
        guards=check(finished, effects),
        plans=differing_plans(finished),
        margin=margin,
        profile=profile,
        counted=counted,
    )


def decisive_failures(guards: pl.DataFrame) -> list[str]:
    """The guards that failed and without which nothing is decided; one not looked at is none."""
    return guards.filter("decisive", pl.col("passed").not_())["guard"].to_list()


def exit_code(effects: pl.DataFrame, guards: pl.DataFrame) -> int:
    """0: nothing is slower; 1: something is; 2: it could not be decided.

    ``guards`` are those of ``guards.check``: when one fails that the result depends on, nothing is
    decided.
    """
    if decisive_failures(guards):
        return 2
    verdicts = set(effects["verdict"])
    if "slower" in verdicts:
        return 1
    return 2 if verdicts & {*OPEN, "not comparable"} else 0
