"""How ``hash_index.ipynb`` reads its record: what its charts, tables and answers are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

import pgstudies as pg

from .arms import COMMITS
from .tables import COLLATIONS, LOCALE

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from pgstudies.analysis.agreement import Claim
    from pgstudies.records.reading import Record

    Answers = dict[str, bool | None]

BY = ["release", "case", "step", "metric"]
QUANTITIES = ["duration_s", "cpu_s", "buffers_read"]
WALL = pl.col("metric") == "duration_s"
OF_COMMIT = pl.col("arm").is_in(list(COMMITS))
CASE_AND_STEP = pl.format("{}, {}", "case", "step")
STEPS = ["cold", "slow disk", "warm"]
OTHER = f"wide, {LOCALE}"
"""The case of wide keys in another locale than C."""

LARGE = 100_000
"""Rows; the index of a smaller table is mostly its first pages."""
MORE_PROBES = "collision, 10 probes"
"""The case of the query that makes more probes."""
MOST_COLD = 3000 / 2_000_000
"""Transactions of a cold run to rows of the table: the post's own in a minute."""


def published_chart(published: pl.DataFrame) -> object:
    """The post's throughputs."""
    return pg.dot_chart(
        published.filter(pl.col("unit") == "tps").rename({"value": "tps"}),
        x="case",
        y="tps",
        y_title="transactions per second, one run",
        step="cache",
        description="The post's throughput by kind of key, for two hash indexes and a btree.",
    )


@dataclass(frozen=True)
class Run:
    """What was measured, and in which order it is shown.

    Attributes:
        everything: All samples, those of loading too, with the columns of ``of_arms``.
        samples: The same without loading.
        own: The version of the run's own server.
        case: Sorts by the kind of key.
        step: Sorts by the step.
        arm: Sorts by the arm.

    """

    everything: pl.DataFrame
    samples: pl.DataFrame
    own: str
    case: pl.Expr
    step: pl.Expr
    arm: pl.Expr

    @property
    def is_own(self) -> pl.Expr:
        """Whether a row is of the run's own server."""
        return pl.col("release") == self.own

    @property
    def own_samples(self) -> pl.DataFrame:
        """The samples of the run's own server."""
        return self.samples.filter(self.is_own)


def run_of(study: pg.Study) -> Run:
    """What a record measured."""
    record = study.record
    everything = record.samples.drop("copy_of").join(
        of_arms(record), on="arm", maintain_order="left"
    )
    samples = everything.filter(pl.col("block") > 0)
    cases = cases_of(samples, record.parameters["widths"], COLLATIONS)
    steps = [step for step in STEPS if step in samples["step"]]
    return Run(
        everything=everything,
        samples=samples,
        own=pg.version_number(record.info["server"]["version_text"]),
        case=pl.col("case").cast(pl.Enum(cases)),
        step=pl.col("step").cast(pl.Enum(steps)),
        arm=pl.col("arm").cast(pl.Enum(record.arms["name"])),
    )


def index_of(arm: Mapping[str, Any]) -> str:
    return str(arm["options"]["index"] or arm["copy_of"] or arm["name"])


def of_arms(record: Record) -> pl.DataFrame:
    """What each arm is: arm, index, release, and copy_of, the index that it is a second copy of.

    Two commits are of one release and have the same index, so theirs is called as the arm is.
    """
    servers = dict(record.arms.select("name", "server").iter_rows())
    return pl.DataFrame(
        {
            "arm": arm["name"],
            "index": (
                arm["name"]
                if arm["copy_of"] or arm["name"] in COMMITS
                else index_of(arm)
            ),
            "release": pg.version_number(servers[arm["name"]]),
            "copy_of": index_of(arm) if arm["copy_of"] else None,
        }
        for arm in record.info["arms"]
    )


def cases_of(
    samples: pl.DataFrame, widths: Iterable[int], collations: Iterable[str]
) -> list[str]:
    """The kinds of key that were measured, in the order of the page: texts by their width."""
    texts = {f"text{width}": width for width in widths} | {"wide": 100}
    cases = [
        "narrow",
        *sorted(texts, key=texts.__getitem__),
        *(f"wide, {collation}" for collation in collations),
        "collision",
        MORE_PROBES,
    ]
    return [case for case in cases if case in samples["case"]]


def pages_read(samples: pl.DataFrame) -> pl.DataFrame:
    """Pages read per transaction, cold: case, release, index, arm, reads (mean), low, high."""
    value = pl.col("value")
    return (
        samples.filter(pl.col("metric") == "buffers_read", pl.col("step") == "cold")
        .group_by("case", "release", "index", "arm")
        .agg(reads=value.mean(), low=value.min(), high=value.max())
    )


def cold_states(samples: pl.DataFrame) -> pl.DataFrame:
    """What the device read, and how cold that was: medians by step, case, arm and state."""
    is_cold = pl.col("step").is_in(["cold", "slow disk"])
    return (
        pg.cache_state(samples.filter(is_cold))
        .group_by("step", "case", "arm", "state")
        .agg(
            runs=pl.len(),
            pages=pl.col("buffers_read").median().round(3),
            device_pages=(pl.col("read_bytes") / 8192).median().round(3),
        )
    )


def on_old_disk(samples: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    """Cold transactions a second on a disk of the post's time.

    Columns: case, arm, pages read, tps, tps in the post.
    """
    found = pg.wide(
        samples.filter(pl.col("step") == "old disk", pl.col("copy_of").is_null()),
        ["disk_s", "read_bytes"],
        ["case", "arm"],
    )
    of_post = {
        **dict.fromkeys(["value", "before"], "hash_head"),
        **dict.fromkeys(["code", "after"], "hash_patched"),
        "btree, before": "btree",
    }
    post = published.filter(pl.col("cache") == "cold", pl.col("unit") == "tps").select(
        "case",
        pl.col("arm").alias("of_post"),
        pl.col("value").alias("tps in the post"),
    )
    named = found.with_columns(of_post=pl.col("arm").replace(of_post))
    return named.join(post, on=["case", "of_post"], how="left").select(
        "case",
        "arm",
        (pl.col("read_bytes") / 8192).round(2).alias("pages read"),
        (1 / pl.col("disk_s")).round(1).alias("tps"),
        "tps in the post",
    )


def from_cold_to_warm(samples: pl.DataFrame, cases: Sequence[str]) -> pl.DataFrame:
    """One transaction, leg by leg.

    Columns: arm, case, leg, value, low, high, what (the case and the unit: µs or pages).
    """
    leg = pl.when(pl.col("step") == "cold").then(1).otherwise("iteration")
    shown = {
        "duration_s": ("µs per transaction", 1e6),
        "buffers_read": ("pages read per transaction", 1),
    }
    return pl.concat(
        samples.filter(
            pl.col("metric") == metric,
            pl.col("step").is_in(["cold", "warming"]),
            pl.col("case").is_in(cases),
        )
        .group_by("arm", "case", leg=leg.cast(pl.Int64))
        .agg(pg.spread("value", factor * pl.col("value")))
        .with_columns(what=pl.format("{}: {}", "case", pl.lit(unit)))
        for metric, (unit, factor) in shown.items()
        if metric in samples["metric"]
    )


def cold_times(samples: pl.DataFrame) -> pl.DataFrame:
    """A transaction's µs where pages are read: step, case, arm, mean, median, 99 %.

    Each is the median over the blocks.
    """
    shown = {"duration_s": "mean", "median_s": "median", "p99_s": "99 %"}
    read = samples.filter(pl.col("step").is_in(["cold", "slow disk"]))
    return (
        pg.wide(read, list(shown), ["step", "case", "arm"])
        .with_columns((pl.col(list(shown)) * 1e6).round(1))
        .rename(shown)
    )


def warm_turns(samples: pl.DataFrame) -> pl.DataFrame:
    """How warm the warm turns were: case, arm, turns, least_hits (a part of 1)."""
    pages = ["buffers_hit", "buffers_read"]
    hit, read = map(pl.col, pages)
    warm = samples.filter(pl.col("step") == "warm")
    place = ["case", "arm", "block", "turn"]
    return (
        pg.wide(warm, pages, place, statistic="sum")
        .group_by("case", "arm")
        .agg(turns=pl.len(), least_hits=(hit / (hit + read)).min().round(5))
    )


def is_shown(samples: pl.DataFrame) -> pl.Expr:
    """Whether an effect is of the quantity by which its step is shown; an expression."""
    warm = "cpu_s" if "cpu_s" in samples["metric"] else "duration_s"
    shown_by = {
        "cold": "buffers_read",
        "slow disk": "duration_s",
        "warm": warm,
    }
    return pl.col("metric") == pl.col("step").replace_strict(shown_by)


def rounds_of(run: Run) -> pl.DataFrame:
    """What a query takes, round by round; each arm by its index."""
    asked = run.samples.filter(
        pl.col("step").is_in(STEPS), pl.col("metric").is_in(QUANTITIES)
    )
    return pg.round_values(asked.with_columns(arm="index"), by=BY)


def effect_table(effects: pl.DataFrame) -> pl.DataFrame:
    """The effects on time, with the throughput of both indexes."""
    medians = {"btree": "baseline_median", "hash": "candidate_median"}
    tps = [
        (1 / pl.col(median)).round(0).alias(f"{index}, tps")
        for index, median in medians.items()
    ]
    return pg.effect_table(effects.filter(WALL), "release", "case", "step", *tps)


def by_block(run: Run, cases: Sequence[str]) -> pl.DataFrame:
    """The mean µs of a transaction in every block, by ``what``, which is its case and step."""
    is_asked = pl.col("step").is_in(STEPS) & pl.col("case").is_in(cases)
    timed = run.own_samples.filter(is_asked, WALL).with_columns(arm="index")
    return (
        pg.block_values(timed, by=BY[1:])
        .with_columns(us=1e6 * pl.col("value"), what=CASE_AND_STEP)
        .sort(pl.col("step") != "warm", "what", "block")
    )


def by_server(effects: pl.DataFrame, run: Run) -> pl.DataFrame:
    """The effects with the name of their server, the run's own first."""
    this = pl.format("{} (this server)", "release")
    server = pl.when(run.is_own).then(this).otherwise("release")
    return effects.with_columns(server=server).sort(~run.is_own, maintain_order=True)


def beside_the_post(effects: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    """The effects with the post's ratio of cost, as ``published_ratio``."""
    return effects.join(patch_ratios(published), on=["case", "step"], how="left")


def patch_ratios(published: pl.DataFrame) -> pl.DataFrame:
    """The post's cost with the patch to that without: case, step, published_ratio."""
    ratios = _throughputs(published).select(
        "case",
        step="cache",
        published_ratio=pl.col("hash_head") / pl.col("hash_patched"),
    )
    slow = ratios.filter(pl.col("step") == "cold").with_columns(
        step=pl.lit("slow disk")
    )
    return pl.concat([ratios, slow])


def claimed_ratios(published: pl.DataFrame) -> dict[str, float]:
    """The post's ratios by the ids of its claims."""
    patch = patch_ratios(published).filter(pl.col("step") != "slow disk")
    ratios = {f"{case} {step}": ratio for case, step, ratio in patch.rows()}
    # Of the pages that narrow keys read cold the post has words only.
    ratios["narrow cold, time"] = ratios.pop("narrow cold")
    wide = _throughputs(published).filter(pl.col("case") == "wide")
    names = {"cold": "hash beats btree", "warm": "hash as btree"}
    for tps in wide.iter_rows(named=True):
        ratios[names[tps["cache"]]] = tps["btree"] / tps["hash_patched"]
        ratios[f"old hash, {tps['cache']}"] = tps["btree"] / tps["hash_head"]
    return ratios


def _throughputs(published: pl.DataFrame) -> pl.DataFrame:
    return published.filter(pl.col("unit") == "tps").pivot(
        "arm", index=["case", "cache"], values="value"
    )


def compared(
    values: pl.DataFrame,
    baseline: str,
    candidates: Sequence[str],
    *,
    by: Sequence[str],
) -> list[pl.DataFrame]:
    """The effects of those candidates that were measured against the baseline; none without it.

    The btree and its second copy are the gate of each step that they do as well.
    """
    there = set(values["arm"])
    found = [arm for arm in candidates if arm in there]
    if baseline not in there or not found:
        return []
    of_these = pl.col("arm").is_in([baseline, *found])
    effects = pg.paired_effects(
        values.filter(of_these | _is_pair(values)),
        baseline=baseline,
        by=by,
    )
    return [effects.filter(pl.col("candidate").is_in(found))]


def of_pairs(
    rounds: pl.DataFrame, effects: pl.DataFrame, pairs: Iterable[tuple[str, str]]
) -> pl.DataFrame:
    """The effects of the second of each pair against the first, where measured.

    ``effects`` has the columns that there are in any case.
    """
    found = [
        each
        for baseline, candidate in pairs
        for each in compared(rounds, baseline, [candidate], by=BY)
    ]
    return pl.concat([effects.clear(), *found], how="diagonal_relaxed")


def _is_pair(values: pl.DataFrame) -> pl.Expr:
    """Whether a value is of an arm that has a second copy, or of that copy; an expression."""
    is_copy = pl.col("copy_of").is_not_null()
    first = values.filter(is_copy)["copy_of"].unique().to_list()
    return is_copy | pl.col("arm").is_in(first)


def gains(rounds: pl.DataFrame, cases: Sequence[str]) -> pl.DataFrame:
    """Warm, codes to values, as samples of which cases can be compared.

    Columns: block, round, case, step, metric, unit (ratio), code, value_stored, value.
    """
    is_stored = pl.col("arm").is_in(["code", "value"])
    return _quotients(
        rounds.filter(is_stored).with_columns(
            pl.col("arm").replace("value", "value_stored")
        ),
        ["code", "value_stored"],
        cases,
    )


def gain_by_locale(rounds: pl.DataFrame) -> list[pl.DataFrame]:
    """How much more codes gain in another locale; none where it was not measured."""
    found = gains(rounds, ["wide", OTHER])
    if OTHER not in found["case"]:
        return []
    return [gain_of_locale(rounds, found, OTHER)]


def gain_of_locale(
    rounds: pl.DataFrame, gains: pl.DataFrame, other: str
) -> pl.DataFrame:
    """How much more codes gain in the case ``other`` than in the case wide.

    The gate is by how much the two copies of the btree differ more in one than in the other.
    """
    by = ["step", "metric"]
    pair = rounds.filter(_is_pair(rounds)).with_columns(
        arm=pl.when(pl.col("copy_of").is_null())
        .then(pl.lit("first"))
        .otherwise(pl.lit("second"))
    )
    apart = _quotients(pair, ["second", "first"], ["wide", other])
    found = [
        pg.paired_effects(values, baseline="wide", key="case", by=by)
        for values in (gains, apart)
        if values.height
    ]
    return pg.gated_by(*found) if len(found) == 2 else found[0]


def _quotients(
    rounds: pl.DataFrame, arms: Sequence[str], cases: Sequence[str]
) -> pl.DataFrame:
    """Warm times of the first of two arms to those of the second, round by round."""
    above, below = arms
    return (
        rounds.filter(
            pl.col("step") == "warm",
            pl.col("metric").is_in(["cpu_s", "duration_s"]),
            pl.col("case").is_in(cases),
        )
        .pivot(
            "arm",
            on_columns=arms,
            index=["block", "round", "case", "step", "metric", "unit"],
            values="value",
        )
        .with_columns(value=pl.col(above) / pl.col(below), unit=pl.lit("ratio"))
        .drop_nulls("value")
    )


def sizes(run: Run) -> pl.DataFrame:
    """The median ``size_bytes`` of every index, by case and arm."""
    is_size = (pl.col("metric") == "index_bytes") & (pl.col("step") == "build")
    return (
        run.everything.filter(is_size, run.is_own | OF_COMMIT)
        .group_by("case", "arm")
        .agg(size_bytes=pl.col("value").median())
    )


def seconds(samples: pl.DataFrame) -> pl.DataFrame:
    """Of each build, as ``text``: the median, and the fastest and slowest."""
    spread = [pl.col(name).round(2) for name in ("s", "low", "high")]
    return (
        samples.filter(pl.col("step").is_in(["build", "build, wide"]), WALL)
        .group_by("step", "case", "arm")
        .agg(pg.spread("s"))
        .with_columns(text=pl.format("{} ({}–{})", *spread))
    )


def cliff(samples: pl.DataFrame, seconds: pl.DataFrame) -> pl.DataFrame:
    """Builds of the wide column's index in other ways."""
    ways = samples.filter(pl.col("step") == "build, wide")
    of_wide = seconds.filter(pl.col("step") == "build, wide")
    return of_wide.join(told(ways), on=["arm", "case"]).select(
        "arm",
        "case",
        pl.col("text").alias("seconds"),
        pl.col("presorted").cast(pl.Int8),
        (pl.col("index_bytes") / 2**20).round(1).alias("index, MB"),
        pl.col("buffers_read").cast(pl.Int64).alias("pages read"),
    )


def building_in_words(building: Iterable[pl.DataFrame]) -> str:
    """The effects on the time of building in sentences."""
    timed = (each.filter(WALL, pl.col("ratio").is_not_null()) for each in building)
    return "\n".join(
        pg.sentences(each, "{candidate} against {baseline}") for each in timed
    )


def told(ways: pl.DataFrame) -> pl.DataFrame:
    """Of builds, medians: arm, case, presorted (0 or 1), index_bytes, buffers_read."""
    metrics = ["presorted", "index_bytes", "buffers_read"]
    return pg.wide(ways, metrics, ["arm", "case"])


def pages_of_indexes(samples: pl.DataFrame) -> pl.DataFrame:
    """Of the indexes of 2008: case, arm, pages, buckets, overflow_pages, longest_chain, full.

    ``full`` is entries to a bucket.
    """
    metrics = [
        "index_bytes",
        "entries",
        "buckets",
        "overflow_pages",
        "longest_chain",
    ]
    built = samples.filter(
        pl.col("step") == "build", pl.col("arm").is_in(["value", "code"])
    )
    counts = pg.wide(built, metrics, ["case", "arm"]).drop_nulls("buckets")
    return counts.select(
        "case",
        "arm",
        (pl.col("index_bytes") / 8192).cast(pl.Int64).alias("pages"),
        *(pl.col(name).cast(pl.Int64) for name in metrics[2:]),
        (pl.col("entries") / pl.col("buckets")).round(1).alias("full"),
    )


def building_effects(
    samples: pl.DataFrame, metrics: Sequence[str]
) -> list[pl.DataFrame]:
    """Effects on building and on the index's size, where measured.

    Those of the patch, with many buffers and with few, of the commit, and of hash against btree.
    """
    built = pg.round_values(
        samples.filter(
            pl.col("step").is_in(["build", "build, wide"]),
            pl.col("metric").is_in([*metrics, "index_bytes"]),
        ),
        by=["case", "step", "metric"],
    )
    few = "value, few buffers"
    pairs = {
        "value": ["code"],
        "before": ["after"],
        "btree": ["hash"],
        few: ["code, few buffers", "code, few buffers, sorted"],
        "code, few buffers": ["code, few buffers, sorted"],
    }
    same = ["case", "step", "metric"]
    # With few buffers there is no second copy: two btrees on the same column are the gate.
    second = built.filter(pl.col("copy_of") == "btree")["arm"].unique()
    copies = compared(
        built.filter(pl.col("case") == "wide"),
        "btree",
        second.to_list(),
        by=same,
    )
    return [
        pg.gated_by(table, copies[0]) if copies and "few buffers" in baseline else table
        for baseline, candidates in pairs.items()
        for table in compared(built, baseline, candidates, by=same)
    ]


def reason_not_warm(
    turns: pl.DataFrame, comparison: Mapping[str, object]
) -> str | None:
    """Why a warm claim is not judged, by the least hits in a turn of what it compares; or None.

    ``turns`` is ``warm_turns``; a claim compares two arms of one case, or two cases.
    """
    compared = turns.filter(pl.col("case").is_in(comparison.values()))
    least_hits = compared.select(pl.col("least_hits").min()).item()
    if least_hits is None or least_hits >= 0.999:
        return None
    return f"of a warm turn only {least_hits:.1%} of pages were in shared buffers"


def reason_not_cold(transactions: int, rows: int) -> str | None:
    """Why no cold claim is judged, by the size of a cold run; or None."""
    if transactions <= MOST_COLD * rows:
        return None
    return (
        f"not at this size: {transactions} transactions on {rows:,} rows come back to "
        f"pages that they have read"
    )


def conditions(
    used: Mapping[str, Any], turns: pl.DataFrame
) -> Callable[[Claim], str | None]:
    """Why the run does not meet what a claim requires, or None, by the claim.

    ``used`` are its parameters, ``turns`` is ``warm_turns``.
    """

    def unmet(claim: Claim) -> str | None:
        step = claim.comparison.get("step")
        if step in {"cold", "slow disk"}:
            return reason_not_cold(used["transactions"], used["rows"])
        return reason_not_warm(turns, claim.comparison) if step == "warm" else None

    return unmet


def answers(
    study: pg.Study, run: Run, reads: pl.DataFrame, sizes: pl.DataFrame
) -> Answers:
    """Answers that rest on counts; None where there is nothing to count."""
    record, rows = study.record, study.record.parameters["rows"]
    ways = run.samples.filter(pl.col("step") == "build, wide")
    return {
        **answers_of_data(run.everything, rows),
        **answers_of_sizes(sizes, rows),
        **answers_of_reads(reads.filter(run.is_own), str(record.repeat)),
        **answers_of_builds(ways, rows, record.info["server"]["unmet_settings"]),
    }


def answers_of_data(everything: pl.DataFrame, rows: int) -> Answers:
    """Whether the tables are what they should be, by what was looked at after loading."""
    loaded = everything.filter(pl.col("block") == 0, pl.col("step") == "load")

    def of_cases(metric: str) -> dict[str, set[float]]:
        values = loaded.filter(pl.col("metric") == metric)
        by_case = values.group_by("case").agg("value").iter_rows()
        return {case: set(found) for case, found in by_case}

    sums, colliding = of_cases("checksum"), of_cases("colliding")
    return {
        "every server has the same data": max(map(len, sums.values()), default=0) == 1,
        "nearly all colliding keys collide, and hardly any others": (
            min(colliding["collision"]) >= 0.999 * rows
            and max(colliding["narrow"]) < 0.01 * rows
        ),
    }


def answers_of_sizes(sizes: pl.DataFrame, rows: int) -> Answers:
    """How large indexes are beside each other; None where the table is small or one is missing."""

    def size(index: str, case: str) -> Any:
        found = sizes.filter(pl.col("case") == case, pl.col("arm") == index)[
            "size_bytes"
        ]
        return found.item() if found.len() else None

    is_large = rows >= LARGE
    of_2008 = size("value", "narrow") is not None
    return {
        "on narrow keys an index of values is as large as one of codes": (
            all(
                size("value", case) == size("code", case)
                for case in ("narrow", "collision")
            )
            if of_2008
            else None
        ),
        "on wide keys an index of values is about four times as large": (
            3.5 < size("value", "wide") / size("code", "wide") < 4.5
            if is_large and of_2008
            else None
        ),
        "a hash index is as large on wide keys as on narrow ones": (
            abs(size("hash", "wide") / size("hash", "narrow") - 1) < 0.05
            if is_large
            else None
        ),
        "a btree on wide keys is more than three times as large": (
            size("btree", "wide") > 3 * size("hash", "wide") if is_large else None
        ),
    }


def answers_of_reads(reads: pl.DataFrame, repeat: str) -> Answers:
    """How many pages cold queries read, on one server; ``repeat`` is the second copy's index."""

    def pages(index: str, case: str) -> Any:
        found = reads.filter(pl.col("case") == case, pl.col("index") == index)["reads"]
        return found.item() if found.len() else None

    def more(index: str) -> Any:
        both = pages(index, "collision"), pages(index, "narrow")
        return None if None in both else both[0] - both[1]

    cold = pages("hash", "wide")
    by_value = more("value")
    by_code = None if by_value is None else more("code")
    return {
        "a cold query by wide keys reads fewer pages by hash than by btree": cold
        and cold < pages("btree", "wide"),
        "a collision costs one more page where codes are stored, within a third": (
            None if by_code is None else abs(by_code - 1) < 1 / 3
        ),
        "a collision costs no page where values are stored, within a tenth": (
            None if by_value is None else abs(by_value) < 0.1
        ),
        "both copies of the baseline read the same pages": cold
        and abs(pages(repeat, "wide") / pages("btree", "wide") - 1) < 0.001,
    }


def answers_of_builds(
    ways: pl.DataFrame, rows: int, unmet_settings: Container[str]
) -> Answers:
    """When an index is sorted first; with other shared buffers the threshold is elsewhere."""

    def presorted(arm: str, case: str) -> set[float]:
        is_one = (
            (pl.col("metric") == "presorted")
            & (pl.col("arm") == arm)
            & (pl.col("case") == case)
        )
        return set(ways.filter(is_one)["value"])

    has_threshold = rows >= LARGE and "shared_buffers" not in unmet_settings
    few = [
        presorted(f"{arm}, few buffers{how}", "few buffers")
        for arm, how in (("value", ""), ("code", ""), ("code", ", sorted"))
    ]
    return {
        "today's hash index is sorted first where memory is little, not where it is much": (
            (
                presorted("hash", "little memory") == {1}
                and presorted("hash", "much memory") == {0}
            )
            if has_threshold
            else None
        ),
        "by the rule of 2008 values are sorted first, and codes are if the cache is less": (
            few == [{1}, {0}, {1}] if all(few) else None
        ),
    }
