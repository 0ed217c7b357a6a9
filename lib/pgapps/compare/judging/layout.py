"""Layout: where a program's code came to lie, which moves times though no work differs.

All copies of a build have one layout, so blocks do not draw it (Mytkowicz and others, ASPLOS 2009;
Curtsinger and Berger, ASPLOS 2013).  Where every block ran programs relinked, the intervals hold
what links move.  Of two programs that were not, a step is called slower or faster only beyond what
links were seen to move it by, or if its instructions changed with it and by enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from pgservers import paths
from pgservers.addresses import EMBEDDED
from pgservers.errors import StudyError
from pgservers.programs.releases import is_release
from pgstudies.records.reading import infos_below, readable_records

from ..counted import ALIKE, of_steps
from ..design import BASELINE, CANDIDATE, COMPARED, COPY
from .measured import DELAY, JUDGING, PLACE, Measured, in_sides, judging, rounds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from pgstudies.records.info import Info
    from pgstudies.records.reading import Record

    from ..counted import Counted

NOT_EXCLUDED, SAME_WORK = "layout not excluded", "same instructions"
"""Why a step whose time differs is not called slower or faster."""

_UNEXPLAINED = f"{SAME_WORK}; placement, caches or waits"

_HERE, _REFERENCE = "this machine", "the reference machine"

EXPLAINED = 0.5
"""Changed instructions explain a time where they are this part of it, both as logarithms."""

_STEP = [*PLACE, "metric"]

_PAIRS = dict.fromkeys([*_STEP, "block"], pl.String()) | {
    "judges": pl.Boolean(),
    "log_ratio": pl.Float64(),
}

_ALLOWED = dict.fromkeys(_STEP, pl.String()) | {
    "judges": pl.Boolean(),
    "allowance": pl.Float64(),
    "is_repeated": pl.Boolean(),
    "moves": pl.List(pl.Float64()),
}

_DRAWS, _SEED = 20_000, 1
"""Of the pivot: so that an allowance is the same every time, and exact to a hundredth of itself."""

_LEVEL = 0.95

_POINTS = (np.arange(200) + 0.5) / 200
"""The quantiles by which the moves of a step are kept."""


def layout(measured: Sequence[Measured], effects: pl.DataFrame) -> tuple[bool | None, str]:
    """The guard: whether every block ran each side from programs relinked, and a sentence.

    ``effects`` are those of ``with_layout``.
    """
    fixed = _fixed(measured)
    if not fixed:
        return True, "Each block ran relinked programs, in another link order."
    if _is_one_program(measured):
        return None, "Both sides run the same programs, so their layout is one."
    whose = f"the {min(fixed)}'s" if len(fixed) == 1 else "these"
    sentence = f"Layout not excluded: {whose} programs cannot be relinked here."
    sentence += f" {_allowing(effects)}"
    if all(server == EMBEDDED or is_release(server) for server in _servers(measured[0].infos[-1])):
        sentence += " The difference of two releases is one of builds, compilers included."
    return (False if len(fixed) == 1 else None), sentence


def with_layout(
    effects: pl.DataFrame, measured: Sequence[Measured], counted: Counted | None = None
) -> pl.DataFrame:
    """The effects, those that layout may explain open; ``counted`` are the instructions, if known.

    Columns added: those of ``doubted``; instructions, the ratio of those of the step's units, null
    where they were not counted; allowance, the part by which links move the step, null where no
    record has it or it does not matter; machine, whose record has it.
    """
    instructions = pl.Series("instructions", of_steps(counted, effects), dtype=pl.Float64)
    effects = effects.with_columns(instructions)
    if not _fixed(measured) or _is_one_program(measured):
        nothing = {"allowance": pl.lit(None, pl.Float64), "machine": pl.lit(None, pl.String)}
        return doubted(effects.with_columns(**nothing), is_fixed=False)
    return doubted(_with_allowances(effects, measured[-1].infos[-1]["host"]), is_fixed=True)


def doubted(effects: pl.DataFrame, *, is_fixed: bool) -> pl.DataFrame:
    """The effects, open where the two programs' own layouts (``is_fixed``) may explain them.

    ``effects`` have instructions and allowance.  Instructions explain a step if they changed in the
    same direction, by ``EXPLAINED`` of what its time differs by at least: two releases' counts are
    hardly ever the same, and half of them change with the time by chance.

    Columns added: doubt, why a step is open that would be slower or faster, or null; note, what is
    said of a step whose time differs though its instructions do not, or null.
    """
    edge = pl.col("allowance").log1p()
    beyond = (pl.col("low").log() > edge) | (pl.col("high").log() < -edge)
    work = pl.col("instructions").log()
    is_same = (pl.col("instructions") - 1).abs() <= ALIKE
    surely = pl.when(pl.col("ratio") > 1).then("low").otherwise("high").log()
    with_it = ~is_same & (work / surely >= EXPLAINED)
    differs = pl.col("verdict").is_in(["slower", "faster"])
    doubt = (
        pl.when(beyond.fill_null(value=False) | with_it.fill_null(value=False))
        .then(None)
        .when(is_same)
        .then(pl.lit(SAME_WORK))
        .otherwise(pl.lit(NOT_EXCLUDED))
    )
    return effects.with_columns(
        doubt=pl.when(differs & pl.lit(is_fixed)).then(doubt),
        note=pl.when(differs & is_same).then(pl.lit(_UNEXPLAINED)),
    ).with_columns(
        verdict=pl.when(pl.col("doubt").is_not_null())
        .then(pl.lit("inconclusive"))
        .otherwise("verdict"),
        blocks_needed=pl.when(pl.col("doubt").is_null()).then("blocks_needed"),
    )


def allowed(pairs: pl.DataFrame) -> pl.DataFrame:
    """The part by which a link moves each step, one row for each.

    ``pairs`` are those of ``pairs_in``.  Columns: study, of, case, step, metric, judges, allowance,
    is_repeated, whether a block has it in several rounds, and moves, quantiles of how far a pair of
    links differs (of the absolute logarithm).  The allowance is the 95 % prediction
    interval of one more pair of links, by a generalised pivot (Weerahandi 1993): of how far the
    means of blocks lie from 0 what a round's own noise explains is taken off.  Without rounds, it
    is Student's, and the noise of a block is a part of it.
    """
    d = pl.col("log_ratio")
    blocks = pairs.group_by(*_STEP, "block", maintain_order=True).agg(
        pl.col("judges").any(), mean=d.mean(), rounds=d.len(), within=(d - d.mean()).pow(2).sum()
    )
    rows = []
    for place, part in blocks.group_by(_STEP, maintain_order=True):
        repeated = int((part["rounds"] - 1).sum())
        if part.height > 1:
            moves = _predicted(
                part["mean"].to_numpy(),
                float(part["within"].sum()) / float(part["rounds"].mean()),  # type: ignore[arg-type]
                repeated,
            )
            allowance = float(np.expm1(np.quantile(moves, _LEVEL)))
            kept = np.quantile(moves, _POINTS).tolist()
            rows.append((*place, part["judges"].any(), allowance, repeated > 0, kept))
    return pl.DataFrame(rows, schema=_ALLOWED, orient="row")


def _predicted(means: np.ndarray, within: float, freedom: int) -> np.ndarray:
    """How far one more pair of links may differ, drawn, by the means of blocks over rounds.

    ``within`` is the sum of squares of rounds about them, per round, of so many degrees of freedom.
    """
    rng = np.random.default_rng(_SEED)
    between = (means**2).sum() / rng.chisquare(means.size, _DRAWS)  # both links are of one kind
    noise = within / rng.chisquare(freedom, _DRAWS) if freedom else 0.0
    drawn = np.sqrt(np.maximum(between - noise, 0)) * rng.standard_normal(_DRAWS)
    moves: np.ndarray = np.abs(drawn)
    return moves


def pairs_in(record: Record) -> pl.DataFrame:
    """The logarithm of the baseline's second copy over the first, where a block linked both anew.

    Columns: study, of, case, step, metric, judges (whether that metric judges the step), block (of
    which record) and log_ratio, one row for each round of a block.  Raises StudyError where it
    cannot be compared.
    """
    study = record.info["study"].removeprefix(COMPARED)
    linked = pl.DataFrame(
        sorted(_linked(record.info)),
        schema={"block": pl.Int32(), "arm": pl.String()},
        orient="row",
    )
    samples = (
        in_sides(record)
        .filter(pl.col("side").is_in([BASELINE, COPY]), pl.col("metric").is_in(JUDGING))
        .join(linked, on=["block", "arm"], how="semi", maintain_order="left")
        .with_columns(study=pl.lit(study))
    )
    if samples["side"].n_unique() < 2:
        return pl.DataFrame(schema=_PAIRS)
    times = rounds_of([Measured(study, (record.info,), (record.path,), samples)], pl.lit(True))
    judges = judging(times).with_columns(judges=pl.lit(True))
    return (
        times.filter(pl.col("metric") != DELAY, pl.col("value") > 0)
        .pivot("arm", on_columns=[BASELINE, COPY], index=[*_STEP, "block", "round"], values="value")
        .drop_nulls([BASELINE, COPY])
        .join(judges, on=_STEP, how="left", maintain_order="left")
        .with_columns(
            pl.col("judges").fill_null(value=False),
            block=pl.format("{}, {}", pl.lit(str(record.path)), "block"),
            log_ratio=(pl.col(COPY) / pl.col(BASELINE)).log(),
        )
        .select(list(_PAIRS))
    )


def _with_allowances(effects: pl.DataFrame, host: Mapping[str, Any]) -> pl.DataFrame:
    """The effects with allowance and machine, by metric.

    It is the step's own, else that of a step drawn at random from its study, else from all, of
    those that a block repeats where there are any: in the others is the noise of a block.
    """
    own = infos_below(paths.records_dir(), None)
    theirs = infos_below(paths.LAYOUT_RECORDS, None)
    places = {
        _HERE: [place for place, info in own if _has_links(info) and _is_of(info, host)],
        _REFERENCE: [place for place, info in theirs if _has_links(info)],
    }
    found = []
    for machine, of_machine in places.items():
        pairs = [pl.DataFrame(schema=_PAIRS), *_pairs(readable_records(of_machine))]
        found.append(allowed(pl.concat(pairs)).with_columns(machine=pl.lit(machine)))
    every = pl.concat(found)
    of_step = every.unique(_STEP, keep="first", maintain_order=True)
    of_step = of_step.drop("judges", "is_repeated", "moves")
    known = effects.join(of_step, on=_STEP, how="left", maintain_order="left")
    for by in (["study", "metric"], ["metric"]):
        is_repeated = pl.col("is_repeated")
        among = every.filter("judges").filter(is_repeated | ~is_repeated.any().over(by))
        of_any = among.group_by(by, maintain_order=True).agg(
            of_any=pl.col("moves").explode().quantile(_LEVEL, "linear").exp() - 1,
            whose=pl.col("machine").first(),
        )
        known = known.join(of_any, on=by, how="left", maintain_order="left").select(
            pl.exclude("allowance", "machine", "of_any", "whose"),
            allowance=pl.coalesce("allowance", "of_any"),
            machine=pl.coalesce("machine", "whose"),
        )
    return known


def _pairs(records: Iterable[Record]) -> Iterator[pl.DataFrame]:
    for record in records:
        try:
            yield pairs_in(record)
        except StudyError:  # it can be read, and not be compared
            continue


def _allowing(effects: pl.DataFrame) -> str:
    """What is called slower or faster all the same."""
    most = effects["allowance"].max()
    by_work = effects["instructions"].is_not_null().any()
    if not isinstance(most, float):
        alone = "without a change of its instructions" if by_work else "by its time"
        return (
            f"No record says how far two links of one program differ, so no step is called slower "
            f"or faster {alone}."
        )
    machines = " and ".join(m for m in (_HERE, _REFERENCE) if m in effects["machine"])
    also = ", or its instructions changed with it" if by_work else ""
    return (
        f"Two links of one program differ by up to {100 * most:.1f} % ({machines}); what is called "
        f"slower or faster is beyond that of its step{also}."
    )


def _fixed(measured: Iterable[Measured]) -> set[str]:
    """The sides, baseline or candidate, of which a block ran a program that it had not linked."""
    fixed = set()
    for info in (info for m in measured for info in m.infos):
        linked, ran = _linked(info), _ran(info)
        for arm in info["arms"]:
            blocks = {place for place in ran if place[1] == arm["name"]}
            if arm["not_run"] is None and not (blocks and blocks <= linked):
                fixed.add(CANDIDATE if arm["side"] == CANDIDATE else BASELINE)
    return fixed


def _is_one_program(measured: Iterable[Measured]) -> bool:
    # Two copies of one program lie in other pages, which moves a lookup by a per cent as links do.
    return all(len({*_servers(info)}) == 1 for m in measured for info in m.infos)


def _servers(info: Info) -> list[str]:
    return [info["comparison"][side]["server"] for side in (BASELINE, CANDIDATE)]


def _linked(info: Info) -> set[tuple[int, str]]:
    """The blocks and arms that ran programs relinked."""
    known = [(entry.get("block"), entry.get("arm")) for entry in info.get("links", [])]
    return _ran(info) & {(b, a) for b, a in known if isinstance(b, int) and isinstance(a, str)}


def _ran(info: Info) -> set[tuple[int, str]]:
    return {(entry["block"], entry["arm"]) for entry in info["timeline"]}


def _has_links(info: Info) -> bool:
    has_sides = all("of" in arm and "side" in arm for arm in info["arms"])
    return "comparison" in info and has_sides and bool(_linked(info))


def _is_of(info: Info, host: Mapping[str, Any]) -> bool:
    about = ("hostname", "cpu_model")
    return host.get("hostname") is not None and all(
        info["host"].get(name) == host.get(name) for name in about
    )
