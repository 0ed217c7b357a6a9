"""Guards: what must be so before a comparison of two servers is believed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl

from ..analysis.diagnostics import ALPHA, diagnose
from ..analysis.intervals import MINIMUM_BLOCKS, blocks_for_family
from ..analysis.verdicts import DIRECTIONS, OPEN
from ..measuring import AGAIN, BASELINE, CANDIDATE
from ..records import built_with
from .measured import CPU, PLACE, TIME, clock_effects, rounds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .measured import Measured


SCHEMA: dict[str, pl.DataType] = {
    "guard": pl.String(),
    "passed": pl.Boolean(),
    "decisive": pl.Boolean(),
    "sentence": pl.String(),
}


_CHANCE = " Without a second copy of the baseline, what is drawn at random counts as different."


def check(measured: Sequence[Measured], effects: pl.DataFrame) -> pl.DataFrame:
    """Every guard with what it found, one row each.

    Columns: guard, passed (null where it could not be looked at), decisive (a comparison that
    fails it decides nothing), sentence.  ``effects`` are those of ``compared_effects``.
    """
    rows = [
        ("settings", True, *settings(measured)),
        ("builds", True, *builds(measured)),
        ("cores", True, *cores(measured)),
        ("results", True, *_results(measured)),
        ("plans", False, *_plans(measured)),
        ("both sides", True, *_both_sides(measured, effects)),
        ("clock", True, *_clock(measured, effects)),
        ("blocks", True, *_blocks(effects)),
        *_diagnosed(measured, effects),
        ("machine", False, *_machine(measured)),
    ]
    return pl.DataFrame(
        [
            {"guard": name, "passed": passed, "decisive": decisive, "sentence": sentence}
            for name, decisive, passed, sentence in rows
        ],
        schema=SCHEMA,
    )


def differing_plans(measured: Sequence[Measured]) -> pl.DataFrame:
    """The plans that are not the same on both servers: study, of, step, baseline, candidate.

    ``step`` has the case in it.
    """
    rows = []
    for m in measured:
        found: dict[tuple[str, str], dict[str, str]] = {}
        for info in m.infos:
            names = {arm["name"]: (arm["of"], arm["side"]) for arm in info["arms"]}
            for name, plans in info["plans"].items():
                of, side = names[name]
                for step, plan in plans.items():
                    found.setdefault((of, step), {}).setdefault(side, plan)
        rows += [
            {"study": m.study, "of": of, "step": step} | {s: p[s] for s in (BASELINE, CANDIDATE)}
            for (of, step), p in found.items()
            if BASELINE in p and CANDIDATE in p and _nodes(p[BASELINE]) != _nodes(p[CANDIDATE])
        ]
    columns = ["study", "of", "step", BASELINE, CANDIDATE]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()))


def _nodes(plan: str) -> list[str]:
    """The lines of a plan without those that only newer releases print of an equal one."""
    return [line for line in plan.splitlines() if line.strip() not in _ONLY_PRINTED]


_ONLY_PRINTED = {"Disabled: true"}  # since 18; before, a disabled node had a high cost instead


def _results(measured: Sequence[Measured]) -> Outcome:
    different, random, alike = [], [], 0
    for m in measured:
        seen = m.samples.filter((pl.col("metric") == "result") | (pl.col("unit") == "rows"))
        if seen.is_empty():
            continue
        keys = [*PLACE, "metric", "iteration", "block"]
        for place, part in seen.group_by(*PLACE, "metric", maintain_order=True):
            wide = part.pivot("side", index=keys, values="value", aggregate_function="sum")
            sides = [s for s in (BASELINE, AGAIN, CANDIDATE) if s in wide.columns]
            if BASELINE not in sides or CANDIDATE not in sides:
                continue
            whole = wide.drop_nulls(sides)
            if AGAIN in sides and (whole[BASELINE] != whole[AGAIN]).any():
                random.append(_place(place[:4]))
            elif (whole[BASELINE] != whole[CANDIDATE]).any():
                different.append(_place(place[:4]))
            else:
                alike += whole.height
    drawn = f" Drawn at random, so not compared: {named(random)}." if random else ""
    if different:
        chance = "" if any(AGAIN in m.samples["side"] for m in measured) else _CHANCE
        names = named(list(dict.fromkeys(different)))
        return False, f"The two answer differently: {names}.{chance}"
    if not alike:
        return None, f"No result could be compared.{drawn}"
    return True, f"{alike:,} results are the same on both.{drawn}"


def _plans(measured: Sequence[Measured]) -> Outcome:
    known = sum(
        len(plans) for m in measured for info in m.infos for plans in info["plans"].values()
    )
    if not known:
        return None, "No plan could be had."
    differing = differing_plans(measured).height
    if differing:
        plans = "1 plan is" if differing == 1 else f"{differing} plans are"
        return False, f"{plans} not the same on both; the report shows them."
    return True, "Every statement has the same plan on both."


def _both_sides(measured: Sequence[Measured], effects: pl.DataFrame) -> Outcome:
    not_run = {
        f"{m.study}, {arm['of']}: {arm['not_run']}"
        for m in measured
        for info in m.infos
        for arm in info["arms"]
        if arm["not_run"]
    }
    alone = effects.filter(pl.col("blocks") == 0)
    one_sided = [_place(row) for row in alone.select(*PLACE).iter_rows()]
    sides = {BASELINE, CANDIDATE}
    for m in measured:
        timed = m.samples.filter(pl.col("metric") == TIME, pl.col("side").is_in(list(sides)))
        for place, part in timed.group_by(*PLACE, maintain_order=True):
            if set(part["side"]) != sides:
                one_sided.append(_place(place))
    left_out = f" Not compared: {named(sorted(not_run))}." if not_run else ""
    if one_sided:
        return False, f"Run on one side only: {named(list(dict.fromkeys(one_sided)))}.{left_out}"
    return True, f"Every step ran on both.{left_out}"


def _clock(measured: Sequence[Measured], effects: pl.DataFrame) -> Outcome:
    """Whether no step that CPU time judges waits more, or less, on the candidate."""
    clock = clock_effects(measured, effects)
    if clock.is_empty():
        return True, "The clock itself judges every step."
    both = clock.join(effects, on=PLACE, suffix="_cpu").filter(
        pl.col("verdict").is_in(DIRECTIONS), pl.col("verdict") != pl.col("verdict_cpu")
    )
    if both.is_empty():
        return True, (
            f"CPU time judges {_steps(clock.height)}, and by the clock none of them differs "
            f"otherwise."
        )
    said = [
        f"{_place(tuple(row[c] for c in PLACE))}: {row['ratio']:.3f} by the clock, "
        f"{row['ratio_cpu']:.3f} by CPU time"
        for row in both.iter_rows(named=True)
    ]
    return False, f"CPU time and wall time disagree; --clock judges by wall time. {named(said)}."


def _steps(count: int) -> str:
    return f"{count} step{'s' if count != 1 else ''}"


def _blocks(effects: pl.DataFrame) -> Outcome:
    """Whether no difference stays open only because its blocks are too few for so many."""
    count = effects.height
    fewest = blocks_for_family(count)
    have = int(effects["blocks"].min() or 0)  # type: ignore[arg-type]
    blocks = "1 block" if have == 1 else f"{have} blocks"
    if have >= fewest:
        return True, f"{blocks}, enough for {count} comparisons."
    adds = f"run the same command with --blocks {fewest} to add them."
    if have < MINIMUM_BLOCKS:
        return False, f"{blocks}: an interval needs {MINIMUM_BLOCKS}; {adds}"
    edge = math.log1p(effects["margin"].max() or 0.0)  # type: ignore[arg-type]
    is_alone = (pl.col("verdict") == "inconclusive") & (pl.col("p_value") <= 1 - pl.col("level"))
    is_short = pl.col("blocks") < fewest
    evident = effects.filter(is_short, is_alone, pl.col("ratio").log().abs() > edge)
    if evident.is_empty():
        return True, (
            f"{blocks}; {count} comparisons need {fewest} to show a difference, and none differs "
            f"even on its own."
        )
    places = named([_place(row) for row in evident.select(*PLACE).iter_rows()])
    return False, (
        f"{blocks}: {count} comparisons need {fewest} to show a difference, and some steps differ "
        f"on their own: {places}; {adds}"
    )


def _diagnosed(
    measured: Sequence[Measured], effects: pl.DataFrame
) -> list[tuple[str, bool, bool | None, str]]:
    times = rounds_of(measured, pl.col("metric").is_in([TIME, CPU])).join(
        effects, on=[*PLACE, "metric"], how="semi"
    )
    margin = float(effects["margin"].max() or 0.0)  # type: ignore[arg-type]
    # Only what could make, or hide, a difference worth the name; those that decide are a family.
    is_worth_it = pl.col("change").abs() > margin
    is_certain = pl.col("p_holm") <= ALPHA / (len(_CHECKS) - len(_EXPLAIN))
    has_copies = AGAIN in times["arm"]
    is_enough = effects.filter(~pl.col("verdict").is_in(OPEN[1:])).height > 0
    found = diagnose(times, baseline=BASELINE, by=[*PLACE, "metric"], margin=margin).filter(
        is_worth_it, is_certain
    )
    rows: list[tuple[str, bool, bool | None, str]] = []
    for name, well in _CHECKS.items():
        decides = name not in _EXPLAIN
        rows_found = found.filter(pl.col("check") == name)
        if not is_enough:
            rows.append((name, decides, None, "Too few blocks to tell."))
        elif name == "A/A" and not has_copies:
            rows.append((name, decides, None, "No second copy of the baseline was asked for."))
        elif rows_found.is_empty():
            rows.append((name, decides, True, well))
        else:
            said = [
                f"{_place(tuple(row[c] for c in PLACE))}: {row['sentence']}"
                for row in rows_found.iter_rows(named=True)
            ]
            rows.append((name, decides, False, f"{named(said)}."))
    return rows


_CHECKS = {
    "order": "No step depends on which side ran first.",
    "drift": "The ratio does not change from the first block to the last.",
    "A/A": "The two copies of the baseline are alike.",
    "settling": "The ratio does not change from a block's first turns to its last.",
}


_EXPLAIN = ("settling",)


def _machine(measured: Sequence[Measured]) -> Outcome:
    findings = [f for m in measured for info in m.infos for f in info["gate"]]
    said = " ".join(dict.fromkeys(finding["sentence"] for finding in findings))
    if any(finding["name"] not in _SHARED_ALIKE for finding in findings):
        return False, said
    if said:
        return True, f"{said} Both sides took turns, so it met them alike: see A/A."
    return True, "Nothing disturbed the machine before measuring."


# What takes processor time from both sides of a round. Short memory, a full disk or a hot processor
# can change what is done, not only how fast.
_SHARED_ALIKE = {"load", "processes", "servers", "steal"}


def _place(place: Sequence[Any]) -> str:
    return ", ".join(str(part) for part in place if part)


Outcome = tuple[bool | None, str]
"""Whether a guard passed, None where it could not be looked at, and a sentence."""


_MOST_NAMED = 5


# They belong to the server's version, or to where it is.
_OF_THE_BUILD = {"server_version", "server_version_num", "lc_messages", "cluster_name"}


def _facts(measured: Sequence[Measured]) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """For each record, the comparison and what both servers are, with the first arm on both."""
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


def settings(measured: Sequence[Measured]) -> Outcome:
    """Whether the two differ in nothing but what was declared, and in built-in defaults."""
    undeclared: dict[str, str] = {}
    defaults: dict[str, str] = {}
    looked = False
    for comparison, baseline, candidate in _facts(measured):
        looked = True
        declared = {*comparison[BASELINE]["settings"], *comparison[CANDIDATE]["settings"]}
        before, after = baseline["settings"], candidate["settings"]
        for name in sorted(before.keys() & after.keys() - _OF_THE_BUILD - declared):
            if before[name][0] == after[name][0]:
                continue
            # A build may have other defaults: that is a part of what is compared.
            built_in = {before[name][1], after[name][1]} <= {"default", "override"}
            place = defaults if built_in else undeclared
            place[name] = f"{name} ({before[name][0]} and {after[name][0]})"
        for name in sorted(before.keys() ^ after.keys()):
            defaults[name] = f"{name} (on one only)"
    if not looked:
        return None, "No server could be asked for its settings."
    also = f" Differing defaults: {named(list(defaults.values()))}." if defaults else ""
    if undeclared:
        return (
            False,
            f"Set differently without being declared: {named(list(undeclared.values()))}.",
        )
    return True, f"The same settings but for what is declared.{also}"


def builds(measured: Sequence[Measured]) -> Outcome:
    """Whether both are built without assertions, and at the same level of optimisation."""
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
        return False, f"Not a build to measure: {named(list(wrong))}."
    if len(set(levels.values())) > 1:
        flags = " and ".join(f"the {name} with {level}" for name, level in levels.items())
        return False, f"The two are built differently: {flags}."
    if len(levels) < len((BASELINE, CANDIDATE)):
        return None, "No assertions; with what both servers were compiled cannot be seen."
    by = f", by {' and '.join(compilers)}" if len(compilers) > 1 else ""
    return True, f"Both are built without assertions, with {levels[BASELINE]}{by}."


def cores(measured: Sequence[Measured]) -> Outcome:
    """Whether no side alone has I/O workers that would share one core with its session."""
    for m in measured:
        if all(info["pinned_to_core"] is None for info in m.infos):
            continue
        for _, *both in _facts([m]):
            methods = [side["settings"].get("io_method", ["none"])[0] for side in both]
            if methods.count("worker") == 1:
                name = (BASELINE, CANDIDATE)[methods.index("worker")]
                return False, (
                    f"{m.study} keeps each server on one core, where the I/O workers of the {name} "
                    f"take turns with its session: measure with --no-pin."
                )
    return True, "Neither side has I/O workers alone to share one core with."


def named(things: Sequence[str]) -> str:
    """The first few, and how many more there are; a name may have commas in it."""
    more = f" and {len(things) - _MOST_NAMED} more" if len(things) > _MOST_NAMED else ""
    return "; ".join(things[:_MOST_NAMED]) + more
