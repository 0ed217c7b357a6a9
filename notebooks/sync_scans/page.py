"""What ``sync_scans.ipynb`` shows of a record: what its cells call, in their order."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import polars as pl

import pgstudies as pg
from pgservers.programs.slow_disk import READ_AHEAD_BYTES

from . import charts, disk, reading
from .arms import COMMITS, JUDGING, crowd

CASES = ["warm", "cold", "small memory", "small and slow", "direct"]
SLOW = "small and slow"
MAIN = ["off", "on", "on, small ring", "no ring", "direct, off", "direct"]
ALIKE = 0.1
SAME = ["case", "iteration", "step", "metric"]
DURATION = pl.col("metric") == "duration_s"
BY_BYTES = pl.col("metric") == "read_bytes"
WALKING = pl.col("step").is_in(["walk", "walk with work"])
OF_PAIRS = pl.col("case") == "direct", pl.col("iteration") == 2
TOGETHER = pl.col("together").round(2)
OF_COMMIT = pl.col("arm").is_in(list(COMMITS))
OUT_OF_STEP = [name for name, (_, sync, _) in COMMITS.items() if sync == "off"]
NO_RATIO = (
    "what an offset saves depends on the ratio of shared buffers to the table, which the post "
    "does not give; here they hold a quarter of it"
)

NOT_RUN = {
    "offset": "no scan began so far behind another (offsets = 0, 0.5)",
    "whole offset": "no scan began so far behind another (offsets = 0, 1)",
}


class Page:
    """The charts and tables of one record; a new record has a new page.

    Lists are of what is there to be shown, and may be empty.
    """

    not_run = NOT_RUN

    def __init__(self, study: pg.Study) -> None:
        self.study = study
        self.record = study.record
        self.samples = study.samples
        self.used = self.record.parameters
        pages = self.record.samples.filter(pl.col("metric") == "pages")["value"]
        self.table_pages = int(max(pages))
        self.in_tables = pl.col("value") / (8192 * self.table_pages)
        self.most, self.crowd = max(self.used["scans"]), crowd(self.used["scans"])
        cases = [case for case in CASES if case in self.samples["case"]]
        self.slow = SLOW if SLOW in cases else (cases or CASES)[0]
        self.slow_first = pl.col("case") != self.slow
        self.by_case = pl.col("case").cast(pl.Enum(CASES[::-1]))
        self.by_arm = pl.col("arm").cast(pl.Enum(self.record.arms["name"].to_list()))
        repeat = str(self.record.repeat)
        self.main = pl.col("arm").is_in([*MAIN, repeat])
        self.of_post = pl.col("arm").is_in([*MAIN[:3], repeat])
        self.scanned = self.samples.filter(pl.col("step") == "scan")
        self.walks = self.samples.filter(WALKING)
        by_commit = set(JUDGING) <= {*self.scanned["arm"]}
        self.judging = JUDGING if by_commit else ("off", "on")

    def size(self) -> dict[str, object]:
        return {
            "table, MB": self.table_pages / 128,
            "shared buffers, MB": self.used["buffers_mb"],
            "stagger": self.used["stagger"],
            "limits": self.record.info.get("limits", "kernel"),
        }

    def at_work(self) -> list[object]:
        """Where scans were: out of step, in step, and all arms by machine; what walking costs."""
        walked = reading.places(self.walks)
        on_slow = walked.filter(pl.col("case") == self.slow)
        until = on_slow.filter(pl.col("arm").is_in(["off", "on"]))["seconds"].max()
        shown: list[object] = []
        where, pages = "The page that each scan is at, over time", self.table_pages
        for arm in ("off", "on"):
            of_arm = on_slow.filter(pl.col("arm") == arm)
            how: dict[str, Any] = {"pages": pages, "until": until}
            how["description"] = f"{where}: {arm}, on the slow machine."
            if of_arm.height:
                shown.append(charts.scan_chart(of_arm, **how))
        with_work = pl.col("case") + pl.col("step").str.strip_prefix("walk")
        others = walked.with_columns(what=pl.format("{}: {}", with_work, "arm"))
        others = others.sort(self.by_case, self.by_arm, maintain_order=True)
        for (case,), of_case in others.group_by("case", maintain_order=True):
            how = {"pages": pages, "description": f"{where}, by arm: {case}."}
            shown.append(charts.scan_chart(of_case, step="what", **how))
        cost = reading.walking_cost(self.samples)
        return [*shown, *([cost.sort("case", self.by_arm)] if cost.height else [])]

    @cached_property
    def tables(self) -> pl.DataFrame:
        """Tables read, by case, arm and scans."""
        tables = reading.by_count(self.scanned, self.in_tables)
        return tables.sort(self.by_case, self.by_arm, "scans")

    def reads(self) -> list[object]:
        """How many tables were read, as a chart, and as a table with what others counted."""
        counted = reading.by_counter(self.scanned, self.in_tables)
        table = counted.sort(self.slow_first, "case", self.by_arm, "scans")
        if self.tables.is_empty():
            return [table]
        main = self.tables.filter(self.main)
        ideal = reading.ideal(
            self.tables["case"].unique(maintain_order=True),
            most=self.most,
            stagger=self.used["stagger"],
        )
        chart = pg.series_chart(
            main.sort(self.slow_first, maintain_order=True),
            x="scans",
            y="tables",
            y_title="tables read from the device",
            low="low",
            high="high",
            step="case",
            arms=self.record.arms,
            expectation=ideal,
            description="Tables read from the device by number of scans, arm and machine.",
        )
        return [chart, table]

    @cached_property
    def slowdown(self) -> pl.DataFrame:
        return reading.slowdown(self.scanned.filter(DURATION), ALIKE)

    def slowdown_chart(self) -> object:
        lines = reading.with_lone_scans(self.slowdown).filter(self.main)
        return pg.series_chart(
            lines.sort(self.slow_first, "case", self.by_arm, "scans"),
            x="scans",
            y="ratio",
            y_title="time of a scan, relative to a lone one",
            low="low",
            high="high",
            step="case",
            arms=self.record.arms,
            description="Time of a scan in company relative to a lone scan, by number of scans "
            "and arm.",
        )

    def slowdown_table(self) -> pl.DataFrame:
        known = self.slowdown.filter(pl.col("ratio").is_not_null())
        told = known.select("case", "arm", "scans", text=pg.with_interval())
        table = told.pivot("scans", index=["case", "arm"], values="text")
        return table.sort(self.by_case, self.by_arm)

    @cached_property
    def in_company(self) -> pl.DataFrame:
        return self.scanned.filter(pl.col("iteration") > 1, DURATION | BY_BYTES)

    @cached_property
    def rounds(self) -> pl.DataFrame:
        return pg.round_values(self.in_company, by=SAME)

    @cached_property
    def effects(self) -> pl.DataFrame:
        return pg.paired_effects(
            self.rounds.filter(self.of_post), baseline="off", by=SAME
        )

    def effect_chart(self) -> object:
        timed = self.effects.filter(DURATION)
        return pg.effect_chart(
            timed.with_columns(
                step=pl.format("{}, {} scans", "case", "iteration")
            ).sort(
                self.slow_first,
                pl.col("case").cast(pl.Enum(CASES)),
                "iteration",
                maintain_order=True,
            ),
            arms=self.record.arms,
            description="Time of a scan in step relative to out of step, by machine and number "
            "of scans.",
        )

    def two_and_most(self) -> str:
        """The effects on two scans, and on the largest number, in sentences."""
        told = self.effects.filter(
            DURATION,
            pl.col("candidate") == "on",
            pl.col("case") == self.slow,
            pl.col("iteration").is_in([2, self.most]),
        )
        return pg.sentences(told.sort("iteration"), "{case}, {iteration} scans")

    def effect_table(self) -> pl.DataFrame:
        scans = pl.col("iteration").alias("scans")
        return pg.effect_table(
            self.effects.filter(DURATION), "case", scans, "candidate"
        )

    @cached_property
    def of_commits(self) -> list[pl.DataFrame]:
        """The effects of the commits against that before both; none without them."""
        return against(self.rounds.filter(OF_COMMIT), JUDGING[0])

    @cached_property
    def values(self) -> pl.DataFrame:
        return pg.block_values(self.in_company.filter(DURATION, self.of_post), by=SAME)

    def diagnosis(self) -> pl.DataFrame:
        return pg.diagnose(self.values, baseline="off", by=SAME)

    def by_block(self) -> object:
        what = pl.format("{}, {} scans", "case", "iteration")
        return pg.block_chart(
            self.values.with_columns(what=what).sort(
                self.slow_first, "case", "iteration", "block"
            ),
            y="value",
            y_title="seconds per scan",
            step="what",
            arms=self.record.arms,
            description="The time of a scan in every block, in the order of blocks, by arm.",
        )

    def staggers(self) -> pl.DataFrame:
        on = self.samples.filter(pl.col("arm") == "on", pl.col("case") == self.slow)
        usual = self.used["stagger"]
        return reading.by_stagger(on, self.in_tables, count=self.crowd, usual=usual)

    def drift(self) -> pl.DataFrame:
        found = reading.drift(self.walks, ["case", "step", "arm"])
        in_step = found.filter(
            ~pl.col("arm").str.contains("off"), ~pl.col("arm").is_in(OUT_OF_STEP)
        )
        names = {"began_ahead": "began so many pages ahead", "apart_most": "most apart"}
        ordered = in_step.sort(self.slow_first, "case", self.by_arm)
        return ordered.with_columns(TOGETHER).rename(names)

    def with_work(self) -> pl.DataFrame:
        worked = self.samples.filter(pl.col("step") == "scan with work")
        found = reading.seconds_and_tables(worked, self.in_tables)
        ordered = found.sort("what", "scans", self.by_arm)
        return ordered.pivot("arm", index=["what", "scans"], values="value")

    @cached_property
    def pairs(self) -> pl.DataFrame:
        """What two scans read with direct I/O, by arm."""
        pairs = self.samples.filter(*OF_PAIRS)
        return reading.of_pairs(pairs, self.in_tables).sort(self.by_arm)

    def sharing(self) -> list[object]:
        """The bytes that two scans in step read with direct I/O, and how far apart they were."""
        pairs = self.pairs.with_columns(TOGETHER)
        side_by_side = self.rounds.filter(*OF_PAIRS, BY_BYTES)
        if "direct, off" not in side_by_side["arm"]:
            return [pairs]
        sharing = pg.paired_effects(side_by_side, baseline="direct, off", by=SAME)
        chart = pg.effect_chart(
            sharing.with_columns(
                step=pl.col("candidate").str.strip_prefix("direct, "),
                candidate=pl.lit("two scans"),
            ),
            description="Bytes read by two scans in step relative to out of step, by release and "
            "look-ahead.",
        )
        return [chart, pg.effect_table(sharing, "candidate"), pairs]

    def report(self) -> str:
        """The finding as text for a bug report; empty without direct I/O."""
        if self.pairs.is_empty():
            return ""
        version = self.record.info["server"]["version_text"]
        buffers, stagger = self.used["buffers_mb"], self.used["stagger"]
        lines = [
            f"{version}, debug_io_direct=data, shared_buffers={buffers}MB,",
            f"table of {self.table_pages} pages; two count(*), the second begun after {stagger}",
            "of a scan; tables read from the device, of 1 ideal + stagger:",
            "",
            f"{'arm':32}{'median':>8}{'least':>8}{'most':>8}{'together':>10}",
        ]
        for row in self.pairs.iter_rows(named=True):
            part = row["together"]
            near = "" if part is None else f"{100 * part:.0f} %"
            told = f"{row['arm']:32}{row['tables']:8}{row['least']:8}{row['most']:8}"
            lines.append(f"{told}{near:>10}")
        return "".join(f"{line}\n" for line in lines)

    def releases(self) -> pl.DataFrame:
        """Two scans on each release, on the slow machine and with direct I/O."""
        own = pl.col("server") == self.record.info["server"]["version_text"]
        is_commit = pl.col("name").is_in(list(COMMITS))
        arms = self.record.arms.filter(~own, ~is_commit)["name"].to_list()
        time = pg.with_interval().alias("time, relative to a lone scan")
        times = self.slowdown.filter(pl.col("scans") == 2).select("case", "arm", time)
        read = self.scanned.filter(
            BY_BYTES,
            pl.col("arm").is_in(["off", "on", "direct, off", "direct", *arms]),
            pl.col("iteration") == 2,
            pl.col("case").is_in([self.slow, "direct"]),
        )
        return (
            read.group_by("case", "arm")
            .agg(**reading.tables_read(self.in_tables))
            .join(times, on=["case", "arm"], how="left")
            .sort(self.slow_first, "case", self.by_arm)
        )

    def commits(self) -> list[pl.DataFrame]:
        """What scans took and read on the commits' servers, and the effects of the commits."""
        scanned = self.scanned.filter(OF_COMMIT)
        if scanned.is_empty():
            return []
        found = reading.seconds_and_tables(scanned, self.in_tables)
        ordered = found.sort("what", "scans", self.by_arm)
        scans = pl.col("iteration").alias("scans")
        return [
            ordered.pivot("arm", index=["what", "scans"], values="value"),
            *(
                pg.effect_table(effects.filter(DURATION), scans, "candidate")
                for effects in self.of_commits
            ),
        ]

    @cached_property
    def behind(self) -> pl.DataFrame:
        return self.samples.filter(pl.col("step") == "behind")

    def offsets(self) -> list[object]:
        """What two scans by ranges read, by how far behind the second one begins."""
        lagged = reading.by_offset(self.behind, self.in_tables)
        table = reading.with_both_times(self.behind, self.in_tables)
        if lagged.is_empty():
            return [table]
        chart = pg.dot_chart(
            lagged,
            x="offset",
            y="tables",
            y_title="tables read by both scans",
            low="low",
            high="high",
            arms=self.record.arms,
            description="Tables read by two scans, by how far behind the second one begins.",
        )
        return [chart, table]

    def schedulers(self) -> pl.DataFrame:
        names = self.used["schedulers"]
        arms = [f"{sync}, {name}" for sync in ("off", "on") for name in names]
        scanned = self.scanned.filter(
            pl.col("case") == "small memory", pl.col("arm").is_in(["off", "on", *arms])
        )
        found = reading.seconds_and_tables(scanned, self.in_tables)
        ordered = found.sort("what", "scans", self.by_arm)
        return ordered.pivot("scans", index=["what", "arm"], values="value")

    @cached_property
    def of_drives(self) -> pl.DataFrame:
        return self.samples.filter(pl.col("step") == "drive", DURATION)

    @cached_property
    def on_drives(self) -> pl.DataFrame:
        return reading.on_drives(self.of_drives, self.crowd)

    def drives(self) -> list[object]:
        """How scans fare on modelled drives, and how that depends on the model's figures."""
        is_mapped = pl.col("case").is_in(list(disk.mapped()))
        drives = self.on_drives.filter(~is_mapped)
        mapped = self.on_drives.filter(is_mapped | (pl.col("case") == "cfq"))
        if mapped.is_empty():
            return [drives]
        chart = pg.dot_chart(
            mapped,
            x="case",
            y="gain",
            y_title="times as fast in step",
            low="least",
            high="most",
            color="gain is",
            description="Gain of scans in step under a modelled CFQ, by the model's figures.",
        )
        return [drives, chart, mapped]

    def judged(self) -> list[pl.DataFrame]:
        """The effects that judge the claims, those of lone scans and of scans in company gated."""
        found, hindered = [self.effects, *self.of_commits], []
        of_ring = self.rounds.filter(
            pl.col("metric").is_in(["read_bytes", "duration_s"]),
            pl.col("arm").is_in(["on", "on, small ring"]),
        )
        if "on, small ring" in of_ring["arm"]:
            found.append(
                pg.paired_effects(of_ring, baseline="on", by=SAME, margin=ALIKE)
            )
        if self.of_drives.height:
            drives = self.of_drives.filter(pl.col("iteration") > 1)
            rounds = pg.round_values(drives, by=SAME)
            found += against(rounds.filter(~OF_COMMIT), "off")
            found += against(rounds.filter(OF_COMMIT), JUDGING[0])
            hindered.append(reading.slowdown(self.of_drives, ALIKE))
        copies = reading.copies_apart(
            self.scanned, str(self.record.repeat), case=self.slow, by=SAME
        )
        is_lone = pl.col("iteration") == 1
        in_company = copies.filter(~is_lone)
        return [
            pg.gated_by(pl.concat([self.slowdown, *hindered]), copies.filter(is_lone)),
            *(pg.gated_by(table, in_company) for table in found if table.height),
            *reading.saved_by_offset(self.behind.filter(BY_BYTES), ALIKE),
        ]

    def tables_of(self, arm: str) -> float | None:
        """The tables that the most scans of ``arm`` read on the machine that is small and slow."""
        at = {"case": SLOW, "arm": arm, "scans": self.most}
        return next(iter(self.tables.filter(**at)["tables"]), None)

    def conditions(self) -> dict[str, str | None]:
        """Why a claim is not judged, by its id; None where it is."""
        off, on = self.judging
        no_chance = reading.reason_no_chance(self.tables_of(off), self.most)
        is_modelled = self.record.info.get("limits") == "modelled"
        of_kernel = self.record.info["host"].get("device_read_ahead_bytes") or 0
        window = READ_AHEAD_BYTES if is_modelled else of_kernel
        small = reading.reason_small(8192 * self.table_pages, window, ALIKE)
        in_step = reading.in_step(self.scanned, case=SLOW, arm=on, count=self.most)
        no_cores = reading.reason_no_cores(in_step, 1e6 * self.used["read_mb"])
        few = reading.reason_few(self.most, self.used["stagger"])
        drives = reading.on_drives(self.of_drives, self.crowd, self.judging)
        return {
            "as if alone": no_chance or small or no_cores,
            "twice as good": reading.reason_not_hindered(drives),
            "with the ring": no_chance,
            "with the ring, time": no_chance,
            "many scans": few or no_chance,
            "offset": NO_RATIO,
            "whole offset": NO_RATIO,
        }

    def answers(self) -> dict[str, bool | None]:
        """Answers that rest on bytes and pages; None where they are not known."""
        apart, in_step = self.tables_of("off"), self.tables_of("on")
        began = reading.beginnings(self.walks)
        is_joined = pl.col("arm") == "on", pl.col("metric") == "began_ahead"
        joined = self.walks.filter(*is_joined)["value"].abs()
        return {
            "out of step, each of the most scans reads more than half of the table": pg.if_known(
                lambda apart: apart > self.most / 2, apart
            ),
            "in step, they read less than three quarters of that": pg.if_known(
                lambda apart, in_step: in_step < 0.75 * apart, apart, in_step
            ),
            "out of step, a scan begins at page 0": pg.if_known(
                lambda places: places == {0}, began.get("off")
            ),
            "in step, it begins within a sixteenth of the table of where the other one is": (
                pg.if_known(lambda far: far <= self.table_pages / 16, joined.median())
            ),
        }


def against(values: pl.DataFrame, baseline: str) -> list[pl.DataFrame]:
    """The effects of all other arms of ``values`` against one; none where it is not there."""
    if baseline not in values["arm"]:
        return []
    return [pg.paired_effects(values, baseline=baseline, by=SAME)]
