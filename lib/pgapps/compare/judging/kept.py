"""The comparisons of two servers that this project keeps, judged anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from pgservers import paths
from pgstudies.records.reading import infos_below

from ..design import BASELINE, CANDIDATE, COMPARED, Comparison, of_comparison
from .measured import CPU, STEP_NAME, read_measured
from .result import IS_DECIDED, result_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .measured import Measured
    from .result import Result

MARGIN = 0.02


def kept_effects() -> pl.DataFrame:
    """The steps that a kept comparison found slower or faster, the slowest first.

    Columns: study, ratio, low and high (of times, candidate divided by baseline, 95 %), blocks,
    arm, step, baseline and candidate (versions) and by (the clock that judges).  Raises StudyError
    for a record that cannot be judged.
    """
    return pl.concat(map(_decided, _results())).sort("ratio", descending=True)


def _results() -> Iterator[Result]:
    """A comparison is the records of all studies with the same two servers."""
    found: dict[tuple[str, str], list[Measured]] = {}
    for path, info in infos_below(paths.COMPARISONS, None):
        sides = Comparison.from_dict(of_comparison(info)["comparison"])
        measured = read_measured(info["study"].removeprefix(COMPARED), [path])
        found.setdefault((sides.baseline.server, sides.candidate.server), []).append(measured)
    for alike in found.values():
        info = alike[0].infos[-1]
        yield result_of(
            Comparison.from_dict(info["comparison"]),
            alike,
            case=None,
            margin=MARGIN,
            profile=str(info["profile"]),
        )


def _decided(result: Result) -> pl.DataFrame:
    is_by_cpu = pl.col("metric") == CPU
    decided = result.effects.filter(IS_DECIDED, pl.col("verdict").is_in(["slower", "faster"]))
    return decided.select(
        "study",
        "ratio",
        "low",
        "high",
        "blocks",
        arm="of",
        step=STEP_NAME,
        baseline=pl.lit(result.builds[BASELINE]["version_text"]),
        candidate=pl.lit(result.builds[CANDIDATE]["version_text"]),
        by=pl.when(is_by_cpu).then(pl.lit("CPU time")).otherwise(pl.lit("wall time")),
    )
