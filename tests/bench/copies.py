"""Whether two copies of a server are found to be equal: what comparisons themselves have measured.

Every comparison runs its baseline twice.  ``python -m tests.bench.copies DIRECTORY ...`` takes the
records of comparisons in directories such as ``~/.local/share/pgstudies/records``, judges the
second copy in each as if it were the candidate, and prints how many intervals miss 1 and how many
verdicts are wrong, by study.  Then it prints the steps whose copies differ most, over all records:
of mean z² far above 1, luck is common to a run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

from pgapps.compare.design import BASELINE, CANDIDATE, COMPARED
from pgapps.compare.judging.measured import (
    CPU,
    PLACE,
    TIME,
    Measured,
    as_family,
    in_sides,
    judging,
    rounds_of,
)
from pgstudies.analysis.effects import paired_effects
from pgstudies.analysis.intervals import MINIMUM_BLOCKS
from pgstudies.records.reading import Record, infos_below, read_record


def of_copies(record: Record) -> pl.DataFrame:
    """The second copy against the first, one row per step: those of ``compared_effects``."""
    study = str(record.info["study"]).removeprefix(COMPARED)
    samples = in_sides(record).with_columns(study=pl.lit(study)).sort("block")
    measured = Measured(study, (record.info,), (record.path,), samples)
    times = rounds_of([measured], pl.col("metric").is_in([TIME, CPU]))
    judged = times.join(judging(times), on=[*PLACE, "metric"], how="semi", maintain_order="left")
    copies = judged.filter(pl.col("arm") != CANDIDATE).with_columns(copy_of=pl.lit(None, pl.String))
    by = [*PLACE, "metric"]
    effects = paired_effects(copies, baseline=BASELINE, by=by, margin=0.02, gated=False)
    return as_family(effects).with_columns(record=pl.lit(record.path.name))


def main() -> None:
    below = [found for name in sys.argv[1:] for found in infos_below(Path(name), None)]
    paths = [path for path, info in below if str(info["study"]).startswith(COMPARED)]
    records = [record for record in map(read_record, paths) if record.blocks >= MINIMUM_BLOCKS]
    found = pl.concat([of_copies(record) for record in records])
    misses = (pl.col("low") > 1) | (pl.col("high") < 1)
    width = (pl.col("high") / pl.col("low")).log() / 2
    wrong = pl.col("verdict").is_in(["slower", "faster"]).any().over("record")
    counted = [
        pl.col("record").n_unique().alias("comparisons"),
        pl.len().alias("steps"),
        misses.sum().alias("intervals that miss 1"),
        pl.col("record").filter(wrong).n_unique().alias("comparisons with a wrong verdict"),
        width.median().alias("half-width, median"),
    ]
    with pl.Config(tbl_rows=-1, tbl_cols=-1, fmt_str_lengths=40):
        print(found.group_by("study", maintain_order=True).agg(counted))
        print(found.select(counted))
        z = pl.col("ratio").log() / (width / 1.96)
        print(
            found.group_by("study", "step", "case")
            .agg(pl.len().alias("comparisons"), (z**2).mean().alias("mean z²"))
            .sort("mean z²", descending=True)
            .head(8)
        )


if __name__ == "__main__":
    main()
