"""What ``dead_tuples.ipynb`` shows of a record: what its cells call, in their order.

Where no structure could be measured, or no VACUUM, a method gives None or an empty list.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

import pgstudies as pg

from . import reading
from .arms import COMMITS

if TYPE_CHECKING:
    from collections.abc import Sequence


class Page:
    """The charts and tables of one record; a new record has a new page."""

    def __init__(self, study: pg.Study) -> None:
        self.study = study
        self.record = study.record
        self.used = self.record.parameters
        self.version = self.record.info["server"]["version"]
        self.names = self.record.arms["name"].to_list()
        self.densest, self.largest = min(self.used["dead"]), max(self.used["memory_kb"])
        self.before = reading.newest_before_17(self.used["releases"])
        self.published = reading.published(study)
        self.theirs = reading.of_post(self.published)
        steps = ["load", "lookup", "first lookup"]
        self.of_structures = study.samples.filter(pl.col("step").is_in(steps))
        self.each_lookup = reading.each_lookup(self.of_structures)

    @cached_property
    def loaded(self) -> pl.DataFrame:
        return reading.loaded(self.of_structures, self.names)

    def memory(self) -> object:
        return self._beside_post(
            self.loaded,
            "bytes_per_tid",
            "bytes per dead TID",
            "Memory of each structure per dead TID, ours and the post's, by case.",
        )

    def lookups(self) -> list[object]:
        cost = reading.lookup_cost(self.of_structures, self.names)
        chart = self._beside_post(
            cost.filter(reading.IS_SHUFFLED),
            "lookup_ns",
            "ns per lookup",
            "Time of one lookup by structure, ours and the post's, by case.",
        )
        table = reading.table_beside_post(self.loaded, cost, self.theirs)
        return [table] if chart is None else [chart, table]

    def _beside_post(
        self, ours: pl.DataFrame, quantity: str, title: str, description: str
    ) -> object:
        if not ours.height:
            return None
        return pg.dot_chart(
            reading.beside_post(ours, self.theirs, quantity, self.names),
            x="structure",
            y=quantity,
            y_title=title,
            low="low",
            high="high",
            step="step",
            log=True,
            arms=[reading.HERE, reading.POST],
            description=description,
        )

    @cached_property
    def effects(self) -> pl.DataFrame:
        return reading.effects(self.study, self.of_structures, self.published)

    def effect_chart(self) -> object:
        if not self.effects.height:
            return None
        shown = self.effects.filter(reading.IS_SHUFFLED, pl.col("metric") == "cpu_s")
        shown = shown.with_columns(step=pl.format("{}, {}", "case", "step"))
        return pg.effect_chart(
            shown.sort(pl.col("step").str.ends_with("load")),
            arms=self.record.arms,
            description="Ratio of each structure's CPU time to the array's, by case, beside the "
            "post's.",
        )

    def diagnosis(self) -> list[object]:
        """All effects, what other arms' turns cost, and whether the machine drifted."""
        found: list[object] = []
        if self.effects.height:
            told = self.effects.filter(
                reading.IS_SHUFFLED, pl.col("metric") != "duration_s"
            )
            in_the_post = pl.col("published_ratio").round(3).alias("published")
            rounds = pg.round_values(self.each_lookup, by=reading.BY)
            found += [
                pg.effect_table(
                    told, "case", "step", "metric", "candidate", in_the_post
                ),
                pg.part_table(self.each_lookup, baseline="array"),
                pg.diagnose(rounds, baseline="array", by=reading.BY),
            ]
        lookups = pg.block_values(self.each_lookup, by=reading.BY)
        if lookups.height:
            chart = pg.block_chart(
                lookups.with_columns(ns=1e9 * pl.col("value")),
                y="ns",
                y_title="ns of CPU time per lookup",
                step="case",
                arms=self.record.arms,
                description="The time of a lookup in every block, by structure.",
            )
            found.append(chart)
        return found

    @cached_property
    def of_vacuum(self) -> pl.DataFrame:
        return reading.of_vacuum(self.study.samples)

    @cached_property
    def each_vacuum(self) -> pl.DataFrame:
        return reading.each_vacuum(self.of_vacuum)

    @cached_property
    def passes(self) -> pl.DataFrame:
        return reading.passes(self.each_vacuum, self.names)

    def vacuums(self) -> list[object]:
        """The memory for one pass, how many passes less memory takes, and the figures."""
        found: list[object] = []
        chart: object
        arms = [name for name in self.names if name.startswith("VACUUM")]
        once = reading.one_pass(self.each_vacuum, self.names)
        if once.height:
            chart = pg.dot_chart(
                once,
                x="what",
                y="mib",
                y_title="MiB for the dead, one pass over the index",
                log=True,
                low="low",
                high="high",
                arms=arms,
                description="Memory that VACUUM allocated and used in one pass, by release.",
            )
            found.append(chart)
        if self.passes.height:
            by_memory = self.passes.with_columns(memory=pl.format("{} kB", "memory_kb"))
            chart = pg.series_chart(
                by_memory.sort("rows_dead", "memory_kb", maintain_order=True),
                x="memory",
                y="index_scans",
                y_title="passes over the index",
                step="what",
                log=True,
                arms=arms,
                description="How often VACUUM went through the index, by memory, release and "
                "density.",
            )
            found.append(chart)
        return [*found, reading.passes_table(self.passes)]

    def compared(self, arms: Sequence[str]) -> pl.DataFrame:
        """The VACUUMs of two arms that the last claim compares."""
        return self.each_vacuum.filter(
            pl.col("arm").is_in(arms),
            pl.col("rows_dead") == self.densest,
            pl.col("memory_kb") == self.largest,
        )

    def released(self, arms: Sequence[str]) -> pl.DataFrame:
        both = self.compared(arms)
        return reading.released(self.study, self.of_vacuum, both, arms, self.largest)

    @cached_property
    def of_commit(self) -> pl.DataFrame:
        """What the commit does to VACUUM's memory; no rows without its servers."""
        return self.released([*COMMITS])

    def judged(self) -> pl.DataFrame:
        found = [reading.no_narrower(self.effects), self.of_commit]
        # An older server has the array itself, and stands for nothing beside the commit.
        if self.version >= 170000 or self.of_commit.is_empty():
            found.append(self.released([self.before, "VACUUM"]))
        return reading.together(*found)

    def reason_no_vacuum(self) -> str | None:
        """Of the servers that judge: the commit's, or else a release and the run's own."""
        arms, version = [self.before, "VACUUM"], self.version
        if self.of_commit.height:
            arms, version = [*COMMITS], 170000
        return reading.reason_no_vacuum(self.compared(arms), arms[0], version)

    def answers(self) -> dict[str, bool | None]:
        """Answers that rest on counts and sizes; None where there are none."""
        size_of = reading.sizes(self.loaded)
        array, tree, radix = (
            size_of.get(("dense", arm)) for arm in ("array", "radix_tree", "radix")
        )
        radix_of_post = reading.sizes(self.theirs)["dense", "radix"]
        own: Any = reading.own_vacuum(
            self.passes, self.densest, self.largest, self.version
        )
        dead = self.used["rows"] // self.densest
        return {
            "every structure finds as many dead TIDs as arithmetic": reading.all_found(
                self.of_structures
            ),
            "dense, the server's radix tree takes less than a tenth of the array": pg.if_known(
                lambda tree, array: tree < array / 10, tree, array
            ),
            "and our radix tree no more, for a dead TID, than the post's": pg.if_known(
                lambda ours, post: ours <= post, radix, radix_of_post
            ),
            "sparse, the array is the smallest": pg.if_known(
                lambda name: name.startswith("array"),
                reading.smallest(size_of, "sparse"),
            ),
            "with the most memory VACUUM goes through the index once": pg.if_known(
                lambda cell: cell["index_scans"] == 1, own
            ),
            "and uses less than half of six bytes for every dead row": reading.small_enough(
                own, dead
            ),
        }
