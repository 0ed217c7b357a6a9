"""How far two links of one program differ, by the records in data/layout.

``python -m book.bench.links`` prints ``layout.LINKS``, a minute.  Those records compare a server
with itself, relinked in every block.  A block's mean over rounds of ln(second copy / first) is
normal, with the variance of links and what its own rounds show as noise, where there are enough of
them; the likelihood of all blocks and steps gives the standard deviation of links.  It holds what
else a start draws, as blocks do of programs that are not relinked: rather too much than too little.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.optimize import minimize_scalar

from pgapps.compare.design import BASELINE, COPY, of_comparison
from pgapps.compare.judging.layout import linked_in
from pgapps.compare.judging.measured import (
    JUDGING,
    PLACE,
    Measured,
    in_sides,
    judging,
    rounds_of,
)
from pgservers import paths
from pgstudies.analysis.pairing import TRIMMED
from pgstudies.records.reading import infos_below, readable_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from pgstudies.records.reading import Record

ROUNDS = 8
"""The fewest rounds of a block whose noise its own rounds tell."""

STEP = 0.005
"""The constants are rounded up to a multiple of it."""


def links(root: Path) -> dict[str, float]:
    """The standard deviation of ln(one link / another) by what judges a step, of these records."""
    every = [(place, info) for place, info in infos_below(root, None) if info.get("links")]
    blocks = [row for record in readable_records([p for p, _ in every]) for row in _of(record)]
    found = {}
    for metric in sorted({row[0] for row in blocks}):
        means, noise = np.array([row[1:] for row in blocks if row[0] == metric]).T
        found[metric] = likeliest(means, noise)
    return found


def likeliest(means: NDArray[np.float64], noise: NDArray[np.float64]) -> float:
    """The standard deviation of ``means`` beyond the variances of their ``noise``."""

    def improbable(deviation: float) -> float:
        variance = deviation**2 + noise
        return float((np.log(variance) + means**2 / variance).sum())

    return float(minimize_scalar(improbable, bounds=(0, 0.5), method="bounded").x)


def rounded_up(deviation: float) -> float:
    return math.ceil(deviation / STEP) * STEP


def _of(record: Record) -> Iterator[tuple[str, float, float]]:
    """Metric, trimmed mean and its variance, of each block and step that has rounds enough."""
    about = of_comparison(record.info)
    schema = {"block": pl.Int32(), "arm": pl.String()}
    linked = pl.DataFrame(sorted(linked_in(about)), schema=schema, orient="row")
    samples = (
        in_sides(record)
        .filter(pl.col("side").is_in([BASELINE, COPY]), pl.col("metric").is_in(JUDGING))
        .join(linked, on=["block", "arm"], how="semi", maintain_order="left")
        .with_columns(study=pl.lit(""))
    )
    times = rounds_of([Measured("", (about,), (record.path,), samples)], pl.lit(True))
    by = [*PLACE, "metric"]
    rounds = (
        times.join(judging(times), on=by, how="semi")
        .pivot("arm", on_columns=[BASELINE, COPY], index=[*by, "block", "round"], values="value")
        .drop_nulls([BASELINE, COPY])
        .with_columns(d=(pl.col(COPY) / pl.col(BASELINE)).log())
    )
    for place, part in rounds.group_by(*by, "block", maintain_order=True):
        d = np.sort(part["d"].to_numpy())
        cut = int(TRIMMED * d.size)
        kept = d[cut : d.size - cut]
        if d.size >= ROUNDS and np.ptp(kept):
            winsorized = np.clip(d, kept[0], kept[-1])
            noise = winsorized.var(ddof=1) * d.size / kept.size**2
            yield str(place[-2]), float(kept.mean()), float(noise)


def main() -> None:
    for metric, deviation in links(paths.LAYOUT_RECORDS).items():
        print(f"{metric}: {deviation:.4f}, rounded up {rounded_up(deviation):.3f}")


if __name__ == "__main__":
    main()
