"""What other tools say of the same two builds, in the same time, and how often each is wrong.

``python -m tests.bench.peers A B --truth same --minutes 4 --repeat 10`` asks, in turns, pgbench run
in alternation and judged by Welch's test, hyperfine, pyperf, and ``compare``, by the lookups of
pgbench's own tables.  A and B are directories of programs; ``--truth`` is what is known of B beside
A: ``same``, or ``slower``.  All servers and clients are on one core, and for the other tools both
servers run until the tool is done: what somebody does who knows them.  ``compare`` goes first, and
the others get as long as it took, as it measures six blocks at least; its margin is ``MARGIN``.  A
tool is right where it calls a slower build slower, and an equal one nothing.  What has no interval
of its own is given Welch's, of its own times.  It prints a line for each, which ``--output`` adds
to a CSV file; a tool that is not there is "not run".  pyperf: ``.venv/bin/pip install pyperf``;
hyperfine is a package of most systems.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import polars as pl
from scipy.stats import ttest_ind

from pgapps.compare.design import Side
from pgapps.compare.request import Request
from pgapps.compare.run import compared, result_for
from pgservers.host.exclusive import on_core
from pgservers.programs.installations import find_binaries, run_client
from pgservers.servers.facts import digest_of
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve
from tests.bench.turns import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgservers.servers.base import ServerBase

SLICE_S = 5
"""Seconds of one run of pgbench in alternation."""

MARGIN = 0.01
"""What is less than a hundredth is called nothing by ``compare``."""

RUN_S = 1.0
"""Seconds of one command that hyperfine and pyperf repeat."""

_TPS = re.compile(r"tps = ([\d.]+) \(without")

COLUMNS = (
    *("a", "b", "truth", "tool"),
    *("ratio", "low", "high", "says"),
    *("right", "seconds", "load"),
)

Answer = tuple[float, float, float, str]
"""Ratio of times (B / A), its 95 % interval, and what the tool says: slower, faster or nothing."""


def welch(a: Sequence[float], b: Sequence[float]) -> Answer:
    """Of times: the ratio of geometric means with Welch's interval, and what it says."""
    found = ttest_ind(np.log(b), np.log(a), equal_var=False)
    interval = found.confidence_interval()
    low, high = float(np.exp(interval.low)), float(np.exp(interval.high))
    says = "slower" if low > 1 else "faster" if high < 1 else "nothing"
    return float(np.exp(np.mean(np.log(b)) - np.mean(np.log(a)))), low, high, says


def alternated(commands: Sequence[list[str]], servers: Sequence[ManagedServer], s: float) -> Answer:
    """Pgbench for some seconds on one server, then on the other, and so on."""
    times: list[list[float]] = [[], []]
    for n in range(max(4, round(s / SLICE_S))):
        server, command = servers[n % 2], [*commands[n % 2], "-T", str(SLICE_S)]
        said = _TPS.search(run_client(command, server.environment()).stdout)
        times[n % 2].append(1 / float(said[1]))  # type: ignore[index]
    return welch(*times)


def repeated(
    tool: str, commands: Sequence[list[str]], servers: Sequence[ManagedServer], s: float
) -> Answer:
    """One command of about ``RUN_S``, many times, and then the other, by hyperfine or pyperf."""
    tps = _TPS.search(run_client([*commands[0], "-T", "2"], servers[0].environment()).stdout)
    number = str(round(RUN_S * float(tps[1])))  # type: ignore[index]
    runs = max(4, round(s / RUN_S / 2))
    times = []
    with tempfile.TemporaryDirectory() as scratch:
        for n, (command, server) in enumerate(zip(commands, servers, strict=True)):
            file = Path(scratch) / f"{n}.json"
            measured = [*command, "-t", number]
            if tool == "hyperfine":
                asked = [
                    "hyperfine",
                    "--shell=none",
                    "--style=none",
                    "--warmup=1",
                    f"--runs={runs}",
                ]
                asked += [f"--export-json={file}", shlex.join(measured)]
            else:
                asked = [sys.executable, "-m", "pyperf", "command", "--inherit-environ=PGHOST,"
                         "PGPORT,PGUSER,PGDATABASE,LD_LIBRARY_PATH", "--warmups=1", "--values=3",
                         "--loops=1", f"--processes={max(2, runs // 4)}", "--output", str(file),
                         "--quiet", *measured]  # fmt: skip
            run_client(asked, server.environment())
            times.append(_times(json.loads(file.read_text())))
    return welch(*times)


def _times(said: dict[str, Any]) -> list[float]:
    """The times in what hyperfine or pyperf wrote."""
    if "results" in said:
        return [float(time) for time in said["results"][0]["times"]]
    runs = said["benchmarks"][0]["runs"]
    return [float(value) for run in runs for value in run.get("values", [])]


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
    return row["ratio"], row["low"], row["high"], "nothing" if is_open else row["verdict"]


def asked(sides: Sequence[str], seconds: float) -> list[tuple[str, Answer | str, float]]:
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
        commands = [[str(s.capabilities.pgbench), "-n", "-S", "-M", "prepared"] for s in servers]
        with on_core(core):
            add("pgbench, Welch", lambda: alternated(commands, servers, seconds))
            for tool in ("hyperfine", "pyperf"):
                if (shutil.which if tool == "hyperfine" else find_spec)(tool):
                    add(tool, partial(repeated, tool, commands, servers, seconds))
                else:
                    found.append((tool, "not run: it is not installed", 0.0))
    return found


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
    parser.add_argument("sides", nargs=2, metavar="DIRECTORY")
    parser.add_argument("--truth", choices=["same", "slower"], required=True)
    parser.add_argument("--minutes", type=float, default=4, help="of each tool")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--output", type=Path, help="a CSV file, to which it is added")
    chosen = parser.parse_args()
    # A path tells of the machine, and not which programs they are.
    names = [f"{Path(s).name} {digest_of(find_binaries(s))}" for s in chosen.sides]
    for number in range(chosen.repeat):
        rows = []
        for tool, answer, took_s in asked(chosen.sides, 60 * chosen.minutes):
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


if __name__ == "__main__":
    main()
