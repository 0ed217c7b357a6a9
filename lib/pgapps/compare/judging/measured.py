"""The measurements of a comparison of two servers: effects and reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers.errors import StudyError
from pgstudies.analysis.effects import paired_effects
from pgstudies.analysis.families import blocks_in_family
from pgstudies.analysis.intervals import MINIMUM_BLOCKS, hodges_lehmann, signed_rank_interval
from pgstudies.analysis.pairing import block_values, copies_of, listed, round_values
from pgstudies.analysis.verdicts import DIRECTIONS
from pgstudies.measuring.pgbench import FAILURES
from pgstudies.records.reading import read_record

from ..design import BASELINE, CANDIDATE, of_comparison
from ..observing import WAIT
from .renaming import by_names, family, in_each_place
from .sequences import anytime_effects, anytime_family, blocks_in_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from pgstudies.records.info import Info
    from pgstudies.records.reading import Record

    from ..design import ComparedInfo


PLACE = ("study", "of", "case", "step")
"""The columns that identify what is compared: ``of`` is the study's arm."""

STEP_NAME = (
    pl.when(pl.col("case") == "").then("step").otherwise(pl.format("{}, {}", "step", "case"))
)
"""A step, as the report names it."""

TIME = "duration_s"

CPU = "cpu_s"

DELAY = "run_delay_s"
"""The time for which the backend was ready to run and waited for its core."""

IS_COMPARED_SIDE = pl.col("side").is_in([BASELINE, CANDIDATE])
"""Whether a sample is of a side that is compared: not of the second copy of the baseline."""

JUDGING = (TIME, CPU, DELAY)
"""The metrics that ``judging`` looks at."""

BOUND = 0.9
"""A step whose CPU time is this part of its time on the baseline, without the time in which other
processes had its core, is judged by CPU time."""

_NO_COUNTER = (
    TIME,
    *FAILURES.values(),
    *("result", "median_s", "p99_s", "drift", "longest_s", "makespan_s"),
)

_LOADED = {"tables", "rows", "size_bytes"}

LEAST = 0.1
"""A change of less than a tenth of the change of time does not explain it."""

REASONS_SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys([*PLACE, "metric", "unit"], pl.String()),
    **dict.fromkeys(["baseline", "candidate", "low", "high", "share"], pl.Float64()),
}


@dataclass(frozen=True)
class Measured:
    """All blocks of a comparison in one study, from one record or several.

    Attributes:
        study: The study's name.
        infos: The contents of every record.json, oldest first.
        paths: The records' directories.
        was_looked_at: Whether it was continued with enough blocks to judge, perhaps because of
            what they showed.
        samples: As in a record, with the columns study, of (the study's arm) and side; copy_of is
            the side that a row's side is a second copy of, or null, and after the side of the same
            arm whose turn was before, else that arm's name.

    """

    study: str
    infos: tuple[ComparedInfo, ...]
    paths: tuple[Path, ...]
    samples: pl.DataFrame
    was_looked_at: bool = False

    @property
    def blocks(self) -> int:
        """The number of finished blocks."""
        return self.samples["block"].n_unique()


def read_measured(study: str, paths: Sequence[Path]) -> Measured:
    """The comparison of ``study`` in these records, oldest first; it may have no block yet.

    Of a block in two records the newer one counts.  Steps that are not compared are left out.
    """
    records = [read_record(path) for path in paths]
    frames = [in_sides(r).with_columns(record=pl.lit(n)) for n, r in enumerate(records)]
    is_newest = pl.col("record") == pl.col("record").max().over("block")
    samples = pl.concat(frames or [pl.DataFrame(schema={"block": pl.Int32, "record": pl.Int32})])
    samples = samples.filter(is_newest).drop("record")
    infos = tuple(of_comparison(record.info) for record in records)
    samples = samples.with_columns(study=pl.lit(study)).sort("block")
    return Measured(study, infos, tuple(paths), samples, _was_looked_at(infos))


def in_sides(record: Record) -> pl.DataFrame:
    """The samples of a comparison's record that are compared: see ``Measured.samples``."""
    return (
        record.measured.filter(is_compared(record.info))
        .drop("copy_of")
        .join(_sides(record.info), on="arm", maintain_order="left")
        .with_columns(_after_a_side(record.info))
    )


def is_compared(info: Info) -> pl.Expr:
    """Whether a sample is of a step and case that its study compares."""
    left_out = info["not_compared"]
    of_case = pl.concat_str("step", "case", separator=", ", ignore_nulls=True)
    return ~(pl.col("step").is_in(left_out) | of_case.is_in(left_out))


def loaded(measured: Measured) -> dict[str, dict[str, int]]:
    """Of a workload, by side: the tables, rows and size_bytes of what was loaded; else empty."""
    found = {}
    for info, path in zip(measured.infos, measured.paths, strict=False):
        states = {arm["name"]: arm["state"] for arm in info["arms"]}
        of_state: dict[str, dict[str, int]] = {}
        loads = read_record(path).samples.filter(step="load")
        for arm, metric, value in loads.select("arm", "metric", "value").iter_rows():
            of_state.setdefault(states[arm], {})[metric] = int(value)
        for arm in info["arms"]:
            facts = of_state.get(arm["state"], {})
            if arm["side"] in {BASELINE, CANDIDATE} and facts.keys() >= _LOADED:
                found[arm["side"]] = facts
    return found


def _was_looked_at(infos: Iterable[Info]) -> bool:
    """Whether a run was continued when it already had enough blocks for an interval."""
    begins = sorted(s["started_at"] for info in infos for s in info.get("sessions", []))
    entries = [entry for info in infos for entry in info["timeline"]]
    return any(
        len({e["block"] for e in entries if e["started_at"] < begin}) >= MINIMUM_BLOCKS
        for begin in begins
    )


def _sides(info: Info) -> pl.DataFrame:
    columns = ["arm", "of", "side", "copy_of"]
    # What has failed on one side is no part of the comparison, whatever the other side measured.
    rows = [
        (a["name"], a["of"], a["side"], BASELINE if a["copy_of"] else None)
        for a in info["arms"]
        if not a["not_run"]
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()), orient="row")


def _after_a_side(info: Info) -> pl.Expr:
    """The side that had the turn before, if of the same arm of the study; else the arm's name."""
    sides = {a["name"]: a["side"] for a in info["arms"]}
    own = {a["name"]: a["of"] for a in info["arms"]}
    side, of = (pl.col("after").replace(names) for names in (sides, own))
    return pl.when(of == pl.col("of")).then(side).otherwise("after").alias("after")


def rounds_of(measured: Iterable[Measured], metric: pl.Expr) -> pl.DataFrame:
    """``round_values`` of the sides, by ``PLACE`` and metric, on which verdicts rest.

    ``metric`` selects samples, as an expression.
    """
    return _of_sides(measured, metric, round_values)


def blocks_of(measured: Iterable[Measured], metric: pl.Expr) -> pl.DataFrame:
    """The counters and waits that explain a verdict, as ``block_values``: they have no rounds."""
    return _of_sides(measured, metric, block_values)


def _of_sides(
    measured: Iterable[Measured], metric: pl.Expr, values: Callable[..., pl.DataFrame]
) -> pl.DataFrame:
    frames = [
        values(m.samples.filter(metric).with_columns(arm="side"), by=[*PLACE, "metric"])
        for m in measured
        if not m.samples.is_empty()
    ]
    return pl.concat(frames) if frames else pl.DataFrame()


def compared_effects(
    measured: Sequence[Measured],
    *,
    case: str | None = None,
    margin: float = 0.02,
    waiting: pl.DataFrame | None = None,
    anytime: bool = False,
) -> pl.DataFrame:
    """The time of every step on the candidate relative to the baseline: one row per step.

    With ``case`` only steps, or cases, of that name.  Columns: ``PLACE``, metric (cpu_s where the
    step is CPU-bound, see ``BOUND``, else, or if it is among ``waiting``, duration_s), then those
    of ``paired_effects`` without the A/A copy, and p_family.  All rows are one family; with
    ``anytime`` intervals are confidence sequences, because results were looked at on the way.
    Raises StudyError when nothing was timed, or nothing of that case.
    """
    times = rounds_of(measured, pl.col("metric").is_in(JUDGING))
    if times.is_empty() or CANDIDATE not in times["arm"]:
        raise StudyError("No block was finished on both servers, so there is nothing to compare.")
    if case is not None:
        known = sorted({*times["case"], *times["step"]} - {""})
        times = times.filter((pl.col("case") == case) | (pl.col("step") == case))
        if times.is_empty():
            raise StudyError(f"No step or case is called {case!r}; there is {listed(known)}.")
    judges = judging(times)
    if waiting is not None:
        by_wall = waiting.select(*PLACE, metric=pl.lit(TIME))
        judges = pl.concat([judges.join(waiting, on=PLACE, how="anti"), by_wall])
    judged = times.join(judges, on=[*PLACE, "metric"], how="semi", maintain_order="left")
    by = [*PLACE, "metric"]
    if not anytime:
        return effects_by_names(judged, by=by, margin=margin)
    # Of sixty steps some have copies that differ by luck; the guard A/A judges them together.
    effects = paired_effects(
        judged, baseline=BASELINE, by=by, margin=margin, intervals=anytime_effects, gated=False
    ).filter(pl.col("candidate") == CANDIDATE)
    return as_family(effects, anytime_family(effects["p_value"].to_list()), anytime=True)


def effects_by_names(
    values: pl.DataFrame, *, baseline: str = BASELINE, by: Sequence[str], margin: float = 0.02
) -> pl.DataFrame:
    """``paired_effects`` of all but second copies by exchanging names, as one family."""
    of: Any = {"baseline": baseline, "by": by}
    effects = paired_effects(
        values, **of, margin=margin, intervals=by_names(values, **of), gated=False
    )
    effects = effects.filter(~pl.col("candidate").is_in(copies_of(values, baseline, "arm")))
    return as_family(effects, family(in_each_place(values, effects, **of)))


def as_family(
    effects: pl.DataFrame, p_values: Iterable[float | None], *, anytime: bool = False
) -> pl.DataFrame:
    """The effects as one family: with p_family, and open where a difference does not remain.

    ``effects`` is a table of ``paired_effects``.  p_family is of ``p_values``, those of "no
    difference", corrected by ``renaming.family``, or with ``anytime`` by ``anytime_family``; null
    where the effect has no interval.
    """
    has_interval = effects["p_value"].is_not_null()
    found = pl.Series("p_family", list(p_values), dtype=pl.Float64, nan_to_null=True)
    rows = effects.with_columns(p_family=pl.when(has_interval).then(found)).to_dicts()
    for row in rows:
        if row["verdict"] in DIRECTIONS and row["p_family"] > 1 - row["level"]:
            row["verdict"] = "inconclusive"
            row["blocks_needed"] = (
                blocks_in_sequence(row["blocks"], row["p_value"], row["p_family"], row["level"])
                if anytime
                else blocks_in_family(row["blocks"], row["p_family"], level=row["level"])
            )
    return pl.DataFrame(rows, schema=effects.schema | {"p_family": pl.Float64()})


def clock_effects(measured: Sequence[Measured], effects: pl.DataFrame) -> pl.DataFrame:
    """Wall time of the steps judged by CPU time: ``PLACE``, clock (its ratio), says (verdict)."""
    found = effects.filter(pl.col("metric") == CPU)
    if found.height:
        times = rounds_of(measured, pl.col("metric") == TIME).join(found, on=PLACE, how="semi")
        margin = float(found["margin"].max() or 0.0)  # type: ignore[arg-type]
        by_wall = paired_effects(times, baseline=BASELINE, by=PLACE, margin=margin)
        found = by_wall.filter(pl.col("candidate") == CANDIDATE)
    return found.select(*PLACE, clock=pl.col("ratio"), says=pl.col("verdict"))


def judging(
    times: pl.DataFrame, *, place: Sequence[str] = PLACE, baseline: str | None = BASELINE
) -> pl.DataFrame:
    """The metric that judges each step: the columns of ``place``, and metric.

    It is chosen by ``baseline`` alone (None for all arms), so that the effect does not choose its
    own metric.
    """
    reference = {} if baseline is None else {"arm": baseline}
    clock, cpu, delay = (pl.col("value").filter(metric=m, **reference).median() for m in JUDGING)
    on_all = pl.col("arm").filter(metric=CPU).n_unique() == pl.col("arm").n_unique()
    is_bound = (on_all & (cpu >= BOUND * (clock - delay.fill_null(0)))).fill_null(value=False)
    return times.group_by(*place, maintain_order=True).agg(
        metric=pl.when(is_bound).then(pl.lit(CPU)).otherwise(pl.lit(TIME))
    )


def reasons(measured: Sequence[Measured], effects: pl.DataFrame) -> pl.DataFrame:
    """What changed with the time of the steps that differ, the largest contribution first.

    Columns: ``PLACE``, metric, unit, baseline and candidate (medians of the blocks), low and high
    (95 % interval: of the difference for seconds, of the ratio for counters) and share: the part of
    the step's own difference that these seconds are, null for counters.  Only rows whose interval
    excludes 0 (seconds) or 1 (counters).
    """
    differing = effects.filter(pl.col("verdict").is_in(["faster", "slower"]))
    found = [
        frame
        for m in measured
        for frame in (_seconds(m, differing), _counters(m, differing))
        if not frame.is_empty()
    ]
    schema = REASONS_SCHEMA | {"weight": pl.Float64()}
    if not found:
        return pl.DataFrame(schema=REASONS_SCHEMA)
    order = differing.select(*PLACE).with_row_index("row")
    return (
        pl.concat([frame.select(list(schema)) for frame in found])
        .join(order, on=PLACE)
        .sort("row", "weight", "metric", descending=[False, True, False])
        .select(list(REASONS_SCHEMA))
    )


def _seconds(m: Measured, differing: pl.DataFrame) -> pl.DataFrame:
    """Waits and CPU time, as differences, because an event may not occur on one side.

    Only changes in the step's own direction explain it.  Where several sessions wait at once, a
    share is a part of their total wait, so that shares never add up to more than 1.
    """
    metric = pl.col("metric").str.starts_with(WAIT) | pl.col("metric").is_in([CPU, DELAY])
    parts = blocks_of([m], metric & IS_COMPARED_SIDE)
    if parts.is_empty():
        return pl.DataFrame()
    parts = _with_one_name(parts)
    if CPU in parts["metric"]:  # which the samples only estimate
        parts = parts.filter(pl.col("metric") != f"{WAIT}CPU")
    parts = parts.join(differing, on=PLACE, how="semi")
    whole = _by_block(blocks_of([m], (pl.col("metric") == TIME) & IS_COMPARED_SIDE))
    rows = []
    for (*place, name), part in parts.group_by(*PLACE, "metric", maintain_order=True):
        both = (
            whole.filter(**dict(zip(PLACE, place, strict=True)))
            .join(_by_block(part), on=[*PLACE, "block"], how="left", suffix="_part")
            .with_columns(pl.col(f"{BASELINE}_part", f"{CANDIDATE}_part").fill_null(0.0))
            .drop_nulls([BASELINE, CANDIDATE])
        )
        d = (both[f"{CANDIDATE}_part"] - both[f"{BASELINE}_part"]).to_numpy()
        interval = signed_rank_interval(d) if d.size else None
        if interval is None or interval[0] <= 0 <= interval[1]:
            continue
        of_step = hodges_lehmann((both[CANDIDATE] - both[BASELINE]).to_numpy())
        share = hodges_lehmann(d) / of_step if of_step else 0.0
        if share <= 0:
            continue
        medians = [both[f"{s}_part"].median() for s in (BASELINE, CANDIDATE)]
        rows.append((*place, name, "s", *medians, *interval, share, share))
    found = pl.DataFrame(rows, schema=REASONS_SCHEMA | {"weight": pl.Float64()}, orient="row")
    together = pl.max_horizontal(1.0, pl.col("share").sum().over(PLACE))
    return found.with_columns(pl.col("share", "weight") / together).filter(pl.col("share") >= LEAST)


def _with_one_name(parts: pl.DataFrame) -> pl.DataFrame:
    """Wait events that releases spell differently (WALSync, WalSync), by the newer name."""
    names = sorted(parts["metric"].unique())
    newest = {_event(name): name for name in names}
    return parts.with_columns(
        pl.col("metric").replace({name: newest[_event(name)] for name in names})
    )


def _event(name: str) -> str:
    """The form of a wait event's name that all releases share."""
    plain = name.lower().replace("lwlocknamed:", "lwlock:").replace("lwlocktranche:", "lwlock:")
    return plain.removesuffix("lock") if "lwlock:" in plain else plain


def _by_block(values: pl.DataFrame) -> pl.DataFrame:
    wide = values.pivot(
        "arm", on_columns=[BASELINE, CANDIDATE], index=[*PLACE, "block"], values="value"
    )
    return wide.with_columns(pl.col(BASELINE, CANDIDATE).cast(pl.Float64))


def _counters(m: Measured, differing: pl.DataFrame) -> pl.DataFrame:
    """Counters, as ratios; a counter that is 0 on one side has medians and no interval."""
    metric = ~pl.col("metric").is_in(_NO_COUNTER) & (pl.col("unit") != "s")
    counted = blocks_of([m], metric & IS_COMPARED_SIDE)
    if counted.height:
        counted = counted.join(differing, on=PLACE, how="semi")
    if counted.is_empty() or counted["arm"].n_unique() < 2:
        return pl.DataFrame()
    found = paired_effects(counted, baseline=BASELINE, by=[*PLACE, "metric"])
    log_time = differing.select(*PLACE, log_time=pl.col("ratio").log().abs())
    appeared = pl.col("verdict") == "not comparable"
    moved = (pl.col("low") > 1) | (pl.col("high") < 1)
    moved_as_much = pl.col("ratio").log().abs() / pl.col("log_time")
    return (
        found.filter(moved | (appeared & (pl.col("baseline_median") != pl.col("candidate_median"))))
        .join(log_time, on=PLACE)
        .select(
            *PLACE, "metric", "unit", "low", "high",
            baseline="baseline_median",
            candidate="candidate_median",
            share=pl.lit(None, pl.Float64()),
            weight=pl.min_horizontal(pl.lit(1.0), moved_as_much.fill_null(1.0)),
        )
        .filter(pl.col("weight") >= LEAST)
    )  # fmt: skip
