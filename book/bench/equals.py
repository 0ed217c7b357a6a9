"""How far equal servers are apart by more than their blocks say, and what is to be drawn anew.

``python -m book.bench.equals SERVER --anew nothing programs data memory all`` runs six servers of
the same programs, each from a copy of its own, as the copies of a comparison are, and has them look
up rows in turns, in blocks that each begin with a restored state.  What is named is made anew for
every block: the copy of the programs; all files of the state and not the changed ones alone; or the
memory, where all servers are stopped before the first is started, as ``Run`` has it: one that is
stopped and started alone gets the pages back that it gave up.
Where blocks draw everything, the means of the servers differ by what the blocks differ by within a
server, and the ratio of their mean squares, F, is near 1.  It prints F, its p-value and the luck of
a server, which no block draws: a standard deviation, of log time.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import shutil
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import f as f_distribution

from book.bench.turns import SETTINGS
from pgservers.host.exclusive import on_core
from pgservers.programs.installations import run_client
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve

if TYPE_CHECKING:
    from numpy.typing import NDArray

SERVERS = 6
SCALE = 5
LOOKUPS = 3000
ANEW = ("nothing", "programs", "data", "memory", "all")

_TPS = re.compile(r"tps = ([\d.]+) \(without")


def of_luck(times: NDArray[np.float64]) -> tuple[float, float, float]:
    """F, its p-value and the standard deviation of what blocks do not draw.

    ``times`` are log times, a row for each server and a column for each block.
    """
    servers, blocks = times.shape
    off = times - times.mean(axis=0)
    means = off.mean(axis=1)
    between = blocks * float((means**2).sum()) / (servers - 1)
    within = float(((off - means[:, None]) ** 2).sum()) / ((servers - 1) * (blocks - 1))
    ratio = between / within
    p_value = float(f_distribution.sf(ratio, servers - 1, (servers - 1) * (blocks - 1)))
    return ratio, p_value, math.sqrt(max(between - within, 0.0) / blocks)


def measured(spec: str, anew: str, blocks: int, turns: int, seed: int) -> NDArray[np.float64]:
    """Log times of a lookup, a row for each server and a column for each block."""
    core = max(os.sched_getaffinity(0))
    rng = random.Random(seed)
    found = np.zeros((SERVERS, blocks))
    with ExitStack() as stack:
        root = stack.enter_context(serve(spec, settings=SETTINGS, cpu=core))
        if not isinstance(root, ManagedServer) or root.capabilities.pgbench is None:
            raise SystemExit(f"{spec} is no server of ours with pgbench.")
        pgbench = str(root.capabilities.pgbench)

        def build() -> None:
            run_client([pgbench, "-i", "-q", "-s", str(SCALE)], root.environment())

        root.prepare("lookups", build)
        servers = [stack.enter_context(root.another(own_programs=True)) for _ in range(SERVERS)]

        def lookup_s(server: ManagedServer, number: int) -> float:
            command = [pgbench, "-n", "-S", "-M", "prepared", "-t", str(number), "-s", str(SCALE)]
            command += [f"--random-seed={number}"]
            with on_core(core):
                done = run_client(command, server.environment())
            said = _TPS.search(done.stdout)
            if said is None:
                raise SystemExit(done.stderr)
            return 1 / float(said[1])

        for block in range(blocks):
            for server in servers if anew in {"memory", "all"} else ():
                server.stop("immediate")
            for server in rng.sample(servers, SERVERS):
                server.stop("immediate")
                if anew in {"programs", "all"}:
                    shutil.rmtree(server._instance.path / "binaries")
                    server._programs, server._libraries = server._copied_programs()
                if anew in {"data", "all"}:
                    server.clear()
                server.restore("lookups", build)
                lookup_s(server, LOOKUPS)
            took: list[list[float]] = [[] for _ in servers]
            for _ in range(turns):
                for n in rng.sample(range(SERVERS), SERVERS):
                    took[n].append(lookup_s(servers[n], LOOKUPS))
            found[:, block] = [math.log(median(of_server)) for of_server in took]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("server", help="a release, embedded or a directory of programs")
    parser.add_argument("--anew", nargs="+", choices=ANEW, default=ANEW)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3, help="of each, in an order drawn anew")
    chosen = parser.parse_args()
    order = [
        anew
        for _ in range(chosen.runs)
        for anew in random.sample([*chosen.anew], k=len(chosen.anew))
    ]
    for n, anew in enumerate(order):
        times = measured(chosen.server, anew, chosen.blocks, chosen.turns, n)
        ratio, p_value, luck = of_luck(times)
        means = " ".join(f"{m:.3f}" for m in np.exp((times - times.mean(axis=0)).mean(axis=1)))
        load = os.getloadavg()[0]
        found = f"F {ratio:.2f}, p {p_value:.3f}, luck {100 * luck:.2f} %"
        print(f"{anew}: {found}, {means}, load {load:.1f}", flush=True)


if __name__ == "__main__":
    main()
