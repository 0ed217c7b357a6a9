"""What ``cluster_order.ipynb`` reads from a record, shaped for its charts and tables."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import polars as pl

import pgstudies as pg

from .arms import PATCHED

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS = ["select_range", "insert", "delete", "vacuum", "select_all"]
"""The steps of an iteration, in the order of the charts."""

STEP_AND_CASE = (
    pl.when(pl.col("case") == "")
    .then("step")
    .otherwise(pl.format("{}, {}", "step", "case"))
)

STOPPED = ", after 2 iterations"
"""How the name of an arm ends that stopped while its table was still nearly in order."""

TIMED = pl.col("metric") == "duration_s"
TIMES = pl.col("metric").is_in(["duration_s", "cpu_s"])
TOUCHED = pl.col("metric") == "pages_touched"


def published_steps(study: pg.Study) -> pl.DataFrame:
    """The post's timings of its iterations, with our names of the steps."""
    names = {"select range": "select_range", "select count": "select_all"}
    timings = study.published().filter(pl.col("iteration") > 0)
    return timings.with_columns(pl.col("step").replace(names))


def published_chart(study: pg.Study) -> object:
    """The post's timings, by iteration."""
    in_order = pl.col("step").cast(pl.Enum(STEPS))
    return pg.series_chart(
        published_steps(study).sort(in_order, "arm", "iteration"),
        y="seconds",
        y_title="seconds, one run",
        step="step",
        log=True,
        description="The post's timings of five steps over ten iterations, without and with the "
        "patch.",
    )


def placed(column: str, order: Sequence[str]) -> pl.Expr:
    """What sorts by ``order``; a step that is not in it comes last."""
    return pl.col(column).replace_strict(order, range(len(order)), default=len(order))


def fresh_pages(samples: pl.DataFrame) -> float:
    """On how many pages a range lies right after CLUSTER, on average."""
    of_heap = samples.filter(pl.col("block") == 0, pl.col("arm") == "heap", TOUCHED)
    return float(of_heap.select(pl.col("value").mean()).item())


def pages_per_range(samples: pl.DataFrame) -> pl.DataFrame:
    """By ``arm`` and ``iteration``: mean ``pages`` over blocks, and their ``low`` and ``high``."""
    return (
        samples.filter(TOUCHED)
        .group_by("arm", "iteration", maintain_order=True)
        .agg(
            pages=pl.col("value").mean(),
            low=pl.col("value").min(),
            high=pl.col("value").max(),
        )
        .sort("iteration")
    )


def expected_pages(study: pg.Study) -> pl.DataFrame:
    """``pages`` of a range by ``iteration``, if every replaced row costs one."""
    gone = 1 - 0.98 ** pl.col("iteration")
    last = study.record.parameters["iterations"]
    iterations = pl.DataFrame({"iteration": range(last + 1)})
    fresh = fresh_pages(study.record.samples)
    return iterations.with_columns(pages=fresh + 1001 * gone)


def later(samples: pl.DataFrame) -> pl.DataFrame:
    """The samples that count: those of iterations from the second on."""
    others = pl.col("step").is_in(["cluster", "old disk"])
    return samples.filter(pl.col("iteration") != 1, ~others)


def side_by_side(samples: pl.DataFrame) -> pl.DataFrame:
    """The later times of arms that went on."""
    return later(samples).filter(TIMES, ~pl.col("arm").str.ends_with(STOPPED))


def milliseconds(samples: pl.DataFrame) -> pl.DataFrame:
    """The mean ``milliseconds`` of each step by ``block`` and ``arm``, the insert first."""
    values = pg.block_values(samples.filter(pl.col("case") != "cold"))
    return values.with_columns(
        step=STEP_AND_CASE, milliseconds=1000 * pl.col("value")
    ).sort(pl.col("step") != "insert", "step", "block")


def relative_times(
    samples: pl.DataFrame, published: pl.DataFrame, *, last: int
) -> pl.DataFrame:
    """Times as a ``ratio`` to those of an earlier iteration, the post's and ours.

    One row for each ``arm``, ``iteration`` and ``what``: a step, relative to iteration 1 or 2.  The
    post's arms are named "post, head" and "post, patched".
    """
    ours = (
        samples.filter(TIMED, pl.col("case") == "", pl.col("step").is_in(STEPS))
        .group_by("arm", "step", "iteration", maintain_order=True)
        .agg(seconds=pl.col("value").median())
        .cast({"iteration": pl.Int64})
    )
    theirs = (
        published.filter(pl.col("iteration") <= last)
        .with_columns(arm=pl.format("post, {}", "arm"))
        .select(ours.columns)
    )
    both = pl.concat([theirs, ours]).sort("iteration")
    reference = {i: both.filter(pl.col("iteration") == i) for i in (1, 2)}
    relative = pl.concat(
        both.filter(pl.col("iteration") >= i)
        .join(early.drop("iteration"), on=["arm", "step"], suffix="_early")
        .select(
            "arm",
            "iteration",
            ratio=pl.col("seconds") / pl.col("seconds_early"),
            what=pl.format("{}, relative to iteration {}", "step", pl.lit(i)),
        )
        for i, early in reference.items()
    )
    choices = [f"{step}, relative to iteration {i}" for step in STEPS for i in (2, 1)]
    return relative.sort(placed("what", choices), maintain_order=True)


def preparation(
    timings: pl.DataFrame, samples: pl.DataFrame, *, patched: str
) -> pl.DataFrame:
    """Seconds of each step of the preparation, the post's and ours, and their ratios.

    Where one of our two arms was not measured, there is no ratio of ours.
    """
    same_step = {"insert": "fill"}  # where the post's name is not ours
    before = (
        timings.filter(pl.col("iteration") == 0)
        .pivot("arm", index="step", values="seconds")
        .with_columns(pl.col("step").replace(same_step).str.replace(" ", "_"))
        .rename({"head": "post, head", "patched": "post, patched"})
    )
    ours = (
        samples.filter(
            pl.col("block") == 0,
            TIMED,
            pl.col("arm").is_in(["heap", patched]),
        )
        .pivot("arm", index="step", values="value", aggregate_function="first")
        .rename({"heap": "here, heap", patched: "here, patched"}, strict=False)
    )
    per_server = before.join(ours, on="step", how="left", maintain_order="left")
    for where in ("post", "here"):
        pair = [c for c in per_server.columns if c.startswith(where)]
        if len(pair) == 2:
            quotient = (pl.col(pair[1]) / pl.col(pair[0])).round(2)
            per_server = per_server.with_columns(quotient.alias(f"{where}, ratio"))
    return per_server


def published_ratios(published: pl.DataFrame, *, patched: str) -> pl.DataFrame:
    """The post's ``published_ratio`` of each ``step``, for the ``candidate`` that is its patch.

    Of mean times from iteration 2 on.
    """
    return (
        published.filter(pl.col("iteration") >= 2)
        .group_by("step", "arm")
        .agg(pl.col("seconds").mean())
        .pivot("arm", index="step", values="seconds")
        .select(
            "step",
            candidate=pl.lit(patched),
            published_ratio=pl.col("patched") / pl.col("head"),
        )
    )


def beside_the_post(effects: pl.DataFrame, in_post: pl.DataFrame) -> pl.DataFrame:
    """The effects on wall time, in the order of the page, with the post's ratios."""
    order = [
        "insert",
        "select_range",
        "select_range, any range",
        "select_range, cold",
        "select_all",
        "delete",
        "vacuum",
    ]
    return (
        effects.filter(TIMED)
        .join(
            in_post.with_columns(case=pl.lit("")),
            on=["step", "candidate", "case"],
            how="left",
        )
        .with_columns(step=STEP_AND_CASE)
        .sort(placed("step", order), maintain_order=True)
    )


def of_the_post(
    published: pl.DataFrame, in_post: pl.DataFrame, *, last: int
) -> dict[str, float]:
    """The post's ratios that its claims are about, by the names the claims give them."""
    at = {
        (r["arm"], r["iteration"]): r["seconds"]
        for r in published.filter(pl.col("step") == "select_range").iter_rows(
            named=True
        )
    }
    of_step = dict(in_post.select("step", "published_ratio").iter_rows())
    return {
        "decay": at["head", last] / at["head", 2],
        "own decay": at["patched", last] / at["patched", 2],
        "slower decay": (at["patched", last] / at["patched", 2])
        / (at["head", last] / at["head", 2]),
        "patched decay": at["patched", last] / at["head", last],
        "patched insert": of_step["insert"],
    }


def decays(study: pg.Study, effects: pl.DataFrame) -> list[pl.DataFrame]:
    """How much slower range selects became, by arm, and how the arms' decays compare.

    The second copy of an arm that stopped is not measured; that of one that went on is, and is
    the gate.
    """
    any_range = {"step": "select_range", "case": "any range"}
    selects = study.samples.filter(TIMES, **any_range)
    repeat = str(study.record.repeat)
    copies = effects.filter(candidate=repeat, **any_range)
    found = []
    for arm in ("heap", PATCHED):
        pair = [arm, f"{arm}{STOPPED}"]
        if set(pair) <= set(selects["arm"]):
            both = selects.filter(pl.col("arm").is_in(pair))
            found.append(pg.gated_by(study.effects(both, baseline=pair[1]), copies))
    rounds = decay_rounds(selects, ["heap", repeat, PATCHED])
    if {"heap", PATCHED} <= set(rounds["arm"]):
        found.append(pg.paired_effects(rounds, baseline="heap"))
    return found


def decay_rounds(selects: pl.DataFrame, arms: Sequence[str]) -> pl.DataFrame:
    """How much slower each arm's range selects became, round by round, as rounds of *decay*.

    They are compared with an arm that stopped after 2 iterations; a second copy has that of the
    first one. An arm that has none beside it is left out.
    """
    rounds = pg.round_values(selects)
    same = ["block", "round", "case", "metric"]
    stopped = rounds.filter(pl.col("arm").str.ends_with(STOPPED)).select(
        *same, first=pl.col("arm").str.strip_suffix(STOPPED), early="value"
    )
    return (
        rounds.filter(pl.col("arm").is_in(arms))
        .with_columns(first=pl.coalesce("copy_of", "arm"))
        .join(stopped, on=[*same, "first"])
        .with_columns(value=pl.col("value") / pl.col("early"), step=pl.lit("decay"))
        .drop("first", "early")
    )


def cost_of_a_step(samples: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """What each counter says of a step: its median, by ``step``, ``case`` and ``arm``."""
    counted = ["buffers_read", "buffers_hit", "buffers_dirtied"]
    counted += ["wal_bytes", "wal_fpi", "read_bytes"]
    return pg.wide(samples, counted, ["step", "case", "arm"]).sort(
        "step", "case", pl.col("arm").cast(pl.Enum(names))
    )


def cost_of_neighbours(
    samples: pl.DataFrame, names: Sequence[str], *, last: int
) -> pl.DataFrame:
    """What each arm pays to keep a range together: pages at the end, and medians of its inserts."""
    counted = ["buffers_read", "wal_bytes", "wal_fpi"]
    later_inserts = samples.filter(pl.col("step") == "insert", pl.col("iteration") >= 2)
    at_end = samples.filter(pl.col("iteration") == last)
    touched = pg.wide(at_end, ["pages_touched"], ["arm"], statistic="mean")
    return (
        pg.wide(later_inserts, [*counted, "duration_s"], ["arm"])
        .join(touched, on="arm", how="left")
        .join(pg.wide(at_end, ["heap_pages"], ["arm"]), on="arm", how="left")
        .select(
            "arm",
            pl.col("pages_touched").round(1).alias("pages per range"),
            pl.col("heap_pages").alias("pages of the table"),
            pl.col(counted).name.suffix(", insert"),
            (1000 * pl.col("duration_s")).round(1).alias("ms, insert"),
        )
        .sort(pl.col("arm").cast(pl.Enum(names)))
    )


def on_old_disk(
    samples: pl.DataFrame, published: pl.DataFrame, *, last: int
) -> pl.DataFrame:
    """What a step reads, what that would take an old disk, and the post's seconds, by arm."""
    counted = ["disk_s", "read_bytes"]
    found = pg.wide(
        samples.filter(pl.col("step") == "old disk"),
        counted,
        ["case", "arm"],
    )
    same = {"head": "heap", "patched": "patched (access method)"}
    post = (
        published.filter(pl.col("iteration").is_in([1, last]))
        .with_columns(pl.col("arm").replace(same), case="step")
        .with_columns(when=pl.format("s, post, iteration {}", "iteration"))
        .pivot("when", index=["case", "arm"], values="seconds")
    )
    return (
        found.join(post, on=["case", "arm"], how="left")
        .with_columns(pl.col("read_bytes") / 8192, pl.col("disk_s").round(3))
        .rename(
            {
                "case": "step",
                "read_bytes": "pages read",
                "disk_s": "s, disk of 2007",
            }
        )
        .sort("step", "arm")
    )


def cluster_runs(samples: pl.DataFrame) -> pl.DataFrame:
    """What one run of CLUSTER takes, by arm and metric."""
    return (
        samples.filter(pl.col("step") == "cluster")
        .group_by("arm", "metric", "unit")
        .agg(pl.len().alias("runs"), *pg.spread("median"))
        .sort("metric")
    )


def cold_selects(samples: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """How cold the cold selects were: medians of what they read, by arm."""
    state = pg.cache_state(samples.filter(pl.col("step") == "select_range"))
    return (
        state.group_by("case", "arm", "state")
        .agg(
            selects=pl.len(),
            buffers_read=pl.col("buffers_read").median(),
            read_bytes=pl.col("read_bytes").median(),
        )
        .sort("case", pl.col("arm").cast(pl.Enum(names)), "state")
    )


def farthest_off(touched: pl.DataFrame, expected: pl.DataFrame) -> float:
    """By which part the number of pages differs from the expected one, at most."""
    off = pl.col("pages") / pl.col("pages_expected") - 1
    both = touched.join(expected, on="iteration", suffix="_expected")
    return float(both.select(off.abs().max()).item())


def copies_apart(samples: pl.DataFrame, repeat: str) -> tuple[float, float]:
    """By which part the two copies of the baseline differ at most, in rows and in pages."""
    counted_rows = (pl.col("metric") == "rows") & (pl.col("step") == "select_all")
    apart = dict(
        samples.filter(TOUCHED | counted_rows)
        .pivot("arm", index=["block", "iteration", "step"], values="value")
        .select("step", apart=(pl.col(repeat) / pl.col("heap") - 1).abs())
        .group_by("step")
        .agg(pl.col("apart").max())
        .iter_rows()
    )
    return apart["select_all"], apart["select_range"]


def answers(
    study: pg.Study,
    touched: pl.DataFrame,
    expected: pl.DataFrame,
    counters: pl.DataFrame,
) -> dict[str, bool | None]:
    """Answers that rest on counts; None where a server does not count."""
    record = study.record
    used = record.parameters
    plain = touched.filter(pl.col("arm") == "heap")
    growth: Any = plain["pages"].diff().drop_nulls().min()
    rows_apart, pages_apart = copies_apart(study.samples, str(record.repeat))
    inserts = counters.filter(pl.col("step") == "insert", pl.col("arm") == "heap")
    held = "shared_buffers" in record.reasons
    reads = None if held else inserts["buffers_read"].max()
    at_end = touched.filter(pl.col("iteration") == used["iterations"])
    pages_of = dict(at_end.select("arm", "pages").iter_rows())
    known = pg.if_known
    return {
        "the range lies on more pages after every iteration": growth > 0,
        "their number is as expected, within a tenth": farthest_off(plain, expected)
        < 0.1,
        "both copies of the baseline always hold as many rows": rows_apart == 0,
        "and lie on as many pages, within a twentieth": pages_apart < 0.05,
        "an insert step reads more than half a page per row": known(
            operator.gt, reads, used["rows"] / 100
        ),
        "the patch leaves a range on fewer pages than the heap": known(
            operator.lt, pages_of.get(PATCHED), pages_of.get("heap")
        ),
    }
