"""What ``io_method.ipynb`` shows of a record: what its cells call, in their order."""

from __future__ import annotations

import operator
from functools import cached_property

import polars as pl

import pgstudies as pg

from . import reading

SAME = ["case", "iteration", "step", "metric"]


class Page:
    """The charts and tables of one record; a new record has a new page."""

    def __init__(self, study: pg.Study) -> None:
        self.study = study
        self.record = study.record
        self.samples = study.samples
        self.used = self.record.parameters
        self.cores = len(self.record.info["host"]["allowed_cores"])
        self.names = self.record.arms["name"].to_list()
        timed = pl.col("step").is_in(reading.TIMED), pl.col("metric") == "duration_s"
        self.values = pg.block_values(self.samples.filter(*timed), by=SAME)
        releases = tuple(self.used["releases"])
        own = [name for name in self.names if not name.startswith(releases)]
        self.of_server = self.values.filter(pl.col("arm").is_in(own))
        self.of_releases = self.values.filter(~pl.col("arm").is_in(own))
        many = [n for n in self.used["connections"] if n >= 2 * self.cores]
        self.crowd = min(many, default=max(self.used["connections"]))
        self.most_workers = f"worker, {max(self.used['workers'])}"
        self.slowest = reading.network(max(self.used["latencies_ms"]))

    def what_was_run(self) -> dict[str, object]:
        return {
            "cores": self.cores,
            "tables, MB each": self.used["table_mb"],
            "shared buffers, MB": self.used["buffers_mb"],
            "disk, MB/s": self.used["disk_mb"],
        }

    @cached_property
    def effects(self) -> pl.DataFrame:
        return pg.paired_effects(self.of_server, baseline="sync", by=SAME)

    @cached_property
    def named(self) -> pl.DataFrame:
        return reading.named(self.effects)

    def effect_chart(self) -> object:
        return pg.effect_chart(
            self.named,
            arms=self.record.arms,
            description="Time of each kind of read relative to sync, by where the data is and who "
            "reads.",
        )

    def workers_in_words(self) -> str:
        """The effects of the default in sentences."""
        return pg.sentences(self.named.filter(candidate="worker"), "{step}")

    def milliseconds(self) -> pl.DataFrame:
        by_arm = pl.col("arm").cast(pl.Enum(self.names))
        return reading.milliseconds(self.values).sort(by_arm)

    def effect_table(self) -> pl.DataFrame:
        return pg.effect_table(self.named, "step", "candidate")

    def diagnosis(self) -> pl.DataFrame:
        return pg.diagnose(self.of_server, baseline="sync", by=SAME)

    def by_block(self) -> object:
        return pg.block_chart(
            reading.named(self.values).sort("step", "block"),
            y="value",
            y_title="seconds",
            step="step",
            arms=self.record.arms,
            description="The time of a scan or lookup in every block, by arm.",
        )

    def closer(self) -> pl.DataFrame:
        return reading.closer(self.samples, self.names)

    def wake_ups(self) -> pl.DataFrame:
        return reading.wake_ups(self.samples)

    def which_for_you(self) -> object:
        return pg.effect_chart(
            reading.which(self.effects, self.cores),
            arms=reading.CHOICES,
            description="Time with workers relative to sync, by place, kind of read, connections "
            "per core.",
        )

    @cached_property
    def by_buffers(self) -> pl.DataFrame:
        usual, few = self.used["buffers_mb"], self.used["few_buffers_mb"]
        return reading.by_buffers(self.values, usual, few)

    def by_buffers_chart(self) -> object:
        return pg.series_chart(
            self.by_buffers,
            x="MB",
            y="ratio",
            y_title="time with worker / time with sync",
            low="low",
            high="high",
            arms=self.record.arms,
            step="connections",
            description="Time of a cached scan with workers relative to sync, by shared buffers.",
        )

    def against_the_default(self) -> pl.DataFrame:
        return pg.paired_effects(self.of_server, baseline="worker", by=SAME)

    def conditions(self) -> dict[str, str | None]:
        """Why this run is not what a claim is about, by its id."""
        of_mail = ["in memory", "more workers", "io_uring", "too many"]
        few = reading.unlike_the_mail(self.samples, self.used, self.crowd, self.cores)
        unmet: dict[str, str | None] = dict.fromkeys(of_mail, few)
        if self.cores < 2:
            alone = "one core: the post had two"
            unmet |= {"lookups": alone, "lookups, too many": alone}
        return unmet

    def on_other_cores(self) -> pl.DataFrame:
        assert self.study.verdicts is not None
        beside = reading.by_cores(self.record, self.study.verdicts)
        return reading.side_by_side(beside)

    @cached_property
    def between(self) -> pl.DataFrame:
        """The effects against release 17; no rows where it was not measured."""
        if "17" not in self.of_releases["arm"]:
            return pl.DataFrame()
        between = pg.paired_effects(self.of_releases, baseline="17", by=SAME)
        return reading.named(between)

    def release_chart(self) -> object:
        return pg.effect_chart(
            self.between,
            arms=self.record.arms,
            description="Time of a scan or lookup relative to release 17, by where the data is.",
        )

    def releases_in_words(self) -> str:
        return pg.sentences(self.between, "{candidate}, {step}")

    def answers(self) -> dict[str, bool | None]:
        """Answers that rest on counts; None where they were not taken."""
        few = self.used["few_buffers_mb"]
        sleeps, reads = (
            reading.counted(self.samples, n, few) for n in ("sleeps", "reads")
        )
        return {
            "a session that reads for itself sleeps less than once in ten reads": pg.if_known(
                operator.lt, sleeps.get("sync"), reading.tenth(reads.get("sync"))
            ),
            "one whose workers read sleeps more often": pg.if_known(
                operator.gt, sleeps.get("worker"), sleeps.get("sync")
            ),
            "both ask for as many reads, within a tenth": pg.if_known(
                reading.alike, reads.get("worker"), reads.get("sync")
            ),
        }
