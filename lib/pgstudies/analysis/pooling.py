"""What several hosts, and several records, say together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.stats import norm, t
from statsmodels.stats.meta_analysis import combine_effects

from .. import paths
from ..records import PREFIX, read_info, read_verdicts
from .agreement import HOLDS, NOT_JUDGED, NOT_REPLICATED, NOT_TESTED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def pooled(judged: pl.DataFrame) -> pl.DataFrame:
    """What the hosts say together of every claim, one row per claim.

    ``judged`` is a table of ``judged_by_host``.  Columns: claim, text, hosts (on which it was
    judged), holds (on how many), ratio, low, high, published_ratio, tau (standard deviation of the
    true log ratio between hosts), i2 (the part of the variation that is between hosts).

    Random effects on the log scale, Paule and Mandel's variance between hosts (1982), intervals
    after Hartung and Knapp (2001) with k − 1 degrees of freedom, never narrower than the usual
    random-effects ones with the same (Röver, Knapp and Friede, 2015).  The error of a host is taken
    from its interval, as if it were normal.  With one host there is nothing to pool: the last
    five but published_ratio are null.
    """
    rows = []
    for (claim,), part in judged.group_by("claim", maintain_order=True):
        tested = part.filter(~pl.col("verdict").str.contains(f"^({NOT_TESTED}|{NOT_JUDGED})"))
        rows.append(
            {
                "claim": claim,
                "text": part["text"][0],
                "hosts": tested.height,
                "holds": tested["verdict"].is_in(HOLDS).sum(),
                "published_ratio": part["published_ratio"][0],
                **_pooled(tested.drop_nulls(["ratio", "low", "high"])),
            }
        )
    schema: dict[str, pl.DataType] = {"claim": pl.String(), "text": pl.String()}
    schema |= dict.fromkeys(["hosts", "holds"], pl.Int64())
    floats = ["published_ratio", "ratio", "low", "high", "tau", "i2"]
    schema |= dict.fromkeys(floats, pl.Float64())
    return pl.DataFrame(rows, schema=schema)


def _pooled(tested: pl.DataFrame) -> dict[str, float]:
    if tested.height < 2:
        return {}
    width = pl.col("high").log() - pl.col("low").log()
    error = (tested.select(width / (2 * norm.ppf(0.975))).to_series()).to_numpy()
    # An interval without width, as of counts, would weigh infinitely much.
    with np.errstate(divide="ignore"):  # where hosts agree better than their errors say
        found = combine_effects(
            tested["ratio"].log().to_numpy(), np.maximum(error, 1e-6) ** 2, method_re="iterated"
        )
    centre = float(found.mean_effect_re)
    half = t.ppf(0.975, tested.height - 1) * max(
        float(found.sd_eff_w_re), float(found.sd_eff_w_re_hksj)
    )
    return {
        "ratio": math.exp(centre),
        "low": math.exp(centre - half),
        "high": math.exp(centre + half),
        "tau": math.sqrt(max(0.0, float(found.tau2))),
        "i2": max(0.0, float(found.i2)),
    }


def replicated(study: str, record: Path, judged: pl.DataFrame) -> pl.DataFrame:
    """The verdicts on a reference record, *not replicated* where another of its size disagrees.

    ``judged`` is the table of ``judge`` on ``record``.  Two records disagree on a claim that holds
    by one and is gone or reversed by the other, or gone by one and reversed by the other; one that
    is open, or did not test the claim, agrees with all.
    """
    size = read_info(record).get("profile")
    files = sorted((paths.REFERENCE_RECORDS / study).glob(f"*/{PREFIX}*.parquet"))
    others = [file for file in files if file.parent.name != record.name]
    told: dict[str, list[tuple[str, str]]] = {}
    for file in others:
        if read_info(file.parent).get("profile") == size:
            for claim, verdict in read_verdicts(file).select("claim", "verdict").iter_rows():
                told.setdefault(claim, []).append((file.parent.name, verdict))
    verdicts = [
        _beside(verdict, told.get(claim, ()))
        for claim, verdict in judged.select("claim", "verdict").iter_rows()
    ]
    return judged.with_columns(verdict=pl.Series(verdicts, dtype=pl.String()))


def _beside(verdict: str, others: Iterable[tuple[str, str]]) -> str:
    own = _side(verdict)
    for name, other in others:
        if own and _side(other) not in {own, None}:
            date = f"{name[:4]}-{name[4:6]}-{name[6:8]}"
            return f"{NOT_REPLICATED}: {verdict} by this record, {other} by that of {date}"
    return verdict


def _side(verdict: str) -> str | None:
    if verdict in HOLDS:
        return "holds"
    return verdict if verdict in {"gone", "reversed"} else None
