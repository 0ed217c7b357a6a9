"""What the instrument itself costs: run by `make bench`, on a quiet machine, and never as a test.

Each figure is the median over rounds in which the things compared take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from psycopg import sql

from book.bench.turns import add_options, idle_servers, report, two_designs
from pgservers.paths import HTML
from pgservers.programs.releases import find_release
from pgservers.servers.serve import serve
from pgservers.sessions import reason_no_room
from pgstudies import block_values, paired_effects
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.trial import Trial
from pgstudies.rooms import find_room, study_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgservers.servers.managed import ManagedServer

ROUNDS = 7
STANDARD_ROWS = 1_000_000
SESSIONS = 2000
WIDE_ROWS = 2_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    chosen = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    print(
        f"load before: {os.getloadavg()[0]:.2f}; client and server on core {core}; {ROUNDS} rounds"
    )
    with serve("embedded", settings={"autovacuum": "off", "jit": "off"}, cpu=core) as server:
        server.restore("empty", lambda: None)
        with Trial(server, Arm("bench"), block=1) as trial:
            timed_statement(trial)
            against_pgbench(server, trial)  # type: ignore[arg-type]
    restoring(core)
    loading(core)
    old_release(core)
    many_sessions(core)
    idle_servers(core, chosen.blocks)
    two_designs(chosen.blocks, chosen.turns)
    analysis()
    page()
    print(f"load after: {os.getloadavg()[0]:.2f}")


def timed_statement(trial: Trial) -> None:
    """Client time of Trial.timed beyond psycopg's own execute."""
    execute = trial.connection.execute

    def plain() -> float:
        before = trial.counts()  # what timed() does just before, so that caches are alike
        start = time.perf_counter_ns()
        execute("SELECT 1", None)
        duration = time.perf_counter_ns() - start
        trial.counts().since(before)
        return duration / 1000

    def timed() -> float:
        trial.timed("bench", "SELECT 1")
        durations = [row[7] for row in trial.rows if row[6] == "duration_s"]
        trial.rows.clear()
        return float(durations[-1]) * 1e6

    for _ in range(20):
        plain(), timed()
    pairs = [(plain(), timed()) for _ in range(100 * ROUNDS)]
    difference = statistics.median(t - p for p, t in pairs)
    report("timed statement, beyond psycopg's execute", f"{difference:+.2f} µs", "at most 5 µs")


def pgbench_us(server: ManagedServer, statement: str, transactions: int) -> float:
    program = server.capabilities.pgbench
    assert program is not None
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"{statement};\n")
        script.flush()
        command = [str(program), "-n", "-c", "1", "-M", "prepared", "-t", str(transactions)]
        environment = os.environ | server.environment()
        run = subprocess.run(
            [*command, "-f", script.name],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    found = re.search(r"latency average = ([\d.]+) ms", run.stdout)
    tps = re.search(r"tps = ([\d.]+) \(without", run.stdout)
    assert found
    assert tps
    return 1e6 / float(tps[1])


def repeated_us(trial: Trial, statement: str, times: int) -> float:
    trial.repeated("bench", statement, times)
    (duration,) = [row[7] for row in trial.rows if row[6] == "duration_s"]
    trial.rows.clear()
    return float(duration) * 1e6


def each_us(trial: Trial, statement: str, times: int) -> float:
    for _ in range(times):
        trial.timed("bench", statement)
    durations = [row[7] for row in trial.rows if row[6] == "duration_s"]
    trial.rows.clear()
    return statistics.fmean(durations) * 1e6


def against_pgbench(server: ManagedServer, trial: Trial) -> None:
    """The same statement by pgbench, through timed(), and through the path for short statements."""
    millisecond = calibrated(trial)
    each_us(trial, millisecond, 20)
    once, often = [], []
    for _ in range(ROUNDS):
        alone = pgbench_us(server, millisecond, 500)
        once.append(each_us(trial, millisecond, 500) / alone)
        often.append(repeated_us(trial, millisecond, 500) / alone)
    report("statement of 1 ms, repeated() / pgbench", spread(often), "within 2 %")
    report("  timed() / pgbench: counters are read in between", spread(once), "within 2 %")
    ratios = [
        repeated_us(trial, "SELECT 1", 30_000) / pgbench_us(server, "SELECT 1", 30_000)
        for _ in range(ROUNDS)
    ]
    report("SELECT 1, repeated() / pgbench", spread(ratios), "within 6 %")


def calibrated(trial: Trial) -> str:
    size = 1000
    while True:
        statement = f"SELECT count(*) FROM generate_series(1, {size})"
        if each_us(trial, statement, 20) >= 1000:
            return statement
        size = int(size * 1.2)


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})"


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def restoring(core: int) -> None:
    """Restoring a changed table of the standard size against building it."""
    settings = {"autovacuum": "off", "max_wal_size": "16GB", "maintenance_work_mem": "160MB"}
    built: list[float] = []
    for rows in (50_000, STANDARD_ROWS):
        with serve("embedded", settings=settings, cpu=core) as server:

            def build(server: Any = server, rows: int = rows) -> None:
                with server.connect() as c:
                    built.append(
                        seconds(
                            lambda: [
                                c.execute(statement)
                                for statement in (
                                    "CREATE TABLE t(k int, d text)",
                                    "INSERT INTO t SELECT x, repeat('x', 350) "
                                    f"FROM generate_series(1, {rows}) x",
                                    "CREATE INDEX i ON t(k)",
                                    "CLUSTER t USING i",
                                    "VACUUM ANALYZE t",
                                )
                            ]
                        )
                    )

            server.restore("built", build)
            times = []
            for _ in range(ROUNDS):
                with server.connect() as c:
                    c.execute("DELETE FROM t WHERE random() < 0.02")
                times.append(seconds(lambda: server.restore("built", build)))
        took = statistics.median(times)
        report(f"restoring {rows:,} rows, restart included", f"{took:.2f} s", "")
        report(
            f"  as a share of building them ({built[-1]:.2f} s)",
            f"{took / built[-1]:.3f}",
            "at most 0.2 (standard size)",
        )


def loading(core: int) -> None:
    """The wide table of hash_index, made by the server, against rows that psycopg has ready."""
    notebook = json.loads(find_room("hash_index").notebook.read_text(encoding="utf-8"))
    cell = next("".join(c["source"]) for c in notebook["cells"] if c["id"] == "data")
    names: dict[str, Any] = {"rows": WIDE_ROWS, "widths": [], "sql": sql}
    exec(cell, names)
    symbols = np.frombuffer(
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
    )
    drawn = symbols[np.random.default_rng(1).integers(0, 64, (WIDE_ROWS, 101))]
    drawn[:, 100] = ord("\n")
    ready = drawn.tobytes()
    table = 'CREATE TABLE wide (f1 serial PRIMARY KEY, f2 text COLLATE "C")'
    generate = f"INSERT INTO wide (f2) SELECT {names['characters'](100)} "
    generate += f"FROM generate_series(1::bigint, {WIDE_ROWS}) i"

    def by_server(connection: Any) -> None:
        connection.execute(generate)

    def by_copy(connection: Any) -> None:
        with connection.transaction():
            connection.execute("TRUNCATE wide")
            with connection.cursor().copy("COPY wide (f2) FROM STDIN (FREEZE)") as copy:
                for start in range(0, len(ready), 2**17):
                    copy.write(ready[start : start + 2**17])

    took: dict[str, list[float]] = {"server": [], "copy": []}
    with serve("embedded", settings={"autovacuum": "off", "max_wal_size": "16GB"}, cpu=core) as s:
        for _ in range(3):
            for name, load in {"server": by_server, "copy": by_copy}.items():
                s.restore("empty", lambda: None)
                with s.connect() as connection:
                    connection.execute(table)
                    took[name].append(seconds(partial(load, connection)))
    own, copied = (statistics.median(values) for values in took.values())
    report(
        "2,000,000 wide rows: by the server / COPY FREEZE of ready rows",
        f"{own:.1f} s / {copied:.1f} s",
        "at or above its speed",
    )


def old_release(core: int) -> None:
    """From asking for a release that is cached to its accepting connections, initdb included."""
    if not find_release("9.3").cached:
        report("server 9.3 from the cache", "not run", "needs `pgstudies servers fetch 9.3`")
        return

    def start() -> None:
        with serve("9.3", cpu=core) as server, server.connect() as connection:
            connection.execute("SELECT 1")
            times.append(time.perf_counter() - begin)

    times: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        start()
    report("server 9.3 from the cache", f"{statistics.median(times):.2f} s", "under 3 s")


def many_sessions(core: int) -> None:
    """Two thousand sessions opened, each with an XID that every snapshot holds."""
    settings = {"max_connections": "2050", "autovacuum": "off"}
    with serve("embedded", settings=settings, cpu=core) as server:
        reason = reason_no_room(server, SESSIONS)
        if reason is not None:
            report(f"{SESSIONS} open transactions", "not run", reason)
            return
        hold_transactions = study_module("mvcc_catalog", "sessions").hold_transactions
        times = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            with hold_transactions(server, SESSIONS):
                times.append(time.perf_counter() - begin)
    report(f"{SESSIONS} open transactions", f"{statistics.median(times):.2f} s", "under 6 s")


def analysis() -> None:
    """A record of a million samples to the table of effects."""
    generator = np.random.default_rng(1)
    blocks, arms, steps, iterations = 20, 5, 10, 1000
    index = pl.DataFrame({"n": np.arange(blocks * arms * steps * iterations)})
    n = pl.col("n")
    samples = index.select(
        block=(n // (arms * steps * iterations) + 1).cast(pl.Int32),
        position=pl.lit(1, pl.Int32),
        arm=pl.format("arm {}", n // (steps * iterations) % arms),
        case=pl.lit(""),
        step=pl.format("step {}", n // iterations % steps),
        iteration=(n % iterations).cast(pl.Int32),
        metric=pl.lit("duration_s"),
        value=pl.Series(generator.lognormal(0, 0.1, index.height)),
        unit=pl.lit("s"),
    )
    times = [
        seconds(lambda: paired_effects(block_values(samples), baseline="arm 0"))
        for _ in range(ROUNDS)
    ]
    took = statistics.median(times)
    report(f"{samples.height:,} samples to effects", f"{took:.2f} s", "under 2 s")


def page() -> None:
    """From opening a study's page to its first chart being live."""
    target = HTML / "book" / "studies" / "cluster_order.html"
    chromium = Path("/usr/bin/chromium")
    if not target.exists() or not chromium.exists():
        report("page to its first interactive chart", "not run", "needs `make book` and chromium")
        return
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        times = []
        for _ in range(ROUNDS):
            tab = browser.new_page()
            start = time.perf_counter()
            tab.goto(target.as_uri(), wait_until="commit")
            tab.locator(".vega-chart[data-live]").first.wait_for()
            times.append(time.perf_counter() - start)
            tab.close()
        browser.close()
    report(
        "page to its first interactive chart", f"{statistics.median(times):.2f} s", "within 1.5 s"
    )


if __name__ == "__main__":
    main()
