"""What ``mvcc_catalog.ipynb`` reads from its record and from the post, shaped to be shown.

``lines`` says what every arm is; ``costs`` are seconds for one object or one session, in each turn;
``rounds`` are the same, one value for each round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

import pgstudies as pg
from pgservers.errors import StudyError

from .arms import COMMITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pgstudies.analysis.agreement import Claim
    from pgstudies.records.reading import Record

FACES = [
    "create, many at once",
    "drop, many at once",
    "start, cache files removed",
]
"""The three steps that the post measured."""

IS_FACE = pl.col("what").is_in(FACES)

TESTS = dict(zip(("create", "drop", "startup"), FACES, strict=True))
"""The same steps by the names of the post's tests."""

ONE_BY_ONE = [
    "one transaction",
    "one transaction, bystander",
    "commit each",
    "commit each, bystander",
]
STEPS = [
    *FACES,
    "start, the post's path",
    *(f"{s}, {c}" for s in ("create", "drop") for c in ONE_BY_ONE),
]
JUDGING = [*FACES, "create, one transaction"]
"""The steps that claims are about."""

SESSIONS = ", sessions"
"""How the line of a release ends whose transactions are held open by sessions."""

BY_SESSIONS = pl.col("release").str.ends_with(SESSIONS)
BEFORE, AFTER = COMMITS
OF_COMMIT = pl.col("asked").is_in(list(COMMITS))
METRICS = {"cpu_s": "CPU time", "duration_s": "time"}
NAMED = pl.format("{}: {}", "what", pl.col("metric").replace_strict(METRICS))
"""A step and its metric, as charts call them."""

OF_ONE = pl.when(pl.col("test") == "startup").then(1000.0).otherwise(0.01)
"""Times this, the post's ms for 100,000 objects and s for 1,000 starts are µs for one."""


def post_ratios(study: pg.Study) -> pl.DataFrame:
    """The post's cells: both times, percentages as printed and recomputed, and the times' ratio."""
    cell = ["battery", "test", "connections"]
    mvcc, now = pl.col("mvcc"), pl.col("snapshot_now")
    return (
        study.published()
        .pivot("arm", index=cell, values="value")
        .join(study.published("percent"), on=cell)
        .with_columns(
            recomputed=100 * (mvcc - now).abs() / ((mvcc + now) / 2),
            ratio=mvcc / now,
        )
    )


def published_table(study: pg.Study) -> pl.DataFrame:
    return post_ratios(study).select(
        *("battery", "test", "connections", "mvcc", "snapshot_now"),
        pl.col("percent_published").round(2).alias("%, printed"),
        pl.col("recomputed").round(2).alias("%, recomputed"),
        pl.col("ratio").round(3),
    )


def published_chart(study: pg.Study) -> object:
    return pg.series_chart(
        study.published().select(
            "arm",
            "connections",
            us=OF_ONE * pl.col("value"),
            what=pl.format("battery {}: {}", "battery", "test"),
        ),
        x="connections",
        y="us",
        y_title="µs for one object or session, one run",
        step="what",
        description="The post's times with MVCC catalogs and SnapshotNow, by "
        "number of connections.",
    )


def post_formula(ratio: pl.Expr) -> pl.Expr:
    """The post's percentage, the difference over the mean of both, by their ratio."""
    return (200 * (ratio - 1).abs() / (ratio + 1)).round(1)


@dataclass(frozen=True)
class Run:
    """What was measured: releases as they are called, and numbers of open transactions.

    Attributes:
        everything: All samples, with the columns of ``lines_of``.
        samples: Those of releases.
        lines: What each arm of a release is, see ``lines_of``.
        commits: The same of the commit and its parent.
        ratios: The post's cells, see ``post_ratios``.
        metric: The metric that judges: CPU time where it can be seen.
        drawn: The lines of releases, in their order, each with the one that it is a copy of.
        numbers: The numbers of open transactions, 0 first.
        few: The fewest of them that the post has too, or None.
        most: The most of them, or None.
        missing: Why no claim can be judged, or None.
        by_sessions: What ends the names of the releases' lines that judge.
        commit_by_sessions: The same of the commit's lines.

    """

    everything: pl.DataFrame
    samples: pl.DataFrame
    lines: pl.DataFrame
    commits: pl.DataFrame
    ratios: pl.DataFrame
    metric: str
    drawn: Mapping[str, str | None]
    numbers: Sequence[int]
    few: int | None
    most: int | None
    missing: str | None
    by_sessions: str
    commit_by_sessions: str

    @property
    def names(self) -> list[str]:
        """The lines of releases."""
        return list(self.drawn)

    @property
    def distinct(self) -> list[str]:
        """The lines of releases without second copies."""
        return [name for name, copy_of in self.drawn.items() if not copy_of]

    @property
    def first(self) -> str:
        """The line that others are compared with."""
        return str(self.lines.filter(pl.col("open") > 0)["release"][0])

    @property
    def newest(self) -> str:
        """The last release."""
        return self.distinct[-1].removesuffix(SESSIONS)

    @property
    def snapshot_now(self) -> str:
        """The version of 9.3."""
        return release_of(self.names, "9.3")

    @property
    def mvcc(self) -> str:
        """The version of 9.6."""
        return release_of(self.names, "9.6")

    @property
    def fewest(self) -> int:
        """The fewest transactions open, but for none."""
        return self.numbers[:2][-1]

    @property
    def top(self) -> int:
        """The most."""
        return self.numbers[-1]


def run_of(study: pg.Study) -> Run:
    """What a record measured; raises StudyError as ``lines_of`` does."""
    every = lines_of(study.record)
    lines, commits = every.filter(~OF_COMMIT), every.filter(OF_COMMIT)
    everything = study.samples.drop("copy_of").join(
        every, on="arm", maintain_order="left"
    )
    samples, ratios = everything.filter(~OF_COMMIT), post_ratios(study)
    drawn = dict(lines.select("release", "copy_of").iter_rows())
    numbers = sorted(lines["open"].unique())
    ends = few, most = ends_in_post(ratios, numbers)
    released = [release_of(drawn, number) for number in ("9.3", "9.6")]
    return Run(
        everything=everything,
        samples=samples,
        lines=lines,
        commits=commits,
        ratios=ratios,
        metric=metric_of(samples),
        drawn=drawn,
        numbers=numbers,
        few=few,
        most=most,
        missing=reason_missing(every["asked"], most),
        by_sessions=by_sessions(lines, released, ends),
        commit_by_sessions=by_sessions(commits, [BEFORE, AFTER], ends),
    )


def lines_of(record: Record) -> pl.DataFrame:
    """What each measured arm is: *home* is its server, *release* the line it belongs to in charts.

    A second copy of a server is another *home*, with the first one's in *copy_of*. A server's arms
    with sessions are a line of their own; *open* counts transactions, *asked* is the release as the
    parameters named it, or the commit's name. Raises StudyError where no release had any open.
    """
    versions = {
        row["name"]: pg.version_number(row["server"])
        for row in record.arms.drop_nulls("server").iter_rows(named=True)
    }
    done = set(record.measured["arm"])
    arms = [arm for arm in record.info["arms"] if arm["name"] in done]
    originals = [home_of(arm, versions[arm["name"]]) for arm in arms]
    homes = [
        f"{original} (again)" if arm["copy_of"] else original
        for arm, original in zip(arms, originals, strict=True)
    ]
    lines = pl.DataFrame(
        {
            "arm": arm["name"],
            "home": home,
            "copy_of": original if arm["copy_of"] else None,
            "release": f"{home}{SESSIONS}"
            if arm["options"]["holder"] == "sessions"
            else home,
            "open": arm["options"]["open"],
            "asked": arm["options"]["release"],
        }
        for arm, original, home in zip(arms, originals, homes, strict=True)
    )
    if not lines.filter(~OF_COMMIT)["open"].max():
        told = [
            reason
            for name, reason in record.reasons.items()
            if name.partition(",")[0] not in COMMITS
        ]
        reasons = "; ".join(dict.fromkeys(told))
        raise StudyError(f"Nothing was measured with transactions open: {reasons}.")
    return lines


def home_of(arm: Mapping[str, Any], version: str) -> str:
    """The arm's release as its server tells it; a commit's name, as both are of one release."""
    asked: str = arm["options"]["release"]
    if asked in COMMITS:
        return asked
    return f"{version} (this server)" if asked == "this server" else version


def release_of(names: Iterable[str], number: str) -> str:
    """The version measured of a release; its number where none was."""
    return next((n for n in names if n.startswith(f"{number}.")), number)


def metric_of(samples: pl.DataFrame) -> str:
    """What effects rest on: CPU time where it can be seen."""
    return next(metric for metric in METRICS if metric in samples["metric"])


def costs_of(samples: pl.DataFrame, at_once: int) -> pl.DataFrame:
    """Times of all turns but the first: ``value`` is seconds for one of ``at_once`` objects."""
    in_all = pl.col("case") == "many at once"
    return samples.filter(
        pl.col("metric").is_in(METRICS), pl.col("case") != "first"
    ).with_columns(
        value=pl.col("value") / pl.when(in_all).then(at_once).otherwise(1),
        what=pl.format("{}, {}", "step", "case"),
    )


def placed(column: str, order: Sequence[str]) -> pl.Expr:
    """What sorts by ``order``; a step that is not in it comes last."""
    return pl.col(column).replace_strict(order, range(len(order)), default=len(order))


def in_order(names: Sequence[str]) -> list[pl.Expr]:
    """What sorts a chart's rows: by step and metric, then by release."""
    choices = [f"{what}: {name}" for what in STEPS for name in METRICS.values()]
    return [
        placed("what", choices),
        pl.col("release").cast(pl.Enum(names)),
    ]


def medians(
    costs: pl.DataFrame, names: Sequence[str], distinct: Sequence[str]
) -> pl.DataFrame:
    """Median cost over blocks in ``us``, from ``low`` to ``high``, by release and number open."""
    by = ["release", "what", "metric", "open"]
    return (
        pg.block_values(costs, by=by, statistic="median")
        .filter(pl.col("release").is_in(distinct))
        .group_by("release", "open", what=NAMED)
        .agg(pg.spread("us", 1e6 * pl.col("value")))
        .sort(*in_order(names), "open")
        .select(
            "what",
            "us",
            "low",
            "high",
            arm="release",
            connections="open",
        )
    )


def rounds_of(costs: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    return (
        pg.round_values(costs, by=["what", "metric"])
        .drop("position", "copy_of")
        .join(lines, on="arm")
    )


def after_releases(rounds: pl.DataFrame, lines: pl.DataFrame, top: int) -> pl.DataFrame:
    """The rounds of releases at ``top`` open transactions, each after a release, or another arm."""
    at_top = lines.filter(pl.col("open") == top)
    released = dict(at_top.select("arm", "release").iter_rows())
    return rounds.with_columns(pl.col("after").replace(released))


def from_none(rounds: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """The rounds, in which sessions begin where their release does: with no transaction open."""
    of_line = lines.select("release", "home").unique()
    without = rounds.filter(pl.col("open") == 0).drop("release")
    zeros = without.join(of_line, on="home").select(rounds.columns)
    return pl.concat([zeros, rounds.filter(pl.col("open") > 0)])


def growth_lines(
    growth: pl.DataFrame, names: Sequence[str], distinct: Sequence[str]
) -> pl.DataFrame:
    """Growth by release and ``connections``, each line beginning at 1 with none open."""
    shown = growth.select(
        "low",
        "high",
        "ratio",
        what=NAMED,
        release="release",
        connections=pl.col("candidate").cast(int),
    )
    one = pl.lit(1.0)
    at_none = shown.with_columns(
        low=one, high=one, ratio=one, connections=pl.lit(0, pl.Int64)
    )
    return (
        pl.concat([at_none.unique(), shown])
        .filter(
            pl.col("release").is_in(distinct),
            pl.col("ratio").is_not_null(),
        )
        .sort(*in_order(names), "connections")
        .rename({"release": "arm"})
    )


def timeline(at_top: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Growth of the post's three steps in the order of releases; ``measure`` names the metric."""
    return (
        at_top.filter(IS_FACE, pl.col("ratio").is_not_null())
        .select(
            "what",
            "low",
            "high",
            "ratio",
            "release",
            measure=pl.col("metric").replace_strict(METRICS),
        )
        .sort("measure", "what", pl.col("release").cast(pl.Enum(names)))
    )


def by_release(growth: pl.DataFrame, distinct: Sequence[str]) -> pl.DataFrame:
    """Growth with its interval: a row for each step, a column for each release."""
    return (
        growth.select("what", "release", text=pg.with_interval())
        .pivot("release", on_columns=distinct, index="what", values="text")
        .sort(placed("what", STEPS))
    )


def relative_to(numbers: Iterable[int], rounds: pl.DataFrame) -> pl.DataFrame:
    """Every round's cost over that of the same release with fewer open: ``since`` says how many."""
    return pl.concat([grown_since(number, rounds) for number in numbers])


def grown_since(number: int | None, rounds: pl.DataFrame) -> pl.DataFrame:
    if number is None:  # none of the post's numbers was measured
        return grown_since(-1, rounds)
    same = ["block", "round", "what", "metric"]
    # Arms with sessions have none without: theirs is the one of their server.
    same.append("release" if number else "home")
    own = rounds.filter(pl.col("open") == number)
    return (
        rounds.filter(pl.col("open") > number)
        .join(own.select(*same, own="value"), on=same)
        .with_columns(value=pl.col("value") / pl.col("own"), since=pl.lit(number))
    )


def growth_effects(relative: pl.DataFrame, first: str) -> pl.DataFrame:
    """Growth against that of ``first``, and once more where sessions held in both."""
    by = ["what", "metric", "since", "open"]
    found = pg.paired_effects(relative, baseline=first, key="release", by=by)
    of_sessions, home = relative.filter(BY_SESSIONS), first + SESSIONS
    if home not in of_sessions["release"]:
        return found
    more = pg.paired_effects(of_sessions, baseline=home, key="release", by=by)
    return pl.concat([found, more])


def offset(rounds: pl.DataFrame, run: Run) -> pl.DataFrame:
    """The cost without open transactions, against the baseline's."""
    without = rounds.filter(IS_FACE, open=0, metric=run.metric)
    effects = pg.paired_effects(
        without, baseline=run.lines["home"][0], key="home", by=["what", "metric"]
    )
    return pg.effect_table(effects, "what", "candidate")


def drift(costs: pl.DataFrame, run: Run) -> pl.DataFrame:
    """Whether the machine drifted, or the order of releases mattered."""
    by = ["what", "metric"]
    rounds = pg.round_values(costs.filter(open=run.top), by=by)
    after = after_releases(rounds, run.lines, run.top)
    return pg.diagnose(after, baseline=run.first, by=by)


def effects_of_commit(run: Run, at_once: int) -> list[pl.DataFrame]:
    """The effects of the commit; none without its servers.

    It is compared with its parent at each number open, which is *since* 0 in place of the growth
    that releases need, and by the growth from the fewest.
    """
    if run.commits.is_empty():
        return []
    costs = costs_of(run.everything.filter(OF_COMMIT), at_once)
    rounds = rounds_of(costs, run.commits)
    growth = relative_to([run.fewest], rounds)
    return [
        *(
            effects.with_columns(since=0)
            for effects in of_commit(rounds, ["what", "metric", "open"])
        ),
        *of_commit(growth, ["what", "metric", "since", "open"]),
    ]


def commit_tables(of_commits: Sequence[pl.DataFrame], run: Run) -> list[pl.DataFrame]:
    """What the commit costs, beside the post, and its growth; none without its servers."""
    if not of_commits:
        return []
    found = pl.concat(of_commits, how="diagonal_relaxed").filter(
        pl.col("what").is_in(JUDGING), metric=run.metric
    )
    grown = found.filter(pl.col("since") > 0, open=run.top)
    return [
        commit_table(found.filter(since=0), run.ratios),
        pg.effect_table(grown, "what", "candidate"),
    ]


def of_commit(values: pl.DataFrame, by: Sequence[str]) -> list[pl.DataFrame]:
    """The commit against its parent: where transactions are prepared, and where sessions hold."""
    found = []
    for end in ("", SESSIONS):
        held = values.filter(BY_SESSIONS if end else ~BY_SESSIONS)
        if {BEFORE + end, AFTER + end} <= set(held["release"]):
            effects = pg.paired_effects(
                held, baseline=BEFORE + end, key="release", by=by
            )
            found.append(effects.filter(pl.col("candidate") == AFTER + end))
    return found


def commit_table(direct: pl.DataFrame, ratios: pl.DataFrame) -> pl.DataFrame:
    """µs for one object or session before and after the commit, beside the post's second battery.

    *held* is what holds the transactions open: none, prepared ones, or sessions.
    """
    of_post = ratios.filter(pl.col("battery") == 2).select(
        "test",
        open=pl.col("connections").cast(pl.Int64),
        **{
            "post, before": (OF_ONE * pl.col("snapshot_now")).round(1),
            "post, after": (OF_ONE * pl.col("mvcc")).round(1),
            "post, ratio": pl.col("ratio").round(3),
        },
    )
    by_sessions = pl.col("baseline").str.ends_with(SESSIONS)
    held = pl.when(by_sessions).then(pl.lit("sessions")).otherwise(pl.lit("prepared"))
    return (
        direct.with_columns(
            pl.col("open").cast(pl.Int64),
            test=pl.col("what").str.extract(r"^(\w+)").replace("start", "startup"),
            held=pl.when(pl.col("open") == 0).then(pl.lit("none")).otherwise(held),
        )
        .join(of_post, on=["test", "open"], how="left", maintain_order="left")
        .sort(placed("what", JUDGING), "held", "open")
        .select(
            "what",
            "held",
            "open",
            (1e6 * pl.col("baseline_median")).round(1).alias("before, µs"),
            (1e6 * pl.col("candidate_median")).round(1).alias("after, µs"),
            pg.with_interval().alias("after / before"),
            "^post, .*$",
        )
    )


def post_beside(ratios: pl.DataFrame, ours: pl.DataFrame) -> pl.DataFrame:
    """The post's ratios and ours, and both as the post's percentages, by test and connections."""
    return (
        ratios.with_columns(what=pl.col("test").replace_strict(TESTS))
        .pivot(
            "battery",
            index=["test", "what", "connections"],
            values="ratio",
        )
        .join(
            ours.with_columns(pl.col("open").cast(pl.Int64)),
            left_on=["what", "connections"],
            right_on=["what", "open"],
            how="left",
            maintain_order="left",
        )
        .select(
            "test",
            "connections",
            pl.col("1", "2").round(3).name.prefix("battery "),
            **{
                "reproduced": pg.with_interval(),
                "published, %": post_formula(pl.col("2")),
                "reproduced, %": post_formula(pl.col("ratio")),
            },
        )
        .sort("test", "connections")
    )


def ratio_lines(ratios: pl.DataFrame, effects: pl.DataFrame) -> pl.DataFrame:
    """The post's ratios and ours by test and connections: a line for each battery and release."""
    of_post = ratios.select(
        arm=pl.format("post, battery {}", "battery"),
        connections="connections",
        test="test",
        ratio="ratio",
        low="ratio",
        high="ratio",
    )
    tests = {what: test for test, what in TESTS.items()}
    ours = effects.filter(pl.col("what").is_in(FACES)).select(
        arm="candidate",
        connections=pl.col("open").cast(pl.Int64),
        test=pl.col("what").replace_strict(tests),
        ratio="ratio",
        low=pl.coalesce("low", "ratio"),
        high=pl.coalesce("high", "ratio"),
    )
    return (
        pl.concat([of_post, ours])
        .filter(pl.col("ratio").is_not_null())
        .sort("test", "arm", "connections")
    )


def known_of(ratios: pl.DataFrame) -> dict[tuple[Any, ...], float]:
    """The post's ratios by battery, test and connections."""
    cell = ["battery", "test", "connections"]
    return {
        tuple(row[name] for name in cell): row["ratio"]
        for row in ratios.iter_rows(named=True)
    }


def ends_in_post(
    ratios: pl.DataFrame, measured: Iterable[int]
) -> tuple[int, int] | tuple[None, None]:
    """Fewest and most of the measured numbers that the second battery has, too, or None twice."""
    known = known_of(ratios)
    both = [number for number in measured if (2, "drop", number) in known]
    return (both[0], both[-1]) if both else (None, None)


def reason_missing(asked: Iterable[str], most: int | None) -> str | None:
    """Why no claim can be judged: no release and no commit was run, or no number of the post's."""
    known = set(asked)
    for name in ("9.3", "9.6"):
        if name not in known and not known.issuperset(COMMITS):
            return f"release {name} was not run"
    if most is None:
        return "none of the post's numbers of transactions was measured"
    return None


def by_sessions(
    lines: pl.DataFrame,
    releases: Iterable[str],
    numbers: Iterable[int | None],
) -> str:
    """What ends the names of the lines that judge: SESSIONS, if all have all numbers so held."""
    held = set(lines.select("release", "open").iter_rows())
    wanted = {(name + SESSIONS, n) for name in releases for n in numbers}
    return SESSIONS if wanted <= held else ""


def told_by_post(
    ratios: pl.DataFrame, fewest: int | None, most: int | None, missing: str | None
) -> dict[str, float | None]:
    """Growth from fewest to most in the second battery, and ratios at both.

    None where it is not tested, ``missing`` having the reason.
    """
    known, two_ends = known_of(ratios), fewest != most
    tests = {"create": "create", "drop": "drop", "start": "startup"}
    grown = {
        claim: known[2, test, most] / known[2, test, fewest]
        if two_ends and not missing
        else None
        for claim, test in tests.items()
    }
    told = {**grown, "commit": grown["drop"]}
    told |= {f"{claim} today": ratio for claim, ratio in grown.items()}
    for end, number in (("few", fewest), ("most", most if two_ends else None)):
        told |= {
            end if claim == "create" else f"{end}, {claim}": known.get(
                (2, test, number)
            )
            for claim, test in tests.items()
        }
    return told


def places(run: Run) -> dict[str, object]:
    """What the claims call the lines and numbers that judge them."""
    by_commit = run.commit_by_sessions
    judging = by_commit if run.commits.height else run.by_sessions
    return {
        "most": run.most,
        "fewest": run.few,
        "held": "sessions" if judging else "prepared transactions",
        "before": BEFORE + by_commit,
        "after": AFTER + by_commit,
        "snapshot_now": run.snapshot_now + run.by_sessions,
        "mvcc": run.mvcc + run.by_sessions,
        "then": run.snapshot_now,
        "newest": run.newest,
    }


def conditions(run: Run) -> Callable[[Claim], str | None]:
    """Why this record cannot judge a claim, or None, by the claim."""
    not_held = reason_not_held(run.everything)
    no_later = "no release after 9.6 was measured" if run.newest == run.mvcc else None
    return lambda claim: not_held or (no_later if claim.id.endswith("today") else None)


def reason_not_held(samples: pl.DataFrame) -> str | None:
    """Why nothing tells what open transactions cost: some snapshot was without them; or None."""
    listed = samples.filter(pl.col("metric") == "xids")
    if (listed["value"] >= listed["open"]).all():
        return None
    return "some snapshot did not list all the transactions held open"


def later(growth: pl.DataFrame, run: Run) -> pl.DataFrame:
    """The growth of each later release against that of 9.3, and that of 9.6."""
    then = [run.snapshot_now, run.mvcc]
    after = pl.col("candidate").is_in([n for n in run.distinct if n not in then])
    shown = ["what", "candidate", "against", "effect", "verdict"]
    tables = [
        pg.paired_effects(growth, baseline=base, key="release", by=["what", "metric"])
        .filter(after)
        .with_columns(against="baseline", effect=pg.with_interval())
        .select(shown)
        for base in then
        if base in run.distinct
    ]
    return pl.concat(tables or [pl.DataFrame(schema=shown)])


def touched_of(samples: pl.DataFrame, at_once: int) -> pl.DataFrame:
    """Buffers per object, hit and read together, in every turn with many at once."""
    return (
        samples.filter(
            pl.col("metric").is_in(["buffers_hit", "buffers_read"]),
            pl.col("case") == "many at once",
        )
        .group_by("block", "release", "step", "open", "turn")
        .agg(pl.col("value").sum() / at_once)
    )


def buffers(touched: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Median buffers per object by step and release, a column for each number open."""
    return (
        touched.group_by("release", "step", "open")
        .agg(pl.col("value").median().round(1))
        .sort("open")
        .pivot("open", index=["step", "release"], values="value")
        .sort("step", pl.col("release").cast(pl.Enum(names)))
    )


def growth_of_work(touched: pl.DataFrame, top: int) -> float | None:
    """How often more pages a drop touches with ``top`` open than without; None if not counted."""
    work = touched.filter(pl.col("step") == "drop").pivot(
        "open", index=["block", "release", "turn"], values="value"
    )
    if work.is_empty():
        return None
    growth = pl.col(str(top)) / pl.col("0")
    found = work.select(growth.median()).item()
    return None if found is None else float(found)


def removal(
    starts: pl.DataFrame, numbers: Sequence[int], names: Sequence[str]
) -> pl.DataFrame:
    """A session's start in ms, removing at the post's path and removing the real files."""
    return (
        pg.paired_effects(
            pg.block_values(starts, by=["release", "case", "metric", "open"]),
            baseline="the post's path",
            key="case",
            by=["release", "metric", "open"],
        )
        .filter(pl.col("open").is_in(numbers))
        .select(
            "release",
            "open",
            "metric",
            post_ms=(1e3 * pl.col("baseline_median")).round(2),
            removed_ms=(1e3 * pl.col("candidate_median")).round(2),
            effect=pg.with_interval(),
        )
        .sort(pl.col("release").cast(pl.Enum(names)), "open", "metric")
    )


def cache_file(run: Run) -> pl.DataFrame | str:
    """``removal`` without open transactions and with the most; "not run" without starts."""
    times = pl.col("metric").is_in(METRICS)
    started = run.samples.filter(times, pl.col("step") == "start")
    if started.is_empty():
        return "not run"
    return removal(started, [0, run.top], run.names)


def counted(
    samples: pl.DataFrame, touched: pl.DataFrame, top: int, at_once: int
) -> dict[str, bool | None]:
    """What must come out the same on every machine: yes, no, or None where it was not counted."""

    def every(metric: str, condition: pl.Expr, **where: str) -> bool | None:
        rows = samples.filter(metric=metric, **where)
        return rows.select(condition.all()).item() if rows.height else None

    value, work = pl.col("value"), growth_of_work(touched, top)
    return {
        "every snapshot held all the open transactions": every(
            "xids", value >= pl.col("open")
        ),
        "every object was created": every("objects", value == at_once, step="create"),
        "and dropped": every("objects", value == 0, step="drop"),
        "both cache files were there, and removed, before every start": every(
            "files_removed", value == 2, case="cache files removed"
        ),
        "there was nothing to remove at the post's path": every(
            "files_removed", value == 0, case="the post's path"
        ),
        "dropping touches as many pages with open transactions as without, within a tenth": (
            pg.if_known(lambda work: abs(work - 1) < 0.1, work)
        ),
    }


def builds(record: Record) -> pl.DataFrame:
    """The build of each server."""
    servers = [record.info["server"], *record.info.get("servers", {}).values()]
    return pl.DataFrame(
        {"server": one["spec"], "build": one["build"]} for one in servers
    )
