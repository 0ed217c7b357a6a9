"""How a comparison's lines are written: their width, their characters, ratios and times."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = 72

_MOST_NAMED = 5

ASCII = str.maketrans({"−": "-", "–": "-", "×": "x", "µ": "u", "…": "...", "±": "+/-"})


def wrapped(text: str, indent: int, *, most: int | None = None) -> list[str]:
    """The lines of a text, but the first indented, at most so many."""
    lines = textwrap.wrap(
        text.translate(ASCII).replace(" %", "\xa0%"),  # a number stays with its unit
        COLUMNS,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,  # a path is copied whole
        max_lines=most,
        placeholder=" ...",
    )
    return [line.replace("\xa0", " ") for line in lines]


def ratio_text(value: float) -> str:
    """A ratio by three decimals, or four digits from 10 on."""
    return f"{value:.3f}" if value < 10 else f"{value:#.4g}".rstrip(".")


def seconds(before: float, after: float) -> tuple[str, str]:
    """Two times (s) in the unit that fits the longer of them; the second has the unit."""
    longest = max(abs(before), abs(after))
    unit, factor = next((known for known in _UNITS if longest * known[1] >= 1), _UNITS[-1])
    return f"{before * factor:.3g}", f"{after * factor:.3g} {unit}"


_UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))


def named(things: Sequence[str]) -> str:
    """The first few names, and how many more there are; a name may contain commas."""
    more = f" and {len(things) - _MOST_NAMED} more" if len(things) > _MOST_NAMED else ""
    return "; ".join(things[:_MOST_NAMED]) + more
