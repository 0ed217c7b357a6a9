"""What ``instrument.ipynb`` shows of a record: what its cells call, in their order."""

from __future__ import annotations

from functools import cached_property

import altair as alt
import polars as pl

import pgstudies as pg
from pgapps.scorecard.checks import ShownChecks, display_checks
from pgstudies.analysis.intervals import smallest_detectable
from pgstudies.charts.style import NEUTRAL, arm_scale

from . import caches, reading
from .arms import LIVES, PLANTED, TIMES
from .reading import BY

STEPS = ["timed", "repeated", "each", "pgbench", "cold"]
IN_ORDER = pl.col("step").cast(pl.Enum(STEPS))
MEASURES = {"duration_s": "wall time", "cpu_s": "CPU time"}
MEASURE = pl.col("metric").replace_strict(MEASURES).alias("measure")
WALL = pl.col("metric") == "duration_s"
IS_WORK = pl.col("case") == "work"
KIND = ["step", "metric"]
MACHINE = {
    "spin_s": "loop, ms",
    "waited": "waited, %",
    "stolen": "stolen, %",
    "involuntary_per_s": "involuntary switches, 1/s",
}
FACTORS = {"spin_s": 1e3, "waited": 100, "stolen": 100, "involuntary_per_s": 1}


class Page:
    """The charts and tables of one record; a new record has a new page."""

    def __init__(self, study: pg.Study) -> None:
        self.record = study.record
        self.used = self.record.parameters
        self.repeat = str(self.record.repeat)
        self.is_equal = pl.col("candidate") == self.repeat
        each = self.used["blocks_each"]
        experiment = (pl.col("block") - 1) // each + 1
        size = pl.col("block").n_unique().over("experiment")
        # Those of whole experiments.
        self.samples = study.samples.with_columns(experiment=experiment).filter(
            size == min(each, self.record.blocks)
        )
        self.times = self.samples.filter(pl.col("metric").is_in(MEASURES))
        self.work = self.times.filter(IS_WORK)
        self.values = pg.round_values(self.work, by=BY)
        self.took = self.samples.filter(metric="took_s")
        self.machine = self.samples.filter(step="machine")

    def sizes(self) -> dict[str, object]:
        return {
            "experiments": self.samples["experiment"].n_unique(),
            "blocks in each": self.used["blocks_each"],
            "measurements in each": self.used["iterations"],
            "rounds of each": self.used["rounds"],
        }

    @cached_property
    def fixed(self) -> pl.DataFrame:
        """What a call takes with one statement and with all, and its ``fixed`` share, by step."""
        second = (pl.col("case") == "one") & (pl.col("iteration") == 1)
        ours = self.times.filter(
            pl.col("arm").is_in(["baseline", self.repeat]), IS_WORK | second
        )
        share = (TIMES * pl.col("one") / pl.col("work") - 1).clip(0) / (TIMES - 1)
        return (
            ours.group_by(*KIND, "case")
            .agg(pl.col("value").median())
            .pivot("case", on_columns=["one", "work"], index=KIND, values="value")
            .with_columns(fixed=share)
            .sort(IN_ORDER, "metric")
        )

    def fixed_shares(self) -> pl.DataFrame:
        return self.fixed.filter(pl.col("step") != "cold").select(
            "step",
            MEASURE,
            call_us=1e6 * pl.col("work"),
            with_one_statement_us=1e6 * pl.col("one"),
            fixed_percent=100 * pl.col("fixed"),
        )

    @cached_property
    def truths(self) -> pl.DataFrame:
        names = {0: self.repeat} | {p: f"{p} % more" for p in PLANTED}
        percents = pl.DataFrame(
            list(names.items()), ["percent", "candidate"], orient="row"
        )
        percent, fixed = pl.col("percent"), pl.col("fixed").fill_null(0)
        return (
            self.fixed.join(percents, how="cross")
            .filter((percent == 0) | (pl.col("step") != "cold"))
            .select(
                *KIND, "candidate", "percent", truth=1 + percent / 100 * (1 - fixed)
            )
        )

    @cached_property
    def effects(self) -> pl.DataFrame:
        return pg.paired_effects(self.values, baseline="baseline", by=BY).join(
            self.truths, on=[*KIND, "candidate"]
        )

    @cached_property
    def found(self) -> pl.DataFrame:
        return reading.deviations(self.values, self.truths, baseline="baseline")

    @cached_property
    def equal(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Effects of the two equal arms, and their deviations."""
        return self.effects.filter(self.is_equal), self.found.filter(self.is_equal)

    @cached_property
    def planted(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Effects of the other arms, and their deviations."""
        return self.effects.filter(~self.is_equal), self.found.filter(~self.is_equal)

    def alarms(self) -> pl.DataFrame:
        return _shares(*self.equal, reading.EXCLUDES_ONE, "came out different")

    def verdicts(self) -> pl.DataFrame:
        equal, _ = self.equal
        found = equal["verdict"].unique().sort()
        counts = [(pl.col("verdict") == v).sum().alias(v) for v in found]
        return equal.group_by("step", MEASURE).agg(*counts).sort(IN_ORDER, "measure")

    def noise(self) -> object:
        """The noise floor; None where nothing has an interval."""
        percent = 100 * pl.col("noise")
        noise = (
            self.equal[0]
            .filter(pl.col("noise").is_not_null())
            .group_by("step", MEASURE)
            .agg(
                floor=percent.median(),
                low=percent.quantile(0.25),
                high=percent.quantile(0.75),
            )
            .sort(IN_ORDER, "measure", descending=[False, True])
        )
        if noise.is_empty():
            return None
        return pg.dot_chart(
            noise,
            x="step",
            y="floor",
            y_title="half-width of the 95 % interval, % of the baseline",
            color="measure",
            arms=list(MEASURES.values()),
            low="low",
            high="high",
            description="The noise floor of each kind of step, "
            "in wall time and in CPU time.",
        )

    @cached_property
    def recovered(self) -> pl.DataFrame:
        """What is found of each planted effect, in per cent, from all blocks together."""
        pooled = pg.paired_effects(
            pg.round_values(self.work, by=KIND), baseline="baseline", by=KIND
        )
        planted = self.truths.filter(pl.col("percent") > 0)
        return (
            pooled.join(planted, on=[*KIND, "candidate"])
            .select(
                "step",
                "candidate",
                "percent",
                MEASURE,
                truth=100 * (pl.col("truth") - 1),
                found=100 * (pl.col("ratio") - 1),
                low=100 * (pl.coalesce("low", "ratio") - 1),
                high=100 * (pl.coalesce("high", "ratio") - 1),
            )
            .sort("measure", IN_ORDER, "percent", descending=[True, False, False])
        )

    def recovered_chart(self) -> object:
        off = pl.col("found", "low", "high") - pl.col("truth")
        return pg.dot_chart(
            self.recovered.with_columns(off),
            x="candidate",
            y="found",
            y_title="found less planted, percentage points",
            color="step",
            low="low",
            high="high",
            step="measure",
            description="How far what is found is off each planted effect, by kind of step.",
        )

    def recovered_table(self) -> pl.DataFrame:
        text = pl.format(
            "{} ({} to {}), true {}",
            *(pl.col(c).round(2) for c in ("found", "low", "high", "truth")),
        )
        return self.recovered.with_columns(text=text).pivot(
            "candidate", index=["measure", "step"], values="text"
        )

    def coverage(self) -> pl.DataFrame:
        return _shares(*self.planted, reading.HOLDS_TRUTH, "hold the truth")

    def power(self) -> pl.DataFrame:
        is_slower, by = pl.col("verdict") == "slower", [*KIND, "candidate"]
        return (
            reading.share_table(*self.planted, is_slower, by=by)
            .with_columns(MEASURE, share=(100 * pl.col("share")).round(0))
            .pivot(
                "candidate",
                on_columns=[f"{percent} % more" for percent in PLANTED],
                index=["step", "measure"],
                values="share",
            )
            .sort(IN_ORDER, "measure")
        )

    @cached_property
    def start_s(self) -> pl.Expr:
        """What the start of one arm takes; null where there is one block only."""
        begin, end = pl.col("started_at"), pl.col("finished_at")
        spans = self.record.timeline.group_by("block").agg(begin.min(), end.max())
        between_s = (begin - end.shift(1)).dt.total_microseconds() / 1e6
        of_one = spans.sort("block").select(
            between_s.median() / self.record.arms.height
        )
        return pl.lit(of_one.item(), pl.Float64)

    @cached_property
    def reach(self) -> pl.DataFrame:
        """How many ``seconds`` so many blocks take, and what is ``detectable`` then (%)."""
        took = self.took.group_by("block", "arm", "step", "iteration").agg(
            pl.col("value").sum()
        )
        deviation = pl.col("deviation").pow(2).mean().sqrt()
        spread = self.equal[1].filter(WALL).group_by("step").agg(sd=deviation)
        smallest = pl.struct("sd", "blocks").map_elements(
            lambda row: smallest_detectable(row["sd"], row["blocks"]),
            return_dtype=pl.Float64,
        )
        return (
            took.group_by("step")
            .agg(took_s=pl.col("value").median())
            .join(spread, on="step")
            .join(pl.DataFrame({"blocks": [6, 10, 20, 50]}), how="cross")
            .with_columns(
                seconds=2 * pl.col("blocks") * (self.start_s + pl.col("took_s")),
                detectable=100 * smallest,
            )
            .sort(IN_ORDER, "blocks")
        )

    def reach_table(self) -> pl.DataFrame:
        shown = pl.col("detectable").round(2)
        return self.reach.select(
            "step",
            blocks=pl.format("{} blocks", "blocks"),
            shows=pl.format("{} % in {} s", shown, pl.col("seconds").round(1)),
        ).pivot("blocks", index="step", values="shows")

    def reach_in_words(self) -> object:
        return reading.reach_in_words(self.reach, self.machine, "baseline")

    def reach_chart(self) -> object:
        kinds = self.reach["step"].unique(maintain_order=True).to_list()
        picked = alt.selection_point(fields=["step"], bind="legend")
        logarithmic = alt.Scale(type="log", nice=False, padding=20)
        smallest = alt.Tooltip("detectable:Q").title("smallest, %")
        base = alt.Chart(self.reach).encode(
            x=alt.X("seconds:Q").scale(logarithmic).title("seconds"),
            y=alt.Y("detectable:Q")
            .scale(logarithmic)
            .title("smallest effect that shows, %"),
            color=alt.Color("step:N").scale(arm_scale(kinds)),
            opacity=alt.when(picked).then(alt.value(1)).otherwise(alt.value(0.1)),
            tooltip=["step:N", "blocks:Q", "seconds:Q", smallest],
        )
        shape = alt.Shape("blocks:N").legend(
            orient="bottom",
            title="blocks",
            symbolFillColor=NEUTRAL,
            symbolStrokeColor=NEUTRAL,
        )
        points = base.mark_point().encode(shape=shape)
        return (
            alt.LayerChart(layer=[base.mark_line(), points])
            .properties(
                width=600,
                height=280,
                description="The smallest effect that each kind of step can show, "
                "by time, for 6 to 50 blocks.",
            )
            .add_params(picked)
        )

    def of_ten(self) -> pl.DataFrame:
        """How well a study of ten blocks finds 2 % more work in the long statement."""
        ten, by = min(10, self.record.blocks), ["experiment", "metric"]
        long = self.record.measured.filter(
            IS_WORK, pl.col("metric").is_in(MEASURES), step="timed"
        ).with_columns(experiment=(pl.col("block") - 1) // ten + 1)
        effects = pg.paired_effects(
            pg.round_values(long, by=by), baseline="baseline", by=by
        )
        turns = self.took.filter(step="timed").group_by("block", "arm")
        turns_s = pl.lit(turns.agg(pl.col("value").sum())["value"].median())
        width = (pl.col("high") / pl.col("low")).log()
        return (
            effects.filter(candidate="2 % more", blocks=ten)
            .group_by("metric")
            .agg(
                experiments=pl.len(),
                found_in=(pl.col("low") > 1).sum(),
                found_percent=(100 * (pl.col("ratio").median() - 1)).round(2),
                half_width_percent=(50 * width.median()).round(2),
                statement_ms=(1e3 * pl.col("baseline_median").median()).round(1),
            )
            .select(
                MEASURE,
                pl.exclude("metric"),
                seconds=(3 * ten * (self.start_s + turns_s)).round(0),
            )
            .sort("measure", descending=True)
        )

    @cached_property
    def costs(self) -> pl.DataFrame:
        """``SELECT 1`` by each way, against the bare loop."""
        select_1 = self.samples.filter(WALL, case="SELECT 1", arm="baseline")
        return pg.paired_effects(
            pg.round_values(select_1, by=KIND),
            baseline="libpq loop",
            key="step",
            by=["metric"],
        )

    def cost_table(self) -> pl.DataFrame:
        return self.costs.select(
            "candidate",
            "blocks",
            (1e6 * pl.col("baseline_median")).round(2).alias("libpq_loop_us"),
            (1e6 * pl.col("candidate_median")).round(2).alias("candidate_us"),
            pl.col("ratio", "low", "high").round(3),
        ).sort("ratio")

    def cost_chart(self) -> object:
        return pg.effect_chart(
            self.costs.with_columns(step=pl.lit("SELECT 1")),
            arms=["libpq loop", *self.costs["candidate"]],
            description="Time of SELECT 1 by each way of running it, "
            "relative to a bare loop over libpq.",
        )

    @cached_property
    def by_trial(self) -> pl.DataFrame:
        return self.machine.group_by("block", "arm", "metric", "unit").agg(
            pl.col("value").median()
        )

    def machine_table(self) -> pl.DataFrame:
        value = pl.col("value")
        return (
            self.by_trial.group_by("metric", "unit")
            .agg(median=value.median(), least=value.min(), most=value.max())
            .sort("metric")
        )

    def loop(self) -> pl.DataFrame:
        loops = pg.paired_effects(
            pg.round_values(self.machine.filter(metric="spin_s"), by=["metric"]),
            baseline="baseline",
            by=["metric"],
        )
        columns = ["ratio", "low", "high", "ratio_of_sums"]
        return loops.select(
            "candidate", "blocks", ((pl.col(columns) - 1) * 100).round(2)
        )

    def machine_chart(self) -> object:
        metric, what = pl.col("metric"), list(MACHINE.values())
        shown = self.by_trial.filter(metric.is_in(MACHINE)).with_columns(
            value=pl.col("value") * metric.replace_strict(FACTORS),
            what=metric.replace_strict(MACHINE),
        )
        return pg.block_chart(
            shown.sort(pl.col("what").cast(pl.Enum(what)), "block", "arm"),
            y_title="value, in the unit chosen below",
            step="what",
            arms=self.record.arms,
            description="What the machine did in every block: "
            "a fixed loop's time, time waited and stolen.",
        )

    def checks(self) -> ShownChecks:
        carried = caches.judged(self.samples, baseline="baseline", planted=LIVES)
        found = reading.instrument_checks(
            self.equal[0].filter(WALL),
            self.planted[0].filter(WALL),
            self.found.filter(WALL),
            self.costs,
            self.machine,
            carried=carried,
            baseline="baseline",
        )
        return display_checks(found, self.record)

    def answers(self) -> dict[str, bool | None]:
        """Answers that rest on counts."""
        planned = {a["name"]: a["options"]["times"] for a in self.record.info["arms"]}
        ran = self.samples.filter(IS_WORK, metric="statements")
        wanted = ran["arm"].replace_strict(planned, return_dtype=pl.Float64)
        arms = self.samples.group_by("block").agg(pl.col("arm").n_unique())["arm"]
        counted = self.work.filter(WALL).group_by("block", "arm", "step").len()["len"]
        asked = self.used["iterations"] * self.used["rounds"]
        return {
            "every step ran the statement as often as planted": (
                ran["value"] == wanted
            ).all(),
            "every arm was measured in every block": (arms == len(planned)).all(),
            "every kind was measured as often as asked": (counted == asked).all(),
        }


def _shares(
    effects: pl.DataFrame, found: pl.DataFrame, hit: pl.Expr, name: str
) -> pl.DataFrame:
    """The shares of comparisons that are hits, which the table calls by ``name``."""
    percents = ((100 * pl.col(column)).round(1) for column in ("share", "low", "high"))
    return (
        reading.share_table(effects, found, hit, by=KIND)
        .sort(IN_ORDER, "metric")
        .select(
            "step",
            MEASURE,
            "comparisons",
            pl.col("effective").round(1),
            pl.col("hits").alias(name),
            share=pl.format("{} % ({} to {} %)", *percents),
        )
    )
