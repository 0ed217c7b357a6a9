"""Running pgbench: a script's transactions, one after the other, timed by pgbench itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..errors import ServerError, StudyError
from ..programs import run_client
from ._sessions import wait_for_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._trial import Trial


_LOG = ["client", "transaction", "latency_us", "script", "epoch_s", "epoch_us"]


_PARTS = 4
"""The drift of a run is that of its last fourth against its second: in the first, the session loads
its catalog caches and plans the query anew five times."""


def pgbench(
    trial: Trial,
    step: str,
    script: str,
    *,
    transactions: int,
    seed: int,
    variables: Mapping[str, int] = {},
    iteration: int = 0,
    case: str = "",
) -> pl.DataFrame:
    """Run ``script`` so many times in one session, prepared, and record what one time took.

    With the same ``seed`` and ``variables``, a script that uses pgbench's own ``random`` draws
    the same numbers on every server.  Recorded of one transaction in the mean: ``duration_s`` and
    what the server counts (buffers, WAL, ``read_bytes``), and further ``median_s``, ``p99_s`` and
    ``drift``: the mean of the last fourth of the run over that of the second.

    Returns pgbench's log, one row per transaction: transaction (from 1) and latency_s, from
    before its first statement to its last answer.  Raises CannotRun where there is no pgbench,
    ServerError when the server goes away, StudyError when pgbench does not take the script.
    """
    trial.server.capabilities.require("pgbench")
    program = trial.server.capabilities.pgbench
    command = [str(program), "-n", "-c", "1", "-M", "prepared", "-t", str(transactions)]
    command += [f"--random-seed={seed}", *(f"-D{name}={v}" for name, v in variables.items())]
    living = len(trial.server.session_pids())
    where: dict[str, Any] = {"iteration": iteration, "case": case}
    with (
        trial.measuring(step, of=transactions, other_sessions=True, **where) as took,
        tempfile.TemporaryDirectory(prefix="pgstudies-") as directory,
    ):
        file = Path(directory) / "script.sql"
        file.write_text(script, encoding="utf-8")
        command += ["-f", str(file), "-l", f"--log-prefix={directory}/log"]
        _run(command, trial.server.environment())
        log = read_log(Path(directory))
        wait_for_end(trial.server, living)  # only then are its reads among the server's
        if log.height != transactions:
            raise StudyError(f"pgbench ended after {log.height} of {transactions} transactions.")
        latency = log["latency_s"]
        took.duration_s = float(latency.to_numpy().sum())
    for metric, share in {"median_s": 0.5, "p99_s": 0.99}.items():
        trial.record(step, metric, np.quantile(latency, share), "s", **where)
    trial.record(step, "drift", drift(latency), "ratio", **where)
    if trial.witness is not None:
        trial.witness.keep_plan_of_script(trial.connection, step, case, script, variables)
    return log


def read_log(directory: Path) -> pl.DataFrame:
    """The transactions that a pgbench with one client logged there: transaction, latency_s."""
    logs = [file for file in directory.glob("log.*") if file.stat().st_size]
    if not logs:
        return pl.DataFrame(schema={"transaction": pl.Int64, "latency_s": pl.Float64})
    log = pl.read_csv(logs[0], separator=" ", has_header=False, new_columns=_LOG)
    return log.select(
        pl.col("transaction").cast(pl.Int64) + 1 - pl.col("transaction").min(),
        latency_s=pl.col("latency_us") / 1e6,
    )


def drift(latency: pl.Series) -> float:
    """The mean of the last fourth over that of the second; 1 for a run too short to tell."""
    part = latency.len() // _PARTS
    second, last = latency.slice(part, part).to_numpy().sum(), latency.tail(part).to_numpy().sum()
    return float(last / second) if part and second else 1.0


def _run(command: list[str], address: Mapping[str, str]) -> None:
    done = run_client(command, address)
    if done.returncode == 0:
        return
    said = done.stderr.strip().splitlines() or ["it said nothing"]
    trouble = next((line for line in said if "error:" in line or "ERROR:" in line), said[-1])
    trouble = trouble.removeprefix("pgbench: ").removeprefix("error: ")
    if "connection" in trouble and "ERROR:" not in trouble:
        raise ServerError(f"pgbench lost the server: {trouble}")
    raise StudyError(f"pgbench failed: {trouble}")
