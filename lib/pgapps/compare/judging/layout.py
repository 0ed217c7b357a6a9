"""Layout: the place of code in a program, which changes times although the work is the same.

All copies of a build have one layout, so blocks do not draw it (Mytkowicz and others, ASPLOS 2009;
Curtsinger and Berger, ASPLOS 2013).  Where every block ran programs relinked, the intervals hold
what links move.  Of two programs that were not, a step is called slower or faster only beyond what
links move any of so many steps by, or if its instructions changed with it and by enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.special import ndtri

from pgservers.addresses import EMBEDDED
from pgservers.programs.releases import is_release
from pgstudies.analysis.verdicts import OPEN

from ...counting.frames import EXACT
from ..counted import of_steps
from ..design import BASELINE, CANDIDATE
from .measured import CPU, TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..counted import Counted
    from ..design import ComparedInfo
    from .measured import Measured

NOT_EXCLUDED, SAME_WORK = "layout not excluded", "same instructions"
"""Why a step whose time differs is not called slower or faster."""

MORE_WORK = "more instructions"
"""Why an open step hides no mere noise: its instructions grew by more than the margin."""

_UNEXPLAINED = f"{SAME_WORK}; placement, caches or waits"

EXPLAINED = 0.5
"""Changed instructions explain a change of time of which they are this part (logarithms)."""

LINKS = {CPU: 0.020, TIME: 0.025}
"""The standard deviation of ln(time of one link / of another) of a program, by what judges a step.

That of the records in data/layout, rounded up to half a per cent: see book/bench/links.py."""

ALARMS = 0.05
"""The rate at which links alone may make a comparison call any of its steps."""


def allowance(metric: str, steps: int) -> float:
    """The change (relative) that links exceed in any of ``steps`` steps once in 20 comparisons."""
    return float(np.expm1(-ndtri(ALARMS / steps / 2) * LINKS[metric]))


def layout(measured: Sequence[Measured], effects: pl.DataFrame) -> tuple[bool | None, str]:
    """The guard: whether every block ran relinked programs on both sides, and a sentence.

    ``effects`` are those of ``with_layout``.
    """
    fixed = _fixed(measured)
    if not fixed:
        return True, "Each block ran relinked programs, in another link order."
    if _is_one_program(measured):
        return None, "Both sides run the same programs, so their layout is one."
    whose = f"the {min(fixed)}'s" if len(fixed) == 1 else "these"
    sentence = f"Layout not excluded: {whose} programs cannot be relinked here."
    sentence += f" {_allowing(effects)}"
    if all(server == EMBEDDED or is_release(server) for server in _servers(measured[0].infos[-1])):
        sentence += " The difference of two releases is one of builds, compilers included."
    return (False if len(fixed) == 1 else None), sentence


def with_layout(
    effects: pl.DataFrame, measured: Sequence[Measured], counted: Counted | None = None
) -> pl.DataFrame:
    """The effects; those that layout may explain are open.  ``counted``: instructions, if known.

    Columns added: those of ``doubted``; instructions, the ratio of those of the step's units, null
    where they were not counted; allowance, as of that function, null where it does not matter.
    """
    is_fixed = bool(_fixed(measured)) and not _is_one_program(measured)
    allowances = {metric: allowance(metric, effects.height) for metric in LINKS if is_fixed}
    return doubted(
        effects.with_columns(
            pl.Series("instructions", of_steps(counted, effects), dtype=pl.Float64),
            allowance=pl.col("metric").replace_strict(
                allowances, default=None, return_dtype=pl.Float64
            ),
        ),
        is_fixed=is_fixed,
    )


def doubted(effects: pl.DataFrame, *, is_fixed: bool) -> pl.DataFrame:
    """The effects, open where the two programs' own layouts (``is_fixed``) may explain them.

    ``effects`` have instructions and allowance.  Instructions explain a step if they changed in the
    same direction, by ``EXPLAINED`` of what its time is estimated to differ by: two releases'
    counts are hardly ever the same, and half of them change with the time by chance.

    Columns added: doubt, why a step is open that would be slower or faster, or is open although its
    instructions grew by more than the margin, or null; note, what is said of a step whose time
    differs though its instructions do not, or the other way round, or that is open though its
    interval excludes 1, or null.
    """
    edge = pl.col("allowance").log1p()
    beyond = (pl.col("low").log() > edge) | (pl.col("high").log() < -edge)
    is_same = (pl.col("instructions") - 1).abs() <= EXACT
    explained = pl.col("instructions").log() / pl.col("ratio").log() >= EXPLAINED
    differs = pl.col("verdict").is_in(["slower", "faster"])
    doubt = (
        pl.when((beyond | (~is_same & explained)).fill_null(value=False))
        .then(None)
        .when(is_same)
        .then(pl.lit(SAME_WORK))
        .otherwise(pl.lit(NOT_EXCLUDED))
    )
    is_open = pl.col("verdict").is_in(OPEN)
    does_more = is_open & (pl.col("instructions") > 1 + pl.col("margin"))
    grew = pl.format("{} times the instructions", pl.col("instructions").round(3))
    excludes_one = (pl.col("low") > 1) | (pl.col("high") < 1)
    percent = (100 * pl.col("margin")).round(1)
    small = pl.format("differs, but not clearly by more than {} %", percent)
    is_settled = pl.col("doubt").is_null() | (pl.col("doubt") == MORE_WORK)
    return effects.with_columns(
        doubt=pl.when(differs & pl.lit(is_fixed))
        .then(doubt)
        .when(does_more)
        .then(pl.lit(MORE_WORK)),
        note=pl.when(differs & is_same)
        .then(pl.lit(_UNEXPLAINED))
        .when(does_more)
        .then(grew)
        .when(is_open & excludes_one)
        .then(small),
    ).with_columns(
        verdict=pl.when(is_settled).then("verdict").otherwise(pl.lit("inconclusive")),
        blocks_needed=pl.when(is_settled).then("blocks_needed"),
    )


def _allowing(effects: pl.DataFrame) -> str:
    """The effects that are called slower or faster although the programs could not be relinked."""
    known = effects.group_by("metric").agg(pl.col("allowance").max()).drop_nulls().sort("metric")
    clocks = {CPU: "CPU time", TIME: "wall time"}
    parts = [f"{100 * part:.1f} % in {clocks[metric]}" for metric, part in known.rows()]
    is_counted = effects["instructions"].is_not_null().any()
    also = ", or its instructions changed with it" if is_counted else ""
    return (
        f"Links alone move one of {effects.height} steps by up to {' or '.join(parts)}; what is "
        f"called slower or faster is beyond that{also}."
    )


def _fixed(measured: Iterable[Measured]) -> set[str]:
    """The sides, baseline or candidate, that ran a program in some block without relinking it."""
    fixed = set()
    for info in (info for m in measured for info in m.infos):
        linked, ran = linked_in(info), _ran(info)
        for arm in info["arms"]:
            blocks = {place for place in ran if place[1] == arm["name"]}
            if arm["not_run"] is None and not (blocks and blocks <= linked):
                fixed.add(CANDIDATE if arm["side"] == CANDIDATE else BASELINE)
    return fixed


def _is_one_program(measured: Iterable[Measured]) -> bool:
    # Two copies of one program lie in other pages, which moves a lookup by a per cent as links do.
    return all(len({*_servers(info)}) == 1 for m in measured for info in m.infos)


def _servers(info: ComparedInfo) -> list[str]:
    return [info["comparison"][side]["server"] for side in (BASELINE, CANDIDATE)]


def linked_in(info: ComparedInfo) -> set[tuple[int, str]]:
    """The blocks and arms that ran relinked programs."""
    known = [(entry.get("block"), entry.get("arm")) for entry in info.get("links", [])]
    return _ran(info) & {(b, a) for b, a in known if isinstance(b, int) and isinstance(a, str)}


def _ran(info: ComparedInfo) -> set[tuple[int, str]]:
    return {(entry["block"], entry["arm"]) for entry in info["timeline"]}
