"""Whether two copies of a server are found to be equal: what comparisons themselves have measured.

Every comparison runs its baseline twice.  ``python -m book.bench.copies DIRECTORY ...`` takes the
records of comparisons in directories such as ``~/.local/share/pgstudies/records``, judges the
second copy in each as if it were the candidate, and prints how many intervals miss 1 and how many
verdicts are wrong, by study.  With ``--candidates`` it also judges the candidates, of comparisons
of equal programs: they have a state of their own, which the copy shares with the baseline.  Then it
prints the steps that differ most, over all records: of mean z² far above 1, luck is common to a
run; of a mean far from 1, one side is put at a disadvantage.  ``--output`` keeps the intervals as
CSV, with the directory that each is from.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

from pgapps.compare.design import BASELINE, CANDIDATE, COMPARED, COPY, of_comparison
from pgapps.compare.judging.measured import (
    JUDGING,
    PLACE,
    Measured,
    effects_by_names,
    in_sides,
    judging,
    rounds_of,
)
from pgstudies.analysis.intervals import MINIMUM_BLOCKS
from pgstudies.records.reading import Record, infos_below, read_record

KEPT = ["directory", "record", "side", "step", "metric", "blocks", "ratio", "low", "high"]


def of_equals(record: Record, equal: str, directory: str = "") -> pl.DataFrame:
    """An equal side against the baseline, one row per step: those of ``compared_effects``."""
    study = str(record.info["study"]).removeprefix(COMPARED)
    samples = in_sides(record).with_columns(study=pl.lit(study)).sort("block")
    measured = Measured(study, (of_comparison(record.info),), (record.path,), samples)
    times = rounds_of([measured], pl.col("metric").is_in(JUDGING))
    judged = times.join(judging(times), on=[*PLACE, "metric"], how="semi", maintain_order="left")
    copies = judged.filter(pl.col("arm").is_in([BASELINE, equal])).with_columns(
        copy_of=pl.lit(None, pl.String)
    )
    by = [*PLACE, "metric"]
    return effects_by_names(copies, by=by).with_columns(
        directory=pl.lit(directory), side=pl.lit(equal), record=pl.lit(record.path.name)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIRECTORY")
    parser.add_argument("--candidates", action="store_true", help="they are equal programs, too")
    parser.add_argument("--output", type=Path, metavar="CSV", help="keep the intervals")
    chosen = parser.parse_args()
    sides = [COPY, CANDIDATE] if chosen.candidates else [COPY]
    records = [
        (read_record(path), directory.name)
        for directory in chosen.directories
        for path, info in infos_below(directory, None)
        if str(info["study"]).startswith(COMPARED)
    ]
    found = pl.concat(
        [
            of_equals(record, side, directory)
            for record, directory in records
            if record.blocks >= MINIMUM_BLOCKS
            for side in sides
        ]
    )
    if chosen.output is not None:
        found.select(KEPT).write_csv(chosen.output, float_precision=5)
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
        print(found.group_by("directory", "side", "study", maintain_order=True).agg(counted))
        print(found.group_by("directory", "side", maintain_order=True).agg(counted))
        z = pl.col("ratio").log() / (width / 1.96)
        print(
            found.group_by("directory", "side", "study", "step", "case")
            .agg(
                pl.len().alias("comparisons"),
                pl.col("ratio").log().mean().exp().alias("mean"),
                (z**2).mean().alias("mean z²"),
            )
            .sort("mean z²", descending=True)
            .head(8)
        )


if __name__ == "__main__":
    main()
