"""What a sweep costs beside its blocks: run by `make bench`, on a quiet machine."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from book.bench.bench import ROUNDS, seconds
from book.bench.turns import report
from pgapps.fleet import sweep as sweeping
from pgapps.fleet.cluster import local_cluster
from pgapps.fleet.ledger import Ledger, SweepBlock
from pgapps.fleet.plan import Cell, Sweep
from pgservers.terminal import Progress

NAP_S = 0.2


def main() -> None:
    """What a sweep adds to its blocks: its ledger, a cluster of two, handing a block out."""
    with tempfile.TemporaryDirectory() as base:
        wanted = [
            SweepBlock("study", f"cell{c}", f"host{h}", number)
            for c in range(10)
            for h in range(10)
            for number in range(1, 1001)
        ]
        for block in wanted:
            path = Path(base, block.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        times = [seconds(lambda: Ledger(base).done()) for _ in range(ROUNDS)]
        took = statistics.median(times)
        report(f"ledger of {len(wanted):,} blocks read", f"{took:.2f} s", "under 2 s")

    names = ["bench1", "bench2"]
    start = time.perf_counter()
    with local_cluster(names) as client:
        client.wait_for_workers(len(names))
        took = time.perf_counter() - start
        report("cluster of two workers started", f"{took:.1f} s", "")
        with tempfile.TemporaryDirectory() as ledger, patch.object(sweeping, "measure_block", nap):
            blocks = 50
            sweep = Sweep(ledger, names, [Cell("study", "quick", "", {}, blocks)])
            with Progress("sweep", blocks * len(names)) as bar:
                took = seconds(lambda: sweeping.measure_missing(sweep, client, bar))
        added = took / blocks - NAP_S
        report("engine for each block", f"{1e3 * added:.0f} ms", "under 1 % of 60 s: 600 ms")


def nap(_request: dict[str, Any]) -> tuple[int, str]:
    """In place of a block."""
    time.sleep(NAP_S)
    return 0, ""


if __name__ == "__main__":
    main()
