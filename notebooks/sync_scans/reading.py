"""What the charts and tables of ``sync_scans.ipynb`` show, shaped from the samples of its record.

``in_tables`` is an expression: a number of bytes in multiples of the table.  ``scans`` is how many
scans ran at once.  What is not sorted here is in no order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

import pgstudies as pg

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COUNTERS = {
    "read_bytes": "processes",
    "disk_bytes": "whole disk",
    "stat_io_bytes": "pg_stat_io",
}
STEPPED = ["began_ahead", "together", "apart", "apart_most"]
ROOMY_IDEAL = {"warm": [0.0, 0.0], "cold": [1.0, 1.0]}


def runs_of_the_post(published: pl.DataFrame) -> pl.DataFrame:
    """How many runs there are of each machine, scheduler and patches, and their offsets."""
    offsets = pl.col("sync_seqscan_offset").drop_nulls().unique().sort().cast(pl.String)
    return published.group_by(
        "machine", "scheduler", "patches", maintain_order=True
    ).agg(runs=pl.len(), offsets=offsets.str.join(", "))


def tables_read(in_tables: pl.Expr) -> dict[str, pl.Expr]:
    """The median, least and most of bytes read, to two digits, for a group or a frame."""
    return {
        "tables": in_tables.median().round(2),
        "least": in_tables.min().round(2),
        "most": in_tables.max().round(2),
    }


def places(walks: pl.DataFrame) -> pl.DataFrame:
    """Where scans were: arm, case, step, seconds, scan (from 1) and page."""
    began = pl.col("started_at").min().over("arm", "case", "step")
    since = pl.col("started_at") - began
    return (
        walks.filter(pl.col("metric") == "block")
        .with_columns(seconds=since.dt.total_microseconds() / 1e6)
        .select("arm", "case", "step", "seconds", scan="iteration", page="value")
    )


def walking_cost(samples: pl.DataFrame) -> pl.DataFrame:
    """Time and bytes of walking scans, relative to those that count, by case, arm and scans.

    Empty where not both are known.
    """
    metrics, place = (["duration_s", "read_bytes"], ["case", "arm", "iteration"])
    walking, counting = (
        pg.wide(samples.filter(pl.col("step") == step), metrics, place)
        for step in ("walk", "scan")
    )
    times, read = (
        (pl.col(metric) / pl.col(f"{metric}_counting")).round(2) for metric in metrics
    )
    return (
        walking.join(counting, on=place, suffix="_counting")
        .select(
            "case",
            "arm",
            pl.col("iteration").alias("scans"),
            times.alias("time, walking/counting"),
            read.alias("bytes, walking/counting"),
        )
        .drop_nulls()
    )


def by_count(scanned: pl.DataFrame, in_tables: pl.Expr) -> pl.DataFrame:
    """Tables read, and low and high, by case, arm and scans."""
    return (
        scanned.filter(pl.col("metric") == "read_bytes")
        .group_by("case", "arm", scans="iteration")
        .agg(pg.spread("tables", in_tables))
        .with_columns(pl.col("scans").cast(pl.Int64))
    )


def ideal(cases: Iterable[str], *, most: int, stagger: float) -> pl.DataFrame:
    """Tables that 1 scan and ``most`` scans read where none of them loses step, by case."""
    in_step = [1.0, 1 + stagger * (most - 1)]
    return pl.concat(
        pl.DataFrame(
            {"case": case, "scans": [1, most], "tables": ROOMY_IDEAL.get(case, in_step)}
        )
        for case in cases
    )


def by_counter(scanned: pl.DataFrame, in_tables: pl.Expr) -> pl.DataFrame:
    """Tables read by case, arm and scans, as each of three counters has them."""
    return (
        pg.wide(
            scanned.with_columns(value=in_tables),
            list(COUNTERS),
            ["case", "arm", "iteration"],
        )
        .with_columns(pl.col(list(COUNTERS)).round(2))
        .rename(COUNTERS | {"iteration": "scans"})
    )


def slowdown(timed: pl.DataFrame, margin: float) -> pl.DataFrame:
    """The effects of scans in company against lone ones, by arm, case, step and metric."""
    by = ["arm", "case", "step", "metric"]
    return pg.paired_effects(
        pg.block_values(timed, by=[*by, "iteration"]),
        baseline=1,
        key="iteration",
        by=by,
        margin=margin,
    ).with_columns(scans=pl.col("candidate").cast(pl.Int64))


def with_lone_scans(slowdown: pl.DataFrame) -> pl.DataFrame:
    """The ratio by case, arm and scans, with that of a lone scan, which is 1; none is unknown."""
    one = pl.lit(1.0)
    lone = slowdown.select("case", "arm").unique()
    known = slowdown.filter(pl.col("ratio").is_not_null())
    return pl.concat(
        [
            lone.with_columns(scans=pl.lit(1, pl.Int64), ratio=one, low=one, high=one),
            known.select(
                "case",
                "arm",
                "scans",
                "ratio",
                pl.coalesce("low", "ratio"),
                pl.coalesce("high", "ratio"),
            ),
        ]
    )


def by_stagger(
    samples: pl.DataFrame, in_tables: pl.Expr, *, count: int, usual: float
) -> pl.DataFrame:
    """Tables read and seconds taken by ``count`` scans, by the part of a scan between them.

    ``usual`` is the stagger of the step "scan", and the mean of random ones.
    """
    step = pl.col("step")
    begun = samples.filter(
        pl.col("iteration") == count, step.str.contains("stagger") | (step == "scan")
    ).with_columns(
        stagger=pl.when(step == "scan")
        .then(pl.lit(f"{usual}"))
        .otherwise(step.str.strip_prefix("stagger ").str.strip_suffix(" stagger"))
    )
    part = pl.col("stagger").cast(pl.Float64, strict=False).fill_null(usual)
    read = begun.filter(pl.col("metric") == "read_bytes")
    timed = begun.filter(pl.col("metric") == "duration_s")
    seconds = pl.col("value").median().round(2).alias("seconds per scan")
    return (
        read.group_by("stagger")
        .agg(scans=pl.lit(count), **tables_read(in_tables), blocks=pl.len())
        .with_columns(ideal=1 + part * (count - 1))
        .join(timed.group_by("stagger").agg(seconds), on="stagger")
        .sort("stagger")
    )


def drift(walks: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Medians of where scans began and how far apart they were, by the columns of ``by``."""
    return pg.wide(walks, STEPPED, by)


def seconds_and_tables(samples: pl.DataFrame, in_tables: pl.Expr) -> pl.DataFrame:
    """The median value, by arm, scans and what it is: seconds per scan or tables read."""
    timed = pl.col("metric") == "duration_s"
    return (
        samples.filter(pl.col("metric").is_in(["duration_s", "read_bytes"]))
        .with_columns(
            value=pl.when(timed).then("value").otherwise(in_tables),
            what=pl.when(timed)
            .then(pl.lit("seconds per scan"))
            .otherwise(pl.lit("tables read")),
        )
        .group_by("arm", "what", scans="iteration")
        .agg(pl.col("value").median().round(2))
    )


def of_pairs(pairs: pl.DataFrame, in_tables: pl.Expr) -> pl.DataFrame:
    """Tables that two scans read, counting and walking, and how they drifted apart, by arm."""
    read = pairs.filter(pl.col("metric") == "read_bytes")
    walking = read.filter(pl.col("step") == "walk")
    return (
        read.filter(pl.col("step") == "scan")
        .group_by("arm")
        .agg(**tables_read(in_tables), blocks=pl.len())
        .join(
            walking.group_by("arm").agg(walking=in_tables.median().round(2)),
            on="arm",
            how="left",
        )
        .join(
            drift(pairs.filter(pl.col("step") == "walk"), ["arm"]), on="arm", how="left"
        )
    )


def by_offset(behind: pl.DataFrame, in_tables: pl.Expr) -> pl.DataFrame:
    """Tables read by both scans, and low and high, by offset: a part of shared buffers, as text."""
    return (
        behind.filter(pl.col("metric") == "read_bytes")
        .group_by("iteration")
        .agg(pg.spread("tables", in_tables))
        .sort("iteration")
        .with_columns(
            offset=(pl.col("iteration") / 100).cast(pl.String), arm=pl.lit("behind")
        )
    )


def with_both_times(behind: pl.DataFrame, in_tables: pl.Expr) -> pl.DataFrame:
    """Medians by offset: tables that both scans read, and what either of them took."""
    is_read = pl.col("metric") == "read_bytes"
    shown = {
        "read_bytes": "tables read",
        "leader_s": "first, s",
        "follower_s": "second, s",
    }
    return (
        pg.wide(
            behind.with_columns(
                value=pl.when(is_read).then(in_tables).otherwise("value")
            ),
            list(shown),
            ["iteration"],
        )
        .sort("iteration")
        .select(
            offset=pl.col("iteration") / 100,
            **{name: pl.col(metric).round(3) for metric, name in shown.items()},
        )
    )


def saved_by_offset(read: pl.DataFrame, margin: float) -> list[pl.DataFrame]:
    """The effects of beginning so far behind against not at all, on what both scans read.

    None where not both were measured.
    """
    if not set(read["iteration"]) > {0}:
        return []
    by = ["arm", "case", "step", "metric"]
    values = pg.block_values(read, by=[*by, "iteration"])
    how: dict[str, Any] = {"key": "iteration", "by": by, "margin": margin}
    return [pg.paired_effects(values, baseline=0, **how)]


def on_drives(
    timed: pl.DataFrame, count: int, arms: tuple[str, str] = ("off", "on")
) -> pl.DataFrame:
    """How ``count`` scans fare on each drive, in seconds per scan and ratios, by case.

    ``arms`` are those out of step, which is off below, and in step, which is on.
    ``gain`` is the time out of step relative to that in step, the median of blocks, with the
    ``least`` and the ``most``; ``hindered`` the time in step relative to a lone scan.
    """
    by, (apart, together) = ["case", "block"], arms
    lone, off, on = (
        timed.filter(pl.col("arm") == arm, pl.col("iteration") == scans).select(
            *by, value="value"
        )
        for arm, scans in ((together, 1), (apart, count), (together, count))
    )
    gain = pl.col("off") / pl.col("on")
    found = (
        on.rename({"value": "on"})
        .join(off.rename({"value": "off"}), on=by)
        .join(lone.rename({"value": "lone"}), on=by)
        .group_by("case", maintain_order=True)
        .agg(
            pl.col("lone", "off", "on").median().round(2),
            gain=gain.median().round(2),
            least=gain.min().round(2),
            most=gain.max().round(2),
            hindered=(pl.col("on") / pl.col("lone")).median().round(2),
            blocks=pl.len(),
        )
    )
    about_two = pl.col("gain").is_between(1.5, 3)
    words = pl.when(about_two).then(pl.lit("1.5 to 3"))
    return found.with_columns(words.otherwise(pl.lit("another")).alias("gain is")).sort(
        pl.col("case") != "cfq", "case"
    )


def copies_apart(
    scanned: pl.DataFrame, repeat: str, *, case: str, by: Sequence[str]
) -> pl.DataFrame:
    """The effects of the second copy of the arm off against the first, alone and in company.

    No rows where the copy was not measured.
    """
    pair = scanned.filter(
        pl.col("case") == case,
        pl.col("arm").is_in(["off", repeat]),
        pl.col("metric").is_in(["duration_s", "read_bytes"]),
    )
    if pair["arm"].n_unique() < 2:
        columns: dict[str, pl.DataType] = dict.fromkeys(
            ["ratio", "low", "high"], pl.Float64()
        )
        columns |= {"iteration": pl.Int64(), "metric": pl.String()}
        return pl.DataFrame(schema=columns)
    return pg.paired_effects(pg.round_values(pair, by=by), baseline="off", by=by)


def reason_not_hindered(drives: pl.DataFrame) -> str | None:
    """Why nothing is known of scans in step under a scheduler that hinders them, or None."""
    hindered = drives.filter(pl.col("case") == "cfq")["hindered"]
    if hindered.is_empty():
        return "this run models no drive of 2007: ask for drives = cfq"
    if hindered[0] < 1.1:
        return f"the modelled CFQ does not hinder scans in step: {hindered[0]:.2f} times a lone one"
    return None


def in_step(scanned: pl.DataFrame, *, case: str, arm: str, count: int) -> pl.DataFrame:
    """From the first beginning to the last end (s), and bytes read, of so many scans in step."""
    of_them = scanned.filter(
        pl.col("case") == case, pl.col("arm") == arm, pl.col("iteration") == count
    )
    return pg.wide(of_them, ["makespan_s", "read_bytes"], ["block", "turn"])


def beginnings(walks: pl.DataFrame) -> dict[str, set[float]]:
    """The pages at which scans began, as a set for each arm."""
    began = walks.filter(pl.col("metric") == "began_at")
    by_arm = began.group_by("arm").agg("value").iter_rows()
    return {arm: set(pages) for arm, pages in by_arm}


def reason_no_chance(apart: float | None, most: int) -> str | None:
    """Why it cannot tell what synchronization does, by the tables that scans out of step read."""
    if apart is None:
        return "memory and disk could not be made small and slow here"
    if apart <= most / 2:
        return f"{most} scans out of step read only {apart:.1f} tables, so memory was not small"
    return None


def reason_few(count: int, stagger: float) -> str | None:
    """Why so few scans cannot be twice as fast in step as out of it."""
    gain = count / (1 + stagger * (count - 1))  # at most, where all of it is reading
    if gain > 2.5:
        return None
    return f"not at this size: {count} scans gain at most {gain:.1f} times"


def reason_small(table_bytes: int, window: int, margin: float) -> str | None:
    """Why no scan's time is known to within the margin, the table being so small.

    ``window`` is what the kernel reads ahead (bytes): one where a scan begins, one where it ends.
    """
    share = 2 * window / table_bytes
    if share <= margin:
        return None
    return (
        f"not at this size: the kernel reads {window / 2**20:.0f} MB ahead, and two such "
        f"windows are {100 * share:.0f} % of the table"
    )


def reason_no_cores(in_step: pl.DataFrame, bytes_per_second: float) -> str | None:
    """Why the processor, and not the disk, decided how long scans took; a row for each group."""
    at_work = pl.col("read_bytes") / bytes_per_second / pl.col("makespan_s")
    share = in_step.select(at_work.median()).item()
    if share is None or share >= 0.8:
        return None
    return f"the disk was at work {100 * share:.0f} % of the time: cores were too few or too busy"
