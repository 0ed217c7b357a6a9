"""What ``cluster_order.ipynb`` shows of a record: what its cells call, in their order."""

from __future__ import annotations

import operator
from functools import cached_property
from typing import Any

import polars as pl

import pgstudies as pg

from . import reading
from .arms import PATCHED, RESERVE

TIMES = pl.col("metric").is_in(["duration_s", "cpu_s"])
WALL = pl.col("metric") == "duration_s"


class Page:
    """The charts and tables of one record; a new record has a new page."""

    def __init__(self, study: pg.Study) -> None:
        self.study = study
        self.record = study.record
        self.samples = study.samples
        self.names = self.record.arms["name"].to_list()
        self.patched = PATCHED
        self.last = self.record.parameters["iterations"]
        self.steps = reading.published_steps(study)

    @cached_property
    def touched(self) -> pl.DataFrame:
        return reading.pages_per_range(self.samples)

    @cached_property
    def expected(self) -> pl.DataFrame:
        """The pages of a range if every replaced row costs one."""
        gone = 1 - 0.98 ** pl.col("iteration")
        fresh = reading.fresh_pages(self.record.samples)
        iterations = pl.DataFrame({"iteration": range(self.last + 1)})
        return iterations.with_columns(pages=fresh + 1001 * gone)

    def decay(self) -> object:
        return pg.series_chart(
            self.touched.sort("iteration"),
            y="pages",
            y_title="heap pages per range",
            low="low",
            high="high",
            arms=self.record.arms,
            expectation=self.expected,
            description="Heap pages per range of 1001 keys, by iteration and arm, against "
            "expectation.",
        )

    def relative_times(self) -> object:
        return pg.series_chart(
            reading.relative_times(self.samples, self.steps, last=self.last),
            y="ratio",
            y_title="time, relative",
            step="what",
            log=True,
            arms=self.record.arms,
            description="Each step relative to an early iteration: the post's two servers and our "
            "arms.",
        )

    def on_old_disk(self) -> pl.DataFrame:
        return reading.on_old_disk(self.samples, self.steps, last=self.last)

    def preparation(self) -> pl.DataFrame:
        timings = self.study.published()
        return reading.preparation(timings, self.record.samples, patched=PATCHED)

    @cached_property
    def later(self) -> pl.DataFrame:
        """What counts: iterations from the second on."""
        others = pl.col("step").is_in(["cluster", "old disk"])
        return self.samples.filter(pl.col("iteration") != 1, ~others)

    @cached_property
    def side_by_side(self) -> pl.DataFrame:
        """The times of arms that did not stop."""
        stopped = pl.col("arm").str.ends_with(reading.STOPPED)
        return self.later.filter(TIMES, ~stopped)

    @cached_property
    def effects(self) -> pl.DataFrame:
        return self.study.effects(self.side_by_side, baseline="heap")

    @cached_property
    def in_post(self) -> pl.DataFrame:
        return reading.published_ratios(self.steps, patched=PATCHED)

    @cached_property
    def shown(self) -> pl.DataFrame:
        return reading.beside_the_post(self.effects, self.in_post).filter(WALL)

    def effect_chart(self) -> object:
        return pg.effect_chart(
            self.shown,
            arms=self.record.arms,
            description="Ratio of each arm's time to the plain heap's, per step, with 95 % "
            "intervals.",
        )

    def effect_table(self) -> pl.DataFrame:
        published = pl.col("published_ratio").round(2).alias("published")
        return pg.effect_table(self.shown, "step", "candidate", published)

    def inserts(self) -> str:
        """The insert step of every arm in a sentence."""
        return pg.sentences(
            self.effects.filter(WALL, pl.col("step") == "insert"), "{step}, {candidate}"
        )

    def parts(self) -> pl.DataFrame:
        return pg.part_table(self.side_by_side, baseline="heap")

    def diagnosis(self) -> pl.DataFrame:
        return pg.diagnose(
            pg.round_values(self.side_by_side.filter(WALL)), baseline="heap"
        )

    def by_block(self) -> object:
        values = pg.block_values(
            self.side_by_side.filter(WALL, pl.col("case") != "cold")
        )
        return pg.block_chart(
            values.with_columns(
                step=reading.STEP_AND_CASE, milliseconds=1000 * pl.col("value")
            ).sort(pl.col("step") != "insert", "step", "block"),
            y="milliseconds",
            y_title="ms, mean of a block",
            step="step",
            arms=self.record.arms,
            description="The time of each step in every block, in the order of blocks, by arm.",
        )

    def decays(self) -> list[pl.DataFrame]:
        """How much slower range selects became, by arm, and how the arms' decays compare.

        The second copy of an arm that stopped is not measured; that of one that went on is, and is
        the gate.
        """
        any_range = [pl.col("step") == "select_range", pl.col("case") == "any range"]
        selects = self.samples.filter(TIMES, *any_range)
        arms = set(selects["arm"])
        copies = self.effects.filter(
            pl.col("candidate") == self.record.repeat, *any_range
        )
        found = []
        for arm in ("heap", PATCHED):
            pair = [arm, f"{arm}{reading.STOPPED}"]
            if arms.issuperset(pair):
                both = selects.filter(pl.col("arm").is_in(pair))
                decay = self.study.effects(both, baseline=pair[1])
                found.append(pg.gated_by(decay, copies))
        rounds = reading.decays(selects, ["heap", str(self.record.repeat), PATCHED])
        if {"heap", PATCHED} <= set(rounds["arm"]):
            found.append(pg.paired_effects(rounds, baseline="heap"))
        return found

    def of_the_post(self) -> dict[str, float]:
        return reading.of_the_post(self.steps, self.in_post, last=self.last)

    @cached_property
    def counters(self) -> pl.DataFrame:
        return reading.cost_of_a_step(self.later, self.names)

    def neighbours(self) -> pl.DataFrame:
        return reading.cost_of_neighbours(self.samples, self.names, last=self.last)

    def cluster_runs(self) -> pl.DataFrame:
        """What CLUSTER takes, per run of it."""
        runs = self.samples.filter(pl.col("step") == "cluster")
        return (
            runs.group_by("arm", "metric", "unit")
            .agg(pl.len().alias("runs"), *pg.spread("median"))
            .sort("metric")
        )

    def cold(self) -> pl.DataFrame:
        """How cold the cold selects were."""
        state = pg.cache_state(self.samples.filter(pl.col("step") == "select_range"))
        return (
            state.group_by("case", "arm", "state")
            .agg(
                selects=pl.len(),
                buffers_read=pl.col("buffers_read").median(),
                read_bytes=pl.col("read_bytes").median(),
            )
            .sort("case", pl.col("arm").cast(pl.Enum(self.names)), "state")
        )

    def answers(self) -> dict[str, bool | None]:
        """Answers that rest on counts; None where a server does not count."""
        used = self.record.parameters
        plain = self.touched.filter(pl.col("arm") == "heap").sort("iteration")
        growth: Any = plain["pages"].diff().drop_nulls().min()
        rows_apart, pages_apart = reading.copies_apart(
            self.samples, str(self.record.repeat)
        )
        back = reading.pages_after_cluster(self.touched, every=used["cluster_every"])
        inserts = self.counters.filter(
            pl.col("step") == "insert", pl.col("arm") == "heap"
        )
        held = "shared_buffers" in self.record.reasons
        reads = None if held else inserts["buffers_read"].max()
        at_end = self.touched.filter(pl.col("iteration") == self.last)
        pages_of = dict(at_end.select("arm", "pages").iter_rows())
        heap, patched, reserve = map(pages_of.get, ("heap", PATCHED, RESERVE))
        fresh = reading.fresh_pages(self.record.samples)
        return {
            "the range lies on more pages after every iteration": growth > 0,
            "their number is as expected, within a tenth": reading.farthest_off(
                plain, self.expected
            )
            < 0.1,
            "both copies of the baseline always hold as many rows": rows_apart == 0,
            "and lie on as many pages, within a twentieth": pages_apart < 0.05,
            "CLUSTER brings a range back to its first pages": pg.if_known(
                operator.le, back, fresh + 2
            ),
            "an insert step reads more than half a page per row": pg.if_known(
                operator.gt, reads, used["rows"] / 100
            ),
            "the patch leaves a range on fewer pages than the heap": pg.if_known(
                operator.lt, patched, heap
            ),
            "with a reserve, on fewer still": pg.if_known(
                operator.lt, reserve, patched
            ),
        }
