"""The answer of a bisection, as text for a mail to the list."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pgservers.terminal import printable

from ..counting.by_function import moved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl

    from .bisection import Found, Step

_WIDTH = 79

_WORTH_NAMING = 0.005
"""The least change of a function that is listed, as a part of the whole count."""


_LIMITS = "Counts of one backend under callgrind; waiting, contention and caches are not in them."


def moved_functions(step: Step, counts: Callable[[str], pl.DataFrame]) -> pl.DataFrame:
    """The functions that a step moved: function, before, after, change; at most ten.

    ``counts`` returns a commit's table of ``instructions``.
    """
    one, other = (counts(sha).slice(1) for sha in (step.since, step.commit.sha))
    table = moved(one, other)
    return table.filter(table["change"].abs() >= _WORTH_NAMING * step.before)


def as_text(found: Found, what: str, functions: Mapping[str, pl.DataFrame]) -> str:
    """The steps with commit, date, author, subject, both numbers and the functions that moved.

    ``what`` names what was counted, ``functions`` has the tables of ``moved_functions`` by commit.
    """
    lines = []
    for step in found.steps:
        change = f"{_count(step.before)} -> {_count(step.after)} ({_percent(step)})"
        lines.append(f"{what}: {change}")
        if len(step.among) > 1:
            lines.append(f"by one of {len(step.among)} commits: the others could not be measured")
        for commit in step.among:
            lines += [f"  {commit.short}  {commit.date}  {commit.author}"]
            lines += textwrap.wrap(
                commit.subject, _WIDTH, initial_indent="    ", subsequent_indent="    "
            )
        table = functions.get(step.commit.sha)
        if table is not None and table.height:
            lines.append("  in these functions (instructions of their own, for one unit):")
            for name, before, after, change_of in table.iter_rows():
                both = f"{_count(before):>10} -> {_count(after):>10}"
                lines.append(f"    {name[:40]:40} {both}  {change_of:+,.0f}")
        lines.append("")
    lines.append(f"{len(found.levels)} commits measured, {len(found.skipped)} skipped.")
    lines += [f"  skipped {sha[:10]}: {reason}" for sha, reason in found.skipped.items()]
    lines += textwrap.wrap(_LIMITS, _WIDTH)
    return "\n".join(map(printable, lines))


def _percent(step: Step) -> str:
    return f"{100 * (step.after / step.before - 1):+.1f} %"


def _count(number: float) -> str:
    """Instructions with three digits: 13.2 million, 4,320."""
    if number >= 1e6:
        return f"{number / 1e6:.3g} million"
    return f"{number:,.0f}"
