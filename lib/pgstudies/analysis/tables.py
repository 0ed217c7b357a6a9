"""Tables and lines of effects, verdicts and answers for every study's page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl

from ..records.samples import AMONG_OTHERS, UNDISTURBED
from .effects import paired_effects
from .pairing import BY, TIMES, block_values, round_values
from .verdicts import dearer_turns, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .agreement import Claim

_FAR = 1.1
_SIDES = ("baseline", "candidate")


def effect_table(effects: pl.DataFrame, *places: str | pl.Expr) -> pl.DataFrame:
    """The table of ``paired_effects`` for readers.

    Columns: ``places``, which tell the effects apart; blocks; ratio, low, high (to four digits);
    verdict; margin and detectable in per cent; blocks_needed; and remark, if any effect has one,
    that some turns were much dearer.
    """
    remarks = pl.Series("remark", map(dearer_turns, effects.iter_rows(named=True)), pl.String())
    table = effects.select(
        *places,
        "blocks",
        pl.col("ratio", "low", "high").round_sig_figs(4),
        "verdict",
        (pl.col("margin", "detectable") * 100).round(1).name.suffix(", %"),
        "blocks_needed",
    )
    return table.with_columns(remarks) if remarks.count() else table


def part_table(samples: pl.DataFrame, *, baseline: str, by: Sequence[str] = BY) -> pl.DataFrame:
    """Both ratios of every step whose turns are in parts, for readers.

    Columns: the ``by`` columns, candidate, *among others* and *undisturbed* (the ratio to the
    baseline in either part, with its interval), and *baseline among others*: how dear the
    baseline's own work is there, relative to undisturbed.  No rows if no turn is in parts.
    """
    keys = [*by, "candidate"]
    names = [AMONG_OTHERS, UNDISTURBED]
    kinds = [name for name in BY if name in samples.columns]
    in_parts = samples.filter((pl.col("part") == UNDISTURBED).any().over(kinds))
    if baseline not in in_parts["arm"]:
        texts = ["candidate", *names, f"baseline {AMONG_OTHERS}"]
        kept = samples.clear().select(by)
        return kept.with_columns(pl.lit(None, pl.String()).alias(name) for name in texts)
    apart = [*by, "part"]
    both = paired_effects(round_values(in_parts, by=apart), baseline=baseline, by=apart)
    own = block_values(in_parts.filter(arm=baseline), by=apart, statistic="median")
    dearer = paired_effects(own, baseline=UNDISTURBED, key="part", by=by)
    return (
        both.select(*keys, "part", text=with_interval(3))
        .pivot("part", on_columns=names, index=keys, values="text")
        .join(
            dearer.select(*by, with_interval(3).alias(f"baseline {AMONG_OTHERS}")),
            on=list(by),
            how="left",
            maintain_order="left",
        )
    )


def claim_table(asked: Iterable[Claim]) -> pl.DataFrame:
    """What is asked before it is judged, for readers.

    Columns: claim, text, rule (how it is judged, with its threshold), published_ratio, metric, and
    what is compared: baseline, candidate and where, the other columns of that effect.
    """
    rows = [
        {
            "claim": claim.id,
            "text": claim.text,
            "rule": f"{claim.kind}: {claim.direction}"
            + ("" if claim.threshold is None else f", past {claim.threshold}"),
            "published_ratio": claim.published_ratio,
            "metric": claim.judged_by,
            **{side: _text(claim.comparison.get(side)) for side in _SIDES},
            "where": ", ".join(
                f"{name} {value}" for name, value in claim.comparison.items() if name not in _SIDES
            ),
        }
        for claim in asked
    ]
    return pl.DataFrame(rows, schema_overrides={"published_ratio": pl.Float64()})


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def verdict_table(judged: pl.DataFrame, counted: pl.DataFrame | None = None) -> pl.DataFrame:
    """The table of ``judge`` for readers.

    ``counted`` is the table of ``claims_counted``.  Columns: text, source, metric, published_ratio,
    ratio, low, high, beside (to four digits), blocks, verdict.  Where a claim's work has been
    counted also instructions, counted_in, the record of that, and remark, where that ratio is far
    from the measured one.
    """
    ratios = pl.col("published_ratio", "ratio", "low", "high", "beside").round_sig_figs(4)
    table = judged.select("text", "source", "metric", ratios, "blocks", "verdict")
    if counted is None:
        return table
    asked = judged.select("claim", by_commit=pl.col("commit").is_not_null())
    how: Any = {"on": ["claim", "by_commit"], "how": "left", "maintain_order": "left"}
    found = asked.join(counted.select("claim", "by_commit", "ratio", "record"), **how)
    if not found["ratio"].count():
        return table
    each = zip(judged["ratio"], found["ratio"], judged["metric"], strict=True)
    return table.with_columns(
        instructions=found["ratio"].round(3),
        counted_in=found["record"],
        remark=pl.Series([_remark(*row) for row in each], dtype=pl.String()),
    )


def _remark(ratio: float | None, counted: float | None, metric: str | None) -> str | None:
    """Why a ratio of times is not that of instructions, if they are a tenth apart or more."""
    if not ratio or not counted or metric not in TIMES:
        return None
    each = ratio / counted
    if abs(math.log(each)) < math.log(_FAR):
        return None
    misses = "more" if each > 1 else "fewer"
    waiting = f", or {misses} waits" if metric == "duration_s" else ""
    return (
        f"time per instruction is {each:.2f} of the baseline's, as it would be by {misses} cache "
        f"misses or mispredicted branches{waiting}, or by work that a lone backend does not do"
    )


def sentences(effects: pl.DataFrame, place: str) -> str:
    """A line per effect: ``place``, such as "{step}, {candidate}", and what ``describe`` says."""
    rows = effects.iter_rows(named=True)
    return "\n".join(f"{place.format_map(row)}: {describe(row)}" for row in rows)


def with_interval(digits: int = 2) -> pl.Expr:
    """The ratio with its interval as text, to so many digits: "1.75 (1.47–2.07)"."""
    ratio, low, high = (pl.col(name).round(digits) for name in ("ratio", "low", "high"))
    return (
        pl.when(pl.col("low").is_null())
        .then(pl.format("{} (no interval)", ratio))
        .otherwise(pl.format("{} ({}–{})", ratio, low, high))
    )


def spread(name: str, value: pl.Expr | None = None) -> list[pl.Expr]:
    """The median of ``value`` as ``name``, with its minimum as low and its maximum as high."""
    value = pl.col("value") if value is None else value
    return [value.median().alias(name), value.min().alias("low"), value.max().alias("high")]


def if_known(holds: Callable[..., bool], *values: object) -> bool | None:
    """Whether ``holds`` is true of these values; None if one of them is None."""
    return holds(*values) if all(value is not None for value in values) else None


_WORDS = {True: "yes", False: "NO", None: "not judged in this run"}


def yes_or_no(answers: Mapping[str, bool | None]) -> str:
    """A line for each question with its answer: yes, NO, or "not judged in this run" for None."""
    return "\n".join(f"{question}: {_WORDS[answer]}" for question, answer in answers.items())
