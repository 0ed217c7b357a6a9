"""What other tools say of the same two builds, in the same time, and how often each is wrong.

``python -m book.bench.peers A B --truth same --minutes 1.5 --repeat 10`` asks, in turns,
``compare``, pgbench and hyperfine, by the lookups of pgbench's own tables.  A and B are directories
of programs; ``--truth`` is what is known of B beside A: ``same``, or ``slower``.  Without B, A is
relinked in each repetition, for which it must have its build tree.  All servers and clients are on
one core, and for the other tools both servers run until the tool is done.  They
measure the two in alternation, and pairs of neighbours are judged by Student's t: what somebody
does who knows them.  ``compare`` goes first, and the others get as long as it took, as it measures
six blocks at least; its margin is ``MARGIN``.  A tool is right where it calls a slower build
slower, and an equal one nothing.  It prints a line for each, which ``--output`` adds to a CSV file;
a tool that is not there is "not run".  hyperfine is a package of most systems.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import shutil
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import polars as pl
from scipy.stats import ttest_1samp

from book.bench.turns import SETTINGS
from pgapps.builds.trees import keep_links
from pgapps.compare.design import Side
from pgapps.compare.request import Request
from pgapps.compare.run import compared, result_for
from pgservers.host.exclusive import on_core
from pgservers.programs.cached import sha256_of
from pgservers.programs.installations import find_binaries, run_client
from pgservers.programs.relinking import place_of_links, relinked
from pgservers.servers.facts import digest_of
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgservers.servers.base import ServerBase

TURN_S = 5
"""Seconds of one turn of pgbench."""

MARGIN = 0.01
"""What is less than a hundredth is called nothing by ``compare``."""

RUN_S = 1.0
"""Seconds of one command that hyperfine times."""

_TPS = re.compile(r"tps = ([\d.]+) \(without")

COLUMNS = (
    *("a", "b", "truth", "tool"),
    *("ratio", "low", "high", "says"),
    *("right", "seconds", "load"),
)

Answer = tuple[float, float, float, str]
"""Ratio of times (B / A), its 95 % interval, and what the tool says: slower, faster or nothing."""

Tool = tuple[list[str], ManagedServer]
"""The command of pgbench, and the server that it asks."""


def paired(times: Sequence[float]) -> Answer:
    """Of times of A, B, B, A, A, B and so on: B / A with its interval, and what it says."""
    pairs = np.log(times[: len(times) // 2 * 2]).reshape(-1, 2)
    ratios = (pairs[:, 1] - pairs[:, 0]) * np.where(np.arange(len(pairs)) % 2, -1, 1)
    interval = ttest_1samp(ratios, 0).confidence_interval()
    low, high = float(np.exp(interval.low)), float(np.exp(interval.high))
    says = "slower" if low > 1 else "faster" if high < 1 else "nothing"
    return float(np.exp(ratios.mean())), low, high, says


def _turns(sides: Sequence[Tool], number: int) -> list[Tool]:
    """A, B, B, A, A, B and so on."""
    return [sides[n % 2 ^ n // 2 % 2] for n in range(2 * max(2, round(number / 2)))]


def pgbench(sides: Sequence[Tool], s: float) -> Answer:
    """Pgbench for some seconds on one server, then on the other, and so on."""
    return paired([1 / _tps(*side, TURN_S) for side in _turns(sides, round(s / TURN_S))])


def hyperfine(sides: Sequence[Tool], s: float) -> Answer:
    """As many transactions of pgbench as take about ``RUN_S``, timed by hyperfine in turns."""
    number = str(round(RUN_S * _tps(*sides[0], 2)))
    commands = [
        shlex.join(["env", *(f"{k}={v}" for k, v in server.environment().items()), *command])
        for command, server in _turns(sides, round(s / RUN_S))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "times.json"
        how = ["--shell=none", "--style=none", "--runs=1", f"--export-json={file}"]
        run_client(["hyperfine", *how, *(f"{one} -t {number}" for one in commands)], {})
        return paired([run["times"][0] for run in json.loads(file.read_text())["results"]])


def _tps(command: list[str], server: ManagedServer, seconds: int) -> float:
    said = run_client([*command, "-T", str(seconds)], server.environment()).stdout
    return float(_TPS.search(said)[1])  # type: ignore[index]


def ours(sides: Sequence[str], s: float) -> Answer:
    """What ``compare`` finds, with nothing left of earlier runs."""
    baseline, candidate = map(Side, sides)
    request = Request(
        baseline,
        candidate,
        studies=("workload",),
        parameters={"directory": "pgbench:select-only"},
        minutes=s / 60,
        margin=MARGIN,
    )
    with (
        tempfile.TemporaryDirectory() as records,
        patch.dict(os.environ, {"PGSTUDIES_RECORDS": records}),
    ):
        found = compared(request, tell=lambda _: None, warn=print)
        row = result_for(request, found.measured).effects.row(0, named=True)
    is_open = row["failed"] or row["verdict"] not in {"slower", "faster"}
    # Of fewer than six blocks there is no interval, and nothing is said.
    ratio, low, high = (math.nan if row[n] is None else row[n] for n in ("ratio", "low", "high"))
    return ratio, low, high, "nothing" if is_open else row["verdict"]


def answers(sides: Sequence[str], seconds: float) -> list[tuple[str, Answer | str, float]]:
    """Each tool, what it answers or why it did not run, and the seconds that it took."""
    core = max(os.sched_getaffinity(0))
    found: list[tuple[str, Answer | str, float]] = []

    def add(tool: str, answer: Callable[[], Answer]) -> float:
        began = time.monotonic()
        found.append((tool, answer(), time.monotonic() - began))
        return found[-1][-1]

    seconds = max(seconds, add("compare", lambda: ours(sides, seconds)))
    with ExitStack() as stack:
        servers = [_filled(stack.enter_context(serve(side, settings=SETTINGS, cpu=core)))
                   for side in sides]  # fmt: skip
        asked = [([str(s.capabilities.pgbench), "-n", "-S", "-M", "prepared"], s) for s in servers]
        with on_core(core):
            add("pgbench", partial(pgbench, asked, seconds))
            if shutil.which("hyperfine"):
                add("hyperfine", partial(hyperfine, asked, seconds))
            else:
                found.append(("hyperfine", "not run: it is not installed", 0.0))
    return found


def relinked_copy(side: str, seed: int, place: Path) -> str:
    """A copy of a directory of programs with its backend relinked, which can be relinked itself."""
    binaries, target = find_binaries(side), place / "relinked"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(side, target, symlinks=True)
    digest = relinked(binaries, seed, target / "bin" / "postgres")
    links = place_of_links()
    kept = links / sha256_of(binaries.bindir / "postgres")
    shutil.copytree(kept, links / digest, dirs_exist_ok=True)
    return str(target)


def _filled(server: ServerBase) -> ManagedServer:
    """The server, running, with pgbench's tables."""
    if not isinstance(server, ManagedServer) or server.capabilities.pgbench is None:
        raise SystemExit("Give two directories of programs; pgbench is to be in them.")
    initialise = [str(server.capabilities.pgbench), "-i", "-q", "-s", "1"]

    def build() -> None:
        run_client(initialise, server.environment())

    server.restore("lookups", build)
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sides", nargs="+", metavar="DIRECTORY")
    parser.add_argument("--truth", choices=["same", "slower"], required=True)
    parser.add_argument("--minutes", type=float, default=1.5, help="of each tool")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--output", type=Path, help="a CSV file, to which it is added")
    chosen = parser.parse_args()
    if len(chosen.sides) > 2:
        parser.error("name one directory or two")
    for line in keep_links(chosen.sides):
        print(line)
    scratch = Path(tempfile.mkdtemp(prefix="pgstudies-peers-"))
    for number in range(chosen.repeat):
        sides = chosen.sides
        if len(sides) == 1:
            sides = [*sides, relinked_copy(sides[0], number, scratch)]
        # A path tells of the machine, and not which programs they are.
        names = [f"{Path(s).name} {digest_of(find_binaries(s))}" for s in sides]
        rows = []
        for tool, answer, took_s in answers(sides, 60 * chosen.minutes):
            load = round(os.getloadavg()[0], 2)
            if isinstance(answer, str):
                print(f"{tool}: {answer}", flush=True)
                continue
            ratio, low, high, says = answer
            right = says == ("nothing" if chosen.truth == "same" else "slower")
            print(
                f"{number + 1} {tool:15} {ratio:.4f} ({low:.4f}–{high:.4f}) {says:8} "
                f"{'right' if right else 'WRONG'}  {took_s:.0f} s, load {load}",
                flush=True,
            )
            rows.append((*names, chosen.truth, tool, *answer, right, took_s, load))
        frame = pl.DataFrame(rows, schema=COLUMNS, orient="row")
        if chosen.output:
            with chosen.output.open("a", encoding="utf-8") as file:
                file.write(frame.write_csv(include_header=file.tell() == 0))
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
