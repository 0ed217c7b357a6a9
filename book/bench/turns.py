"""What turns are worth and what they cost: the noise of two designs, and that of idle servers.

Run by ``make bench``, or alone: ``python -m book.bench.turns --blocks 10 --turns 20``.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import polars as pl
import psutil

from pgservers.host.exclusive import on_core
from pgservers.programs.releases import find_release
from pgservers.servers.serve import serve
from pgstudies.analysis.intervals import hodges_lehmann, signed_rank_interval
from pgstudies.analysis.pairing import log_ratios, round_values
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.counters import cpu_seconds
from pgstudies.measuring.measure import measure
from pgstudies.measuring.session import Measurement
from pgstudies.measuring.trial import Trial
from pgstudies.run_options import RunOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pgstudies.records.reading import Record

IDLE = 9
PHASE_TURNS = 3
ROUNDS = 25
SETTLE_S = 0.03
ROWS = 100_000
READS = 500
SETTINGS = {
    "autovacuum": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "fsync": "off",
    "enable_indexonlyscan": "off",
}


def report(what: str, measured: str, wanted: str) -> None:
    """One line: what was measured, what came out, and what is wanted."""
    print(f"{what:<62} {measured:>18}   {wanted}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    chosen = parser.parse_args()
    idle_servers(max(os.sched_getaffinity(0)), chosen.blocks)
    two_designs(chosen.blocks, chosen.turns)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=10, help="blocks, from 6 for an interval")
    parser.add_argument("--turns", type=int, default=20, help="turns of an arm in a block")


# Nine idle instances


class Tree:
    """Processes that can be stopped and continued together.

    Whatever ends this program, also a kill, a small process continues them: one that is stopped
    would outlive it, and a server would not hear that it is to end.
    """

    _GUARD = 'cat > /dev/null; kill -CONT "$@" 2> /dev/null'

    def __init__(self, pids: Sequence[int]) -> None:
        self.processes = [psutil.Process(pid) for pid in pids]
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", self._GUARD, "guard", *map(str, pids)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.communicate()  # by the end of its input it continues them

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop them meanwhile, each parent before its children."""
        try:
            for process in self.processes:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            yield
        finally:
            for process in self.processes:
                with suppress(psutil.NoSuchProcess):
                    process.resume()


def idle_servers(core: int, blocks: int) -> None:
    """What nine idle instances cost one that works, on the same core."""
    for spec in ("9.3", "9.6", "embedded"):
        if spec != "embedded" and not find_release(spec).cached:
            report(f"nine idle servers {spec}", "not run", f"`pgstudies servers fetch {spec}`")
            continue
        with ExitStack() as stack:
            own: Any = stack.enter_context(serve(spec, settings=SETTINGS, cpu=core))
            own.restore("empty", lambda: None)
            idle = [stack.enter_context(own.another()) for _ in range(IDLE)]
            for server in idle:
                server.restore("empty", lambda: None)
            pids = [pid for server in idle for pid in server.pids()]
            wakes, share = used(pids, 5.0)
            report(f"{spec}, nine idle instances: wake-ups", f"{wakes:.1f} a second", "")
            report("  their share of a core", f"{100 * share:.3f} %", "under 0.5 %")
            if spec != "embedded":
                continue
            stack.enter_context(on_core(core))
            tree = stack.enter_context(Tree(pids))
            trial = stack.enter_context(Trial(own, Arm("bench"), block=1))
            costs = [idle_cost(trial, tree, block) for block in range(blocks)]
        for clock, ratios in zip(("wall", "its CPU"), zip(*costs, strict=True), strict=True):
            interval = signed_rank_interval(ratios) or (math.nan, math.nan)
            ratio, low, high = map(math.exp, (hodges_lehmann(ratios), *interval))
            report(
                f"  a statement of 20 ms beside them / alone, {clock} time",
                f"{ratio:.4f} ({low:.4f}–{high:.4f})",
                f"under 1.005; {blocks} blocks of {ROUNDS} rounds",
            )


def used(pids: Sequence[int], seconds: float) -> tuple[float, float]:
    """Wake-ups a second, and the share of a core, that processes take together."""

    def totals() -> tuple[int, int]:
        wakes = cpu_ns = 0
        for pid in pids:
            status = Path(f"/proc/{pid}/status").read_text()
            wakes += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
            cpu_ns += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
        return wakes, cpu_ns

    before, start = totals(), time.perf_counter()
    time.sleep(seconds)
    after, took = totals(), time.perf_counter() - start
    return (after[0] - before[0]) / took, (after[1] - before[1]) / 1e9 / took


def idle_cost(trial: Trial, tree: Tree, block: int) -> tuple[float, float]:
    """Means over rounds of ln(time beside idle servers / beside stopped ones): wall, and CPU.

    Means, as what is looked for is rare and dear: a median would not see it.
    """
    statement = "SELECT count(*) FROM generate_series(1, 150000)"
    draw = random.Random(block)
    backend = trial.connection.info.backend_pid

    def phase(*, stopped: bool) -> tuple[float, float]:
        with tree.stopped() if stopped else nullcontext():
            time.sleep(SETTLE_S)  # each of them has woken, and sleeps again
            cpu, start = cpu_seconds(backend) or math.nan, time.perf_counter()
            for _ in range(PHASE_TURNS):
                trial.execute(statement)
            return time.perf_counter() - start, (cpu_seconds(backend) or math.nan) - cpu

    found = []
    phase(stopped=False)
    for _ in range(ROUNDS):
        took = {stopped: phase(stopped=stopped) for stopped in draw.sample([True, False], 2)}
        found.append([math.log(a / b) for a, b in zip(took[False], took[True], strict=True)])
    wall, cpu = map(fmean, zip(*found, strict=True))
    return wall, cpu


# One after another against turns


def two_designs(blocks: int, turns: int) -> None:
    """The noise of an insert and of point reads, by design, as the machine is and with company."""
    found = []
    loads: dict[str, AbstractContextManager[None]] = {"sd": nullcontext(), "sd, busy": busy()}
    for name, load in loads.items():
        before = os.getloadavg()[0]
        with load:
            found.append(noise(measured(blocks, turns).samples).rename({"sd": name}))
        print(
            f"{name}: {blocks} blocks of {turns} turns; "
            f"load {before:.2f} before, {os.getloadavg()[0]:.2f} after"
        )
    rows = found[0].join(found[1], on=["step", "metric", "design"], maintain_order="left")
    with pl.Config(
        tbl_rows=-1,
        tbl_width_chars=120,
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
        float_precision=3,
    ):
        print(with_ratio(rows, list(loads)))
    sys.stdout.flush()


@contextmanager
def busy() -> Iterator[None]:
    """One process that computes, on whichever core it gets."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(process.pid, range(os.cpu_count() or 1))
        yield
    finally:
        process.kill()
        process.wait()


IN_TURNS, FLAT = "in turns", "one after another"


def measured(blocks: int, turns: int) -> Record:
    """A record of both designs, each with two equal arms, which share every block."""
    rows = ROWS // 50

    def prepare(trial: Trial, _: Arm) -> None:
        for statement in (
            "CREATE TABLE t(k int, d text)",
            f"INSERT INTO t SELECT x, repeat('x', 350) FROM generate_series(1, {ROWS}) x",
            "CREATE INDEX ON t(k)",
            "VACUUM ANALYZE t",
            "CREATE TABLE h(k int PRIMARY KEY, v text)",
            f"INSERT INTO h SELECT x, repeat('y', 80) FROM generate_series(1, {ROWS}) x",
            "VACUUM ANALYZE h",
        ):
            trial.execute(statement)

    def story(trial: Trial) -> Iterator[None]:
        for turn in range(1, turns + 1):
            draw = random.Random(f"{trial.block} {turn}")
            trial.execute(f"SELECT setseed({draw.random()})")
            trial.execute("DELETE FROM t WHERE random() < 0.02")
            trial.execute("VACUUM t")
            trial.execute("CHECKPOINT")
            trial.timed(
                "insert",
                f"INSERT INTO t SELECT (random() * {ROWS})::int, repeat('x', 350) "
                f"FROM generate_series(1, {rows})",
                iteration=turn,
            )
            yield
            keys = [draw.randint(1, ROWS) for _ in range(READS)]
            trial.each("read", [f"SELECT v FROM h WHERE k = {key}" for key in keys], iteration=turn)
            yield

    def procedure(trial: Trial, arm: Arm) -> Iterator[None] | None:
        if not arm.options["flat"]:
            return story(trial)
        for _ in story(trial):
            pass
        return None

    apart = Arm(FLAT, options={"flat": True})
    arms = [
        Arm(IN_TURNS, options={"flat": False}),
        apart,
        Arm(f"{FLAT} (again)", options={"flat": True}, copy_of=FLAT),
    ]
    with (
        tempfile.TemporaryDirectory() as records,
        patch.dict(
            os.environ, RunOptions(fresh=True).environment() | {"PGSTUDIES_RECORDS": records}
        ),
    ):
        what = Measurement(
            study="bench",
            arms=arms,
            prepare=prepare,
            procedure=procedure,
            parameters={"server": "embedded", "blocks": blocks, "seed": 1},
            settings=SETTINGS | {"shared_buffers": "8MB"},
        )
        return measure(what)


def noise(samples: pl.DataFrame) -> pl.DataFrame:
    """The standard deviation over blocks of an A/A pair's log-ratio: step, metric, design, sd."""
    by = ["step", "metric"]
    values = round_values(samples.filter(pl.col("metric").is_in(["duration_s", "cpu_s"])), by=by)
    pairs = [
        log_ratios(
            values.filter((pl.col("arm") == design) | (pl.col("copy_of") == design)),
            baseline=design,
            by=by,
        ).with_columns(design=pl.lit(design))
        for design in (FLAT, IN_TURNS)
    ]
    return (
        pl.concat(pairs)
        .group_by(*by, "design", maintain_order=True)
        .agg(sd=pl.col("log_ratio").std())
        .sort(by, maintain_order=True)
    )


def with_ratio(rows: pl.DataFrame, loads: Sequence[str]) -> pl.DataFrame:
    """The same, with how many times smaller the noise is in turns, by load."""
    flat = pl.col("design") == FLAT
    return rows.with_columns(
        pl.when(~flat)
        .then((pl.col(load).filter(flat).first() / pl.col(load)).over("step", "metric"))
        .alias(load.replace("sd", "times smaller"))
        for load in loads
    )


if __name__ == "__main__":
    main()
