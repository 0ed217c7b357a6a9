"""What the charts and tables of ``sync_scans.ipynb`` show, shaped from the samples of its record.

``in_tables`` is an expression: a number of bytes in multiples of the table.  ``scans`` is how many
scans ran at once.  What is not sorted here is in no order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

import pgstudies as pg
from pgservers.programs.slow_disk import READ_AHEAD_BYTES

from .arms import COMMITS, JUDGING, crowd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgstudies.records.reading import Record

CASES = ["warm", "cold", "small memory", "small and slow", "direct"]
SLOW = "small and slow"
MAIN = ["off", "on", "on, small ring", "no ring", "direct, off", "direct"]
ALIKE = 0.1
SAME = ["case", "iteration", "step", "metric"]
DURATION = pl.col("metric") == "duration_s"
BY_BYTES = pl.col("metric") == "read_bytes"
OF_PAIRS = pl.col("case") == "direct", pl.col("iteration") == 2
TOGETHER = pl.col("together").round(2)
OF_COMMIT = pl.col("arm").is_in(list(COMMITS))
OUT_OF_STEP = [name for name, (_, sync, _) in COMMITS.items() if sync == "off"]
CASE_AND_SCANS = pl.format("{}, {} scans", "case", "iteration")
NO_RATIO = (
    "what an offset saves depends on the ratio of shared buffers to the table, which the post "
    "does not give; here they hold a quarter of it"
)
NOT_RUN = {
    "offset": "no scan began so far behind another (offsets = 0, 0.5)",
    "whole offset": "no scan began so far behind another (offsets = 0, 1)",
}

COUNTERS = {
    "read_bytes": "processes",
    "disk_bytes": "whole disk",
    "stat_io_bytes": "pg_stat_io",
}
STEPPED = ["began_ahead", "together", "apart", "apart_most"]
ROOMY_IDEAL = {"warm": [0.0, 0.0], "cold": [1.0, 1.0]}


@dataclass(frozen=True)
class Run:
    """What was measured, and in which order it is shown.

    Attributes:
        samples: All samples.
        table_pages: Pages of the table.
        most: The most scans at once.
        crowd: The most of those that are compared with a second copy of the baseline.
        slow: The machine that is small and slow, or the first one that was played.
        judging: The arms that judge, out of step and in step.
        by_arm: Sorts by the arm.
        main: Whether a row is of the arms that charts show.
        of_post: Whether a row is of the post's arms.
        repeat: The second copy of the baseline.

    """

    samples: pl.DataFrame
    table_pages: int
    most: int
    crowd: int
    slow: str
    judging: tuple[str, str]
    by_arm: pl.Expr
    main: pl.Expr
    of_post: pl.Expr
    repeat: str

    @property
    def in_tables(self) -> pl.Expr:
        """A number of bytes in multiples of the table."""
        return pl.col("value") / (8192 * self.table_pages)

    @property
    def slow_first(self) -> pl.Expr:
        """Sorts the slow machine before the others."""
        return pl.col("case") != self.slow

    @property
    def by_case(self) -> pl.Expr:
        """Sorts by the machine, the slowest first."""
        return pl.col("case").cast(pl.Enum(CASES[::-1]))

    @property
    def scanned(self) -> pl.DataFrame:
        """The samples of scans that count."""
        return self.samples.filter(pl.col("step") == "scan")

    @property
    def walks(self) -> pl.DataFrame:
        """Those of scans that tell where they are."""
        return self.samples.filter(pl.col("step").is_in(["walk", "walk with work"]))

    @property
    def behind(self) -> pl.DataFrame:
        """Those of scans by ranges of pages, one behind another."""
        return self.samples.filter(pl.col("step") == "behind")

    @property
    def drives(self) -> pl.DataFrame:
        """The times of scans on modelled drives."""
        return self.samples.filter(pl.col("step") == "drive", DURATION)


def run_of(study: pg.Study) -> Run:
    """What a record measured."""
    record, samples = study.record, study.samples
    pages = record.samples.filter(pl.col("metric") == "pages")["value"]
    counts = record.parameters["scans"]
    cases = [case for case in CASES if case in samples["case"]]
    scanned = samples.filter(pl.col("step") == "scan")["arm"].unique()
    repeat = str(record.repeat)
    return Run(
        samples=samples,
        table_pages=int(max(pages)),
        most=max(counts),
        crowd=crowd(counts),
        slow=SLOW if SLOW in cases else (cases or CASES)[0],
        judging=JUDGING if set(JUDGING) <= {*scanned} else ("off", "on"),
        by_arm=pl.col("arm").cast(pl.Enum(record.arms["name"])),
        main=pl.col("arm").is_in([*MAIN, repeat]),
        of_post=pl.col("arm").is_in([*MAIN[:3], repeat]),
        repeat=repeat,
    )


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


def by_machine(walked: pl.DataFrame, run: Run) -> pl.DataFrame:
    """The rows of ``places`` in the order of machines and arms, and what they are of."""
    with_work = pl.col("case") + pl.col("step").str.strip_prefix("walk")
    named = walked.with_columns(what=pl.format("{}: {}", with_work, "arm"))
    return named.sort(run.by_case, run.by_arm, maintain_order=True)


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


def ideal(tables: pl.DataFrame, most: int, stagger: float) -> pl.DataFrame:
    """Tables that 1 scan and ``most`` scans read where none of them loses step, by case.

    The cases are those of ``tables``.
    """
    in_step = [1.0, 1 + stagger * (most - 1)]
    rows = [
        (case, scans, read)
        for case in tables["case"].unique(maintain_order=True)
        for scans, read in zip((1, most), ROOMY_IDEAL.get(case, in_step), strict=True)
    ]
    return pl.DataFrame(rows, schema=["case", "scans", "tables"], orient="row")


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


def slowdown_table(slowdown: pl.DataFrame, run: Run) -> pl.DataFrame:
    """The ratios to a lone scan by machine and arm, a column for each number of scans."""
    known = slowdown.filter(pl.col("ratio").is_not_null())
    return (
        known.select("case", "arm", "scans", text=pg.with_interval())
        .pivot("scans", index=["case", "arm"], values="text")
        .sort(run.by_case, run.by_arm)
    )


def rounds_of(run: Run) -> pl.DataFrame:
    """What scans in company took and read, round by round."""
    company = run.scanned.filter(pl.col("iteration") > 1, DURATION | BY_BYTES)
    return pg.round_values(company, by=SAME)


def values_of(run: Run) -> pl.DataFrame:
    """The seconds of scans in company, of the post's arms, a value for each block."""
    company = run.scanned.filter(pl.col("iteration") > 1, DURATION, run.of_post)
    return pg.block_values(company, by=SAME)


def in_order(effects: pl.DataFrame, run: Run) -> pl.DataFrame:
    """The effects by machine, the slow one first, and by number of scans."""
    case = pl.col("case").cast(pl.Enum(CASES))
    return effects.sort(run.slow_first, case, "iteration", maintain_order=True)


def against(values: pl.DataFrame, baseline: str) -> list[pl.DataFrame]:
    """The effects of all other arms of ``values`` against one; none where it is not there."""
    if baseline not in values["arm"]:
        return []
    return [pg.paired_effects(values, baseline=baseline, by=SAME)]


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


def walked_in_step(run: Run) -> pl.DataFrame:
    """How far apart scans in step were, by machine, step and arm."""
    found = drift(run.walks, ["case", "step", "arm"]).filter(
        ~pl.col("arm").str.contains("off"), ~pl.col("arm").is_in(OUT_OF_STEP)
    )
    names = {"began_ahead": "began so many pages ahead", "apart_most": "most apart"}
    ordered = found.sort(run.slow_first, "case", run.by_arm)
    return ordered.with_columns(TOGETHER).rename(names)


def with_work(run: Run) -> pl.DataFrame:
    """What scans that hash every row took and read, by number of scans."""
    worked = run.samples.filter(pl.col("step") == "scan with work")
    found = seconds_and_tables(worked, run.in_tables)
    ordered = found.sort("what", "scans", run.by_arm)
    return ordered.pivot("arm", index=["what", "scans"], values="value")


def schedulers(run: Run, names: Sequence[str]) -> pl.DataFrame:
    """What scans took and read under the schedulers of these names, and the disk's own."""
    arms = [f"{sync}, {name}" for sync in ("off", "on") for name in names]
    scanned = run.scanned.filter(
        pl.col("case") == "small memory", pl.col("arm").is_in(["off", "on", *arms])
    )
    found = seconds_and_tables(scanned, run.in_tables)
    ordered = found.sort("what", "scans", run.by_arm)
    return ordered.pivot("scans", index=["what", "arm"], values="value")


def releases(record: Record, run: Run, slowdown: pl.DataFrame) -> pl.DataFrame:
    """Two scans on each release, on the slow machine and with direct I/O."""
    own = pl.col("server") == record.info["server"]["version_text"]
    is_commit = pl.col("name").is_in(list(COMMITS))
    arms = record.arms.filter(~own, ~is_commit)["name"].to_list()
    time = pg.with_interval().alias("time, relative to a lone scan")
    times = slowdown.filter(pl.col("scans") == 2).select("case", "arm", time)
    read = run.scanned.filter(
        BY_BYTES,
        pl.col("arm").is_in(["off", "on", "direct, off", "direct", *arms]),
        pl.col("iteration") == 2,
        pl.col("case").is_in([run.slow, "direct"]),
    )
    return (
        read.group_by("case", "arm")
        .agg(**tables_read(run.in_tables))
        .join(times, on=["case", "arm"], how="left")
        .sort(run.slow_first, "case", run.by_arm)
    )


def commits(run: Run, effects: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """What scans took and read on the commits' servers, and the effects; none without them."""
    scanned = run.scanned.filter(OF_COMMIT)
    if scanned.is_empty():
        return []
    found = seconds_and_tables(scanned, run.in_tables)
    ordered = found.sort("what", "scans", run.by_arm)
    scans = pl.col("iteration").alias("scans")
    return [
        ordered.pivot("arm", index=["what", "scans"], values="value"),
        *(pg.effect_table(e.filter(DURATION), scans, "candidate") for e in effects),
    ]


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


def sharing(rounds: pl.DataFrame, effects: pl.DataFrame) -> pl.DataFrame:
    """The bytes of two scans with direct I/O, in step against out of step.

    No rows without direct I/O, with the columns of ``effects``.
    """
    pairs = rounds.filter(*OF_PAIRS, BY_BYTES)
    found = against(pairs, "direct, off")
    return found[0] if found else effects.clear()


def report(record: Record, run: Run, pairs: pl.DataFrame) -> str:
    """What two scans read with direct I/O as text for a bug report; empty without it."""
    if pairs.is_empty():
        return ""
    used, version = record.parameters, record.info["server"]["version_text"]
    lines = [
        f"{version}, debug_io_direct=data, shared_buffers={used['buffers_mb']}MB,",
        f"table of {run.table_pages} pages; two count(*), the second begun after {used['stagger']}",
        "of a scan; tables read from the device, of 1 ideal + stagger:",
        "",
        f"{'arm':32}{'median':>8}{'least':>8}{'most':>8}{'together':>10}",
    ]
    for row in pairs.iter_rows(named=True):
        part = row["together"]
        near = "" if part is None else f"{100 * part:.0f} %"
        told = f"{row['arm']:32}{row['tables']:8}{row['least']:8}{row['most']:8}"
        lines.append(f"{told}{near:>10}")
    return "".join(f"{line}\n" for line in lines)


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


def judged(
    run: Run,
    rounds: pl.DataFrame,
    slowed: pl.DataFrame,
    found: Sequence[pl.DataFrame],
) -> list[pl.DataFrame]:
    """The effects that judge the claims, those of lone scans and of scans in company gated.

    ``slowed`` (by ``slowdown``) and ``found`` are those that the page shows.
    """
    company, alone = [*found], [slowed]
    of_ring = rounds.filter(
        DURATION | BY_BYTES, pl.col("arm").is_in(["on", "on, small ring"])
    )
    if "on, small ring" in of_ring["arm"]:
        company.append(pg.paired_effects(of_ring, baseline="on", by=SAME, margin=ALIKE))
    if run.drives.height:
        drives = pg.round_values(run.drives.filter(pl.col("iteration") > 1), by=SAME)
        company += against(drives.filter(~OF_COMMIT), "off")
        company += against(drives.filter(OF_COMMIT), JUDGING[0])
        alone.append(slowdown(run.drives, ALIKE))
    copies = copies_apart(run.scanned, run.repeat, case=run.slow, by=SAME)
    is_lone = pl.col("iteration") == 1
    return [
        pg.gated_by(pl.concat(alone), copies.filter(is_lone)),
        *(
            pg.gated_by(each, copies.filter(~is_lone))
            for each in company
            if each.height
        ),
        *saved_by_offset(run.behind.filter(BY_BYTES), ALIKE),
    ]


def tables_of(tables: pl.DataFrame, arm: str, scans: int) -> float | None:
    """The tables that so many scans of ``arm`` read on the machine that is small and slow."""
    found = tables.filter(
        pl.col("case") == SLOW, pl.col("arm") == arm, pl.col("scans") == scans
    )
    return next(iter(found["tables"]), None)


def conditions(record: Record, run: Run, tables: pl.DataFrame) -> dict[str, str | None]:
    """Why a claim is not judged, by its id; None where it is."""
    used, (off, on) = record.parameters, run.judging
    no_chance = reason_no_chance(tables_of(tables, off, run.most), run.most)
    is_modelled = record.info.get("limits") == "modelled"
    of_kernel = record.info["host"].get("device_read_ahead_bytes") or 0
    window = READ_AHEAD_BYTES if is_modelled else of_kernel
    small = reason_small(8192 * run.table_pages, window, ALIKE)
    together = in_step(run.scanned, case=SLOW, arm=on, count=run.most)
    no_cores = reason_no_cores(together, 1e6 * used["read_mb"])
    few = reason_few(run.most, used["stagger"])
    drives = on_drives(run.drives, run.crowd, run.judging)
    return {
        "as if alone": no_chance or small or no_cores,
        "twice as good": reason_not_hindered(drives),
        "with the ring": no_chance,
        "with the ring, time": no_chance,
        "many scans": few or no_chance,
        "offset": NO_RATIO,
        "whole offset": NO_RATIO,
    }


def answers(run: Run, tables: pl.DataFrame) -> dict[str, bool | None]:
    """Answers that rest on bytes and pages; None where they are not known."""
    apart, together = (tables_of(tables, arm, run.most) for arm in ("off", "on"))
    began = beginnings(run.walks)
    joined = run.walks.filter(pl.col("arm") == "on", pl.col("metric") == "began_ahead")[
        "value"
    ].abs()
    return {
        "out of step, each of the most scans reads more than half of the table": pg.if_known(
            lambda apart: apart > run.most / 2, apart
        ),
        "in step, they read less than three quarters of that": pg.if_known(
            lambda apart, together: together < 0.75 * apart, apart, together
        ),
        "out of step, a scan begins at page 0": pg.if_known(
            lambda places: places == {0}, began.get("off")
        ),
        "in step, it begins within a sixteenth of the table of where the other one is": (
            pg.if_known(lambda far: far <= run.table_pages / 16, joined.median())
        ),
    }


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
