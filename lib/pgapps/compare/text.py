"""A comparison as a mail to a list: what was found, by what, on which code and machine.

72 ASCII columns, if no path is longer.  Everything else is in the report.
"""

from __future__ import annotations

from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from pgservers.files import size_text
from pgservers.terminal import printable
from pgstudies.records.reading import built_with

from ..builds.builder import commit_of, subject_of
from .counted import changed_most, units_of, work
from .design import BASELINE, CANDIDATE
from .judging.expectations import in_words
from .judging.guards import not_compared, step_name
from .judging.layout import MORE_WORK, NOT_EXCLUDED, SAME_WORK
from .judging.measured import CPU, DELAY, PLACE, loaded
from .judging.result import IS_DECIDED, IS_HIDDEN, decisive_failures
from .wording import ASCII, COLUMNS, named, ratio_text, seconds, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pgstudies.records.info import TimelineEntry

    from .design import Side
    from .judging.result import Result


LARGEST_FIRST = [IS_DECIDED.not_(), -pl.col("ratio").log().abs().fill_null(0)]
"""The order of effects: decided steps first, and then by how much their time changed."""

_MOST_STEPS, _MOST_REASONS, _MOST_SCRIPTS = 8, 2, 4
"""The number of steps that are listed, of reasons of each, and of scripts whose SQL is shown."""

_OF_STANDBYS = ("archive_", "hot_standby", "max_replication_slots", "max_wal_senders", "wal_keep",
                "wal_receiver_", "wal_sender_")  # fmt: skip

_SHORTEST_TIMEOUT_S = 30.0
"""The least checkpoint_timeout."""

_NAME = 18
"""The columns of a step's name in the table."""

SCHEMA = "schema"
"""The name of the schema beside those of a workload's scripts."""

_OWN = "this server"
"""The only arm of a study without alternatives."""


def as_text(result: Result, command: str = "", scripts: Mapping[str, str] = {}) -> str:
    """The mail: verdict, steps that moved, failed guards, sides, ``command``.

    ``scripts`` has the SQL of a workload's scripts, by their names.
    """
    parts = [
        wrapped(headline(result), 0),
        [line for side, how in result.crashes for line in wrapped(f"Crash, {side}: {how}.", 2)],
        *_times(result),
        _failed(result.failed),
        _left_out(result),
        _not_exercised(result),
        _rows(result),
        _guards(result),
        _sql(result, scripts),
        _who(result, command),
    ]
    text = "\n\n".join("\n".join(map(printable, part)) for part in parts if part)
    return text.translate(ASCII).encode("ascii", "replace").decode()


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
    if result.left_out:
        summary += f", {len(result.left_out)} not measured"
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
    ends = [ratio_text(ratio) for ratio in sorted(effects["ratio"])]
    return f" ({' to '.join(dict.fromkeys((ends[0], ends[-1])))})" if ends else ""


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
    without = rest.filter(pl.col("low").is_null())
    if few := without.filter(verdict="too few blocks").height:
        yield f"there are too few blocks for an interval of {_number(few)}"
    if other := without.height - few:
        yield f"{_number(other)} cannot be compared by a ratio"
    if result.crashes:
        yield "the baseline crashed"
    elif missing := result.scripts_left_out:
        yield f"{len(missing)} script{'s were' if len(missing) > 1 else ' was'} not measured"
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
    load = (host.get("load_average") or [None])[0]
    about = [host.get("hostname"), host.get("cpu_model"), host.get("kernel")]
    about += [f"load {load:.1f}"] if load is not None else []
    rows = {
        "Baseline:": side_in_words(result, BASELINE),
        "Candidate:": side_in_words(result, CANDIDATE),
        "Host:": ", ".join(map(str, about)),
        "Measured:": f"{result.started_at[:16].replace('T', ' ')} UTC, size {result.profile}; "
        + ", ".join(
            f"{m.study} {m.blocks} block{'s' if m.blocks > 1 else ''}" for m in result.measured
        ),
        "JIT:": _jit(result),
        "Loaded:": _loaded(result),
        "Command:": command,
    }
    # A long path stays in the line of its name.
    known = [f"{name:\xa0<11}{value}" for name, value in rows.items() if value]
    return [line for row in known for line in wrapped(row, 11)]


def _loaded(result: Result) -> str:
    """What was loaded of a workload, and the candidate's size where it is another; else empty."""
    for found in map(loaded, result.measured):
        if BASELINE in found:
            base = found[BASELINE]
            sizes = [size_text(f["size_bytes"]) for f in (base, found.get(CANDIDATE, base))]
            more = f"; {sizes[1]} on the candidate" if sizes[0] != sizes[1] else ""
            tables = f"{base['tables']:,} table{'s' if base['tables'] != 1 else ''}"
            return f"{tables}, {base['rows']:,} rows, {sizes[0]}{more}"
    return ""


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


def side_in_words(result: Result, name: str) -> str:
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
        about = subject_of(side.server)
        side = msgspec.structs.replace(side, server=f"commit {commit}{about and f' {about!r}'}")
    return f"{side} ({', '.join(filter(None, parts))})"


def _times(result: Result) -> Iterator[list[str]]:
    """The steps that changed, those that are open, and a paragraph on the others."""
    effects, listed = result.effects, _listed(result)
    decided, rest = listed.filter(IS_DECIDED), listed.filter(IS_DECIDED.not_())
    head = f"{'Baseline = 1:':{_NAME}}time, 95 % interval  instr.  medians"
    if decided.height:
        yield [head, *_steps(decided, result)]
    if rest.height:
        first = "Open (+n: n more blocks would probably decide it):"
        yield [first, *([] if decided.height else [head]), *_steps(rest, result)]
    left = _is_listed(effects).height - listed.height
    remarks = [f"{left} more are in the report."] if left else []
    remarks += [_others(result), work(result.counted), noise(effects)]
    if result.anytime:
        remarks.append("Intervals hold however often the blocks were looked at.")
    # Without that word both sides run the same program.
    linked = [s for s in result.guards.filter(guard="layout")["sentence"] if "linked" in s]
    yield [*wrapped(" ".join(filter(None, remarks)), 0), *wrapped(" ".join(linked), 0)]


def _is_listed(effects: pl.DataFrame) -> pl.DataFrame:
    return effects.filter(~IS_DECIDED | (pl.col("verdict") != "equivalent"))


def _listed(result: Result) -> pl.DataFrame:
    """The steps of the table, in the order of the studies."""
    top = _is_listed(result.effects).sort(LARGEST_FIRST).head(_MOST_STEPS)
    return result.effects.join(top, on=PLACE, how="semi", maintain_order="left")


def _sql(result: Result, scripts: Mapping[str, str]) -> list[str]:
    """The SQL of the schema and of the scripts in the table, or of all, as far as two lines go."""
    moved = [name for name in dict.fromkeys(_listed(result)["step"]) if name in scripts]
    lines = []
    schema = [name for name in scripts if name == SCHEMA]
    others = moved or [name for name in scripts if name != SCHEMA]
    for name in [*schema, *others[:_MOST_SCRIPTS]]:
        lines += wrapped(f"  {name}: {' '.join(scripts[name].split())}", 4, most=2)
    return ["SQL:", *lines] if lines else []


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
        lines += wrapped(f"  {step}, {failure}: {before} -> {after} ({difference})", 4)
    return [*lines, *wrapped("The times above are of those that succeeded.", 0)]


def _left_out(result: Result) -> list[str]:
    missing = not_compared(result.measured)
    if len(missing) < 2:
        return [line for why in missing for line in wrapped(f"Not compared: {why}.", 0)]
    return ["Not compared:", *(line for why in missing for line in wrapped(f"  {why}.", 4))]


def _not_exercised(result: Result) -> list[str]:
    """The settings of one side that cannot have mattered, each with the reason."""
    found: dict[str, str] = {}
    for name, side in (
        (BASELINE, result.comparison.baseline),
        (CANDIDATE, result.comparison.candidate),
    ):
        shown = {n: value for n, (value, _) in result.builds[name].get("settings", {}).items()}
        for setting in side.settings:
            if setting.startswith("autovacuum_") and shown.get("autovacuum") == "off":
                found[setting] = "autovacuum is off"
            elif setting.startswith(_OF_STANDBYS):
                found[setting] = "no WAL is archived or sent"
            elif setting == "checkpoint_timeout" and _longest_s(result) < _SHORTEST_TIMEOUT_S:
                found[setting] = "no server ran for so long"
            elif setting == "huge_pages" and shown.get("huge_pages_status") == "off":
                found[setting] = f"the {name} got none"
    names = [f"{setting} ({why})" for setting, why in found.items()]
    return wrapped(f"Not exercised: {', '.join(names)}.", 2) if names else []


def _longest_s(result: Result) -> float:
    """The longest time that a server was measured in a block (s)."""
    entries = [entry for m in result.measured for info in m.infos for entry in info["timeline"]]
    return max((_took_s(entry) for entry in entries), default=0.0)


def _took_s(entry: TimelineEntry) -> float:
    began, ended = (datetime.fromisoformat(entry[key]) for key in ("started_at", "finished_at"))
    return (ended - began).total_seconds()


def _steps(effects: pl.DataFrame, result: Result) -> list[str]:
    """Each step with its figures and what moved with it, below its study and its arm."""
    lines = []
    for (study, of), part in effects.group_by("study", "of", maintain_order=True):
        lines += wrapped(str(study) if of == _OWN else f"{study}, {of}", 2)
        for row in part.iter_rows(named=True):
            name = f"  {row['step']}, {row['case']}" if row["case"] else f"  {row['step']}"
            if len(name) >= _NAME:
                lines += wrapped(name, 4)
                name = ""
            lines.append(f"{name:{_NAME}}{_figures(row)}".rstrip())
            for why in _because(result, row):
                lines += wrapped(f"    {why}", 6)
    return lines


def _because(result: Result, row: Mapping[str, Any]) -> Iterator[str]:
    """The note on a step, the functions that changed most in its work, and the largest reasons."""
    if row["note"]:
        yield row["note"]
    found = units_of(result.counted, row)
    if found:
        most = max(found, key=lambda unit: abs(unit["candidate"] - unit["baseline"]))
        yield from changed_most(result.counted, most)
    why = result.reasons.filter(**{name: row[name] for name in PLACE})
    yield from map(reason, why.head(_MOST_REASONS).iter_rows(named=True))


def _others(result: Result) -> str:
    """A sentence on the furthest end of the equivalent steps' intervals; empty without any."""
    alike = result.effects.filter(IS_DECIDED, pl.col("verdict") == "equivalent")
    if alike.is_empty():
        return ""
    furthest = alike.select(pl.max_horizontal(pl.col("high"), 1 / pl.col("low")).max()).item()
    what = "Nothing" if alike.height == result.effects.height else "Nothing else that is decided"
    return f"{what} moved by more than {100 * (furthest - 1):.1f} %."


def _figures(row: Mapping[str, Any]) -> str:
    """A row of the table: ratio and interval, of instructions, medians, why it is open."""
    ratio = interval = counts = medians = ""
    if row["ratio"] is not None:
        ratio = ratio_text(row["ratio"])
    if row["low"] is not None:
        interval = f"({ratio_text(row['low'])}-{ratio_text(row['high'])})"
    if row["instructions"] is not None:
        counts = ratio_text(row["instructions"])
    if row["candidate_median"] is not None:
        medians = " -> ".join(seconds(row["baseline_median"], row["candidate_median"]))
    return f"{ratio:5} {interval:13}  {counts:6}  {medians:16}  {_tag(row)}"


def _tag(row: Mapping[str, Any]) -> str:
    """What keeps a step open: a guard, its layout, or so many blocks."""
    if row["failed"]:
        return "guard"
    if row["doubt"] == NOT_EXCLUDED:
        return "layout"
    is_open = row["verdict"] == "inconclusive" and row["blocks_needed"]
    return f"+{row['blocks_needed'] - row['blocks']}" if is_open else ""


def _rows(result: Result) -> list[str]:
    """The plans that differ, and the rows that only one side's results have."""
    places = [", ".join(p) for p in result.plans.select("study", "of", "step").iter_rows()]
    lines = wrapped(f"Plans that differ: {named(places)}.", 2) if places else []
    for place, part in result.rows.group_by("study", "of", "step", maintain_order=True):
        lines += wrapped(f"Rows that only one side gives, {step_name(place)}:", 2)
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


def _guards(result: Result) -> list[str]:
    """The guards that failed, but for plans, which are named."""
    failed = result.guards.filter(~pl.col("passed"))
    if result.plans.height:
        failed = failed.filter(pl.col("guard") != "plans")
    rows = failed.iter_rows(named=True)
    return [x for r in rows for x in wrapped(f"FAILED {r['guard']}: {r['sentence']}", 2)]


def method(result: Result) -> str:
    """How the steps were measured and judged, in a paragraph."""
    if result.anytime:
        means, family = "Hodges-Lehmann, intervals confidence sequences", "Holm's correction"
    else:
        means, family = "aligned ranks', intervals exact (names exchanged)", "the same exchanges"
    by_cpu = result.effects.filter(metric=CPU).height
    return (
        f"Each block runs every arm on both servers from restored state, in random order, with a "
        f"second copy of the baseline, and gives one ratio of times per step: of CPU time if the "
        f"baseline spends at least nine tenths of its time on the processor, else of wall time. "
        f"Estimates are {means}; slower and faster mean past "
        f"{100 * result.margin:g} %, and evident among all {result.effects.height} by {family}. "
        f"+n: n more blocks would probably decide it. CPU time judges {by_cpu} of "
        f"{result.effects.height} steps."
    )
