"""What ``dead_tuples.ipynb`` shows and judges, made of the samples of its record.

``of_structures`` and ``of_vacuum`` are samples, a row for each value; ``names`` are those of all
arms, in their order; ``published`` has the post's numbers.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import polars as pl

import pgstudies as pg
from pgservers.order import major_number, version_key

from .arms import COMMITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BY = ["case", "step", "metric"]
PATTERNS = ["dense", "sparse", "real"]
PATTERN = pl.col("case").str.split(", ").list.first()
IS_SHUFFLED = ~pl.col("case").str.ends_with("in order")
HERE, POST = "here", "in the post"

REBUILD = 0.03
"""How far the ratio of two structures' times moved between two builds of the same code."""

OF_POST = {
    "dense": (1_000_000, 100, 1, 1000, 1100),
    "sparse": (10_000_000, 2, 50, 1, 1000),
}
"""The post's cases: pages, dead rows to a page that has any, every which row of it is dead, and how
many consecutive pages of how many have any."""

WRAP = 2**32 >> 9
"""The page whose TIDs have the numbers of page 0 where 32 bits hold them."""


def index_entries(pages: int, dead_per_page: int, interval: int, *_: int) -> int:
    """How many rows the table of a case has, and its index entries."""
    return pages * dead_per_page * interval


def dead_rows(
    pages: int, dead_per_page: int, _: int, consecutive: int, page_interval: int
) -> int:
    """How many of them are dead."""
    whole, rest = divmod(pages, page_interval)
    return (whole * consecutive + min(rest, consecutive)) * dead_per_page


def published(study: pg.Study) -> pl.DataFrame:
    """The post's numbers, with bytes_per_tid and load_ns by dead TID, lookup_ns by index entry."""
    of_case = pl.col("case").replace_strict
    entries = of_case({case: index_entries(*shape) for case, shape in OF_POST.items()})
    dead_tids = of_case({case: dead_rows(*shape) for case, shape in OF_POST.items()})
    return study.published().with_columns(
        bytes_per_tid=pl.col("size_bytes") / dead_tids,
        load_ns=1e6 * pl.col("load_ms") / dead_tids,
        lookup_ns=1e6 * pl.col("lookup_ms") / entries,
    )


def published_table(study: pg.Study) -> pl.DataFrame:
    """The same for readers."""
    return published(study).select(
        "case",
        "structure",
        "size_published",
        "load_ms",
        "lookup_ms",
        pl.col("bytes_per_tid", "load_ns", "lookup_ns").round(1),
        "note",
    )


def wrapped() -> str:
    """How many rows of the post's sparse case *bdbench* took for dead where numbers wrap."""
    size, dead_per_page, _, consecutive, page_interval = OF_POST["sparse"]
    dirty = range(0, size, page_interval)
    taken = [
        other
        for block in dirty
        for other in (block - WRAP, block + WRAP)
        if 0 <= other < size and other % page_interval >= consecutive
    ]
    return (
        f"clean blocks taken for blocks with dead rows: {len(taken):,}\n"
        f"live rows taken for dead: {len(taken) * dead_per_page:,}\n"
        f"dead rows: {len(dirty) * dead_per_page:,}"
    )


def loaded(of_structures: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Columns arm, pattern, bytes_per_tid (median over blocks), its low and high, and load_ns."""
    metrics = ["size", "cpu_s", "dead"]
    loads = pg.undisturbed(of_structures.filter(pl.col("step") == "load"))
    return (
        pg.wide(loads, metrics, ["arm", "case", "block"])
        .drop_nulls()
        .with_columns(pattern=PATTERN)
        .group_by("arm", "pattern")
        .agg(
            pg.spread("bytes_per_tid", pl.col("size") / pl.col("dead")),
            load_ns=(1e9 * pl.col("cpu_s") / pl.col("dead")).median(),
        )
        .sort(_in_order("pattern", "arm", names))
    )


def of_structures(samples: pl.DataFrame) -> pl.DataFrame:
    """The samples of structures that are loaded and looked up in."""
    return samples.filter(pl.col("step").is_in(["load", "lookup", "first lookup"]))


def each_lookup(of_structures: pl.DataFrame) -> pl.DataFrame:
    """The samples of the lookups' CPU time."""
    return of_structures.filter(pl.col("step") == "lookup", pl.col("metric") == "cpu_s")


def lookup_cost(of_structures: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Columns arm, case, lookup_ns (median over blocks), its low and high, pattern and order."""
    return (
        pg.undisturbed(each_lookup(of_structures))
        .group_by("arm", "case", "block")
        .agg(pl.col("value").median())
        .group_by("arm", "case")
        .agg(pg.spread("lookup_ns", 1e9 * pl.col("value")))
        .with_columns(
            pattern=PATTERN,
            order=pl.when(IS_SHUFFLED)
            .then(pl.lit("shuffled"))
            .otherwise(pl.lit("in order")),
        )
        .sort(_in_order("pattern", "arm", names))
    )


def of_post(published: pl.DataFrame) -> pl.DataFrame:
    """Columns arm, pattern, bytes_per_tid, load_ns and lookup_ns."""
    by_arm = {"structure": "arm", "case": "pattern"}
    return published.rename(by_arm).select(
        "arm", "pattern", "bytes_per_tid", "load_ns", "lookup_ns"
    )


def beside_post(
    ours: pl.DataFrame, theirs: pl.DataFrame, quantity: str, names: Sequence[str]
) -> pl.DataFrame:
    """The dots of a chart, HERE and POST as its arms: the quantity, low and high by structure.

    The column step has the pattern.
    """
    columns = {"structure": "arm", "step": "pattern"}
    if ours.is_empty():
        theirs = theirs.clear()
    points = [
        ours.select(quantity, "low", "high", **columns, arm=pl.lit(HERE)),
        theirs.select(
            quantity, low=quantity, high=quantity, **columns, arm=pl.lit(POST)
        ),
    ]
    return pl.concat(points).sort(
        _in_order("step", "structure", names), maintain_order=True
    )


def table_beside_post(
    loaded: pl.DataFrame, cost: pl.DataFrame, theirs: pl.DataFrame
) -> pl.DataFrame:
    """Memory, loading and lookups, ours and the post's, by pattern and arm, to three digits."""
    place = ["pattern", "arm"]
    by_order = cost.pivot(
        "order", on_columns=["shuffled", "in order"], index=place, values="lookup_ns"
    )
    return (
        loaded.join(by_order, on=place, maintain_order="left")
        .join(theirs, on=place, how="left", suffix=", post", maintain_order="left")
        .select(
            *place,
            **{
                "bytes": "bytes_per_tid",
                "bytes, post": "bytes_per_tid, post",
                "load, ns": "load_ns",
                "load, ns, post": "load_ns, post",
                "lookup, ns": "shuffled",
                "in order, ns": "in order",
                "lookup, ns, post": "lookup_ns",
            },
        )
        .with_columns(pl.selectors.numeric().round_sig_figs(3))
    )


def effects(study: pg.Study, of_structures: pl.DataFrame) -> pl.DataFrame:
    """Effects against the array by BY, with published_ratio; no rows where there is no array."""
    if "array" not in of_structures["arm"]:
        nothing = study.effects(baseline=study.samples["arm"][0]).clear()
        return nothing.with_columns(published_ratio=pl.lit(None, pl.Float64()))
    costs = of_structures.filter(
        pl.col("step").is_in(["load", "lookup"]),
        pl.col("metric").is_in(["cpu_s", "duration_s", "size"]),
    )
    return (
        study.effects(costs, baseline="array", by=BY)
        .join(
            published_ratios(published(study)),
            on=[*BY, "candidate"],
            how="left",
            maintain_order="left",
        )
        .sort(PATTERN.cast(pl.Enum(PATTERNS)), "case", maintain_order=True)
    )


def drift(each_lookup: pl.DataFrame) -> pl.DataFrame | None:
    """Whether the machine drifted, or the order of arms mattered; None where there is no array."""
    if "array" not in each_lookup["arm"]:
        return None
    return pg.diagnose(pg.round_values(each_lookup), baseline="array")


def published_ratios(published: pl.DataFrame) -> pl.DataFrame:
    """The columns of BY, candidate, and published_ratio: to the post's array."""
    of_array = published.filter(pl.col("structure") == "array").drop("structure")
    quantities = {
        "lookup_ms": ("lookup", "cpu_s"),
        "load_ms": ("load", "cpu_s"),
        "size_bytes": ("load", "size"),
    }
    return pl.concat(
        published.join(of_array, on="case", suffix="_array")
        .filter(pl.col("structure") != "array")
        .select(
            "case",
            step=pl.lit(step),
            metric=pl.lit(metric),
            candidate="structure",
            published_ratio=pl.col(field) / pl.col(f"{field}_array"),
        )
        for field, (step, metric) in quantities.items()
    )


def of_vacuum(samples: pl.DataFrame) -> pl.DataFrame:
    """The samples of VACUUM, with rows_dead: one row in so many is dead."""
    return samples.filter(pl.col("step") == "vacuum").with_columns(
        rows_dead=pl.col("case").str.strip_prefix("every ").cast(pl.Int64)
    )


MEASURED = [
    "index_scans",
    "used_bytes",
    "allocated_bytes",
    "index_blocks",
    "duration_s",
]


def each_vacuum(of_vacuum: pl.DataFrame) -> pl.DataFrame:
    """A row for each VACUUM: arm, rows_dead, memory_kb, block and the columns of MEASURED."""
    place = ["arm", "rows_dead", "memory_kb", "block"]
    return pg.wide(of_vacuum.rename({"iteration": "memory_kb"}), MEASURED, place)


def one_pass(each_vacuum: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Columns arm, rows_dead, mib, low (used) and high (allocated), all MiB, and what."""
    allocated = pl.col("allocated_bytes").max() / 2**20
    return (
        each_vacuum.filter(
            pl.col("index_scans") == 1, pl.col("allocated_bytes").is_not_null()
        )
        .group_by("arm", "rows_dead")
        .agg(mib=allocated, low=pl.col("used_bytes").max() / 2**20, high=allocated)
        .with_columns(what=pl.format("1 row in {}", "rows_dead"))
        .sort("rows_dead", pl.col("arm").cast(pl.Enum(names)))
    )


def passes(each_vacuum: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Medians of MEASURED over the blocks by arm, rows_dead and memory_kb, what and memory."""
    return (
        each_vacuum.group_by("arm", "rows_dead", "memory_kb")
        .agg(pl.col(MEASURED).median())
        .with_columns(
            what=pl.format("1 row in {}", "rows_dead"),
            memory=pl.format("{} kB", "memory_kb"),
        )
        .sort("rows_dead", pl.col("arm").cast(pl.Enum(names)), "memory_kb")
    )


def passes_table(passes: pl.DataFrame) -> pl.DataFrame:
    """The table of ``passes`` for readers, sizes in kB."""
    kilobytes = {
        f"{name}, kB": (pl.col(f"{name}_bytes") / 1024).round(0)
        for name in ("used", "allocated")
    }
    return passes.select(
        "rows_dead",
        "arm",
        "memory_kb",
        pl.col("index_scans").cast(pl.Int64),
        "index_blocks",
        pl.col("duration_s").round(3),
        **kilobytes,
    )


def newest_before_17(releases: Iterable[str]) -> str:
    """The name of the arm that stands for VACUUM's array, measured or not."""
    older = [release for release in releases if major_number(release) < 17]
    return f"VACUUM, {max(older, key=version_key)}" if older else "VACUUM, before 17"


def reason_no_vacuum(both: pl.DataFrame, before: str, version: int) -> str | None:
    """Why the memory of VACUUM cannot be judged against ``before``, or None.

    ``both`` are the rows of these two, and ``version`` is the newer server's, such as 180000.
    """
    if version < 170000:
        return "the server is older than 17, so it has the array itself"
    if (both["index_scans"] > 1).any():
        return "the array did not hold all dead rows at once"
    of_array = both.filter(pl.col("arm") == before)["allocated_bytes"]
    if max(of_array.drop_nulls(), default=math.inf) < 6 * 2**20:
        return "the table is so small that a tree's first blocks are most of it"
    return None


def released(
    study: pg.Study,
    of_vacuum: pl.DataFrame,
    both: pl.DataFrame,
    arms: Sequence[str],
    memory_kb: int,
) -> pl.DataFrame:
    """Effects on VACUUM's memory of the second of two arms; no columns where one is missing."""
    sizes = of_vacuum.filter(
        pl.col("metric").is_in(["allocated_bytes", "used_bytes"]),
        pl.col("iteration") == memory_kb,
        pl.col("arm").is_in(arms),
    )
    if both["arm"].n_unique() < 2 or sizes["arm"].n_unique() < 2:
        return pl.DataFrame()
    return study.effects(sizes, baseline=arms[0], by=BY)


def judged_vacuum(
    study: pg.Study, each_vacuum: pl.DataFrame
) -> tuple[list[pl.DataFrame], str | None]:
    """The effects on VACUUM's memory that judge the last claim, and why none of them can.

    The commit judges where it was measured, or else the run's own server against a release before
    17, which stands beside the commit as well.
    """
    used, version = study.record.parameters, study.record.info["server"]["version"]
    densest, largest = min(used["dead"]), max(used["memory_kb"])
    at_most = each_vacuum.filter(rows_dead=densest, memory_kb=largest)
    sizes = of_vacuum(study.samples)

    def of(arms: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
        both = at_most.filter(pl.col("arm").is_in(arms))
        return both, released(study, sizes, both, arms, largest)

    own = [newest_before_17(used["releases"]), "VACUUM"]
    (of_own, by_own), (of_commit, by_commit) = of(own), of([*COMMITS])
    if by_commit.is_empty():
        return [by_own], reason_no_vacuum(of_own, own[0], version)
    # An older server has the array itself, and stands for nothing beside the commit.
    beside = [by_own] if version >= 170000 else []
    return [by_commit, *beside], reason_no_vacuum(
        of_commit, next(iter(COMMITS)), 170000
    )


def no_narrower(effects: pl.DataFrame) -> pl.DataFrame:
    """The same, with intervals of times that hold what a rebuild of the extension moves."""
    if effects.is_empty():
        return effects
    timed = pl.col("metric") != "size"
    low = pl.min_horizontal("low", pl.col("ratio") / (1 + REBUILD))
    high = pl.max_horizontal("high", pl.col("ratio") * (1 + REBUILD))
    known = timed & pl.col("low").is_not_null()
    return effects.with_columns(
        low=pl.when(known).then(low).otherwise("low"),
        high=pl.when(known).then(high).otherwise("high"),
    )


def all_found(of_structures: pl.DataFrame) -> bool | None:
    """Whether lookups hit as often as expected in every block; None where nothing was looked up."""
    metrics, place = ["hits", "expected"], ["block", "arm", "case"]
    found = pg.wide(of_structures, metrics, place, statistic="sum")
    return found["hits"].eq_missing(found["expected"]).all() if found.height else None


def sizes(loaded: pl.DataFrame) -> dict[tuple[str, str], float]:
    """Bytes for each dead TID by pattern and arm."""
    return {
        (row["pattern"], row["arm"]): row["bytes_per_tid"]
        for row in loaded.iter_rows(named=True)
    }


def smallest(size_of: Mapping[tuple[str, str], float], pattern: str) -> str | None:
    """The arm with the least bytes for each dead TID, or None."""
    known = [(size, arm) for (p, arm), size in size_of.items() if p == pattern]
    return min(known)[1] if known else None


def own_vacuum(
    passes: pl.DataFrame, rows_dead: int, memory_kb: int, version: int
) -> dict[str, Any] | None:
    """The row of ``passes`` that is VACUUM's on the server of the run; None before 17."""
    own = passes.filter(
        pl.col("arm") == "VACUUM",
        pl.col("rows_dead") == rows_dead,
        pl.col("memory_kb") == memory_kb,
    )
    return own.row(0, named=True) if own.height and version >= 170000 else None


def small_enough(own: Mapping[str, Any] | None, dead: int) -> bool | None:
    """Whether a VACUUM used less than half of six bytes for each dead row; None: not known."""
    if own is None or not own["used_bytes"]:
        return None
    if 6 * dead <= 2**18:
        return None  # of less, a tree's first blocks are most
    return bool(own["used_bytes"] < 3 * dead)


def _in_order(pattern: str, arm: str, names: Sequence[str]) -> list[pl.Expr]:
    return [pl.col(pattern).cast(pl.Enum(PATTERNS)), pl.col(arm).cast(pl.Enum(names))]


def answers(
    study: pg.Study, loaded: pl.DataFrame, theirs: pl.DataFrame, passes: pl.DataFrame
) -> dict[str, bool | None]:
    """Answers that rest on counts and sizes; None where there are none."""
    used, version = study.record.parameters, study.record.info["server"]["version"]
    size_of, densest = sizes(loaded), min(used["dead"])
    array, tree, radix = (
        size_of.get(("dense", arm)) for arm in ("array", "radix_tree", "radix")
    )
    own: Any = own_vacuum(passes, densest, max(used["memory_kb"]), version)
    known = pg.if_known
    return {
        "every structure finds as many dead TIDs as arithmetic": all_found(
            of_structures(study.samples)
        ),
        "dense, the server's radix tree takes less than a tenth of the array": known(
            lambda tree, array: tree < array / 10, tree, array
        ),
        "and our radix tree no more, for a dead TID, than the post's": known(
            operator.le, radix, sizes(theirs)["dense", "radix"]
        ),
        "sparse, the array is the smallest": known(
            lambda name: name.startswith("array"), smallest(size_of, "sparse")
        ),
        "with the most memory VACUUM goes through the index once": known(
            lambda cell: cell["index_scans"] == 1, own
        ),
        "and uses less than half of six bytes for every dead row": small_enough(
            own, used["rows"] // densest
        ),
    }
