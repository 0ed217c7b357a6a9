"""The scorecard as plain text, for a terminal and for mail: lines of at most 79 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from ..analysis import origins
from ..charts import OUTCOMES, outcome_of, ratio_text
from ..terminal import printable
from ._scorecard import in_sum
from .checks import doubtful_machines, read_checks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl


WIDTH = 79


_INDENT = 2


_COLUMN = _INDENT + max(map(len, OUTCOMES)) + 2  # where what stands beside the verdict begins


_FIGURES = len("0.0858 (0.0585 to 0.0126)")


def in_text(cards: pl.DataFrame) -> str:
    """The current rows of a ``scorecard``: each study's claims, then how many came to what."""
    current = cards.filter("current")
    lines: list[str] = []
    for (study,), part in current.group_by("study", maintain_order=True):
        lines += [*_study(str(study), part), ""]
    lines += wrapped(in_sentence(current))
    lines += wrapped(
        "Ratios are candidate / baseline: ours with its 95 % interval, then the published one. "
        "Weaker: less than half as large on a logarithmic scale."
    )
    return "\n".join(map(printable, lines))


def in_sentence(cards: pl.DataFrame) -> str:
    """The sum of the current rows of a ``scorecard`` in one sentence."""
    current = cards.filter("current")
    return f"{current.height} {'claim' if current.height == 1 else 'claims'}: {in_sum(current)}."


def interval_text(row: Mapping[str, Any]) -> str:
    """Our ratio and its interval, such as "1.75 (1.47 to 2.07)"."""
    if row["low"] is None:
        within = "no interval"
    elif row["low"] == row["high"]:
        within = "in every block"
    else:
        within = f"{ratio_text(row['low'])} to {ratio_text(row['high'])}"
    return f"{ratio_text(row['ratio'])} ({within})"


def _study(study: str, part: pl.DataFrame) -> Iterator[str]:
    origin = origins()[study]
    post = f"({origin.post})"
    room = WIDTH - len(origin.title)
    if len(post) < room:
        yield f"{origin.title}{post:>{room}}"
    else:
        yield from (*wrapped(origin.title), *wrapped(post))
    yield "=" * WIDTH
    yield from wrapped(in_sum(part))
    usual = _usual(part)
    if usual["record"] is not None:
        several = max(part["runs"].drop_nulls().to_list(), default=1)
        runs = f", with {several - 1} more alike" if several > 1 else ""
        yield from wrapped(
            f"{usual['host']}, PostgreSQL {usual['server']}, {usual['date']} UTC, "
            f"{usual['blocks']} blocks, {usual['profile'] or 'unknown'} size{runs}"
            f"{'; ' if usual['builds'] else ''}{usual['builds'] or ''}"
        )
    if doubtful_machines(read_checks()) & set(part["machine"]):
        yield "MARKED: measuring failed a check on this host (its page says which)."
    yield ""
    for row in part.iter_rows(named=True):
        yield from _claim(row, usual)


def _usual(part: pl.DataFrame) -> dict[str, Any]:
    """What most rows have; each says itself where it differs."""
    found = part.drop_nulls("blocks") if part["blocks"].count() else part
    return found.row(0, named=True) | {
        name: found[name].mode().sort()[-1] for name in ("server", "blocks")
    }


def _claim(row: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[str]:
    word = outcome_of(row["verdict"]).word
    remarks = [row["verdict"].removeprefix(word).removeprefix(": ")]
    if row["server"] not in {usual["server"], None}:
        remarks.insert(0, f"on {row['server']}")
    if row["blocks"] not in {usual["blocks"], None}:
        remarks.insert(0, f"{row['blocks']} blocks")
    told = "; ".join(filter(None, remarks))
    if row["ratio"] is not None:
        published = f"published {ratio_text(row['published_ratio'])}"
        told = f"{interval_text(row):{_FIGURES}}  {published:16}  {told}".rstrip()
    lines = wrapped(told, _COLUMN) or [""]
    yield f"{' ' * _INDENT}{word:{_COLUMN - _INDENT}}{lines[0].strip()}".rstrip()
    yield from lines[1:]
    yield from wrapped(row["text"], _COLUMN)


def wrapped(text: str, indent: int = 0) -> list[str]:
    """The text in lines of at most ``WIDTH`` columns."""
    space = " " * indent
    return textwrap.wrap(
        text, WIDTH, initial_indent=space, subsequent_indent=space, break_on_hyphens=False
    )
