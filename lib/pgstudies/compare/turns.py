"""How many turns a block of a comparison has: by what they cost, and by what they tell.

What differs between two equal arms differs from turn to turn and, beyond that, from block to block.
Of n turns and a block, the variance for the time it takes is least with n = √(cost of the rest of
the block / cost of a turn × variance between turns / variance between blocks): Kalibera and Jones,
Rigorous benchmarking in reasonable time, ISMM 2013.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import polars as pl

from ..analysis.intervals import MINIMUM_BLOCKS
from ..analysis.pairing import log_ratios, round_values
from ..measuring import COMPARED
from ..rooms import rooms
from .measured import TIME, is_compared

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..records.reading import Record


LEAST = 5
"""Turns of a block, at least: a fifth of them is trimmed at either end."""


MOST = 3
"""How many times as many turns as in the record are chosen, at most: it knows no more."""


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

    ``arms`` has the study's arms by their names in the record.  Where it has too few blocks to tell
    the variances, as many turns are wanted as it has.
    """
    room = rooms().get(record.info["study"].removeprefix(COMPARED))
    turns = _turns(record.measured)
    whole = dict(turns.group_by("arm").agg(pl.col("took_s").sum()).rows())
    found = []
    for parameter, steps in (room.about.get("repeats", {}) if room else {}).items():
        value = record.info["parameters"].get(parameter)
        mine = turns.filter(_is_of(steps, record))
        number = mine.group_by("block", "arm", "step", "case").len()["len"].median()
        if not isinstance(number, float) or not isinstance(value, int) or value < number:
            continue
        own = dict(mine.group_by("arm").agg(pl.col("took_s").sum()).rows())
        share = sum(own.values()) / sum(whole.values())
        found.append(
            Repeats(
                parameter=parameter,
                value=value,
                turns=round(number),
                shares={of: own.get(name, 0.0) / whole[name] for name, of in arms.items()},
                wanted=_wanted(record, steps, round(number), share),
            )
        )
    return tuple(found)


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


def _wanted(record: Record, steps: Sequence[str], turns: int, share: float) -> int:
    """The median over the steps and arms that have a second copy."""
    times = record.measured.filter(pl.col("metric") == TIME, _is_of(steps, record))
    found: list[float] = []
    for original, copy in copied_arms(record) if record.blocks >= MINIMUM_BLOCKS else []:
        copies = times.filter(pl.col("arm").is_in([original, copy]))
        if copies["arm"].n_unique() == 2:
            found += _best(round_values(copies), original, turns, share)
    return max(LEAST, min(MOST * turns, round(median(found)))) if found else turns


def _best(rounds: pl.DataFrame, baseline: str, turns: int, share: float) -> Iterator[float]:
    """The turns that give the least variance for their time, for every step of two equal arms."""
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
    for of_turns, whole in d.join(blocks, on=at).drop_nulls().select("d", "log_ratio").iter_rows():
        of_blocks = max(whole - of_turns / turns, _FLOOR * of_turns)
        rest = (1 - share) / share * turns
        yield math.sqrt(rest * of_turns / of_blocks) if of_blocks else float(turns)
