"""What ``io_method.ipynb`` reads from a record, shaped for its charts and tables."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import polars as pl

import pgstudies as pg
from pgstudies.records.reading import cores_of, read_info
from pgstudies.records.verdicts import read_verdicts, verdict_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgstudies.records.reading import Record


TIMED = ["scan", "bitmap scan", "vacuum", "lookup"]
"""The steps that arms are compared by."""

SAME = ["case", "iteration", "step", "metric"]
"""The columns by which comparisons are separate: iteration is the number of connections."""

IN_MEMORY = 0.01
"""The share of cached tables that a scan may read from the disk."""

CHOICES = ["worker", "either", "sync", "not decided"]
"""Which io_method an effect of workers, relative to sync, speaks for."""


def values(samples: pl.DataFrame) -> pl.DataFrame:
    """The mean seconds of each block and arm, by SAME: see ``pg.block_values``."""
    is_time = pl.col("metric") == "duration_s"
    return pg.block_values(
        samples.filter(pl.col("step").is_in(TIMED), is_time), by=SAME
    )


def crowd(connections: Sequence[int], cores: int) -> int:
    """The fewest connections that are two to a core, or else the most."""
    enough = (number for number in connections if number >= 2 * cores)
    return min(enough, default=max(connections))


def network(latency_ms: float) -> str:
    """What the case of a disk with this latency is called."""
    return f"network, {latency_ms:g} ms"


def named(table: pl.DataFrame) -> pl.DataFrame:
    """The table with a step that says where the data is and how many connections read it."""
    count = pl.col("iteration")
    connections = pl.format(
        "{} connection{}",
        count,
        pl.when(count == 1).then(pl.lit("")).otherwise(pl.lit("s")),
    )
    words = (
        pl.when(pl.col("step") == "bitmap scan")
        .then(pl.format("bitmap scan, {}", "case"))
        .when(pl.col("step") == "vacuum")
        .then(pl.format("VACUUM, {}", "case"))
        .when(pl.col("step") == "lookup")
        .then(pl.format("lookups, {}", "case"))
        .when(pl.col("case") == "cached")
        .then(pl.format("scans in cache, {}", connections))
        .otherwise(pl.format("cold scan, {}", "case"))
    )
    return table.with_columns(step=words)


def which(effects: pl.DataFrame, cores: int) -> pl.DataFrame:
    """The effects of workers as a chart takes them, a candidate being one of CHOICES.

    A step says where the data is, what reads it and by how many connections to a core.
    """
    per_core = pl.format("{} to a core", (pl.col("iteration") / cores).round(2))
    reads = pl.col("step").replace({"vacuum": "VACUUM"})
    choice = pl.col("verdict").replace_strict(
        {"faster": "worker", "slower": "sync", "equivalent": "either"},
        default="not decided",
    )
    return (
        effects.filter(pl.col("candidate") == "worker", pl.col("step").is_in(TIMED))
        .sort(pl.col("case") != "cached", "case", "step", "iteration")
        .with_columns(
            # On a phone a name is broken at its commas, and there is room for two lines.
            step=pl.format(
                "{}: {}, {}", pl.col("case").str.replace(", ", " "), reads, per_core
            ),
            candidate=choice,
        )
    )


def unlike_the_mail(
    samples: pl.DataFrame, used: Mapping[str, Any], crowd: int, cores: int
) -> str | None:
    """Why a run is not like the mail's: too few connections, or tables not in memory.

    ``samples`` are those of the record, ``used`` its parameters; None where it is.
    """
    if crowd < 2 * cores:
        return (
            f"{crowd} connections on {cores} cores: the mail had twice as many "
            f"connections as cores"
        )
    read = samples.filter(
        pl.col("step") == "scan",
        pl.col("case") == "cached",
        pl.col("metric") == "read_bytes",
    )
    part = pl.col("value") / (pl.col("iteration") * used["table_mb"] * 2**20)
    share = read.select(part.median()).item() or 0.0
    if share > IN_MEMORY:
        return (
            f"the tables were not in memory: {share:.0%} of them was read from the disk"
        )
    return None


def conditions(record: Record, crowd: int, cores: int) -> dict[str, str | None]:
    """Why this run is not what a claim is about, by the claim's id."""
    few = unlike_the_mail(record.measured, record.parameters, crowd, cores)
    of_mail = ["in memory", "more workers", "io_uring", "too many"]
    unmet: dict[str, str | None] = dict.fromkeys(of_mail, few)
    if cores < 2:
        unmet |= dict.fromkeys(
            ["lookups", "lookups, too many"], "one core: the post had two"
        )
    return unmet


def by_cores(record: Record, judged: pl.DataFrame) -> pl.DataFrame:
    """The verdicts on ``record`` beside those of records on other numbers of cores.

    ``judged`` is the table of ``judge`` on it. The newest reference record of
    its size for each other number of cores is set beside it, not pooled with
    it. Columns: claim, text, cores, ratio, low, high, verdict, date; of each
    claim the fewest cores first.
    """
    own = record.info
    tables = {cores_of(own): (own, judged)}
    for file in verdict_files(own["study"]):
        info = read_info(file.parent)
        is_alike = info.get("profile") == own.get("profile")
        if is_alike and cores_of(info) != cores_of(own):
            tables[cores_of(info)] = info, read_verdicts(file)
    columns = ["claim", "text", "cores"]
    columns += ["ratio", "low", "high", "verdict", "date"]
    frames = [
        table.with_columns(
            cores=pl.lit(cores, pl.Int64()), date=pl.lit(str(info["started_at"])[:10])
        ).select(columns)
        for cores, (info, table) in tables.items()
    ]
    place = {claim: number for number, claim in enumerate(judged["claim"])}
    together = pl.concat(frames).filter(pl.col("claim").is_in(list(place)))
    order = pl.col("claim").replace_strict(place, return_dtype=pl.Int64())
    return together.sort(order, "cores", maintain_order=True)


def side_by_side(beside: pl.DataFrame) -> pl.DataFrame:
    """Claims by number of cores: the table of ``by_cores``, a column for each number."""
    figures = pl.format(
        "{} ({} to {}), ", *(pl.col(n).round(3) for n in ("ratio", "low", "high"))
    )
    said = pl.concat_str(pl.coalesce(figures, pl.lit("")), "verdict")
    number = pl.col("cores")
    cores = (
        pl.when(number == 1)
        .then(pl.lit("1 core"))
        .otherwise(pl.format("{} cores", pl.coalesce(number.cast(str), pl.lit("?"))))
    )
    return beside.select("text", cores=cores, said=said).pivot(
        "cores", index="text", values="said"
    )


def milliseconds(values: pl.DataFrame) -> pl.DataFrame:
    """The median time (ms) by arm, a column for each step as ``named`` has it."""
    return (
        named(values)
        .group_by("arm", "step")
        .agg((pl.col("value").median() * 1000).round(1))
        .sort("step")
        .pivot("step", index="arm", values="value")
    )


def closer(samples: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """What a watched scan did, by connections and arm, and the time that its sleeps foretell."""
    watched = samples.filter(pl.col("step") == "watched scan")
    medians = (
        watched.filter(pl.col("metric").is_in(["scan_s", "sleeps", "reads", "read_kb"]))
        .group_by("arm", "iteration", "metric")
        .agg(pl.col("value").median())
        .pivot("metric", index=["arm", "iteration"], values="value")
    )
    for column in ("scan_s", "sleeps", "reads", "read_kb"):
        if column not in medians.columns:
            unknown = pl.lit(None, pl.Float64).alias(column)
            medians = medians.with_columns(unknown)
    alone = medians.filter(pl.col("arm") == "sync").select(
        "iteration", by_itself="scan_s", quiet="sleeps"
    )
    wake_up = samples.filter(pl.col("metric") == "other_core_s")["value"].median()
    slept = pl.col("sleeps") - pl.col("quiet")
    foreseen = pl.col("by_itself") + 2 * slept * pl.lit(wake_up, pl.Float64)
    under_way = (
        samples.filter(pl.col("metric") == "in_flight_mean")
        .group_by("arm")
        .agg(in_flight=pl.col("value").median())
        .with_columns(iteration=pl.lit(1, medians.schema["iteration"]))
    )
    return (
        medians.join(alone, on="iteration", how="left")
        .join(under_way, on=["arm", "iteration"], how="left")
        .sort("iteration", pl.col("arm").cast(pl.Enum(names)))
        .select(
            "arm",
            pl.col("iteration").alias("connections"),
            (pl.col("scan_s") * 1000).round(1).alias("ms"),
            (foreseen * 1000).round(1).alias("foreseen, ms"),
            pl.col("reads").round(0),
            (pl.col("read_kb") / pl.col("reads")).round(0).alias("kB each"),
            pl.col("in_flight").round(1).alias("under way"),
            pl.col("sleeps").round(0),
            (pl.col("sleeps") / pl.col("reads")).round(2).alias("sleeps per read"),
        )
    )


def by_buffers(values: pl.DataFrame, usual: int, few: Sequence[int]) -> pl.DataFrame:
    """Workers against sync with so many MB of shared buffers: MB, connections, ratio, low, high.

    ``arm`` is the arm with workers.
    """
    cached = values.filter(pl.col("case") == "cached", pl.col("step") == "scan")
    found = []
    for megabytes in sorted({usual, *few}):
        behind = "" if megabytes == usual else f", {megabytes} MB"
        pair = [f"sync{behind}", f"worker{behind}"]
        of_pair = cached.filter(pl.col("arm").is_in(pair), pl.col("copy_of").is_null())
        if of_pair["arm"].n_unique() < 2:
            continue
        effects = pg.paired_effects(
            of_pair, baseline=pair[0], by=["case", "iteration", "step", "metric"]
        )
        found.append(
            effects.select(
                MB=pl.lit(megabytes),
                connections=pl.format("{} at a time", "iteration"),
                ratio="ratio",
                low=pl.coalesce("low", "ratio"),
                high=pl.coalesce("high", "ratio"),
                arm=pl.lit("worker"),
            )
        )
    return pl.concat(found) if found else pl.DataFrame()


def wake_ups(samples: pl.DataFrame) -> pl.DataFrame:
    """What waking a process takes (µs), by where it is: medians, least and most of the blocks."""
    microseconds = 1e6 * pl.col("value")
    return (
        samples.filter(pl.col("step") == "wake-up")
        .group_by(
            pl.col("metric")
            .replace({"same_core_s": "same core", "other_core_s": "other core"})
            .alias("the other process is on the")
        )
        .agg(
            microseconds.median().round(1).alias("median, µs"),
            microseconds.min().round(1).alias("least"),
            microseconds.max().round(1).alias("most"),
        )
        .sort("median, µs")
    )


def counted(samples: pl.DataFrame, metric: str, few: Sequence[int]) -> dict[str, float]:
    """A count of the watched scans by method, on average, with the fewest shared buffers.

    There a scan asks for most reads: of few, workers may be done before the session would wait.
    """
    behind = f", {min(few)} MB" if few else ""
    rows = samples.filter(pl.col("step") == "watched scan", pl.col("metric") == metric)
    means = {
        method: rows.filter(pl.col("arm") == f"{method}{behind}")["value"].mean()
        for method in ("sync", "worker")
    }
    return {method: mean for method, mean in means.items() if isinstance(mean, float)}


def tenth(number: float | None) -> float | None:
    """A tenth of it, where it is known."""
    return None if number is None else number / 10


def alike(one: float, other: float) -> bool:
    """Whether two numbers are within a tenth of each other."""
    return abs(one - other) <= 0.1 * other


def answers(record: Record) -> dict[str, bool | None]:
    """Answers that rest on counts; None where they were not taken."""
    few = record.parameters["few_buffers_mb"]
    sleeps, reads = (counted(record.measured, n, few) for n in ("sleeps", "reads"))
    known = pg.if_known
    return {
        "a session that reads for itself sleeps less than once in ten reads": known(
            operator.lt, sleeps.get("sync"), tenth(reads.get("sync"))
        ),
        "one whose workers read sleeps more often": known(
            operator.gt, sleeps.get("worker"), sleeps.get("sync")
        ),
        "both ask for as many reads, within a tenth": known(
            alike, reads.get("worker"), reads.get("sync")
        ),
    }
