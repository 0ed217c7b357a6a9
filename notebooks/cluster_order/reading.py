"""What ``cluster_order.ipynb`` reads from a record, shaped for its charts and tables."""

from __future__ import annotations

import polars as pl

STEPS = ["select_range", "insert", "delete", "vacuum", "select_all"]
"""The steps of an iteration, in the order of the charts."""

STEP_AND_CASE = (
    pl.when(pl.col("case") == "")
    .then("step")
    .otherwise(pl.format("{}, {}", "step", "case"))
)

TIMED = pl.col("metric") == "duration_s"
TOUCHED = pl.col("metric") == "pages_touched"


def fresh_pages(samples):
    """On how many pages a range lies right after CLUSTER, on average."""
    prepared = samples.filter(pl.col("block") == 0, TOUCHED)
    return prepared.filter(pl.col("arm") == "heap")["value"].mean()


def pages_per_range(samples):
    """By ``arm`` and ``iteration``: mean ``pages`` over blocks, and their ``low`` and ``high``."""
    return (
        samples.filter(TOUCHED)
        .group_by("arm", "iteration", maintain_order=True)
        .agg(
            pages=pl.col("value").mean(),
            low=pl.col("value").min(),
            high=pl.col("value").max(),
        )
    )


def relative_times(samples, published, *, last):
    """Times as a ``ratio`` to those of an earlier iteration, the post's and ours.

    One row for each ``arm``, ``iteration`` and ``what``: a step, relative to iteration 1 or 2.  The
    post's arms are named "post, head" and "post, patched".
    """
    ours = (
        samples.filter(
            TIMED, pl.col("case") == "", pl.col("step").is_in(STEPS)
        )
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
            what=pl.format(
                "{}, relative to iteration {}", "step", pl.lit(i)
            ),
        )
        for i, early in reference.items()
    )
    choices = [
        f"{step}, relative to iteration {i}"
        for step in STEPS
        for i in (2, 1)
    ]
    return relative.sort(
        pl.col("what").cast(pl.Enum(choices)), maintain_order=True
    )


def preparation(timings, samples, *, patched):
    """Seconds of each step of the preparation, the post's and ours, and their ratios.

    Where one of our two arms was not measured, there is no ratio of ours.
    """
    same_step = {"insert": "fill"}  # where the post's name is not ours
    before = (
        timings.filter(pl.col("iteration") == 0)
        .pivot("arm", index="step", values="seconds")
        .with_columns(
            pl.col("step").replace(same_step).str.replace(" ", "_")
        )
        .rename({"head": "post, head", "patched": "post, patched"})
    )
    ours = (
        samples.filter(
            pl.col("block") == 0,
            TIMED,
            pl.col("arm").is_in(["heap", patched]),
        )
        .pivot(
            "arm", index="step", values="value", aggregate_function="first"
        )
        .rename(
            {"heap": "here, heap", patched: "here, patched"}, strict=False
        )
    )
    per_server = before.join(
        ours, on="step", how="left", maintain_order="left"
    )
    for where in ("post", "here"):
        pair = [c for c in per_server.columns if c.startswith(where)]
        if len(pair) == 2:
            quotient = (pl.col(pair[1]) / pl.col(pair[0])).round(2)
            per_server = per_server.with_columns(
                quotient.alias(f"{where}, ratio")
            )
    return per_server


def published_ratios(published, *, patched):
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


def beside_the_post(effects, in_post):
    """The effects in the order of the page, with the post's ratios where it has any."""
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
        effects.join(
            in_post.with_columns(case=pl.lit("")),
            on=["step", "candidate", "case"],
            how="left",
        )
        .with_columns(step=STEP_AND_CASE)
        .sort(pl.col("step").cast(pl.Enum(order)), maintain_order=True)
    )


def of_the_post(published, in_post, *, last):
    """The post's ratios that its claims are about, by the names the claims give them."""
    at = {
        (r["arm"], r["iteration"]): r["seconds"]
        for r in published.filter(
            pl.col("step") == "select_range"
        ).iter_rows(named=True)
    }
    of_step = dict(in_post.select("step", "published_ratio").iter_rows())
    return {
        "decay": at["head", last] / at["head", 2],
        "own decay": at["patched", last] / at["patched", 2],
        "patched decay": at["patched", last] / at["head", last],
        "patched insert": of_step["insert"],
    }


def held_in_buffers(unmet_settings):
    """Why claims are not judged where the server kept its own shared buffers.

    A table that fits into them is not read, whatever the order of its rows.
    """
    if "shared_buffers" not in unmet_settings:
        return None
    return "the server's shared buffers are not the study's, and may hold the whole table"


def cost_of_a_step(samples, names):
    """What each counter says of a step: its median, by ``step``, ``case`` and ``arm``."""
    counted = ["buffers_read", "buffers_hit", "buffers_dirtied"]
    counted += ["wal_bytes", "wal_fpi", "read_bytes"]
    return (
        samples.filter(pl.col("metric").is_in(counted))
        .pivot(
            "metric",
            on_columns=counted,
            index=["step", "case", "arm"],
            values="value",
            aggregate_function="median",
        )
        .sort("step", "case", pl.col("arm").cast(pl.Enum(names)))
    )


def cost_of_neighbours(samples, names, *, last):
    """What each arm pays to keep a range together: pages at the end, and medians of its inserts."""
    value = pl.col("value")
    at_end = pl.col("iteration") == last
    later_inserts = (pl.col("step") == "insert") & (
        pl.col("iteration") >= 2
    )
    of_inserts = {
        metric: value.filter(
            pl.col("metric") == metric, later_inserts
        ).median()
        for metric in (
            "buffers_read",
            "wal_bytes",
            "wal_fpi",
            "duration_s",
        )
    }
    milliseconds = (1000 * of_inserts.pop("duration_s")).round(1)
    return (
        samples.group_by("arm")
        .agg(
            value.filter(TOUCHED, at_end)
            .mean()
            .round(1)
            .alias("pages per range"),
            value.filter(pl.col("metric") == "heap_pages", at_end)
            .median()
            .alias("pages of the table"),
            *(
                median.alias(f"{metric}, insert")
                for metric, median in of_inserts.items()
            ),
            milliseconds.alias("ms, insert"),
        )
        .sort(pl.col("arm").cast(pl.Enum(names)))
    )


def farthest_off(touched, expected):
    """By which part the number of pages differs from the expected one, at most."""
    return (
        touched.join(expected, on="iteration", suffix="_expected")
        .select(
            (pl.col("pages") / pl.col("pages_expected") - 1).abs().max()
        )
        .item()
    )


def copies_apart(samples, repeat):
    """By which part the two copies of the baseline differ at most, in rows and in pages."""
    counted_rows = (pl.col("metric") == "rows") & (
        pl.col("step") == "select_all"
    )
    apart = dict(
        samples.filter(TOUCHED | counted_rows)
        .pivot("arm", index=["block", "iteration", "step"], values="value")
        .select("step", apart=(pl.col(repeat) / pl.col("heap") - 1).abs())
        .group_by("step")
        .agg(pl.col("apart").max())
        .iter_rows()
    )
    return apart["select_all"], apart["select_range"]


def pages_after_cluster(touched, *, every):
    """The most pages a range lies on where CLUSTER has just run; None where it never did."""
    return touched.filter(
        pl.col("arm").str.contains("CLUSTER"),
        pl.col("iteration") % every == 0,
    )["pages"].max()
