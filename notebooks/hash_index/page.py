"""What ``hash_index.ipynb`` shows of a record: what its cells call, in their order."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

import pgstudies as pg

from . import charts, reading
from .arms import COMMITS
from .tables import COLLATIONS, LOCALE, POST

if TYPE_CHECKING:
    from pgstudies.analysis.agreement import Claim

BY = ["release", "case", "step", "metric"]
QUANTITIES = ["duration_s", "cpu_s", "buffers_read"]
WALL = pl.col("metric") == "duration_s"
OF_HASH = pl.col("candidate") == "hash"
OF_COMMIT = pl.col("arm").is_in(list(COMMITS))
CASE_AND_STEP = pl.format("{}, {}", "case", "step")


class Page:
    """The charts and tables of one record; a new record has a new page."""

    def __init__(self, study: pg.Study) -> None:
        self.study = study
        self.record = record = study.record
        self.used = record.parameters
        self.own = pg.version_number(record.info["server"]["version_text"])
        self.is_own = pl.col("release") == self.own
        self.other = f"wide, {LOCALE}"
        self.everything = record.samples.drop("copy_of").join(
            reading.of_arms(record), on="arm", maintain_order="left"
        )
        self.samples = self.everything.filter(pl.col("block") > 0)
        self.own_samples = self.samples.filter(self.is_own)
        self.own_and_commits = self.samples.filter(self.is_own | OF_COMMIT)
        cases = reading.cases_of(self.samples, self.used["widths"], COLLATIONS)
        steps = ["cold", "slow disk", "warm"]
        self.steps = [step for step in steps if step in self.samples["step"]]
        self.case = pl.col("case").cast(pl.Enum(cases))
        self.step = pl.col("step").cast(pl.Enum(self.steps))
        self.arm = pl.col("arm").cast(pl.Enum(record.arms["name"].to_list()))
        self.is_shown = reading.is_shown(self.samples)
        self.pair = pl.col("arm").is_in(["btree", "hash", record.repeat])

    @cached_property
    def reads(self) -> pl.DataFrame:
        return reading.pages_read(self.samples).sort(self.case, self.arm)

    def reads_chart(self) -> list[object]:
        """The chart, or none where nothing was read cold."""
        if self.reads.is_empty():
            return []
        return [
            pg.dot_chart(
                self.reads.filter(self.is_own),
                x="case",
                y="reads",
                y_title="pages read per transaction, cold",
                low="low",
                high="high",
                arms=self.record.arms,
                description="Pages read per transaction from a cold cache, by kind of key and "
                "index.",
            )
        ]

    def reads_table(self) -> pl.DataFrame:
        return self.reads.with_columns(pl.col("reads").round(3)).pivot(
            "arm", index="case", values="reads"
        )

    def cold(self) -> pl.DataFrame:
        """What the device read, and how cold that was."""
        is_cold = pl.col("step").is_in(["cold", "slow disk"])
        return (
            pg.cache_state(self.own_and_commits.filter(is_cold))
            .group_by("step", "case", "arm", "state")
            .agg(
                runs=pl.len(),
                pages=pl.col("buffers_read").median().round(3),
                device_pages=(pl.col("read_bytes") / 8192).median().round(3),
            )
            .sort("step", self.case, self.arm)
        )

    def on_old_disk(self) -> pl.DataFrame:
        found = reading.on_old_disk(self.own_and_commits, self.study.published())
        return found.sort(self.case, self.arm)

    def curve(self) -> list[object]:
        """The chart from cold to warm, or none where nothing was read cold."""
        curve = reading.from_cold_to_warm(self.own_samples, POST)
        if curve.is_empty():
            return []
        is_pages = pl.col("what").str.contains("pages")
        return [
            pg.series_chart(
                curve.sort(is_pages, self.case, self.arm, "leg"),
                x="leg",
                y="value",
                y_title="of one transaction",
                low="low",
                high="high",
                step="what",
                arms=self.record.arms,
                description="Time and pages of one transaction from the cold run on, by index.",
            )
        ]

    @cached_property
    def warm_turns(self) -> pl.DataFrame:
        return reading.warm_turns(self.samples).sort(self.case, self.arm)

    def cold_times(self) -> pl.DataFrame:
        times = reading.cold_times(self.own_and_commits)
        return times.sort(self.step, self.case, self.arm)

    @cached_property
    def rounds(self) -> pl.DataFrame:
        """What a query takes, round by round; each arm by its index."""
        quantities = pl.col("metric").is_in(QUANTITIES)
        asked = self.samples.filter(pl.col("step").is_in(self.steps), quantities)
        return pg.round_values(asked.with_columns(arm="index"), by=BY)

    @cached_property
    def effects(self) -> pl.DataFrame:
        """Today's hash index against a btree."""
        rounds = self.rounds.filter(self.pair)
        effects = pg.paired_effects(rounds, baseline="btree", by=BY)
        return effects.sort(self.case, self.step, maintain_order=True)

    @cached_property
    def ours(self) -> pl.DataFrame:
        return self.effects.filter(self.is_own, self.is_shown)

    def effect_chart(self) -> object:
        return pg.effect_chart(
            self.ours.with_columns(step=CASE_AND_STEP),
            arms=self.record.arms,
            description="Cost of a query by hash relative to btree, by kind of key and cache.",
        )

    def effect_table(self) -> pl.DataFrame:
        medians = {"btree": "baseline_median", "hash": "candidate_median"}
        tps = [
            (1 / pl.col(median)).round(0).alias(f"{index}, tps")
            for index, median in medians.items()
        ]
        timed = self.effects.filter(OF_HASH, WALL)
        return pg.effect_table(timed, "release", "case", "step", *tps)

    def in_words(self) -> str:
        return pg.sentences(self.ours.filter(OF_HASH), "{case}, {step}")

    def diagnosis(self) -> pl.DataFrame:
        rounds = self.rounds.filter(self.is_own, WALL, self.pair)
        return pg.diagnose(rounds, baseline="btree", by=BY[1:])

    def by_block(self) -> object:
        is_asked = pl.col("step").is_in(self.steps) & pl.col("case").is_in(POST)
        timed = self.own_samples.filter(is_asked, WALL).with_columns(arm="index")
        return pg.block_chart(
            pg.block_values(timed, by=BY[1:])
            .with_columns(us=1e6 * pl.col("value"), what=CASE_AND_STEP)
            .sort(pl.col("step") != "warm", "what", "block"),
            y="us",
            y_title="µs per transaction",
            step="what",
            arms=self.record.arms,
            description="The time of a transaction in every block, in the order of blocks, by "
            "index.",
        )

    def effect_map(self) -> object:
        this = pl.format("{} (this server)", "release")
        server = pl.when(self.is_own).then(this).otherwise("release")
        return charts.effect_map(
            self.effects.filter(OF_HASH, self.is_shown)
            .with_columns(server=server)
            .sort(~self.is_own, maintain_order=True),
            x="step",
            y="case",
            step="server",
            better="hash better",
            worse="btree better",
            description="Cost of a query by hash relative to btree, by kind of key, cache and "
            "server.",
        )

    @cached_property
    def patched(self) -> pl.DataFrame:
        """Codes against values, of the stand-in and of the commit."""
        return self._compared(("value", "code"), ("before", "after"))

    @cached_property
    def unpatched(self) -> pl.DataFrame:
        """Values against a btree, of the stand-in and before the commit."""
        return self._compared(("btree", "value"), ("btree, before", "before"))

    def _compared(self, *pairs: tuple[str, str]) -> pl.DataFrame:
        """The effects of the second of each pair against the first, where measured."""
        rounds = self.rounds.filter(self.is_own | OF_COMMIT)
        found = [
            effects
            for baseline, candidate in pairs
            for effects in reading.compared(rounds, baseline, [candidate], by=BY)
        ]
        return pl.concat([self.effects.clear(), *found], how="diagonal_relaxed")

    @cached_property
    def beside_post(self) -> pl.DataFrame:
        in_post = reading.patch_ratios(self.study.published())
        return (
            self.patched.filter(self.is_shown)
            .join(in_post, on=["case", "step"], how="left")
            .sort(self.case, self.step, maintain_order=True)
        )

    def patch_chart(self) -> list[object]:
        """The chart, or none where no index of 2008 could be measured."""
        if self.beside_post.is_empty():
            return []
        return [
            pg.effect_chart(
                self.beside_post.with_columns(step=CASE_AND_STEP),
                arms=self.record.arms,
                description="Cost with codes stored relative to values, beside the post.",
            )
        ]

    def patch_table(self) -> pl.DataFrame:
        published = pl.col("published_ratio").round(3).alias("published")
        places = "case", "step", "candidate", published
        return pg.effect_table(self.beside_post, *places)

    @cached_property
    def by_locale(self) -> list[pl.DataFrame]:
        """How much more codes gain in another locale, where it was measured."""
        own = self.rounds.filter(self.is_own)
        gains = reading.gains(own, ["wide", self.other])
        if self.other not in gains["case"]:
            return []
        return [reading.gain_of_locale(own, gains, self.other)]

    def locale_tables(self) -> list[pl.DataFrame]:
        columns = "candidate", "baseline", "metric"
        return [pg.effect_table(gain, *columns) for gain in self.by_locale]

    @cached_property
    def sizes(self) -> pl.DataFrame:
        is_size = (pl.col("metric") == "index_bytes") & (pl.col("step") == "build")
        return (
            self.everything.filter(is_size, self.is_own | OF_COMMIT)
            .group_by("case", "arm")
            .agg(size_bytes=pl.col("value").median())
            .sort(self.case, self.arm)
        )

    def megabytes(self) -> pl.DataFrame:
        megabytes = (pl.col("size_bytes") / 2**20).round(1)
        return self.sizes.with_columns(megabytes=megabytes).pivot(
            "arm", index="case", values="megabytes"
        )

    def pages_of_2008(self) -> pl.DataFrame:
        return reading.pages_of_indexes(self.everything).sort(self.case, self.arm)

    @cached_property
    def seconds(self) -> pl.DataFrame:
        """Of each build, as ``text``: the median, and the fastest and slowest."""
        is_build = pl.col("step").is_in(["build", "build, wide"])
        spread = [pl.col(name).round(2) for name in ("s", "low", "high")]
        return (
            self.samples.filter(is_build, WALL)
            .group_by("step", "case", "arm")
            .agg(pg.spread("s"))
            .with_columns(text=pl.format("{} ({}–{})", *spread))
        )

    def build_times(self) -> pl.DataFrame:
        of_all = self.seconds.filter(pl.col("step") == "build")
        in_order = of_all.sort(self.case, self.arm)
        return in_order.pivot("arm", index="case", values="text")

    @cached_property
    def ways(self) -> pl.DataFrame:
        """Of the wide column's index, built in other ways."""
        return self.samples.filter(pl.col("step") == "build, wide")

    def cliff(self) -> pl.DataFrame:
        of_wide = self.seconds.filter(pl.col("step") == "build, wide")
        return (
            of_wide.join(reading.told(self.ways), on=["arm", "case"])
            .select(
                "arm",
                "case",
                pl.col("text").alias("seconds"),
                pl.col("presorted").cast(pl.Int8),
                (pl.col("index_bytes") / 2**20).round(1).alias("index, MB"),
                pl.col("buffers_read").cast(pl.Int64).alias("pages read"),
            )
            .sort(self.arm, "case")
        )

    @cached_property
    def building(self) -> list[pl.DataFrame]:
        return reading.building_effects(self.samples, QUANTITIES)

    def building_in_words(self) -> str:
        timed = [t.filter(WALL, pl.col("ratio").is_not_null()) for t in self.building]
        words = "{candidate} against {baseline}"
        return "\n".join(pg.sentences(table, words) for table in timed)

    def of_the_post(self) -> dict[str, float]:
        return reading.claimed_ratios(self.study.published())

    def unmet(self, claim: Claim) -> str | None:
        """Why the run does not meet what the claim requires of it, or None."""
        step = claim.comparison.get("step")
        if step in {"cold", "slow disk"}:
            used = self.used
            return reading.reason_not_cold(used["transactions"], used["rows"])
        if step == "warm":
            return reading.reason_not_warm(self.warm_turns, claim.comparison)
        return None

    def answers(self) -> dict[str, bool | None]:
        """Answers that rest on counts; None where there is nothing to count."""
        rows = self.used["rows"]
        reads, repeat = self.reads.filter(self.is_own), str(self.record.repeat)
        unmet = self.record.info["server"]["unmet_settings"]
        return {
            **reading.answers_of_data(self.everything, rows),
            **reading.answers_of_sizes(self.sizes, rows),
            **reading.answers_of_reads(reads, repeat),
            **reading.answers_of_builds(self.ways, rows, unmet),
        }
