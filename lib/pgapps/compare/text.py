"""A comparison as plain text, fit for a mailing list: 72 ASCII columns, if no path is longer."""

from __future__ import annotations

import textwrap
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from pgservers.terminal import printable
from pgstudies.records.reading import built_with

from ..builds.builder import commit_of
from ..counting.by_function import hint_of_names
from ..counting.frames import EXACT
from .design import BASELINE, CANDIDATE
from .judging.expectations import in_words
from .judging.guards import named, not_compared, step_name
from .judging.layout import MORE_WORK, NOT_EXCLUDED, SAME_WORK
from .judging.measured import CPU, DELAY, PLACE
from .judging.result import IS_DECIDED, IS_HIDDEN, decisive_failures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .counted import Counted
    from .design import Side
    from .judging.measured import Measured
    from .judging.result import Result


COLUMNS = 72

LARGEST_FIRST = [IS_DECIDED.not_(), -pl.col("ratio").log().abs().fill_null(0)]
"""The order of effects: decided steps first, and then by how much their time changed."""

_ASCII = str.maketrans({"−": "-", "–": "-", "×": "x", "µ": "u", "…": "...", "±": "+/-"})

_MOST_STEPS, _MOST_REASONS = 12, 4
"""The number of steps that are listed, and of reasons of each."""

_MOST_UNITS, _MOST_FUNCTIONS = 12, 5
"""The number of units that are listed, those that changed most, and of functions of each."""

_MOST_DEFAULTS = 5
"""The number of lines on defaults that differ."""

_OWN = "this server"
"""The only arm of a study without alternatives."""


def as_text(result: Result, command: str = "") -> str:
    """The summary: verdict, sides, the steps that moved, reasons, failed guards and ``command``."""
    parts = [
        _wrapped(headline(result), 0),
        _who(result, command),
        [line for side, how in result.crashes for line in _wrapped(f"Crash, {side}: {how}.", 2)],
        *_times(result),
        _failed(result.failed),
        _left_out(result),
        _why(result),
        _rows(result.rows),
        instructions(result.counted),
        _guards(result.guards),
    ]
    text = "\n\n".join("\n".join(map(printable, part)) for part in parts if part)
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def headline(result: Result) -> str:
    """The answer in one sentence, after one on what the marked scripts were expected to take."""
    expected = in_words(result.expected)
    return f"{expected}. {_found(result)}" if expected else _found(result)


def _found(result: Result) -> str:
    effects = result.effects
    count = effects.height
    decided = effects.filter(IS_DECIDED)
    moved = {v: decided.filter(pl.col("verdict") == v) for v in ("slower", "faster")}
    slower, faster = (moved[verdict].height for verdict in ("slower", "faster"))
    left = count - decided.height
    summary = (
        f"{slower} of {_number(count)} slower{_ratios(moved['slower'])}, "
        f"{faster} faster{_ratios(moved['faster'])}"
    )
    if unmeasured := _unmeasured(result):
        summary += f", {unmeasured} not measured"
    margin = f"{100 * result.margin:g} %"
    code = result.code
    first = "Faster, and no regression" if faster else "No regression"
    if code == 0 and not left:
        return f"{first}: {summary}, the others equivalent within {margin}."
    if code == 0:
        alike = decided.height - slower - faster
        hidden = _half_widths(effects.filter(IS_HIDDEN))
        within = dict.fromkeys(f"{edge:.1f}" for edge in (min(hidden), max(hidden)))
        return (
            f"{first} found: {summary}, {alike} equivalent within {margin}; {left} known no better "
            f"than within {' to '.join(within)} %."
        )
    if left:
        summary += f", {left} not decided"
    if any(side == CANDIDATE for side, _ in result.crashes):
        return f"CRASH of the candidate: {summary}."
    if slower:
        return f"REGRESSION: {summary}."
    if code == 1:
        return f"NOT AS EXPECTED: {summary}."
    return f"Not decided, because {'; '.join(_why_undecided(result))}: {summary}."


def _ratios(effects: pl.DataFrame) -> str:
    """The least and the largest ratio, in brackets; empty for no effect."""
    ends = [_ratio(ratio) for ratio in sorted(effects["ratio"])]
    return f" ({' to '.join(dict.fromkeys((ends[0], ends[-1])))})" if ends else ""


def _unmeasured(result: Result) -> int:
    """The number of steps that were left out, because a side failed or there was no time."""
    left_out = {
        (m.study, out["step"]) for m in result.measured for i in m.infos for out in i["left_out"]
    }
    return len(left_out - set(result.effects.select("study", "step").iter_rows()))


def _why_undecided(result: Result) -> Iterator[str]:
    """The reasons for exit code 2."""
    if failed := decisive_failures(result.guards)["guard"].to_list():
        yield f"a guard failed ({', '.join(failed)})"
    rest = result.effects.filter(IS_DECIDED.not_(), pl.col("failed").is_null())
    for what, doubt in (
        ("layout is not excluded for", NOT_EXCLUDED),
        ("only the time differs, and not the instructions, of", SAME_WORK),
    ):
        if count := rest.filter(doubt=doubt).height:
            yield f"{what} {_number(count)}"
    if more := sorted(rest.filter(doubt=MORE_WORK)["instructions"]):
        most = f"{'up to ' if len(more) > 1 else ''}{100 * (more[-1] - 1):.1f} %"
        yield f"instructions grew by {most} in {_number(len(more))} of open time"
    if waiting := result.expected["is_met"].null_count():
        yield f"{waiting} expectation{'s are' if waiting > 1 else ' is'} open"
    if without := rest.filter(pl.col("low").is_null()).height:
        yield f"there is no interval for {_number(without)}"
    if result.crashes:
        yield "the baseline crashed"
    if result.failures:
        yield f"{named(result.failures)} could not be compared"


def _number(steps: int) -> str:
    return f"{steps} step{'s' if steps != 1 else ''}"


def noise(effects: pl.DataFrame) -> str:
    """The half-widths of the intervals, median and worst; empty if no step has an interval."""
    percent = _half_widths(effects)
    if not percent:
        return ""
    return f"CI half-width: median {median(percent):.1f} %, worst {max(percent):.1f} %."


def _half_widths(effects: pl.DataFrame) -> list[float]:
    """The half-widths of all intervals (%)."""
    half = ((pl.col("high") / pl.col("low")).log() / 2).exp() - 1
    return effects.select(100 * half).to_series().drop_nulls().drop_nans().to_list()


def _who(result: Result, command: str) -> list[str]:
    host = result.host
    rows = {
        "Baseline:": _side(result, BASELINE),
        "Candidate:": _side(result, CANDIDATE),
        "Host:": f"{host.get('hostname')}, {host.get('cpu_model')}, {host.get('kernel')}",
        "Measured:": f"{result.started_at[:16].replace('T', ' ')} UTC, size {result.profile}; "
        + ", ".join(
            f"{m.study} {m.blocks} block{'s' if m.blocks > 1 else ''}" for m in result.measured
        ),
        "JIT:": _jit(result),
        "Command:": command,
    }
    known = [f"{name:11}{value}" for name, value in rows.items() if value]
    return [line for row in known for line in _wrapped(row, 11)]


def _jit(result: Result) -> str:
    """Which side can compile queries; empty if JIT is off on both, or no server was asked."""
    sides = result.builds
    is_on = {name: side.get("settings", {}).get("jit", [""])[0] for name, side in sides.items()}
    able = [name for name, side in sides.items() if side.get("jit_available")]
    asked = all("jit_available" in side for side in sides.values())
    if not asked or "on" not in is_on.values():
        return ""
    why = {"": "has none before release 11", "off": "has it off", "on": "is built without LLVM"}
    lacking = [f"the {name} {why[is_on[name]]}" for name in sides if name not in able]
    if not able and set(is_on.values()) == {"on"}:
        lacking = ["both are built without LLVM"]
    where = "both sides" if not lacking else f"the {able[0]} alone" if able else "neither side"
    return f"can play on {where}" + (f", as {' and '.join(lacking)}" if lacking else "")


def _side(result: Result, name: str) -> str:
    """A side with its version, and how it was built, if known."""
    build = result.builds[name]
    parts = [
        build["version_text"],
        f"commit {build['revision']}" if build.get("revision") else "",
        built_with(build) or "",
        "with assertions" if build.get("assertions") == "on" else "",
    ]
    side: Side = getattr(result.comparison, name)
    if commit := commit_of(side.server):
        side = msgspec.structs.replace(side, server=f"commit {commit}")
    return f"{side} ({', '.join(filter(None, parts))})"


def _times(result: Result) -> Iterator[list[str]]:
    """The steps that changed, those that are open, and a paragraph on the others."""
    effects = result.effects
    is_listed = ~IS_DECIDED | (pl.col("verdict") != "equivalent")
    top = effects.filter(is_listed).sort(LARGEST_FIRST).head(_MOST_STEPS)
    listed = effects.join(top, on=PLACE, how="semi", maintain_order="left")
    for title, part in (
        ("Time on the candidate, baseline = 1, with its 95 % interval:", listed.filter(IS_DECIDED)),
        ("Open:", listed.filter(IS_DECIDED.not_())),
    ):
        if part.height:
            yield [title, *_steps(part, result.measured)]
    left = effects.filter(is_listed).height - listed.height
    remarks = [f"{left} more are in the report."] if left else []
    remarks += [_others(result), noise(effects)]
    if by_cpu := effects.filter(pl.col("metric") == CPU).height:
        remarks.append(f"CPU time judges {by_cpu} of {effects.height} steps.")
    elif not any(CPU in m.samples["metric"] for m in result.measured):
        remarks.append("CPU time was not recorded: wall time judges every step.")
    if result.anytime:
        remarks.append("Intervals hold however often the blocks were looked at.")
    # Without that word both sides run the same program.
    linked = [s for s in result.guards.filter(guard="layout")["sentence"] if "linked" in s]
    yield [*_wrapped(" ".join(filter(None, remarks)), 0), *_wrapped(" ".join(linked), 0)]


def _failed(failed: pl.DataFrame) -> list[str]:
    """Each step with failed transactions: their share on both sides, and the difference."""
    if failed.is_empty():
        return []
    lines = ["Transactions that failed, of all:"]
    for row in failed.iter_rows(named=True):
        step = ", ".join(filter(None, (row["study"], row["of"], row["step"], row["case"])))
        before, after = (f"{100 * row[side]:.2f} %" for side in (BASELINE, CANDIDATE))
        difference = "too few blocks for an interval"
        if row["low"] is not None:
            difference = f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f} points"
        failure = row["failure"].replace("_", " ")
        lines += _wrapped(f"  {step}, {failure}: {before} -> {after} ({difference})", 4)
    return [*lines, *_wrapped("The times above are of those that succeeded.", 0)]


def _left_out(result: Result) -> list[str]:
    missing = not_compared(result.measured)
    if len(missing) < 2:
        return [line for why in missing for line in _wrapped(f"Not compared: {why}.", 0)]
    return ["Not compared:", *(line for why in missing for line in _wrapped(f"  {why}.", 4))]


def _steps(effects: pl.DataFrame, measured: Sequence[Measured]) -> list[str]:
    """Each step with its figures, below its study, its arm and the arm's description."""
    lines = []
    arms = {
        (m.study, arm["of"]): arm["description"] for m in measured for arm in m.infos[-1]["arms"]
    }
    for (study, of), part in effects.group_by("study", "of", maintain_order=True):
        what = arms.get((study, of), "").rstrip(".")
        heading = study if of == _OWN else f"{study}, {of}{': ' if what else ''}{what}"
        lines += ["", *_wrapped(heading, 2)]
        for row in part.iter_rows(named=True):
            step = f"{row['step']}, {row['case']}" if row["case"] else row["step"]
            figures = f"{_figures(row):22}  {_verdict(row):15}"
            name = f"  {step}"
            if len(name) + len(figures) >= COLUMNS:
                lines += _wrapped(name, 4)
                name = ""
            lines.append(f"{name:{COLUMNS - len(figures)}}{figures}".rstrip())
            if row["note"]:
                lines.append(f"    {row['note']}")
    return lines


def _others(result: Result) -> str:
    """A sentence on the furthest end of the equivalent steps' intervals; empty without any."""
    alike = result.effects.filter(IS_DECIDED, pl.col("verdict") == "equivalent")
    if alike.is_empty():
        return ""
    furthest = alike.select(pl.max_horizontal(pl.col("high"), 1 / pl.col("low")).max()).item()
    what = "Nothing" if alike.height == result.effects.height else "Nothing else that is decided"
    return f"{what} moved by more than {100 * (furthest - 1):.1f} %."


def _figures(row: Mapping[str, Any]) -> str:
    if row["ratio"] is None:
        return ""
    if row["low"] is None:
        return _ratio(row["ratio"])
    interval = f"({_ratio(row['low'])} to {_ratio(row['high'])})"
    return f"{_ratio(row['ratio'])} {interval:>16}"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:#.4g}".rstrip(".")


def _verdict(row: Mapping[str, Any]) -> str:
    if row["failed"]:
        return "not decided"
    if row["doubt"] == NOT_EXCLUDED:
        return "open, layout"
    if row["verdict"] != "inconclusive":
        return str(row["verdict"])
    return f"open, +{row['blocks_needed'] - row['blocks']}" if row["blocks_needed"] else "open"


def _why(result: Result) -> list[str]:
    if result.reasons.is_empty() and result.plans.is_empty():
        return []
    lines = ["What changed with it, largest change first:"]
    for place, part in result.reasons.group_by(*PLACE, maintain_order=True):
        lines += ["", *_wrapped(step_name(place), 2)]
        first = part.head(_MOST_REASONS)
        for row in first.iter_rows(named=True):
            lines += _wrapped(f"  {reason(row)}", 6)
        if part.height > first.height:
            lines.append(f"  and {part.height - first.height} more in the report")
    if result.plans.height:
        places = result.plans.select("study", "of", "step").iter_rows()
        lines += ["", *_wrapped(f"Plans that differ: {named([*map(', '.join, places)])}.", 2)]
    return lines


def _rows(rows: pl.DataFrame) -> list[str]:
    """The rows that only one side's results have."""
    lines = []
    for place, part in rows.group_by("study", "of", "step", maintain_order=True):
        lines += _wrapped(f"Rows that only one side gives, {step_name(place)}:", 2)
        lines += [f"  {side:10}{row}"[:COLUMNS] for side, row in part.select("side", "row").rows()]
    return lines


def reason(row: Mapping[str, Any]) -> str:
    """One line on what changed: seconds with their share of the difference, counters as factors."""
    if row["share"] is not None:
        before, after = seconds(row["baseline"], row["candidate"])
        what = {CPU: "CPU time", DELAY: "waiting for a core"}.get(row["metric"], row["metric"])
        return f"{what}: {before} -> {after}, {100 * row['share']:.0f} % of the difference"
    before, after = f"{row['baseline']:.4g}", f"{row['candidate']:.4g}"
    medians = f"{row['metric']}: {before} -> {after} {row['unit']}"
    if row["low"] is None:
        return medians
    low, high = f"{row['low']:.3g}", f"{row['high']:.3g}"
    return f"{medians}, {low} times" if low == high else f"{medians}, {low} to {high} times"


def seconds(before: float, after: float) -> tuple[str, str]:
    """Two times (s) in the unit that fits the longer of them; the second has the unit."""
    longest = max(abs(before), abs(after))
    unit, factor = next((known for known in _UNITS if longest * known[1] >= 1), _UNITS[-1])
    return f"{before * factor:.3g}", f"{after * factor:.3g} {unit}"


_UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))


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
            lines += _wrapped(f"  {unit}", 4)
            unit = ""
        lines.append(f"  {unit:{width}} {figures}")
        parts = counted.moved.filter(unit=row["unit"])
        if parts.height:
            most = parts.head(_MOST_FUNCTIONS)
            others = row["candidate"] - row["baseline"] - most["change"].sum()
            changes = [*most.select("function", "change").rows(), ("all others", others)]
            listed = (f"{name} {change:+,.0f}" for name, change in changes if round(change))
            lines += _wrapped(f"    changed most: {', '.join(listed)}", 6)
    if told.height < done.height:
        less = differing.height - told.height
        same = done.height - differing.height
        lines.append(f"  {less} more changed less, {same} by no more than 0.1 %: see the report.")
    for reason, part in counted.units.drop_nulls("reason").group_by("reason", maintain_order=True):
        lines += _wrapped(f"  not run ({named(part['unit'].to_list())}): {reason[0]}", 4)
    hints = (hint_of_names(part) for _, part in counted.moved.group_by("unit"))
    for hint in {hint for hint in hints if hint}:
        lines += _wrapped(hint, 0)
    return lines


def _guards(guards: pl.DataFrame) -> list[str]:
    passed = guards.filter(pl.col("passed"))
    unlooked = guards["passed"].null_count()
    others = f", {unlooked} not checked" if unlooked else ""
    lines = _wrapped(f"Guards: {passed.height} of {guards.height} passed{others}.", 2)
    for sentence in guards.filter(pl.col("passed"), guard="settings")["sentence"]:
        _, differ, names = sentence.partition("Differing defaults: ")
        lines += _wrapped(f"  {differ}{names}", 4, most=_MOST_DEFAULTS) if differ else []
    for row in guards.filter(~pl.col("passed")).iter_rows(named=True):
        lines += _wrapped(f"  FAILED {row['guard']}: {row['sentence']}", 4)
    return lines


def method(result: Result) -> str:
    """How the steps were measured and judged, in a paragraph."""
    if result.anytime:
        means, family = "Hodges-Lehmann, intervals confidence sequences", "Holm's correction"
    else:
        means, family = "aligned ranks', intervals exact (names exchanged)", "the same exchanges"
    return (
        f"Each block runs every arm on both servers from restored state, in random order, with a "
        f"second copy of the baseline, and gives one ratio of times per step: of CPU time if the "
        f"baseline spends at least nine tenths of its time on the processor, else of wall time. "
        f"Estimates are {means}; slower and faster mean past "
        f"{100 * result.margin:g} %, and evident among all {result.effects.height} by {family}. "
        f"'open, +n': n more blocks would probably decide it."
    )


def _wrapped(text: str, indent: int, *, most: int | None = None) -> list[str]:
    lines = textwrap.wrap(
        text.translate(_ASCII).replace(" %", "\xa0%"),  # a number stays with its unit
        COLUMNS,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,  # a path is copied whole
        max_lines=most,
        placeholder=" ...",
    )
    return [line.replace("\xa0", " ") for line in lines]
