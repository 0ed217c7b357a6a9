"""What the charts and tables of ``sync_scans.ipynb`` show, shaped from the samples of its record.

``in_tables`` is an expression: a number of bytes in multiples of the table.  ``scans`` is how many
scans ran at once.  What is not sorted here is in no order.
"""

from __future__ import annotations

import polars as pl

import pgstudies as pg

COUNTERS = {
    "read_bytes": "processes",
    "disk_bytes": "whole disk",
    "stat_io_bytes": "pg_stat_io",
}
STEPPED = ["began_ahead", "together", "apart", "apart_most"]
ROOMY_IDEAL = {"warm": [0.0, 0.0], "cold": [1.0, 1.0]}


def tables_read(in_tables):
    """The median, least and most of bytes read, to two digits, for a group or a frame."""
    return {
        "tables": in_tables.median().round(2),
        "least": in_tables.min().round(2),
        "most": in_tables.max().round(2),
    }


def places(walks):
    """Where scans were: arm, case, step, seconds, scan (from 1) and page."""
    began = pl.col("started_at").min().over("arm", "case", "step")
    since = pl.col("started_at") - began
    return (
        walks.filter(pl.col("metric") == "block")
        .with_columns(seconds=since.dt.total_microseconds() / 1e6)
        .select(
            "arm",
            "case",
            "step",
            "seconds",
            scan="iteration",
            page="value",
        )
    )


def walking_cost(samples):
    """Time and bytes of walking scans, relative to those that count, by case, arm and scans.

    Empty where not both are known.
    """
    value = pl.col("value")
    compared = (
        samples.filter(
            pl.col("step").is_in(["walk", "scan"]),
            pl.col("metric").is_in(["duration_s", "read_bytes"]),
        )
        .group_by("case", "arm", "metric", scans="iteration")
        .agg(
            walking=value.filter(pl.col("step") == "walk").median(),
            counting=value.filter(pl.col("step") == "scan").median(),
        )
        .drop_nulls()
        .with_columns(
            ratio=(pl.col("walking") / pl.col("counting")).round(2)
        )
        .pivot("metric", index=["case", "arm", "scans"], values="ratio")
    )
    if not {"duration_s", "read_bytes"} <= set(compared.columns):
        return pl.DataFrame()
    return compared.select(
        "case",
        "arm",
        "scans",
        pl.col("duration_s").alias("time, walking/counting"),
        pl.col("read_bytes").alias("bytes, walking/counting"),
    )


def by_count(scanned, in_tables):
    """Tables read, and low and high, by case, arm and scans."""
    return (
        scanned.filter(pl.col("metric") == "read_bytes")
        .group_by("case", "arm", scans="iteration")
        .agg(pg.spread("tables", in_tables))
        .with_columns(pl.col("scans").cast(pl.Int64))
    )


def ideal(cases, *, most, stagger):
    """Tables that 1 scan and ``most`` scans read where none of them loses step, by case."""
    in_step = [1.0, 1 + stagger * (most - 1)]
    return pl.concat(
        pl.DataFrame(
            {
                "case": case,
                "scans": [1, most],
                "tables": ROOMY_IDEAL.get(case, in_step),
            }
        )
        for case in cases
    )


def by_counter(scanned, in_tables):
    """Tables read by case, arm and scans, as each of three counters has them."""
    return (
        scanned.filter(pl.col("metric").is_in(list(COUNTERS)))
        .group_by("case", "arm", "metric", scans="iteration")
        .agg(in_tables.median().round(2).alias("tables"))
        .pivot(
            "metric",
            on_columns=list(COUNTERS),
            index=["case", "arm", "scans"],
            values="tables",
        )
        .rename(COUNTERS)
    )


def with_lone_scans(slowdown):
    """The ratio by case, arm and scans, with that of a lone scan, which is 1; none is unknown."""
    one = pl.lit(1.0)
    lone = slowdown.select("case", "arm").unique()
    known = slowdown.filter(pl.col("ratio").is_not_null())
    return pl.concat(
        [
            lone.with_columns(
                scans=pl.lit(1, pl.Int64), ratio=one, low=one, high=one
            ),
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


def by_stagger(samples, in_tables, *, count, usual):
    """Tables read and seconds taken by ``count`` scans, by the part of a scan between them.

    ``usual`` is the stagger of the step "scan", and the mean of random ones.
    """
    step = pl.col("step")
    begun = samples.filter(
        pl.col("iteration") == count,
        step.str.contains("stagger") | (step == "scan"),
    ).with_columns(
        stagger=pl.when(step == "scan")
        .then(pl.lit(f"{usual}"))
        .otherwise(
            step.str.strip_prefix("stagger ").str.strip_suffix(" stagger")
        )
    )
    part = (
        pl.col("stagger").cast(pl.Float64, strict=False).fill_null(usual)
    )
    read = begun.filter(pl.col("metric") == "read_bytes")
    timed = begun.filter(pl.col("metric") == "duration_s")
    seconds = pl.col("value").median().round(2).alias("seconds per scan")
    return (
        read.group_by("stagger")
        .agg(
            scans=pl.lit(count), **tables_read(in_tables), blocks=pl.len()
        )
        .with_columns(ideal=1 + part * (count - 1))
        .join(timed.group_by("stagger").agg(seconds), on="stagger")
        .sort("stagger")
    )


def drift(walks, by):
    """Medians of where scans began and how far apart they were, by the columns of ``by``."""
    return (
        walks.filter(pl.col("metric").is_in(STEPPED))
        .group_by(*by, "metric")
        .agg(pl.col("value").median())
        .pivot("metric", on_columns=STEPPED, index=by, values="value")
    )


def seconds_and_tables(samples, in_tables):
    """The median value, by arm, scans and what it is: seconds per scan or tables read."""
    timed = pl.col("metric") == "duration_s"
    return (
        samples.filter(
            pl.col("metric").is_in(["duration_s", "read_bytes"])
        )
        .with_columns(
            value=pl.when(timed).then("value").otherwise(in_tables),
            what=pl.when(timed)
            .then(pl.lit("seconds per scan"))
            .otherwise(pl.lit("tables read")),
        )
        .group_by("arm", "what", scans="iteration")
        .agg(pl.col("value").median().round(2))
    )


def of_pairs(pairs, in_tables):
    """Tables that two scans read, counting and walking, and how they drifted apart, by arm."""
    read = pairs.filter(pl.col("metric") == "read_bytes")
    walking = read.filter(pl.col("step") == "walk")
    return (
        read.filter(pl.col("step") == "scan")
        .group_by("arm")
        .agg(**tables_read(in_tables), blocks=pl.len())
        .join(
            walking.group_by("arm").agg(
                walking=in_tables.median().round(2)
            ),
            on="arm",
            how="left",
        )
        .join(
            drift(pairs.filter(pl.col("step") == "walk"), ["arm"]),
            on="arm",
            how="left",
        )
    )


def by_offset(behind, in_tables):
    """Tables read by both scans, and low and high, by offset: a part of shared buffers, as text."""
    return (
        behind.filter(pl.col("metric") == "read_bytes")
        .group_by("iteration")
        .agg(pg.spread("tables", in_tables))
        .sort("iteration")
        .with_columns(
            offset=(pl.col("iteration") / 100).cast(pl.String),
            arm=pl.lit("behind"),
        )
    )


def in_step(scanned, *, case, count):
    """From the first beginning to the last end (s), and bytes read, of so many scans in step."""
    return scanned.filter(
        pl.col("case") == case,
        pl.col("arm") == "on",
        pl.col("iteration") == count,
    ).pivot(
        "metric",
        on_columns=["makespan_s", "read_bytes"],
        index=["block", "turn"],
        values="value",
    )


def beginnings(walks):
    """The pages at which scans began, as a set for each arm."""
    began = walks.filter(pl.col("metric") == "began_at")
    by_arm = began.group_by("arm").agg("value").iter_rows()
    return {arm: set(pages) for arm, pages in by_arm}
