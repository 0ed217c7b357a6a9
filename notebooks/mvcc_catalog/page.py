"""What ``mvcc_catalog.ipynb`` shows of a record: what its cells call, in their order."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

import pgstudies as pg

from . import reading
from .reading import AFTER, BEFORE, FACES, SESSIONS

if TYPE_CHECKING:
    from pgstudies.analysis.agreement import Claim

IS_FACE = pl.col("what").is_in(FACES)


class Page:
    """The charts and tables of one record; a new record has a new page."""

    def __init__(self, study: pg.Study) -> None:
        self.study, self.record = study, study.record
        self.at_once = self.record.parameters["at_once"]
        lines = reading.lines_of(self.record)
        self.lines = lines.filter(~reading.OF_COMMIT)
        self.commits = lines.filter(reading.OF_COMMIT)
        self.everything = study.samples.drop("copy_of").join(
            lines, on="arm", maintain_order="left"
        )
        self.samples = self.everything.filter(~reading.OF_COMMIT)
        self.drawn = dict(self.lines.select("release", "copy_of").iter_rows())
        self.names = list(self.drawn)
        self.distinct = [name for name, copy_of in self.drawn.items() if not copy_of]
        self.first = self.lines.filter(pl.col("open") > 0)["release"][0]
        self.measured = sorted(self.lines["open"].unique())
        self.fewest, self.top = self.measured[:2][-1], self.measured[-1]
        self.at_top = pl.col("open") == self.top
        self.judges = pl.col("metric") == reading.metric_of(self.samples)
        self.ratios = reading.post_ratios(study)
        self.snapshot_now = reading.release_of(self.names, "9.3")
        self.mvcc = reading.release_of(self.names, "9.6")
        self.newest = self.distinct[-1].removesuffix(SESSIONS)
        self.few: int | None
        self.most: int | None
        self.few, self.most = reading.ends_in_post(self.ratios, self.measured)
        self.missing = reading.reason_missing(lines["asked"], self.most)
        ends = [self.few, self.most]
        self.by_sessions = reading.by_sessions(
            self.lines, [self.snapshot_now, self.mvcc], ends
        )
        self.commit_by_sessions = reading.by_sessions(
            self.commits, [BEFORE, AFTER], ends
        )
        judging = self.commit_by_sessions if self.commits.height else self.by_sessions
        self.held = "sessions" if judging else "prepared transactions"

    def sizes(self) -> dict[str, object]:
        return {
            "releases": ", ".join(self.distinct),
            "open transactions": ", ".join(map(str, self.measured)),
            "objects": self.record.parameters["objects"],
            "starts": self.record.parameters["starts"],
        }

    @cached_property
    def costs(self) -> pl.DataFrame:
        return reading.costs_of(self.samples, self.at_once)

    def cost(self) -> object:
        return pg.series_chart(
            reading.medians(self.costs, self.names, self.distinct),
            x="connections",
            y="us",
            y_title="µs for one object or session",
            low="low",
            high="high",
            step="what",
            arms=self.drawn,
            description="What an object or a session costs, by open transactions and release.",
        )

    @cached_property
    def rounds(self) -> pl.DataFrame:
        return reading.rounds_of(self.costs, self.lines)

    @cached_property
    def growth(self) -> pl.DataFrame:
        """Each release against itself without open transactions."""
        return pg.paired_effects(
            reading.from_none(self.rounds, self.lines),
            baseline=0,
            key="open",
            by=["release", "what", "metric"],
        )

    def growth_chart(self) -> object:
        return pg.series_chart(
            reading.growth_lines(self.growth, self.names, self.distinct),
            x="connections",
            y="ratio",
            y_title="cost, relative to no open transactions",
            low="low",
            high="high",
            step="what",
            log=True,
            arms=self.drawn,
            description="Growth of each step's cost with the number of open "
            "transactions, by release.",
        )

    @cached_property
    def growth_at_top(self) -> pl.DataFrame:
        return self.growth.filter(
            pl.col("candidate") == self.top, pl.col("release").is_in(self.distinct)
        )

    def timeline(self) -> object:
        known = self.growth_at_top.filter(pl.col("ratio").is_not_null())
        return pg.series_chart(
            reading.timeline(known, self.names),
            x="release",
            y="ratio",
            y_title=f"{self.top} open transactions, relative to none",
            low="low",
            high="high",
            color="what",
            arms=FACES,
            step="measure",
            log=True,
            description=f"Cost at {self.top} open transactions relative to none, by "
            "release, for three steps.",
        )

    def growth_table(self) -> pl.DataFrame:
        known = self.growth_at_top.filter(pl.col("ratio").is_not_null(), self.judges)
        return reading.by_release(known, self.distinct)

    @cached_property
    def relative(self) -> pl.DataFrame:
        since = [0, self.fewest] if self.fewest < self.top else [0]
        return reading.relative_to(since, self.rounds)

    @cached_property
    def effects(self) -> pl.DataFrame:
        """Growth against that of the first release, and once more where sessions held in both."""
        by = ["what", "metric", "since", "open"]
        found = pg.paired_effects(
            self.relative, baseline=self.first, key="release", by=by
        )
        of_sessions = self.relative.filter(reading.BY_SESSIONS)
        home = self.first + SESSIONS
        if home not in of_sessions["release"]:
            return found
        more = pg.paired_effects(of_sessions, baseline=home, key="release", by=by)
        return pl.concat([found, more])

    @cached_property
    def faces(self) -> pl.DataFrame:
        """The effects on the post's three steps, from the fewest open transactions to the most."""
        return self.effects.filter(
            self.judges, IS_FACE, self.at_top, pl.col("since") == self.fewest
        )

    def effect_chart(self) -> object:
        return pg.effect_chart(
            self.faces.rename({"what": "step"}),
            arms=self.drawn,
            description=f"Growth from {self.fewest} to {self.top} open "
            f"transactions, relative to {self.first}.",
        )

    def effect_table(self) -> pl.DataFrame:
        return pg.effect_table(self.faces, "what", "candidate")

    def in_words(self) -> str:
        return pg.sentences(self.faces, "{what}, {candidate}")

    def offset(self) -> pl.DataFrame:
        """The cost without open transactions, against the baseline's."""
        offset = pg.paired_effects(
            self.rounds.filter(pl.col("open") == 0, self.judges, IS_FACE),
            baseline=self.lines["home"][0],
            key="home",
            by=["what", "metric"],
        )
        return pg.effect_table(offset, "what", "candidate")

    @cached_property
    def of_commits(self) -> list[pl.DataFrame]:
        """The effects of the commit; none without its servers.

        It is compared with its parent at each number open, which is *since* 0 in place of the
        growth that releases need, and by the growth from the fewest.
        """
        if self.commits.is_empty():
            return []
        samples = self.everything.filter(reading.OF_COMMIT)
        costs = reading.costs_of(samples, self.at_once)
        rounds = reading.rounds_of(costs, self.commits)
        growth = reading.relative_to([self.fewest], rounds)
        direct = reading.of_commit(rounds, ["what", "metric", "open"])
        return [
            *(effects.with_columns(since=0) for effects in direct),
            *reading.of_commit(growth, ["what", "metric", "since", "open"]),
        ]

    def commit(self) -> list[pl.DataFrame]:
        """What the commit costs, beside the post, and its growth; none without its servers."""
        if not self.of_commits:
            return []
        found = pl.concat(self.of_commits, how="diagonal_relaxed").filter(
            self.judges, pl.col("what").is_in(reading.JUDGING)
        )
        grown = found.filter(pl.col("since") > 0, self.at_top)
        return [
            reading.commit_table(found.filter(pl.col("since") == 0), self.ratios),
            pg.effect_table(grown, "what", "candidate"),
        ]

    @cached_property
    def of_releases(self) -> pl.DataFrame:
        """The costs of the post's three steps, with a release for an arm."""
        return self.costs.filter(self.judges, IS_FACE).with_columns(arm="release")

    def parts(self) -> pl.DataFrame:
        return pg.part_table(
            self.of_releases.filter(self.at_top),
            baseline=self.first,
            by=["what", "metric"],
        )

    @cached_property
    def by_number(self) -> pl.DataFrame:
        return self.of_releases.with_columns(
            what=pl.format("{}, {} open", "what", "open")
        )

    def diagnosis(self) -> pl.DataFrame:
        by = ["what", "metric"]
        rounds = pg.round_values(self.by_number.filter(self.at_top), by=by)
        after = reading.after_releases(rounds, self.lines, self.top)
        return pg.diagnose(after, baseline=self.first, by=by)

    def by_block(self) -> object:
        values = pg.block_values(self.by_number, by=["what", "metric", "open"])
        return pg.block_chart(
            values.with_columns(us=1e6 * pl.col("value")).sort(
                "open", "what", descending=[True, False]
            ),
            y="us",
            y_title="µs for one object or session",
            step="what",
            arms=self.drawn,
            description="The cost of each step in every block, in the order of "
            "blocks, by release.",
        )

    @cached_property
    def from_none(self) -> pl.DataFrame:
        return self.effects.filter(self.judges, pl.col("since") == 0)

    @cached_property
    def ours(self) -> pl.DataFrame:
        of_mvcc = self.from_none.filter(pl.col("candidate") == self.mvcc)
        return of_mvcc.with_columns(pl.col("open").cast(pl.Int64))

    def beside(self) -> pl.DataFrame:
        return reading.post_beside(self.ratios, self.ours)

    def beside_chart(self) -> object:
        shown = self.from_none.filter(pl.col("candidate").is_in(self.distinct))
        is_direct = self.judges & (pl.col("since") == 0)
        commits = [effects.filter(is_direct) for effects in self.of_commits]
        names = dict.fromkeys(name for each in commits for name in each["candidate"])
        every = pl.concat([shown, *commits], how="diagonal_relaxed")
        return pg.series_chart(
            reading.ratio_lines(self.ratios, every),
            x="connections",
            y="ratio",
            y_title=f"MVCC / SnapshotNow; releases: growth / growth of {self.first}",
            low="low",
            high="high",
            step="test",
            log=True,
            arms=self.drawn
            | names
            | {"post, battery 1": None, "post, battery 2": None},
            description="The post's ratios and ours, by open transactions, for "
            "create, drop and start.",
        )

    def judged(self) -> list[pl.DataFrame]:
        """The effects that judge the claims: of the releases, and of the commit."""
        return [self.effects, *self.of_commits]

    def conditions(self) -> dict[str, Any]:
        """What else ``study.judge`` is given."""
        post = self.of_the_post()
        return {"published": post, "not_tested": self.missing, "conditions": self.unmet}

    def of_the_post(self) -> dict[str, float | None]:
        return reading.told_by_post(
            self.ratios, self.few, self.most, tested=not self.missing
        )

    def unmet(self, claim: Claim) -> str | None:
        """Why this record cannot judge the claim, or None."""
        not_held = reading.reason_not_held(self.everything)
        if claim.id.endswith("today") and self.newest == self.mvcc:
            return not_held or "no release after 9.6 was measured"
        return not_held

    def later(self) -> pl.DataFrame:
        """The growth of each later release against that of 9.3, and that of 9.6."""
        then = [self.snapshot_now, self.mvcc]
        return reading.against(
            self.relative.filter(
                self.judges, pl.col("since") == 0, self.at_top, IS_FACE
            ),
            [name for name in then if name in self.distinct],
            [name for name in self.distinct if name not in then],
        )

    @cached_property
    def touched(self) -> pl.DataFrame:
        return reading.touched_of(self.samples, self.at_once)

    def counters(self) -> pl.DataFrame:
        medians = self.touched.group_by("release", "step", "open").agg(
            pl.col("value").median().round(1)
        )
        by_number = medians.sort("open").pivot(
            "open", index=["step", "release"], values="value"
        )
        return by_number.sort("step", pl.col("release").cast(pl.Enum(self.names)))

    def bystander(self) -> pl.DataFrame:
        """Growth statement by statement."""
        starts = pl.col("what").str.starts_with("start")
        apart = self.growth_at_top.filter(self.judges, ~IS_FACE, ~starts)
        return reading.by_release(apart, self.distinct)

    def cache_file(self) -> object:
        times = pl.col("metric").is_in(reading.METRICS)
        started = self.samples.filter(times, pl.col("step") == "start")
        if started.is_empty():
            return "not run"
        return reading.removal(started, [0, self.top], self.names)

    def answers(self) -> dict[str, bool | None]:
        return reading.counted(self.everything, self.touched, self.top, self.at_once)

    def builds(self) -> pl.DataFrame:
        info = self.record.info
        servers = [info["server"], *info.get("servers", {}).values()]
        return pl.DataFrame(
            {"server": one["spec"], "build": one["build"]} for one in servers
        )
