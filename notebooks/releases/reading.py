"""What ``releases.ipynb`` shows of its record.

``counts`` is ``units_counted``, ``functions`` is ``functions_counted``; ``names`` are the arms in
their order, without the second copy.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import polars as pl
from IPython.display import Markdown

from pgapps.counting.by_function import moved
from pgservers.shown import markdown
from pgstudies.records.counts import open_case, units_counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pgstudies.records.reading import Record

PLACE = ["unit", "open", "nested"]


def by_transactions(counts: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The counts in order of arms, with thousands and, as text, transactions."""
    return (
        counts.filter(pl.col("arm").is_in(names))
        .sort(pl.col("arm").cast(pl.Enum(names)), "open", "nested", maintain_order=True)
        .with_columns(
            transactions=held(),
            thousands=pl.col("instructions") / 1000,
        )
    )


def held() -> pl.Expr:
    """The columns open and nested as text."""
    return pl.struct("open", "nested").map_elements(
        lambda one: _held(*one.values()), return_dtype=pl.String
    )


def _held(number: int, within: int) -> str:
    return open_case(number, within) or "0 open"


def of_arms(shown: pl.DataFrame, names: Sequence[str], value: str) -> pl.DataFrame:
    """A column of ``by_transactions`` by unit and transactions, a column for each arm."""
    return shown.pivot(
        "arm", on_columns=names, index=["unit", "transactions"], values=value
    )


def differing(counts: pl.DataFrame, baseline: str, repeat: str | None) -> pl.DataFrame:
    """By how much (off, a part of 1) the two counts of a unit differ, for both kinds of pairs."""
    second = counts.filter(pl.col("arm") == pl.lit(repeat)).select(
        *PLACE, other="instructions"
    )
    anew = counts.filter(pl.col("arm") == baseline).join(second, on=PLACE)
    twice = counts.filter(pl.col("again").is_not_null())
    return pl.concat(
        [
            twice.select(
                *PLACE, "instructions", other="again", pairs=pl.lit("same state")
            ),
            anew.select(*PLACE, "instructions", "other", pairs=pl.lit("made anew")),
        ]
    ).with_columns(off=(pl.col("other") / pl.col("instructions") - 1).abs())


def counted_later(counts: pl.DataFrame, records: Iterable[Record]) -> pl.DataFrame:
    """What ``records`` counted of the arms of ``counts`` and these have not, the first of several.

    Columns: unit, transactions, release, thousands (of instructions), record.
    """
    place = ["arm", *PLACE]
    later = [
        by_transactions(
            units_counted(record),
            [a["name"] for a in record.info["arms"] if not a["copy_of"]],
        )
        .filter(pl.col("arm").cast(pl.String).is_in(set(counts["arm"])))
        .with_columns(pl.col("arm").cast(pl.String), record=pl.lit(record.path.name))
        for record in records
    ]
    if not later:
        return pl.DataFrame()
    return (
        pl.concat(later)
        .join(counts.select(place), on=place, how="anti")
        .unique(place, keep="first", maintain_order=True)
        .select(
            "unit",
            "transactions",
            pl.col("arm").alias("release"),
            pl.col("thousands").round(2),
            "record",
        )
    )


def growth_of(shown: pl.DataFrame) -> pl.DataFrame:
    """The rows with open transactions, with growth: the count over that without any."""
    none = shown.filter(pl.col("open") == 0).select(
        "arm", "unit", without="instructions"
    )
    return (
        shown.filter(pl.col("open") > 0)
        .join(none, on=["arm", "unit"])
        .with_columns(growth=(pl.col("instructions") / pl.col("without")).round(3))
    )


def steps(
    counts: pl.DataFrame,
    functions: pl.DataFrame,
    names: Sequence[str],
    built: Mapping[str, str | None],
) -> list[dict[str, Any]]:
    """From each arm to the next: what a unit's count became, and the functions that moved most.

    ``built`` says how each arm was built; where that differs, a step can be the compiler's.
    """
    cases = counts.select(PLACE).unique(maintain_order=True).rows()
    return [
        row
        for case in cases
        for pair in itertools.pairwise(names)
        for row in _step(counts, functions, pair, case, built)
    ]


def _step(
    counts: pl.DataFrame,
    functions: pl.DataFrame,
    pair: tuple[str, str],
    case: tuple[Any, ...],
    built: Mapping[str, str | None],
) -> list[dict[str, Any]]:
    at = [pl.col(name) == one for name, one in zip(PLACE, case, strict=True)]
    one, other = (
        counts.filter(*at, pl.col("arm") == arm)["instructions"] for arm in pair
    )
    if not (one.len() and other.len()):
        return []
    was, became = (functions.filter(*at, pl.col("arm") == arm) for arm in pair)
    told = [
        f"{row['function']} {row['change']:+,.0f}"
        for row in moved(was, became, top=5).iter_rows(named=True)
    ]
    before, after = pair
    alike = built[before] is not None and built[before] == built[after]
    unit, number, within = case
    return [
        {
            "unit": unit,
            "open": _held(number, within),
            "from": before,
            "to": after,
            "ratio": round(other[0] / one[0], 3),
            "the compiler's": "no: the same" if alike else "can be",
            "moved most": ", ".join(told),
        }
    ]


def largest(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """The ten largest of ``steps`` that are not the compiler's."""
    own = [row for row in rows if row["the compiler's"] != "can be"]
    own.sort(key=lambda row: abs(row["ratio"] - 1), reverse=True)
    return pl.DataFrame(own[:10])


def largest_in_words(rows: Sequence[Mapping[str, Any]]) -> Markdown:
    """The four steps up and the four down that are largest, without open transactions.

    Those that can be the compiler's are left out; without any that is not there is nothing to say.
    Units that differ in what is in brackets alone are told together.
    """
    own = pl.DataFrame(
        [
            {
                "work": row["unit"].partition(" (")[0],
                "percent": 100 * (row["ratio"] - 1),
                **{name: row[name] for name in ("from", "to", "unit")},
            }
            for row in rows
            if row["the compiler's"] != "can be" and row["open"] == _held(0, 0)
        ]
    )
    sides = [("More work", "more", 1), ("Less work", "fewer", -1)]
    told = [_side_in_words(own, *side) for side in sides if own.height]
    found = [line for lines in told for line in lines]
    head = "Between neighbouring releases that were built alike, without open transactions:"
    text = "\n".join([head, "", *found]) if found else ""
    return Markdown(text)  # type: ignore[no-untyped-call]


def _side_in_words(steps: pl.DataFrame, title: str, word: str, sign: int) -> list[str]:
    """The largest steps of one sign as a list with a title; nothing for none."""
    of_work = (
        steps.filter(pl.col("percent").round() * sign > 0)
        .group_by("from", "to", "work", maintain_order=True)
        .agg(
            least=pl.col("percent").abs().min(),
            most=pl.col("percent").abs().max(),
            units=pl.len(),
            unit=pl.col("unit").first(),
        )
        .sort("most", descending=True, maintain_order=True)
        .head(4)
    )
    lines = []
    for row in of_work.iter_rows(named=True):
        ends = dict.fromkeys(f"{row[n]:.0f}" for n in ("least", "most"))
        several = row["units"] > 1
        what = f"{row['work']}, {row['units']} kinds" if several else row["unit"]
        lines.append(
            f"- **{markdown(row['from'])} to {markdown(row['to'])}**, {markdown(what)}: "
            f"{' to '.join(ends)} % {word} instructions"
        )
    return [f"*{title}*", "", *lines, ""] if lines else []


def heaviest(
    counts: pl.DataFrame, functions: pl.DataFrame, names: Sequence[str]
) -> pl.DataFrame:
    """In the newest release counted, the ten functions of each unit that execute most themselves.

    Columns: those of ``PLACE``, function, inclusive, own, and percent of the unit's instructions.
    """
    counted = set(functions["arm"])
    newest = next((name for name in reversed(names) if name in counted), None)
    totals = counts.select("arm", *PLACE, "instructions")
    share = pl.col("own") / pl.col("instructions")
    return (
        functions.filter(pl.col("arm") == newest)
        .join(totals, on=["arm", *PLACE])
        .sort("own", descending=True)
        .group_by(PLACE, maintain_order=True)
        .head(10)
        .select(
            *PLACE,
            "function",
            pl.col("inclusive", "own").round(0),
            percent=(100 * share).round(1),
        )
        .sort(PLACE, maintain_order=True)
    )
