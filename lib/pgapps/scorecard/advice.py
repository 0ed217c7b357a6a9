"""What the reference records mean for an upgrade or a setting."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers.errors import StudyError
from pgservers.order import major_number, version_in, version_key
from pgservers.terminal import printable
from pgstudies.analysis.agreement import MEASURES, ratio_text
from pgstudies.analysis.claims import all_claims, meanings, origins, rules
from pgstudies.charts.outcomes import runs_text
from pgstudies.records.counts import counted_records, fullest_counts, open_case, units_counted
from pgstudies.records.reading import builds_note, fullest, where_of
from pgstudies.records.verdicts import reference_verdicts
from pgstudies.rooms import rooms

from .table import WIDTH, then_and_now, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pgstudies.records.reading import Record


WORTH_TELLING = 1.05  # smaller changes of counts are left out
WORTH_A_SENTENCE = 0.10  # counts that changed by a larger part get a sentence
MOST_UNITS = 12  # units of work that are listed, those that changed most

_CARD: dict[str, pl.DataType] = {
    **dict.fromkeys(["study", "claim", "name", "about", "sentence", "metric"], pl.String()),
    **dict.fromkeys(["baseline", "candidate"], pl.String()),
    **dict.fromkeys(["before", "after", "published_ratio", "ratio"], pl.Float64()),
    **dict.fromkeys(["low", "high"], pl.Float64()),
    **dict.fromkeys(["verdict", "where"], pl.String()),
}


def advice() -> pl.DataFrame:
    """What the verdicts of the reference records mean for a DBA.

    Columns: study, claim, its name, about (a setting or a thing), sentence, metric that judged,
    baseline and candidate, before and after (the releases between which it changed, null where
    releases do not matter), published_ratio, ratio now with its 95 % interval from low to high,
    verdict, where: release, machine, date and size of the record, number of runs, and for a change
    between releases how these were built, if that differs.
    """
    found = [pl.DataFrame(schema=_CARD)]
    for study in origins():
        known = reference_verdicts(study)
        if known is None:
            continue
        judged, info = known.verdicts, known.info
        runs = pl.lit(", ") + pl.col("runs").map_elements(runs_text, pl.String())
        where = pl.concat_str(pl.lit(where_of(info)), runs, ignore_nulls=True)
        is_change = pl.col("before").is_not_null()
        builds = pl.when(is_change).then(pl.lit(builds_note(info), pl.String()))
        names = all_claims().filter(study=study).select("claim", "name")
        found.append(
            meanings(study, judged)
            .join(judged, on="claim", maintain_order="left")
            .join(names, on="claim", maintain_order="left")
            .with_columns(where=pl.concat_str(where, builds, separator="; ", ignore_nulls=True))
            .select(list(_CARD))
        )
    return pl.concat(found)


_QUESTIONS = {
    "CLUSTER": "I keep a table in order with CLUSTER",
    "VACUUM": "I wait for VACUUM",
    "hash indexes": "I think about a hash index",
    "open transactions": "I have many open transactions",
}


def question_of(about: str) -> str:
    """The question that findings about a setting or a thing answer."""
    return _QUESTIONS.get(about, f"I set {about}" if "_" in about else about)


def finding(row: Mapping[str, Any]) -> str:
    """A row of ``advice`` in words: the sides, direction, size, interval and metric."""
    within = "no interval" if row["low"] is None else "in every block"
    if row["low"] != row["high"]:
        ends = sorted((row["low"], row["high"]), key=lambda ratio: abs(math.log(ratio)))
        least, most = map(_told, ends)
        within = f"{least.removesuffix(most.partition(' ')[2]).rstrip()} to {most}"
    sides = f"{row['candidate']} against {row['baseline']}"
    size = f"{_told(row['ratio'])} ({within})"
    return f"{sides}: {size}, by {MEASURES.get(row['metric'], row['metric'])}"


def _told(ratio: float) -> str:
    if ratio >= 2:
        return f"{ratio_text(ratio)} times as much"
    if ratio == 1:
        return "the same"
    return f"{ratio_text(100 * abs(ratio - 1))} % {'more' if ratio > 1 else 'less'}"


def to_try(row: Mapping[str, Any]) -> str:
    """The command that measures a row of ``advice`` on the reader's server.

    Its server is an address; a directory of programs if the claim needs more than pgbench or
    releases.
    """
    if row["before"] is not None and row["candidate"][:1].isdigit():
        sides = f"--baseline {row['before']:g} --candidate {row['after']:g}"
        return f"pgstudies compare {sides} --study {row['study']}"
    required = {r["id"]: r.get("requires", []) for r in rules(row["study"])}.get(row["claim"], [])
    is_external = all(name == "pgbench" or name[0].isdigit() for name in required)
    server = "postgresql://me@host/database" if is_external else "DIRECTORY"
    return f"pgstudies run {row['study']} --server {server}"


def counted_between(before: str, after: str) -> pl.DataFrame:
    """The units of work that take different numbers of instructions on two releases.

    Columns: unit, open (transactions), nested (subtransactions of each), before and after
    (instructions of one unit), ratio; the largest change first.  Raises StudyError for a release
    that was not counted, and where ``before`` is not the older one.
    """
    record, _ = counted_releases(before, after)
    counts = units_counted(record)
    if version_key(version_in(before)) >= version_key(version_in(after)):
        raise StudyError(
            f"An upgrade goes to a newer release, and {after} is not newer than {before}."
        )
    place = ["unit", "open", "nested"]
    one, other = (
        counts.filter(arm=release).select(*place, pl.col("instructions").alias(name))
        for release, name in ((before, "before"), (after, "after"))
    )
    ratio = pl.col("after") / pl.col("before")
    change = pl.max_horizontal(ratio, 1 / ratio)
    return (
        one.join(other, on=place, maintain_order="left")
        .with_columns(ratio=ratio)
        .filter(change >= WORTH_TELLING)
        .sort(change, descending=True, maintain_order=True)
    )


def counted_in_words(units: pl.DataFrame) -> list[str]:
    """A sentence for each unit of ``counted_between`` that changed by more than a tenth.

    It says how many more or fewer instructions the unit takes alone, and the range while
    transactions are open, with and without subtransactions.
    """
    far = (pl.col("ratio") - 1).abs() > WORTH_A_SENTENCE
    return [
        f"{str(unit)[0].upper()}{str(unit)[1:]}: {'; '.join(_in_words(part))}."
        for (unit,), part in units.filter(far).group_by("unit", maintain_order=True)
    ]


def _in_words(part: pl.DataFrame) -> Iterator[str]:
    """The changes of one unit: alone, with open transactions, and with subtransactions in them."""
    alone = part.filter(pl.col("open") == 0)
    for row in alone.iter_rows(named=True):
        counts = f"({row['before']:,.0f}, then {row['after']:,.0f})"
        yield f"{_changes(alone['ratio'])} instructions {counts}"
    held, what = part.filter(pl.col("open") > 0), "" if alone.height else " instructions"
    found = {
        words: _changes(rows["ratio"])
        for words, is_nested in (("", False), (" that have subtransactions", True))
        if (rows := held.filter((pl.col("nested") > 0) == is_nested)).height
    }
    if len(set(found.values())) < len(found):
        found = {", whether or not they have subtransactions": _changes(held["ratio"])}
    for words, changes in found.items():
        yield f"{changes}{what} with open transactions{words}"


def release_before(after: str) -> str:
    """The counted release before this one; raises StudyError where there is none."""
    _, known = counted_releases(after)
    if known[0] == after:
        raise StudyError(f"No release before {after} was counted.")
    return known[known.index(after) - 1]


def counted_ahead(after: str) -> tuple[str, str] | None:
    """The newest counted version, of a later major release than ``after``, and the one before it.

    The one before, which comes first, is the newest of earlier major releases.  None if no record
    has both.
    """
    for record in counted_records():
        names = [name for name in _names_in(record).values() if name[:1].isdigit()]
        majors = {name: major_number(version_in(name)) for name in names}
        in_order = sorted(majors, key=lambda name: version_key(version_in(name)))
        earlier = [name for name in in_order if majors[name] < majors[in_order[-1]]]
        if earlier and majors[in_order[-1]] > major_number(after):
            return earlier[-1], in_order[-1]
    return None


def _changes(ratios: pl.Series) -> str:
    """The range of changes, such as "17 to 20 % more"."""
    both = []
    for word, side in (("fewer", ratios.filter(ratios < 1)), ("more", ratios.filter(ratios > 1))):
        changes = sorted(100 * abs(ratio - 1) for ratio in side)
        ends = dict.fromkeys(f"{change:.0f}" for change in (*changes[:1], *changes[-1:]))
        both += [f"{' to '.join(ends)} % {word}"] if changes else []
    return " and ".join(both)


def counted_releases(*wanted: str) -> tuple[Record, list[str]]:
    """The record of counts, and its releases; raises StudyError if a release is missing."""
    record = _record_of(*wanted) or fullest_counts()
    if record is None:
        counting = " or ".join(rooms("counts"))
        raise StudyError(f"There is no record of counts: run `pgstudies run {counting}`.")
    arms = record.arms.filter(pl.col("copy_of").is_null())["name"]
    known = arms.filter(arms.str.contains(r"^\d")).to_list()  # "this server" is no release
    for release in wanted:
        if release not in known:
            raise StudyError(
                f"{release} was not counted; there is {', '.join(known)}. To count releases and "
                f"directories of programs: `pgstudies run {min(rooms('counts'))} -p "
                f"releases=RELEASE,DIRECTORY -p what=all`."
            )
    return record, known


def _record_of(*wanted: str) -> Record | None:
    """The fullest record of counts that has all these arms (names or servers)."""
    return fullest(record for record in counted_records() if {*wanted} <= _names_in(record).keys())


def _names_in(record: Record) -> dict[str | None, str]:
    """The arms' names, by name and by the server they ran on, such as a directory."""
    arms = [arm for arm in record.info["arms"] if not arm["copy_of"]]
    return {arm.get("server"): arm["name"] for arm in arms} | {a["name"]: a["name"] for a in arms}


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
    record = _record_of(*releases)
    built = record.built_with if record else {}
    return [built.get(release) or "an unknown compiler" for release in releases]


def to_compare(before: str, after: str) -> str:
    """The command that compares two counted releases; it names their servers if built alike."""
    one = other = "DIRECTORY"
    record = _record_of(before, after)
    if record and len(set(_builds(before, after))) == 1:
        servers = {name: server for server, name in reversed(_names_in(record).items())}
        one, other = servers[before] or one, servers[after] or other
    sides = f"--baseline {shlex.quote(one)} --candidate {shlex.quote(other)}"  # a record names them
    return f"pgstudies compare {sides} --minutes 30"


def advice_text(before: str | None = None, after: str | None = None) -> str:
    """The card for a terminal: for an upgrade from ``before`` to ``after``, or for settings alone.

    Raises StudyError as ``counted_between`` does, and if only one is given.
    """
    if (before is None) != (after is None):
        raise StudyError("Give both releases, --from and --to, or neither.")
    cards, lines = advice(), list[str]()
    if before is not None and after is not None:
        sides = [
            str(Path(side).expanduser().resolve()) if "/" in side else side
            for side in (before, after)
        ]
        record = _record_of(*sides)
        named = _names_in(record) if record else {}
        lines += _of_upgrade(cards, *(named.get(side, side) for side in sides))
    lines += ["Settings and habits", "=" * WIDTH]
    lines += _claim_lines(cards.filter(pl.col("before").is_null()))
    return "\n".join(map(printable, lines))


def _of_upgrade(cards: pl.DataFrame, before: str, after: str) -> Iterator[str]:
    units = counted_between(before, after)
    yield f"From release {before} to {after}"
    yield "=" * WIDTH
    for sentence in counted_in_words(units):
        yield from wrapped(sentence, 2)
    yield ""
    yield from _claim_lines(crossed(cards, before, after))
    yield from _counted(units, before, after)
    yield from wrapped(counted_builds(before, after))
    yield ""
    alike = len(set(_builds(before, after))) == 1
    yield f"Measure it on servers of your own{'' if alike else ', both built alike'}:"
    yield f"  {to_compare(before, after)}"
    yield ""


def crossed(cards: pl.DataFrame, before: str, after: str) -> pl.DataFrame:
    """The rows of ``advice`` about changes between two releases, in the order of newest_first."""
    within = cards.filter(
        pl.col("before") >= major_number(version_in(before)),
        pl.col("after") <= major_number(version_in(after)),
    )
    return newest_first(within)


def newest_first(cards: pl.DataFrame) -> pl.DataFrame:
    """The rows of ``advice`` sorted by the release that brought the change, the newest first."""
    return cards.sort("after", "before", descending=True, maintain_order=True)


def _claim_lines(cards: pl.DataFrame) -> Iterator[str]:
    if cards.is_empty():
        yield "No claim of these studies is about that."
    for (about,), part in cards.group_by("about", maintain_order=True):
        yield question_of(str(about))
        for row in part.iter_rows(named=True):
            yield from wrapped(row["sentence"], 2)
            details = f"{row['name']}: {row['verdict']}; {then_and_now(row)}; {row['where']}"
            yield from wrapped(f"[{finding(row)}; {details}]", 2)
        yield "  To try it yourself:"
        yield from dict.fromkeys(f"    {to_try(row)}" for row in part.iter_rows(named=True))
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
