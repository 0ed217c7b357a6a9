"""Guards: the conditions under which a comparison of two servers is valid."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from pgstudies.analysis.diagnostics import CARRY_OVER, checks
from pgstudies.analysis.families import flipped
from pgstudies.analysis.intervals import hodges_lehmann
from pgstudies.analysis.pairing import log_ratios
from pgstudies.records.reading import built_with

from ..design import BASELINE, CANDIDATE
from ..wording import named
from .independence import autocorrelation
from .layout import layout
from .measured import CPU, IS_COMPARED_SIDE, PLACE, TIME, clock_effects, rounds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ..design import ComparedInfo
    from .measured import Measured

_SCHEMA: dict[str, pl.DataType] = {
    "guard": pl.String(),
    "passed": pl.Boolean(),
    "decisive": pl.Boolean(),
    "steps": pl.List(pl.String()),
    "sentence": pl.String(),
}

FALSE_ALARMS = 0.02
"""The rate at which any guard with a statistical test fails by chance."""

_CHANCE = " Without a second copy of the baseline, what is drawn at random counts as different."


class GuardResult(NamedTuple):
    """What a guard found.

    Attributes:
        passed: None where it could not be checked.
        sentence: The finding, in words.
        steps: The steps for which it failed, as ``step_name`` names them; None for all.

    """

    passed: bool | None
    sentence: str
    steps: list[str] | None = None


def check(measured: Sequence[Measured], effects: pl.DataFrame) -> pl.DataFrame:
    """Every guard and its finding, one row each.

    Columns: guard, passed (null if it could not be checked), decisive (whether a step for which it
    failed is undecided), steps (for which it failed; null for all), sentence.
    ``effects`` are those of ``with_layout``.
    """
    times = rounds_of(measured, pl.col("metric").is_in([TIME, CPU])).join(
        effects, on=[*PLACE, "metric"], how="semi"
    )
    margin = float(effects["margin"].max() or 0.0)  # type: ignore[arg-type]
    rows = [
        ("settings", True, settings(measured)),
        ("builds", True, builds(measured)),
        ("cores", True, cores(measured)),
        ("results", True, _results(measured)),
        ("plans", False, _plans(measured)),
        ("both sides", True, _both_sides(measured)),
        ("clock", True, _clock(measured, effects)),
        *diagnosed(times, margin=margin),
        ("independence", True, independence(effects)),
        ("layout", False, GuardResult(*layout(measured, effects))),
        ("machine", False, _machine(measured)),
    ]
    return pl.DataFrame(
        [{"guard": name, "decisive": decisive} | found._asdict() for name, decisive, found in rows],
        schema=_SCHEMA,
    )


def step_name(place: Sequence[Any]) -> str:
    """The name of a step in guards, from the values of ``PLACE``."""
    return ", ".join(str(part) for part in place if part)


def differing_plans(measured: Sequence[Measured]) -> pl.DataFrame:
    """The plans that differ: study, of, step (with its case), baseline, candidate."""
    both = _on_both(measured, lambda info: info["plans"])
    pairs = both.select(BASELINE, CANDIDATE).rows()
    differ = [_nodes(baseline) != _nodes(candidate) for baseline, candidate in pairs]
    return both.filter(pl.Series(differ, dtype=pl.Boolean()))


def analyzed(measured: Sequence[Measured]) -> pl.DataFrame:
    """Texts of EXPLAIN (ANALYZE, BUFFERS), of scripts: columns as of ``differing_plans``."""
    return _on_both(measured, lambda info: info.get("analyzed", {}))  # older records lack it


def _on_both(
    measured: Sequence[Measured], plans: Callable[[ComparedInfo], Mapping[str, Mapping[str, str]]]
) -> pl.DataFrame:
    """The first text of each step, where both sides have one; ``plans`` are by arm and step."""
    rows = []
    for m in measured:
        found: dict[tuple[str, str], dict[str, str]] = {}
        for info in m.infos:
            names = {arm["name"]: (arm["of"], arm["side"]) for arm in info["arms"]}
            for name, of_arm in plans(info).items():
                of, side = names[name]
                for step, plan in of_arm.items():
                    found.setdefault((of, step), {}).setdefault(side, plan)
        rows += [
            {"study": m.study, "of": of, "step": step} | {s: p[s] for s in (BASELINE, CANDIDATE)}
            for (of, step), p in found.items()
            if BASELINE in p and CANDIDATE in p
        ]
    columns = ["study", "of", "step", BASELINE, CANDIDATE]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()))


def _nodes(plan: str) -> list[str]:
    """The lines of a plan, or of several, that name its nodes.

    Conditions are left out: releases print the result of a subplan, or the sides of an equation,
    differently.
    """
    lines = plan.splitlines()
    return [line for line in lines if line[:1] != " " or line.lstrip().startswith("->")]


_IS_COPY = pl.col("copy_of").is_not_null()


def _results(measured: Sequence[Measured]) -> GuardResult:
    different, random, alike = [], [], 0
    for m in measured:
        seen = m.samples.filter((pl.col("metric") == "result") | (pl.col("unit") == "rows"))
        keys = [*PLACE, "metric", "iteration", "block"]
        for place, part in seen.group_by(*PLACE, "metric", maintain_order=True):
            wide = part.pivot("side", index=keys, values="value", aggregate_function="sum")
            if BASELINE not in wide.columns or CANDIDATE not in wide.columns:
                continue
            copies = part.filter(_IS_COPY)["side"].unique().to_list()
            whole = wide.drop_nulls([BASELINE, CANDIDATE, *copies])
            if any((whole[BASELINE] != whole[copy]).any() for copy in copies):
                random.append(step_name(place[:4]))
            elif (whole[BASELINE] != whole[CANDIDATE]).any():
                different.append(step_name(place[:4]))
            else:
                alike += whole.height
    drawn = f" Drawn at random, so not compared: {named(random)}." if random else ""
    if different:
        chance = "" if any(m.samples.filter(_IS_COPY).height for m in measured) else _CHANCE
        names = named(list(dict.fromkeys(different)))
        return GuardResult(False, f"The two answer differently: {names}.{chance}", different)
    if not alike:
        return GuardResult(None, f"No result could be compared.{drawn}")
    return GuardResult(True, f"{alike:,} results are the same on both.{drawn}")


def _plans(measured: Sequence[Measured]) -> GuardResult:
    if not any(plans for m in measured for info in m.infos for plans in info["plans"].values()):
        return GuardResult(None, "No plan could be had.")
    differing = differing_plans(measured).height
    if differing:
        plans = "1 plan is" if differing == 1 else f"{differing} plans are"
        return GuardResult(False, f"{plans} not the same on both; the report shows them.")
    return GuardResult(True, "Every statement has the same plan on both.")


def _both_sides(measured: Sequence[Measured]) -> GuardResult:
    timed = (m.samples.filter(IS_COMPARED_SIDE, metric=TIME) for m in measured)
    one_sided = [
        step_name(place)
        for of_study in timed
        for place, part in of_study.group_by(*PLACE, maintain_order=True)
        if part["side"].n_unique() == 1
    ]
    not_run = not_compared(measured)
    left_out = f" Not compared: {named(not_run)}." if not_run else ""
    if one_sided:
        sentence = f"Measured on one side only: {named(one_sided)}.{left_out}"
        return GuardResult(False, sentence, one_sided)
    return GuardResult(True, f"Every step was measured on both sides.{left_out}")


def not_compared(measured: Sequence[Measured]) -> list[str]:
    """The arms and steps that a side could not run, or had no time for, each with its reason."""
    infos = [(m.study, info) for m in measured for info in m.infos]
    arms = {
        f"{study}, {arm['of']}: {arm['not_run'].rstrip('.')}"
        for study, info in infos
        for arm in info["arms"]
        if arm["not_run"]
    }
    steps = {
        f"{', '.join(filter(None, [study, out['step'], out['case']]))}: {out['reason'].rstrip('.')}"
        for study, info in infos
        for out in info["left_out"]
    }
    return sorted(arms | steps)


def beyond_cpu(measured: Sequence[Measured], effects: pl.DataFrame) -> tuple[pl.DataFrame, bool]:
    """The steps judged by CPU time whose wall time changes by more or less than CPU time explains.

    One more second of a session on the processor explains one more second of wall time, even if
    wall time holds other work, such as the client's.  Columns: ``PLACE`` and factor, wall time over
    what CPU time explains.  The second value is whether there are enough blocks to tell.
    """
    by_cpu = effects.filter(pl.col("metric") == CPU)
    none = by_cpu.select(*PLACE, factor=pl.col("ratio"))
    if by_cpu.is_empty():
        return none, True
    both = rounds_of(measured, pl.col("metric").is_in([TIME, CPU]))
    both = both.filter(pl.col("arm").is_in([BASELINE, CANDIDATE])).join(
        by_cpu, on=PLACE, how="semi"
    )
    ratios = log_ratios(both, baseline=BASELINE, by=[*PLACE, "metric"]).pivot(
        "metric",
        on_columns=[TIME, CPU],
        index=[*PLACE, "block"],
        values=["log_ratio", "baseline_value"],
    )
    part = pl.col(f"baseline_value_{CPU}") / pl.col(f"baseline_value_{TIME}")
    grown = (pl.col(f"log_ratio_{CPU}").exp() - 1) * part.clip(upper_bound=1)
    d = pl.col(f"log_ratio_{TIME}") - grown.log1p()
    waited = (
        ratios.group_by(*PLACE, maintain_order=True)
        .agg(d=d.sort_by("block").fill_nan(None))
        .filter(pl.col("d").list.drop_nulls().list.len() > 0)
    )
    p_values, least = flipped(waited["d"].to_list())
    edge = math.log1p(float(by_cpu["margin"].max() or 0.0))  # type: ignore[arg-type]
    found = [
        (*(row[column] for column in PLACE), math.exp(more))
        for row, p_value in zip(waited.iter_rows(named=True), p_values, strict=True)
        for more in [hodges_lehmann([d for d in row["d"] if d is not None])]
        if p_value <= LEVEL and abs(more) > edge
    ]
    return pl.DataFrame(found, schema=none.schema, orient="row"), bool((least <= LEVEL).any())


def _clock(measured: Sequence[Measured], effects: pl.DataFrame) -> GuardResult:
    """Whether wall time grows as CPU time says; if it grows more, wall time judges the step.

    Where it grows less, and yet calls the step slower or faster as well, the verdict stands.
    """
    count = effects.filter(pl.col("metric") == CPU).height
    if not count:
        return GuardResult(True, "Wall time judges every step.")
    found, is_enough = beyond_cpu(measured, effects)
    says = pl.col("says").is_in(["slower", "faster"]) & (pl.col("says") == pl.col("verdict"))
    agreed = effects.join(clock_effects(measured, effects), on=PLACE).filter(says)
    same = _told(found.join(agreed, on=PLACE, how="semi", maintain_order="left"))
    found = found.join(agreed, on=PLACE, how="anti", maintain_order="left")
    if found.height:
        names = [step_name(place) for place in found.select(PLACE).rows()]
        return GuardResult(False, f"CPU time and wall time disagree. {_told(found)}.", names)
    if not is_enough:
        return GuardResult(None, "Too few blocks to tell.")
    judges = f"CPU time judges {count} step{'s' if count != 1 else ''}"
    if same:
        return GuardResult(True, f"{judges}. Where it explains too much, both agree: {same}.")
    return GuardResult(True, f"{judges}, and explains how wall time changes.")


def _told(found: pl.DataFrame) -> str:
    """The steps of ``beyond_cpu`` with their factors, in words; empty without such steps."""
    return named(
        [
            f"{step_name(place)}: wall time is {factor:.3f} times what CPU time explains"
            for *place, factor in found.select(*PLACE, "factor").rows()
        ]
    )


def diagnosed(times: pl.DataFrame, *, margin: float) -> list[tuple[str, bool, GuardResult]]:
    """The guards of ``diagnostics.checks`` on the times: name, whether it decides, result."""
    looked = checks(times, baseline=BASELINE, by=[*PLACE, "metric"])
    found = {name: _of_check(looked.filter(check=name), name, margin) for name in _CHECKS}
    if times.filter(_IS_COPY).is_empty():
        found["A/A"] = GuardResult(None, "No second copy of the baseline was asked for.")
    return [(name, name not in _EXPLAIN, outcome) for name, outcome in found.items()]


def _of_check(looked: pl.DataFrame, name: str, margin: float) -> GuardResult:
    # Only what could make, or hide, a difference counts.
    found = looked.filter(
        pl.col("p_family") <= LEVEL, pl.col("change").log1p().abs() > math.log1p(margin)
    )
    if found.height:
        places = [step_name([row[c] for c in PLACE]) for row in found.iter_rows(named=True)]
        findings = [f"{p}: {s}" for p, s in zip(places, found["sentence"], strict=True)]
        return GuardResult(False, f"{named(findings)}.", places)
    if looked.filter(pl.col("least") <= LEVEL).height:
        return GuardResult(True, _CHECKS[name])
    lacking = "blocks, or turns in a block," if name in _EXPLAIN else "blocks"
    return GuardResult(None, f"Too few {lacking} to tell.")


def independence(effects: pl.DataFrame) -> GuardResult:
    """Whether blocks are independent; if not, the intervals of all steps are too narrow."""
    d = effects["log_ratios"].list.eval(pl.element().fill_nan(None)).to_list()
    correlation, p_value = autocorrelation(d)
    if math.isnan(correlation):
        return GuardResult(None, "Too few blocks to tell.")
    if p_value > LEVEL:
        return GuardResult(True, "No block's differences follow those of the last.")
    return GuardResult(
        False,
        f"A block's differences are like those of the block before (autocorrelation "
        f"{correlation:.2f}), so the intervals are too narrow: look for what comes and goes on "
        f"this machine.",
    )


_CHECKS = {
    "order": "No step depends on which side ran first.",
    "drift": "The ratio does not change from the first block to the last.",
    "A/A": "The two copies of the baseline are alike.",
    "settling": "The ratio does not change from a block's first turns to its last.",
    CARRY_OVER: "The ratio does not depend on whose turn was before.",
}

_EXPLAIN = ("settling", CARRY_OVER)

LEVEL = FALSE_ALARMS / (2 + len(_CHECKS) - len(_EXPLAIN))
"""The level of each guard that decides: the checks but ``_EXPLAIN``, independence and the clock.
Fewer than 9 blocks cannot reach it."""


def _machine(measured: Sequence[Measured]) -> GuardResult:
    findings = [f for m in measured for info in m.infos for f in info["gate"]]
    sentence = " ".join(dict.fromkeys(finding["sentence"] for finding in findings))
    if any(finding["name"] not in _SHARED_ALIKE for finding in findings):
        return GuardResult(False, sentence)
    if sentence:
        alike = "Both sides took turns, so it hit both alike: see A/A."
        return GuardResult(True, f"{sentence} {alike}")
    return GuardResult(True, "Nothing disturbed the machine before measuring.")


# What takes processor time from both sides of a round. Short memory, a full disk or a hot processor
# can change what is done, not only how fast.
_SHARED_ALIKE = {"load", "processes", "servers", "steal"}

# Settings that belong to the server's version, or to its place.
_OF_THE_BUILD = {"server_version", "server_version_num", "lc_messages", "cluster_name"}


def _facts(measured: Sequence[Measured]) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """For each record, the comparison and the facts of both servers, by the first arm."""
    for m in measured:
        for info in m.infos:
            facts: dict[str, dict[str, Any]] = {}
            for arm in info["arms"]:
                if arm["name"] in info["facts"]:
                    facts.setdefault(arm["of"], {})[arm["side"]] = info["facts"][arm["name"]]
            for sides in facts.values():
                if BASELINE in sides and CANDIDATE in sides:
                    yield info["comparison"], sides[BASELINE], sides[CANDIDATE]
                    break


def settings(measured: Sequence[Measured]) -> GuardResult:
    """Whether the two sides differ only in declared settings and in built-in defaults."""
    undeclared: dict[str, str] = {}
    defaults: dict[str, str] = {}
    known = [*_facts(measured)]
    for comparison, baseline, candidate in known:
        declared = {*comparison[BASELINE]["settings"], *comparison[CANDIDATE]["settings"]}
        before, after = baseline["settings"], candidate["settings"]
        for name in sorted(before.keys() & after.keys() - _OF_THE_BUILD - declared):
            if before[name][0] == after[name][0]:
                continue
            # A build may have other defaults: that is a part of what is compared.
            built_in = {before[name][1], after[name][1]} <= {"default", "override"}
            place = defaults if built_in else undeclared
            place[name] = f"{name} ({before[name][0]} and {after[name][0]})"
        defaults |= {name: f"{name} (on one only)" for name in before.keys() ^ after.keys()}
    if not known:
        return GuardResult(None, "No server could be asked for its settings.")
    differing = named([defaults[name] for name in sorted(defaults, key=_first_what_moves_times)])
    also = f" Differing defaults: {differing}." if defaults else ""
    if undeclared:
        names = named(list(undeclared.values()))
        return GuardResult(False, f"Set differently without being declared: {names}.{also}")
    return GuardResult(True, f"The same settings but for what is declared.{also}")


_MOVE_TIMES = (
    *("jit", "default_toast_compression", "io_method", "shared_buffers", "work_mem"),
    *("hash_mem_multiplier", "max_parallel_", "data_checksums", "huge_pages", "wal_compression"),
    *("effective_", "io_", "enable_", "random_page_cost", "maintenance_"),
)
"""Beginnings of settings' names; the first move the most times, or times by most."""


def _first_what_moves_times(name: str) -> tuple[int, str]:
    ranks = (rank for rank, begin in enumerate(_MOVE_TIMES) if name.startswith(begin))
    return next(ranks, len(_MOVE_TIMES)), name


def builds(measured: Sequence[Measured]) -> GuardResult:
    """Whether both are built without assertions, and at the same level of optimization."""
    wrong: dict[str, None] = {}
    levels: dict[str, str] = {}
    compilers: dict[str, None] = {}
    for _, baseline, candidate in _facts(measured):
        for name, side in ((BASELINE, baseline), (CANDIDATE, candidate)):
            if side["assertions"] == "on":
                wrong[f"the {name} is built with assertions"] = None
            compilers[built_with({"build": side.get("build")}) or "an unknown compiler"] = None
            if side["cflags"] is None:
                continue
            found = [word for word in side["cflags"].split() if word.startswith("-O")]
            levels[name] = found[-1] if found else "no -O"
            if levels[name] in {"no -O", "-O0", "-O", "-Og"}:
                wrong[f"the {name} is built with {levels[name]}"] = None
    if wrong:
        return GuardResult(False, f"Not a build to measure: {named(list(wrong))}.")
    if len(set(levels.values())) > 1:
        flags = " and ".join(f"the {name} with {level}" for name, level in levels.items())
        return GuardResult(False, f"The two are built differently: {flags}.")
    if len(levels) < 2:
        return GuardResult(None, "No assertions; which compilers built the servers is not known.")
    by = f", by {' and '.join(compilers)}" if len(compilers) > 1 else ""
    return GuardResult(True, f"Both are built without assertions, with {levels[BASELINE]}{by}.")


def cores(measured: Sequence[Measured]) -> GuardResult:
    """Whether both sides, or neither, have I/O workers that share the pinned core."""
    for m in measured:
        if all(info["pinned_to_core"] is None for info in m.infos):
            continue
        for _, *both in _facts([m]):
            methods = [side["settings"].get("io_method", ["none"])[0] for side in both]
            if methods.count("worker") == 1:
                name = (BASELINE, CANDIDATE)[methods.index("worker")]
                return GuardResult(
                    False,
                    f"{m.study} keeps each server on one core, where the I/O workers of the {name} "
                    f"take turns with its session.",
                )
    return GuardResult(True, "No side alone has I/O workers to share its core with.")
