"""What units of work cost over time: lines of one compiler and its flags, and the steps on them."""

from __future__ import annotations

import itertools
import re
import textwrap
from typing import TYPE_CHECKING, Any

import polars as pl
from IPython.display import Markdown

from pgservers.errors import StudyError
from pgservers.order import version_in
from pgservers.shown import markdown
from pgservers.terminal import printable
from pgstudies.charts.series import series_chart
from pgstudies.records.counts import fullest_counts, units_counted
from pgstudies.records.reading import (
    built_with,
    fullest,
    list_records,
    readable_records,
    version_number,
)

from ..counting.frames import EXACT
from .bisection import LIMITS, WIDTH

if TYPE_CHECKING:
    import altair as alt

    from pgstudies.records.reading import Record

_MOST = 20
"""The number of steps that are listed in a terminal."""

_CHANGES = "https://github.com/postgres/postgres/compare/"
"""The address of the commits between two commits or tags."""

_COMMIT = r"^([0-9a-f]{10})[0-9a-f]{30}$"

NOT_KNOWN = "build not known"
"""Shown if compiler and flags are unknown."""

STEPS: dict[str, pl.DataType] = {
    **dict.fromkeys(("unit", "from", "to"), pl.String()),
    **dict.fromkeys(("before", "after", "percent"), pl.Float64()),
    "range": pl.String(),
}


def release_histories() -> list[Record]:
    """The fullest record of ``pgstudies history --releases``, and that of the study ``releases``.

    The first has a few units in every minor release, the second every unit in the major releases.
    """
    minor = fullest(record for record in _counted() if "releases" in record.info["parameters"])
    return [record for record in (minor, fullest_counts()) if record is not None]


def commit_histories() -> list[Record]:
    """The records of commits, newest first."""
    return [record for record in _counted() if "commits" in record.info["parameters"]]


def _counted() -> list[Record]:
    known = list_records("history").filter(pl.col("status") == "complete")
    return list(readable_records(known["path"].reverse()))


def lines_of(record: Record) -> pl.DataFrame:
    """The counts of each unit, without open transactions, in the order of time.

    Columns: unit, number (place of the point), arm (its name), point (its short name), version,
    built (compiler and flags), line, instructions.  A new line begins where compiler or flags
    change.
    """
    points: list[tuple[Any, ...]] = []
    seen: set[str] = set()
    line, last = "", ""
    for arm in record.info["arms"]:
        server = record.info.get("servers", {}).get(arm.get("server") or "")
        if arm["copy_of"] or arm["not_run"] or server is None:
            continue  # without a server of its own it is the reader's, and no point in time
        built = (arm.get("options") or {}).get("built") or built_with(server) or NOT_KNOWN
        if built != last:
            line = f"{built} (again, {_short(arm['name'])})" if built in seen else built
        last = built
        seen.add(built)
        version = version_number(server.get("version_text"))
        # A major release stands for the newest minor one, which is another one tomorrow.
        name = version if version.startswith(f"{arm['name']}.") else arm["name"]
        points.append((len(points), arm["name"], name, _short(name), version, built, line))
    texts = dict.fromkeys(["arm", "name", "point", "version", "built", "line"], pl.String())
    known = pl.DataFrame(points, schema={"number": pl.Int64(), **texts}, orient="row")
    counts = units_counted(record).filter(pl.col("open") == 0, pl.col("nested") == 0)
    order = {name: place for place, name in enumerate(counts["unit"].unique(maintain_order=True))}
    return (
        counts.join(known, on="arm")
        .sort(pl.col("unit").replace_strict(order, return_dtype=pl.Int64), "number")
        .with_columns(arm="name")
        .select("unit", "number", "arm", "point", "version", "built", "line", "instructions")
    )


def steps_of(lines: pl.DataFrame) -> pl.DataFrame:
    """The steps, the largest first: where a count changes by more than 0.1 % on one line.

    Columns: those of ``STEPS``; ``before`` and ``after`` are instructions of one unit, ``range`` is
    the address of what lies between.  Two neighbours on different lines are not compared.
    """
    rows = []
    for _, of_unit in lines.group_by("unit", maintain_order=True):
        for one, other in itertools.pairwise(of_unit.iter_rows(named=True)):
            before, after = one["instructions"], other["instructions"]
            if one["line"] != other["line"] or abs(after / before - 1) <= EXACT:
                continue
            percent = 100 * (after / before - 1)
            between = f"{_CHANGES}{_tag(one)}...{_tag(other)}"
            rows.append((one["unit"], one["arm"], other["arm"], before, after, percent, between))
    frame = pl.DataFrame(rows, schema=STEPS, orient="row")
    size = (pl.col("after") / pl.col("before")).log().abs()
    return frame.sort(size, descending=True, maintain_order=True)


def steps_table(steps: pl.DataFrame) -> pl.DataFrame:
    """The steps for a page: change, between (a link), unit, before, after."""
    names = pl.format("{} to {}", *(pl.col(n).str.replace(_COMMIT, "$1") for n in ("from", "to")))
    return steps.select(
        pl.format(
            "{}{} %",
            pl.when(pl.col("percent") > 0).then(pl.lit("+")).otherwise(pl.lit("")),
            pl.col("percent").round(1),
        ).alias("change"),
        pl.struct(text=names, href="range").alias("between"),
        "unit",
        pl.col("before", "after").round(0),
    )


def steps_in_words(steps: pl.DataFrame) -> Markdown:
    """The three largest of ``steps_of`` between minor and between major releases, with links."""
    major = pl.col("from", "to").str.extract(r"^(9\.\d+|\d+)")
    same = steps.select(major).select(pl.col("from") == pl.col("to")).to_series()
    parts = [("minor", steps.filter(same)), ("major", steps.filter(~same))]
    text = "\n".join(_part_in_words(name, found) for name, found in parts)
    return Markdown(text)  # type: ignore[no-untyped-call]


def _part_in_words(name: str, steps: pl.DataFrame) -> str:
    if steps.is_empty():
        return f"**Between {name} releases** no count changes by more than 0.1 %.\n"
    several = f"{steps.height} counts change by more than 0.1 %, most of all"
    what = several if steps.height > 1 else "one count changes by more than 0.1 %"
    lines = [
        f"- [{markdown(_short(row['from']))} to {markdown(_short(row['to']))}]({row['range']}), "
        f"{markdown(row['unit'])}: "
        f"{abs(row['percent']):.1f} % {'more' if row['percent'] > 0 else 'fewer'} instructions "
        f"({row['before']:,.0f}, then {row['after']:,.0f})"
        for row in steps.head(3).iter_rows(named=True)
    ]
    return "\n".join([f"**Between {name} releases** {what}:", "", *lines, ""])


def breaks_of(lines: pl.DataFrame) -> pl.DataFrame:
    """Where a line is interrupted by another build: from, to, built before, built after."""
    points = lines.select("number", "point", "line", "built").unique("number").sort("number")
    rows = [
        (one["point"], other["point"], one["built"], other["built"])
        for one, other in itertools.pairwise(points.iter_rows(named=True))
        if one["line"] != other["line"]
    ]
    columns = ["from", "to", "built before", "built after"]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()), orient="row")


def history_chart(lines: pl.DataFrame) -> alt.LayerChart | alt.FacetChart | pl.DataFrame:
    """Thousands of instructions of one unit over time, a line for each compiler and its flags.

    Raises StudyError where there is nothing to draw.
    """
    if lines.is_empty():
        raise StudyError("Nothing was counted, so there is no history to draw.")
    place = "commit" if lines["arm"].str.contains(_COMMIT).any() else "release"
    return series_chart(
        lines.with_columns(pl.col("instructions") / 1000).rename(
            {"point": place, "instructions": "thousands"}
        ),
        x=place,
        y="thousands",
        y_title="thousands of instructions",
        color="line",
        step="unit",
        description="Instructions of one unit of work over time; a line ends where compiler or "
        "flags change.",
    )


def history_text(lines: pl.DataFrame) -> str:
    """The steps and the breaks of a history, for a terminal."""
    units, points = lines["unit"].n_unique(), lines["number"].n_unique()
    steps = steps_of(lines)
    found = f"{units} units at {points} points: {steps.height} steps of more than 0.1 %."
    text = [found]
    for row in steps.head(_MOST).iter_rows(named=True):
        before, after = (f"{row[name]:,.0f}" for name in ("before", "after"))
        place = f"{_short(row['from'])} -> {_short(row['to'])}"
        text += [f"  {row['percent']:+7.1f} %  {place}  {row['unit']}"]
        text += [f"             {before} -> {after}"]
    if steps.height > _MOST:
        text.append(f"  and {steps.height - _MOST} smaller ones")
    for row in breaks_of(lines).iter_rows(named=True):
        text += textwrap.wrap(
            f"Not compared: {row['from']} -> {row['to']}, built by {row['built before']} and "
            f"{row['built after']}.",
            WIDTH,
        )
    text += textwrap.wrap(LIMITS, WIDTH)
    return "\n".join(map(printable, text))


def _short(name: str) -> str:
    """A commit's first ten digits; a release as it is."""
    return re.sub(_COMMIT, r"\1", name)


def _tag(row: dict[str, str]) -> str:
    """A commit's name, or the tag of a release: REL_18_1, REL9_3_5; the branch of a development."""
    if re.fullmatch(_COMMIT, row["arm"]):
        return row["arm"]
    version = version_in(row["version"])
    if version.endswith("devel"):
        return "master"
    parts = re.findall(r"\d+|[a-z]+\d*", version)
    begin = "REL" if int(parts[0]) < 10 else "REL_"
    return begin + "_".join(parts).upper()
