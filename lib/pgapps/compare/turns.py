"""The number of turns in a block of a comparison, by their cost and variance.

What differs between two equal arms differs from turn to turn and, beyond that, from block to block.
Of n turns and a block, the variance for the time it takes is least with n = √(cost of the rest of
the block / cost of a turn × variance between turns / variance between blocks): Kalibera and Jones,
Rigorous benchmarking in reasonable time, ISMM 2013.  That is for one step.  A block has others,
to which these turns add nothing, while they cost blocks: see ``best``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import polars as pl

from pgstudies.analysis.intervals import MINIMUM_BLOCKS
from pgstudies.analysis.pairing import FEWEST_TURNS, log_ratios, round_values
from pgstudies.rooms import rooms

from .design import COMPARED
from .judging.measured import TIME, is_compared

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pgstudies.records.reading import Record


LEAST = FEWEST_TURNS
"""The fewest turns in a block; with fewer it is unknown whether times settle."""

MOST = 3
"""The most turns chosen, as a multiple of the record's: it does not support more."""

_FLOOR = 0.05
"""Of the variance between turns, what is taken for the least between blocks: few blocks can show
none by luck."""

_QUARTILES_APART = 1.349  # in standard deviations of a normal distribution


@dataclass(frozen=True)
class Repeats:
    """A parameter by which a study repeats turns in every block, as a record has it.

    Attributes:
        parameter: Its name.
        value: Its value.
        turns: The turns of a block that it makes.
        shares: By the study's arm, the part of the arm's time that these turns take.
        wanted: The turns of a block that the record's costs and variances ask for.

    """

    parameter: str
    value: int
    turns: int
    shares: Mapping[str, float]
    wanted: int

    def at(self, part: float) -> int:
        """The parameter's value for that part of the turns wanted."""
        return self.value // self.turns * max(min(LEAST, self.turns), round(part * self.wanted))

    def more(self, arm: str, value: int) -> float:
        """By which part of itself a block of the arm grows with that value of the parameter."""
        return self.shares.get(arm, 0.0) * (value / self.value - 1)


def repeats_in(record: Record, arms: Mapping[str, str]) -> tuple[Repeats, ...]:
    """The repeated turns of a record, by ``repeats`` in its study's ``sizes.toml``.

    ``arms`` maps the record's names of arms to the study's.
    """
    turns = _turns(record.measured)
    steps_in_all = _number_of_steps(record, [])
    whole = dict(turns.group_by("arm").agg(pl.col("took_s").sum()).rows())
    found = []
    for parameter, steps in repeated(record.info["study"].removeprefix(COMPARED)).items():
        value = record.info["parameters"].get(parameter)
        mine = turns.filter(_is_of(steps, record))
        number = mine.group_by("block", "arm", "step", "case").len()["len"].median()
        if not isinstance(number, float) or not isinstance(value, int) or value < number:
            continue
        own = dict(mine.group_by("arm").agg(pl.col("took_s").sum()).rows())
        share = sum(own.values()) / sum(whole.values())
        part = _number_of_steps(record, steps) / max(steps_in_all, 1)
        found.append(
            Repeats(
                parameter=parameter,
                value=value,
                turns=round(number),
                shares={of: own.get(name, 0.0) / whole[name] for name, of in arms.items()},
                wanted=_wanted(record, steps, round(number), share, part),
            )
        )
    return tuple(found)


def repeated(study: str) -> Mapping[str, Sequence[str]]:
    """The parameters of a study that a plan chooses, each with the steps that it is about."""
    room = rooms().get(study)
    found: Mapping[str, Sequence[str]] = room.about.get("repeats", {}) if room else {}
    return found


def shares_of_steps(record: Record) -> dict[str, float]:
    """The part of a block's turns that each compared step takes, its first turns included."""
    left_out = record.info["not_compared"]
    is_first = pl.col("step").is_in(left_out)
    of_step = pl.when(is_first).then("case").otherwise("step")
    turns = _turns(record.measured).with_columns(of=of_step)
    took = turns.group_by("of", maintain_order=True).agg(pl.col("took_s").sum())
    whole = took["took_s"].sum()
    return {of: seconds / whole for of, seconds in took.rows() if of and whole}


def _turns(samples: pl.DataFrame) -> pl.DataFrame:
    """Every turn with samples: block, arm, turn, step, case, took_s.

    Turns follow each other, and a sample is noted when its statement has ended.
    """
    return (
        samples.filter(pl.col("block") > 0)
        .group_by("block", "arm", "turn")
        .agg(
            # A result may be noted in a turn before what is timed there.
            *(
                pl.coalesce(column.filter(metric=TIME).first(), column.first())
                for column in (pl.col("step"), pl.col("case"))
            ),
            ended=pl.col("started_at").max(),
        )
        .sort("block", "ended")
        .with_columns(took_s=pl.col("ended").diff().over("block").dt.total_microseconds() / 1e6)
    )


def copied_arms(record: Record) -> list[tuple[str, str]]:
    """The arms that ran twice in every block, each with the name of its second copy."""
    return [
        (arm["copy_of"], arm["name"])
        for arm in record.info["arms"]
        if arm["copy_of"] and not arm["not_run"]
    ]


def _is_of(steps: Sequence[str], record: Record) -> pl.Expr:
    """Whether a row is of these steps, or of these steps and cases; of none: of all compared."""
    if not steps:
        return is_compared(record.info)
    return pl.col("step").is_in(steps) | pl.concat_str("step", "case", separator=", ").is_in(steps)


def _number_of_steps(record: Record, steps: Sequence[str]) -> int:
    """How many of these steps and cases are compared, counted for each arm; of none: of all."""
    times = record.measured.filter(
        pl.col("metric") == TIME, is_compared(record.info), _is_of(steps, record)
    )
    return times.select("arm", "step", "case").n_unique()


def _wanted(record: Record, steps: Sequence[str], turns: int, share: float, part: float) -> int:
    """The median over the steps and arms that have a second copy.

    With too few blocks for the variance between them, it is at most what the smallest possible
    variance asks for.
    """
    times = record.measured.filter(pl.col("metric") == TIME, _is_of(steps, record))
    found: list[float] = []
    for original, copy in copied_arms(record) if record.blocks >= MINIMUM_BLOCKS else []:
        copies = times.filter(pl.col("arm").is_in([original, copy]))
        if copies["arm"].n_unique() == 2:
            found += _best_of_each(round_values(copies), original, turns, share, part)
    if not found:
        most = best(_rest(turns, share), 1 / _FLOOR, part)
        return min(turns, max(LEAST, round(most)))
    return max(LEAST, min(MOST * turns, round(median(found))))


def best(rest: float, turns_to_blocks: float, part: float) -> float:
    """The number of turns n with the least product of the variances of all of a block's steps.

    ``rest`` is the cost of the rest of a block, in turns; ``turns_to_blocks`` the variance between
    turns relative to that between blocks; ``part`` that of the steps that the turns measure.  As
    many blocks fit into a time as its length over rest + n, so that the logarithm of the product
    is, but for a constant, log(rest + n) + part × log(1 + turns_to_blocks / n) for each step.  For
    a part of 1 it is least at √(rest × turns_to_blocks).
    """
    others = (1 - part) * turns_to_blocks
    return (math.sqrt(others**2 + 4 * part * rest * turns_to_blocks) - others) / 2


def _rest(turns: int, share: float) -> float:
    """The cost of the rest of a block, in turns, where so many of these are its ``share``."""
    return (1 - share) / share * turns


def _best_of_each(
    rounds: pl.DataFrame, baseline: str, turns: int, share: float, part: float
) -> Iterator[float]:
    """The best number of turns for every step of two equal arms."""
    at = ["step", "case"]
    blocks = log_ratios(rounds, baseline=baseline).group_by(at).agg(pl.col("log_ratio").var())
    is_first = pl.col("arm") == baseline
    logs = pl.col("value").log()
    d = (
        rounds.group_by(*at, "block", "round")
        .agg(d=logs.filter(~is_first).first() - logs.filter(is_first).first())
        .group_by(*at, "block")
        .agg((pl.col("d").quantile(0.75) - pl.col("d").quantile(0.25)) / _QUARTILES_APART)
        .group_by(at)
        .agg((pl.col("d") ** 2).mean())
    )
    rest = _rest(turns, share)
    for of_turns, whole in d.join(blocks, on=at).drop_nulls().select("d", "log_ratio").iter_rows():
        of_blocks = max(whole - of_turns / turns, _FLOOR * of_turns)
        yield best(rest, of_turns / of_blocks, part) if of_blocks else float(turns)
