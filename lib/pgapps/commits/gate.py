"""What a change does to exact counts: which units its diff touches, and the table for a comment."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import polars as pl

from pgservers.errors import StudyError
from pgservers.shown import markdown
from pgservers.terminal import printable

from ..counting.by_function import hint_of_names
from ..counting.frames import EXACT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..counting.units import Unit

_HUNK = re.compile(r"^@@ -\S+ \+\S+ @@ ?(.*)$")

_FUNCTION = re.compile(r"(\w+)\s*\(")


def limit_of(text: str) -> float:
    """The fraction that a text such as ``0.5%`` means; raises StudyError for anything else."""
    match = re.fullmatch(r"\s*(\d{1,3}(?:\.\d+)?)\s*%\s*", text)
    if match is None:
        raise StudyError(f"A limit is a percentage such as 0.5%, and {text!r} is none.")
    limit = float(match[1]) / 100
    if limit < EXACT:
        raise StudyError(f"Counts are exact to 0.1 %, so a limit of {text} is too small.")
    return limit


def changed_functions(diff: str) -> frozenset[str]:
    """The names of the C functions that a unified diff changes or adds.

    They are those of the hunk headers, where git names the enclosing function, and of definitions
    in PostgreSQL's style: the name at the beginning of a line.
    """
    found = set()
    for line in diff.splitlines():
        hunk = _HUNK.match(line)
        if hunk:
            text, name = hunk[1], _FUNCTION.search(hunk[1])
        elif line[:1] in {"+", "-", " "} and not line.startswith(("+++", "---")):
            text, name = line[1:], _FUNCTION.match(line[1:])
        else:
            continue
        # A declaration ends on its own line, and changes nothing that is executed.
        if name and not text.rstrip().endswith(";"):
            found.add(name[1])
    return frozenset(found)


def touched_first(
    units: Sequence[Unit], changed: Collection[str], functions: pl.DataFrame
) -> list[tuple[Unit, float]]:
    """The units with the share (0 to 1) of their instructions in changed functions, largest first.

    ``functions`` has unit, function and own, of one server.  Units that execute no changed function
    follow, one study after the other in turn, so that the first few are of all studies; those that
    need one of our extensions come last, as it cannot be built for every server.
    """
    shares = shares_of(functions, changed)
    touched = sorted((u for u in units if shares.get(u.name)), key=lambda u: -shares[u.name])
    studies: dict[str, list[Unit]] = {}
    for unit in units:
        if not shares.get(unit.name):
            studies.setdefault(unit.study, []).append(unit)
    others = (u for turn in itertools.zip_longest(*studies.values()) for u in turn if u is not None)
    order = sorted([*touched, *others], key=lambda u: u.extension is not None)
    return [(unit, shares.get(unit.name, 0.0)) for unit in order]


def shares_of(functions: pl.DataFrame, changed: Collection[str]) -> dict[str, float]:
    """The share (0 to 1) of each unit's instructions that changed functions execute, by unit.

    ``functions`` has unit, function and own.
    """
    own, is_changed = pl.col("own"), pl.col("function").is_in(list(changed))
    share = own.filter(is_changed).sum() / own.sum()
    return dict(functions.group_by("unit").agg(share=share).rows())


def runs_none(units: pl.DataFrame, changed: Collection[str], shares: Mapping[str, float]) -> bool:
    """Whether there are changed functions and no sign that any unit that was counted runs one."""
    differ = (units["ratio"].drop_nulls() - 1).abs() > EXACT
    return bool(changed) and not any(shares.values()) and not differ.any()


def verdict(units: pl.DataFrame, limit: float) -> int:
    """The exit code: 1 where a count grows past the limit, 2 where one cannot be judged, else 0.

    ``units`` has unit, baseline, candidate, ratio and reason.  A unit that neither side can run
    here, for want of a locale perhaps, does not count against the change; with no other the code is
    2.
    """
    if units.filter(pl.col("ratio") > 1 + limit).height:
        return 1
    broken = units.filter(pl.col("baseline").is_not_null() & pl.col("ratio").is_null())
    return 2 if broken.height or units["ratio"].is_null().all() else 0


def as_markdown(
    units: pl.DataFrame,
    moved: pl.DataFrame,
    *,
    sides: tuple[str, str],
    limit: float,
    changed: Collection[str] = (),
    shares: Mapping[str, float],
    left: int = 0,
) -> str:
    """The table for a comment on a pull request.

    ``units`` is that of ``verdict``, ``moved`` has unit, function, before, after and change;
    ``shares`` are those of ``shares_of``, ``left`` is how many units were not asked
    for.
    """
    done = units.drop_nulls("ratio")
    past = done.filter(pl.col("ratio") > 1 + limit).height
    about = f"{'are' if past > 1 else 'is'} dearer by more than {100 * limit:g} %"
    answer = f"{past or 'None'} of {done.height} units {about}."
    if runs_none(units, changed, shares):
        answer = (
            "Not judged: no unit that was counted runs a function of the diff. Name one by "
            "`--unit`, or write statements that do for `--workload`."
        )
    lines = [
        "### Instructions for one unit of work",
        "",
        f"**{answer}**",
        "",
        f"| unit | base | head | ratio |{' in changed functions |' if changed else ''} |",
        f"|---{'|--:' * (4 if changed else 3)}|---|",
    ]
    for row in done.sort("ratio", descending=True, maintain_order=True).iter_rows(named=True):
        counts = f"{row['baseline']:,.0f} | {row['candidate']:,.0f} | {row['ratio']:.4f}"
        within = f" {100 * shares.get(row['unit'], 0.0):.1f} % |" if changed else ""
        lines.append(
            f"| {markdown(row['unit'])} | {counts} |{within} {_word(row['ratio'], limit)} |"
        )
    if moved.height:
        lines += ["", "Functions that moved, by the instructions each executes itself:", ""]
        lines += ["| unit | function | base | head | change |", f"|---|---{'|--:' * 3}|"]
        for unit, function, before, after, change in moved.select(
            "unit", "function", "before", "after", "change"
        ).iter_rows():
            names = f"{markdown(unit)} | {_code(function)}"
            lines.append(f"| {names} | {before:,.0f} | {after:,.0f} | {change:+,.0f} |")
    lines.append("")
    if hint := hint_of_names(moved):
        lines.append(f"- {hint}")
    for row in units.drop_nulls("reason").iter_rows(named=True):
        who = "head cannot do it" if row["baseline"] is not None else "not counted"
        lines.append(f"- {markdown(row['unit'])}, {who}: {markdown(row['reason'])}")
    if left:
        lines.append(f"- {left} more units were not asked for (`--most`).")
    if changed:
        code = [_code(name) for name in sorted(changed)]
        more = f" and {len(code) - 10} more" if len(code) > 10 else ""
        lines.append(f"- Functions in the diff: {', '.join(code[:10])}{more}.")
    lines += [
        f"- Base is {_code(sides[0])}, head {_code(sides[1])}.",
        "- Counted in one backend alone, under callgrind, once on each side: exact to 0.1 %. "
        "Waiting, contention, caches and the kernel's work are not covered: a change can be slower "
        "without executing more.",
    ]
    return "\n".join(lines)


def _word(ratio: float, limit: float) -> str:
    if ratio > 1 + limit:
        return "**past the limit**"
    if abs(ratio - 1) <= EXACT:
        return "the same"
    return "dearer" if ratio > 1 else "cheaper"


def _code(text: str) -> str:
    """A name, as code."""
    plain = printable(" ".join(text.split())).replace("`", "'").replace("|", "/")
    return f"`{plain}`"
