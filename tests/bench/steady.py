"""How many passes of a turn's work it takes until the baseline is steady, from a record.

Measure once with many passes, ``pgstudies run STUDY -p among_others=8``, and then
``python -m tests.bench.steady RECORD``.  What it prints is how dear each pass is, relative to the
undisturbed one of the same turns; the study's parameter is then the first pass that is not dearer.
"""

from __future__ import annotations

import sys

import polars as pl

from pgstudies.analysis.effects import paired_effects
from pgstudies.analysis.pairing import block_values
from pgstudies.analysis.tables import with_interval
from pgstudies.records.reading import AMONG_OTHERS, UNDISTURBED, read_record


def passes(samples: pl.DataFrame, baseline: str) -> pl.DataFrame:
    """Each pass of the baseline's turns against the undisturbed: step, case, metric, pass, ratio.

    ``pass`` counts from 1; ``ratio`` is text, with its interval over blocks.
    """
    at = ["block", "group", "turn", "case", "step", "iteration", "metric"]
    own = samples.filter(
        (pl.col("part") == UNDISTURBED).any().over("case", "step", "metric"),
        pl.col("metric").is_in(["cpu_s", "duration_s"]),
        arm=baseline,
    )
    number = pl.int_range(1, pl.len() + 1).over(*at, "part")
    first = pl.when(part=AMONG_OTHERS).then(number).otherwise(0)
    by = ["step", "case", "metric"]
    values = block_values(
        own.with_columns(number=first).drop("part"), by=[*by, "number"], statistic="median"
    )
    found = paired_effects(values, baseline=0, key="number", by=by)
    return found.select(*by, pl.col("candidate").alias("pass"), ratio=with_interval(3))


def main() -> None:
    record = read_record(sys.argv[1])
    baseline = next(arm["name"] for arm in record.info["arms"] if arm["baseline"])
    with pl.Config(tbl_rows=-1, fmt_str_lengths=40):
        print(passes(record.measured, baseline))


if __name__ == "__main__":
    main()
