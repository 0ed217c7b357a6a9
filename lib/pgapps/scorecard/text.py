"""The scorecard as plain text, for a terminal and for mail: lines of at most 79 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers.terminal import printable
from pgstudies.analysis.claims import origins
from pgstudies.charts.outcomes import OUTCOMES, outcome_of

from .checks import doubtful_machines, read_checks
from .scorecard import in_sum
from .table import interval_text, now_and_here, side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


WIDTH = 79


_INDENT = 2


_COLUMN = _INDENT + max(map(len, OUTCOMES)) + 2  # where what stands beside the verdict begins


_PUBLISHED = len("published ")


_FIGURES = len("0.0858 (0.0585 to 0.0126)")


def in_text(cards: pl.DataFrame) -> str:
    """A ``scorecard``, study by study: published, now and this machine; then how many came to what.

    Now is the reference records' verdict, or without a reference that of the current record.
    """
    lines: list[str] = []
    for (study,), part in cards.group_by("study", maintain_order=True):
        lines += [*_study(str(study), part), ""]
    lines += wrapped(in_sentence(cards))
    lines += wrapped(
        "Ratios are candidate / baseline: published, then ours with its 95 % interval. "
        "Weaker: less than half as large on a logarithmic scale."
    )
    return "\n".join(map(printable, lines))


def in_sentence(cards: pl.DataFrame) -> str:
    """How many claims of a ``scorecard`` came to what, now and on this machine, in words."""
    told, own = (pl.concat(tables) for tables in zip(*_by_study(cards), strict=True))
    words = f"{told.height} {'claim' if told.height == 1 else 'claims'}: {in_sum(told)}."
    return f"{words} This machine, {own.height}: {in_sum(own)}." if own.height else words


def _by_study(cards: pl.DataFrame) -> list[tuple[pl.DataFrame, pl.DataFrame]]:
    parts = cards.partition_by("study", maintain_order=True)
    return [now_and_here(part) for part in parts or [cards]]


def _study(study: str, part: pl.DataFrame) -> Iterator[str]:
    origin = origins()[study]
    post = f"({origin.post})"
    room = WIDTH - len(origin.title)
    if len(post) < room:
        yield f"{origin.title}{post:>{room}}"
    else:
        yield from (*wrapped(origin.title), *wrapped(post))
    yield "=" * WIDTH
    told, own = now_and_here(part)
    for name, rows in (("Now", told), ("This machine", own)):
        if rows.height:
            yield from _about(name, rows)
    yield ""
    yield f"{'':{_COLUMN}}{'published':{_PUBLISHED}}now, with its 95 % interval"
    usual = _usual(told)
    for row in side_by_side(part):
        yield from _claim(row, usual)


def _about(name: str, rows: pl.DataFrame) -> Iterator[str]:
    """What came of the rows, and by which run."""
    yield from wrapped(f"{name}: {in_sum(rows)}")
    usual = _usual(rows)
    if usual["record"] is not None:
        several = max(rows["runs"].drop_nulls().to_list(), default=1)
        runs = f", with {several - 1} more alike" if several > 1 else ""
        yield from wrapped(
            f"{usual['host']}, PostgreSQL {usual['server']}, {usual['date']} UTC, "
            f"{usual['blocks']} blocks, {usual['profile'] or 'unknown'} size{runs}"
            f"{'; ' if usual['builds'] else ''}{usual['builds'] or ''}",
            _INDENT,
        )
    if doubtful_machines(read_checks()) & set(rows["machine"]):
        yield "MARKED: measuring failed a check on this host (its page says which)."


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
        told = f"{row['published']:{_PUBLISHED}}{interval_text(row):{_FIGURES}}  {told}".rstrip()
    lines = wrapped(told, _COLUMN) or [""]
    yield f"{' ' * _INDENT}{word:{_COLUMN - _INDENT}}{lines[0].strip()}".rstrip()
    yield from lines[1:]
    own = row["own"]
    if own:
        figures = f": {interval_text(own)}" if own["ratio"] is not None else ""
        yield from wrapped(f"this machine {own['agreement']}{figures}", _COLUMN)
    yield from wrapped(row["text"], _COLUMN)


def wrapped(text: str, indent: int = 0) -> list[str]:
    """The text in lines of at most ``WIDTH`` columns."""
    space = " " * indent
    return textwrap.wrap(
        text, WIDTH, initial_indent=space, subsequent_indent=space, break_on_hyphens=False
    )
