"""How far counts of equal work differ, on an idle machine and beside busy processes.

The table in book/commits.md: ``python -m book.bench.counts embedded 14``, half an hour.  Each
server counts one unit fifty times in each condition, in turns, each time of a state made anew.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from pgapps.counting.counter import Counter
from pgapps.counting.frames import EXACT, WHOLE
from pgapps.counting.units import Unit, units

if TYPE_CHECKING:
    from collections.abc import Iterator

UNITS_OF_A_GATE = 8
SPIN = "while True: hash(bytes(65536))"


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing but work."""
    with ExitStack() as stack:
        for _ in range(processes):
            one = stack.enter_context(subprocess.Popen([sys.executable, "-c", SPIN]))
            stack.callback(one.kill)
        yield


def instructions(server: str, unit: Unit) -> float:
    with Counter(server) as counter:
        counts = counter.count(unit, twice=False, fresh=True)
    return float(counts.filter(function=WHOLE)["inclusive"].item())


def summary(counts: pl.DataFrame) -> pl.DataFrame:
    """Columns: server, beside, counts, median, and in % sd, worst and worst pair; alarms."""
    rows = []
    for (server, beside), part in counts.group_by("server", "beside", maintain_order=True):
        values = part["instructions"].to_numpy()
        median = float(np.median(values))
        pairs = np.array([second / first for first, second in permutations(values, 2)])
        alarms = float(np.mean(pairs > 1 + EXACT))
        rows.append(
            {
                "server": server,
                "beside": beside,
                "counts": len(values),
                "median": median,
                "sd, %": 100 * float(np.std(values, ddof=1)) / median,
                "worst, %": 100 * float(np.max(np.abs(values / median - 1))),
                "worst pair, %": 100 * float(pairs.max() - 1),
                "alarms of 1,000 gates": 1000 * (1 - (1 - alarms) ** UNITS_OF_A_GATE),
            }
        )
    return pl.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("server", nargs="+", help="a server of ours, such as embedded or 14")
    parser.add_argument("--beside", type=int, nargs="+", default=[0, 2], help="busy processes")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--unit", default="one function created")
    parser.add_argument("--output", default="counts.csv", help="every count, as it comes")
    chosen = parser.parse_args()
    (unit,) = (unit for unit in units() if unit.name == chosen.unit)
    rows = []
    for _ in range(chosen.times):
        for beside in chosen.beside:
            for server in chosen.server:
                with busy(beside):
                    count = instructions(server, unit)
                row = {"server": server, "beside": beside, "instructions": count}
                rows.append(row | {"load": os.getloadavg()[0]})
                pl.DataFrame(rows).write_csv(chosen.output)
    with pl.Config(tbl_cols=20, tbl_rows=20, tbl_hide_dataframe_shape=True):
        print(summary(pl.DataFrame(rows)))


if __name__ == "__main__":
    main()
