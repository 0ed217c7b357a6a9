"""What the reference records mean for an upgrade or a setting: nothing that no record supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from ..analysis import meanings, of_all_runs, origins
from ..errors import StudyError
from ..records import (
    builds_note,
    fullest_counts,
    open_case,
    read_info,
    reference_verdicts,
    units_counted,
    where_of,
)
from ..rooms import rooms
from ..terminal import printable
from ._score_table import then_and_now
from .score_text import WIDTH, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator


_INDENT = 2


WORTH_TELLING = 1.05
"""A count that changed by less is not on the card."""


MOST_UNITS = 12
"""So many units of work, those that changed most."""


_CARD: dict[str, pl.DataType] = {
    **dict.fromkeys(["study", "claim", "about", "sentence"], pl.String()),
    **dict.fromkeys(["before", "after", "published_ratio", "ratio"], pl.Float64()),
    **dict.fromkeys(["low", "high"], pl.Float64()),
    **dict.fromkeys(["verdict", "where"], pl.String()),
}


def advice() -> pl.DataFrame:
    """What the verdicts of the reference records mean for whoever runs a server.

    Columns: study, claim, about (a setting or a thing), sentence, before and after (the releases
    that a change lies between, null for what is no matter of releases), published_ratio, ratio now
    with its 95 % interval from low to high, verdict, where: release, machine, date and size of the
    record, and for a change between releases how these were built, where that differs.
    """
    found = [pl.DataFrame(schema=_CARD)]
    for study in origins():
        known = reference_verdicts(study)
        if known is None:
            continue
        directory, judged = known[0], of_all_runs(study, *known)
        info = read_info(directory)
        builds = [pl.lit(note) for note in [builds_note(info)] if note]
        figures = judged.select(
            "claim", "published_ratio", "ratio", "low", "high", "verdict", "baseline", "candidate"
        )
        found.append(
            meanings(study, judged)
            .join(figures, on="claim", maintain_order="left")
            .with_columns(where=pl.lit(where_of(info)))
            .with_columns(
                where=pl.when(pl.col("candidate").str.contains(r"^\d"))  # else the record's own
                .then(pl.format("{} against {}; {}", "candidate", "baseline", "where"))
                .otherwise("where")
            )
            .with_columns(
                where=pl.when(pl.col("before").is_null())
                .then("where")
                .otherwise(pl.concat_str("where", *builds, separator="; "))
            )
            .select(list(_CARD))
        )
    return pl.concat(found)


def counted_between(before: str, after: str) -> pl.DataFrame:
    """The units of work that two releases execute with unlike numbers of instructions.

    Columns: unit, open (transactions), nested (subtransactions of each), before and after
    (instructions of one unit), ratio; what changed most first.  Raises StudyError for a release
    that was not counted, and where ``before`` is not the older one.
    """
    record = fullest_counts()
    if record is None:
        counting = " or ".join(rooms("counts"))
        raise StudyError(f"There is no record of counts: run `pgstudies run {counting}`.")
    counts = units_counted(record)
    arms = record.arms.filter(pl.col("copy_of").is_null())["name"]
    known = arms.filter(arms.str.contains(r"^\d+(\.\d+)?$")).to_list()  # "this server" is none
    for release in (before, after):
        if release not in known:
            raise StudyError(f"Release {release} was not counted; there is {', '.join(known)}.")
    if float(before) >= float(after):
        raise StudyError(
            f"An upgrade goes to a newer release, and {after} is not newer than {before}."
        )
    place = ["unit", "open", "nested"]
    sides = [
        counts.filter(arm=release).select(*place, pl.col("instructions").alias(name))
        for release, name in ((before, "before"), (after, "after"))
    ]
    changed = sides[0].join(sides[1], on=place, maintain_order="left")
    ratio = pl.col("after") / pl.col("before")
    return (
        changed.with_columns(ratio=ratio)
        .filter(pl.max_horizontal(ratio, 1 / ratio) >= WORTH_TELLING)
        .sort(pl.max_horizontal(ratio, 1 / ratio), descending=True, maintain_order=True)
    )


def counted_builds(before: str, after: str) -> str:
    """How the two releases of ``counted_between`` were built, in a sentence."""
    one, other = _builds(before, after)
    if one == other:
        return f"Both are built with {one}."
    return (
        f"{before} is built with {one}, {after} with {other}: part of a difference can be due to "
        f"the compiler."
    )


def _builds(*releases: str) -> list[str]:
    record = fullest_counts()
    built = record.built_with if record else {}
    return [built.get(release) or "an unknown compiler" for release in releases]


def advice_text(before: str | None = None, after: str | None = None) -> str:
    """The card for a terminal: for an upgrade from ``before`` to ``after``, or for settings alone.

    Raises StudyError as ``counted_between`` does, and where only one is given.
    """
    if (before is None) != (after is None):
        raise StudyError("Give both releases, --from and --to, or neither.")
    return "\n".join(map(printable, _lines(before, after)))


def _lines(before: str | None, after: str | None) -> Iterator[str]:
    cards = advice()
    if before is not None and after is not None:
        units = counted_between(before, after)
        yield f"From release {before} to {after}"
        yield "=" * WIDTH
        yield from _told(crossed(cards, before, after))
        yield from _counted(units, before, after)
        yield from wrapped(counted_builds(before, after))
        yield ""
        alike = len(set(_builds(before, after))) == 1
        one, other = (before, after) if alike else ("DIRECTORY", "DIRECTORY")
        yield f"Measure it on servers of your own{'' if alike else ', both built alike'}:"
        yield f"  pgstudies compare --baseline {one} --candidate {other} --minutes 30"
        yield ""
    yield "Settings and habits"
    yield "=" * WIDTH
    yield from _told(cards.filter(pl.col("before").is_null()))
    yield "Measure one of them on your server:"
    yield "  pgstudies run STUDY --server postgresql://me@host/database"


def crossed(cards: pl.DataFrame, before: str, after: str) -> pl.DataFrame:
    """The rows of ``advice`` about changes that lie between two releases."""
    return cards.filter(pl.col("before") >= float(before), pl.col("after") <= float(after))


def _told(cards: pl.DataFrame) -> Iterator[str]:
    if cards.is_empty():
        yield "No claim of these studies is about that."
    for (about,), part in cards.group_by("about", maintain_order=True):
        yield f"{about}"
        for row in part.iter_rows(named=True):
            yield from wrapped(row["sentence"], _INDENT)
            told = f"{row['study']}: {then_and_now(row)}, {row['verdict']}; {row['where']}"
            yield from wrapped(f"[{told}]", _INDENT)
        yield ""


def _counted(units: pl.DataFrame, before: str, after: str) -> Iterator[str]:
    if units.is_empty():
        yield "No unit of work executes other numbers of instructions."
        return
    yield f"Instructions for one unit of work in a lone backend, {before} -> {after}:"
    for row in units.head(MOST_UNITS).iter_rows(named=True):
        figures = f"{row['before']:>13,.0f} -> {row['after']:>13,.0f}  {row['ratio']:6.2f}"
        held = f", {open_case(row['open'], row['nested'])}" if row["open"] else ""
        name = f"  {row['unit']}{held}"
        if len(name) + len(figures) >= WIDTH:
            yield name
            name = ""
        yield f"{name:{WIDTH - len(figures)}}{figures}"
    if units.height > MOST_UNITS:
        yield f"  and {units.height - MOST_UNITS} more that changed less"
