"""Running pgbench: a script's transactions, timed by pgbench itself."""

from __future__ import annotations

import os
import re
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from pgservers.errors import ServerError, StudyError, require
from pgservers.files import says_full, temporary_directory
from pgservers.host.facts import allowed_cores
from pgservers.programs.installations import client_environment, counts_failures
from pgservers.sessions import reason_no_room, wait_until_gone

from .counters import UNITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from .counters import Counts
    from .trial import Trial

_LOG = ["client", "transaction", "outcome", "script", "epoch_s", "epoch_us"]

FAILURES = {"serialization": "serialization_failures", "deadlock": "deadlocks"}
"""pgbench's words for failed transactions in its log, and the metric of their fraction."""

_PARTS = 4  # drift leaves out the first fourth: caches are loaded, plans made anew five times

_LOCKS = 0x70677374
"""The class of the advisory locks that hold pgbench's sessions before and after their work."""

# The name of the column keeps these statements out of what is counted and out of the waits.
_WORK, _BEFORE, _AFTER = (f"({_LOCKS}, {n}) AS not_shared_blks_dirtied" for n in (1, 2, 3))

# A session waits in its first transaction until all are there, and in its last until what they did
# has been counted: a process that has ended cannot be asked for its CPU time.
_HEAD = f"""\\set pgstudies_turn :pgstudies_turn + 1
\\if :pgstudies_turn = 1
SELECT pg_advisory_lock_shared{_WORK};
SELECT pg_advisory_lock_shared{_BEFORE};
\\elif :pgstudies_turn = :pgstudies_last
SELECT pg_advisory_unlock_shared{_WORK};
SELECT pg_advisory_lock_shared{_AFTER};
\\else
"""

_TAIL = "\n\\endif\n"

_WAITING = """
    SELECT pid AS not_shared_blks_dirtied FROM pg_locks
    WHERE locktype = 'advisory' AND NOT granted AND classid = %s AND objid = %s
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

# Not by pg_stat_activity, whose pid was called procpid before 9.2.
_ALIVE = """
    SELECT pid AS not_shared_blks_dirtied
    FROM (SELECT pg_stat_get_backend_pid(s) AS pid FROM pg_stat_get_backend_idset() AS s) AS all_now
    WHERE pid = ANY (%s)
"""

_RELEASE = "SELECT pg_advisory_unlock_all() AS not_shared_blks_dirtied"

_POLL_S = 0.001

_PLACE = re.compile(r"\S*/(script\d*\.sql):(\d+)")

_ABORTED = re.compile(
    r"client \d+ (?:script (\d+) )?aborted in command (\d+) (?:query \d+: |\S+ of script (\d+); )"
)

# What a script is made of: what stands between commands, commands of pgbench's own, statements.
_BETWEEN = re.compile(r"(?:\s|;|--[^\n]*|/\*.*?\*/)+", re.DOTALL)

_OWN = re.compile(r"\\(?:[^\n\\]|\\\n|\\)*")

_STATEMENT = re.compile(
    r"""(?:--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"[^"]*"|\$(\w*)\$.*?\$\1\$|\\;|[^;\\])+;?""", re.DOTALL
)


def pgbench(
    trial: Trial,
    step: str,
    script: str | Mapping[str, tuple[str, int]],
    *,
    transactions: int,
    seed: int,
    variables: Mapping[str, Any] = {},
    clients: int = 1,
    protocol: str = "prepared",
    report: Callable[[str], object] | None = None,
    iteration: int = 0,
    case: str = "",
) -> pl.DataFrame:
    """Run ``script`` so many times in each session, prepared, and record what one time took.

    With the same ``seed`` and ``variables``, pgbench's own ``random`` draws the same numbers on
    every server.  Recorded of one transaction in the mean: ``duration_s``, ``cpu_s`` of the
    sessions' processes where they can be seen, and what the server counts (buffers, WAL,
    ``read_bytes``); besides ``median_s``, ``p99_s`` and ``drift``.  Several scripts, by name and
    each with its weight, are mixed as pgbench mixes them; each one's ``duration_s`` has its name as
    case.  If any failed, ``serialization_failures`` and ``deadlocks`` are their parts of all
    transactions, and the times are those of the others; before 15 pgbench ends at the first one.
    ``report`` gets what pgbench says of its statements (``-r``).

    Returns ``read_log``.  Raises CannotRun without pgbench or room for so many ``clients``,
    ServerError when the server goes away, SpaceError when its disk is full, StudyError when pgbench
    does not take the script.
    """
    trial.server.capabilities.require("pgbench")
    require(reason_no_room(trial.server, clients) if clients > 1 else None)
    where: dict[str, Any] = {"iteration": iteration, "case": case}
    mix = {"": (script, 1)} if isinstance(script, str) else script
    texts = [text for text, _ in mix.values()]
    # Sessions of one thread would draw their scripts in the order in which they happen to end.
    cores = len(allowed_cores() or ()) or os.cpu_count() or 1
    threads = min(clients, cores) if isinstance(script, str) else clients
    options = ["-c", str(clients), "-j", str(threads), "-M", protocol, "-t", str(transactions + 2)]
    options += [f"--random-seed={seed}", *(["-r"] if report else [])]
    options += ["--failures-detailed"] if counts_failures(trial.server.capabilities.pgbench) else []
    given = {**variables, "pgstudies_turn": 0, "pgstudies_last": transactions + 2}
    with temporary_directory() as directory:
        wrapped = [(_HEAD + text.rstrip() + _TAIL, weight) for text, weight in mix.values()]
        command = command_of(trial, directory, wrapped, given)
        command += [*options, "-l", f"--log-prefix={directory}/log"]
        pages, of = trial.pages_of_tables(), clients * transactions
        with (
            _held(trial, command, texts, clients) as (process, pids),
            trial.measuring(step, of=of, sessions=pids, **where) as took,
        ):
            _work(trial, pids)
            took.counts = trial.counts(sessions=pids)
            output = _ended(trial, process, texts)
            log = _whole_log(directory, of)
            took.duration_s = of * float(log["latency_s"].drop_nulls().to_numpy().mean())
    wait_until_gone(trial.server, pids)  # their end is no part of another server's turn
    names = [] if isinstance(script, str) else [*script]
    _record(trial, step, log, pages=pages, where=where, names=names)
    if report is not None:
        report(output)
    if isinstance(script, str):
        trial.ran(step, case, script, variables)
    return log


def _whole_log(directory: Path, of: int) -> pl.DataFrame:
    log = read_log(directory)
    if log.height != of:
        raise StudyError(f"pgbench ended after {log.height} of {of} transactions.")
    if not log["latency_s"].count():
        raise StudyError(f"pgbench failed: none of {of} transactions succeeded.")
    return log


def _record(
    trial: Trial,
    step: str,
    log: pl.DataFrame,
    *,
    pages: Counts | None,
    where: dict[str, Any],
    names: Sequence[str],
) -> None:
    """Record what the log says, of each script in a mix by name, and pages before 9.1."""
    of, latency = log.height, log["latency_s"].drop_nulls()
    if pages is not None:
        for metric, number in (trial.pages_of_tables() or pages).since(pages).items():
            trial.record(step, metric, number / of, UNITS[metric], **where)
    for metric, share in {"median_s": 0.5, "p99_s": 0.99}.items():
        trial.record(step, metric, np.quantile(latency, share), "s", **where)
    trial.record(step, "drift", drift(latency), "ratio", **where)
    for outcome, metric in FAILURES.items():
        if number := log["outcome"].to_list().count(outcome):
            trial.record(step, metric, number / of, "of transactions", **where)
    means = log.group_by("script").agg(pl.col("latency_s").mean()).drop_nulls()
    for number, mean in means.rows() if names else []:
        trial.record(step, "duration_s", mean, "s", **{**where, "case": names[number]})


@contextmanager
def _held(
    trial: Trial, command: Sequence[str], scripts: Sequence[str], clients: int
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A running pgbench whose sessions wait to start, and their process numbers."""
    observe = trial.observe
    for lock in (_BEFORE, _AFTER):
        observe(f"SELECT pg_advisory_lock{lock}")
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=client_environment(trial.server.environment()),
    )
    with process:
        try:
            pids: list[int] = []
            while len(pids) < clients and process.poll() is None:
                time.sleep(_POLL_S)
                pids = [pid for (pid,) in observe(_WAITING, [_LOCKS, 2])]
            if len(pids) < clients:
                _ended(trial, process, scripts)
            yield process, pids
        finally:
            process.kill()  # unless it has ended, as it does without an error
            observe(_RELEASE)


def _work(trial: Trial, pids: list[int]) -> None:
    """Let the sessions start, and wait until all have ended or failed."""
    observe = trial.observe
    observe(f"SELECT pg_advisory_unlock{_BEFORE}")
    observe(f"SELECT pg_advisory_lock{_WORK}")  # which they have while they work
    while True:
        left = {pid for (pid,) in observe(_ALIVE, [pids])}
        if not left.difference(pid for (pid,) in observe(_WAITING, [_LOCKS, 3])):
            return
        time.sleep(_POLL_S)


def _ended(trial: Trial, process: subprocess.Popen[str], scripts: Sequence[str]) -> str:
    """Let pgbench end, and return its output; raises the error that it reports."""
    trial.observe(_RELEASE)
    output, complaints = process.communicate()
    check(trial, process.returncode, complaints, scripts, head=_HEAD)
    return output


def command_of(
    trial: Trial, directory: Path, scripts: Sequence[tuple[str, int]], variables: Mapping[str, Any]
) -> list[str]:
    """The beginning of every command: scripts, with weights, are written into ``directory``."""
    command = [str(trial.server.capabilities.pgbench), "-n"]
    for number, (script, weight) in enumerate(scripts):
        file = directory / _file(number)
        file.write_text(script, encoding="utf-8")
        command += ["-f", f"{file}@{weight}"]
    return [*command, *(f"-D{name}={value}" for name, value in variables.items())]


def _file(number: int) -> str:
    """A script's name in pgbench's messages: script.sql, in a mix also script2.sql and so on."""
    return f"script{number + 1}.sql" if number else "script.sql"


def read_log(directory: Path) -> pl.DataFrame:
    """The transactions that pgbench logged, by their end, without each client's first and last.

    Columns: client (from 0), transaction (from 1), script (from 0), outcome (as logged: µs, or of
    ``FAILURES``), latency_s (from its first statement to its last answer, or null).
    """
    how: dict[str, Any] = {"separator": " ", "has_header": False, "infer_schema": False}
    logs = [
        pl.read_csv(file, new_columns=_LOG, **how).select(_LOG)
        for file in sorted(directory.glob("log.*"))
        if file.stat().st_size
    ]
    log = pl.concat([pl.DataFrame(schema=dict.fromkeys(_LOG, pl.String)), *logs])
    number = pl.col("transaction")
    return (
        log.with_columns(pl.exclude("outcome").cast(pl.Int64, strict=False))
        .sort("epoch_s", "epoch_us", maintain_order=True)
        .with_columns(number - number.min().over("client"))
        .filter(number > 0, number < number.max().over("client"))
        .select(*_LOG[:4], latency_s=pl.col("outcome").cast(pl.Float64, strict=False) / 1e6)
    )


def drift(latency: pl.Series) -> float:
    """The mean of the last quarter over that of the second; 1 for a run that is too short."""
    part = latency.len() // _PARTS
    second, last = latency.slice(part, part).to_numpy().sum(), latency.tail(part).to_numpy().sum()
    return float(last / second) if part and second else 1.0


def command_lines(script: str) -> list[int]:
    """The line, from 1, on which each command of a script begins, in the order of pgbench's."""
    found: list[int] = []
    place = 0
    while True:
        between = _BETWEEN.match(script, place)
        place = between.end() if between else place
        if place == len(script):
            return found
        if not script.startswith(("\\gset", "\\aset"), place):
            found.append(script.count("\n", 0, place) + 1)
        command = (_OWN if script[place] == "\\" else _STATEMENT).match(script, place)
        place = command.end() if command else len(script)


def check(
    trial: Trial, status: int, complaints: str, scripts: Sequence[str], *, head: str = ""
) -> None:
    """Raise the error that a failed pgbench reports, with the script's line (after ``head``)."""
    if status == 0:
        return
    messages = complaints.strip().splitlines() or ["it said nothing"]
    trouble = next((m for m in messages if "error:" in m or "ERROR:" in m), messages[-1])
    trouble = trouble.removeprefix("pgbench: ").removeprefix("error: ")
    if says_full(complaints):
        raise trial.server.no_space(trouble)
    before = head.count("\n")
    trouble = _PLACE.sub(lambda at: f"{at[1]}:{int(at[2]) - before}", trouble)
    if aborted := _ABORTED.search(complaints):
        number, command = int(aborted[1] or aborted[3] or 0), int(aborted[2])
        lines = command_lines(head + scripts[number])
        if command < len(lines):
            trouble = f"{_file(number)}:{lines[command] - before}: {_ABORTED.sub('', trouble)}"
    if "connection" in trouble and "ERROR:" not in trouble:
        raise ServerError(f"pgbench lost the server: {trouble}")
    raise StudyError(f"pgbench failed: {trouble}")
