"""How often each script of a workload runs in a turn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from pgservers.files import says_full, temporary_directory
from pgservers.programs.installations import run_client
from pgservers.servers.cluster.guests import open_to_guest
from pgservers.servers.managed import ManagedServer
from pgstudies.measuring.pgbench import command_of

from .loading import load
from .sent import statement_times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pgstudies.measuring.trial import Trial

    from .loading import Tables
    from .steps import Step

_MOST = 100_000
"""The most transactions of a turn."""

_WITHOUT_TRYING = 10
"""The transactions of a turn on an external server, where none can be tried beforehand."""

_FEWEST = 3
"""The fewest turns of a block: their trimmed mean leaves out one disturbed turn."""

_SHORTEST_S = 100e-6
"""Shorter statements are not timed: pgbench reports whole microseconds, too coarse for them."""

_TRIED_IN = "pgstudies_tried"

_LATENCY = re.compile(r"latency average = ([\d.]+) ms")


@dataclass(frozen=True)
class Turn:
    """A step's transactions in a turn, the statements timed singly, and the turn's time (s)."""

    transactions: int
    statements: list[str]
    seconds: float = 0.0


def tried(
    trial: Trial,
    tables: Tables,
    steps: Sequence[Step],
    turn_s: float,
    *,
    options: Mapping[str, Any],
) -> dict[str, Turn]:
    """The turn of each step, by name, that takes about ``turn_s``: 1, 2, 5, 10 times and so on.

    ``options`` are pgbench's: clients, protocol and variables.  The steps are tried in a database
    of their own, which is dropped afterwards.  A step that fails when repeated gets the largest
    number that worked.
    """
    server = trial.server
    if not isinstance(server, ManagedServer):
        return {step.name: Turn(_WITHOUT_TRYING, [], turn_s) for step in steps}
    with server.as_superuser() as connection:
        connection.execute("CREATE DATABASE pgstudies_tried")
    with server.as_superuser(_TRIED_IN) as connection:
        open_to_guest(connection)
    load(trial, tables, database=_TRIED_IN)
    seeds = count(1)  # no seed is used twice, because rows with random keys may be inserted
    found = {step.name: _turn(trial, step, turn_s, seeds, options) for step in steps}
    with server.as_superuser() as connection:
        connection.execute("DROP DATABASE pgstudies_tried")
    return found


def _turn(
    trial: Trial, step: Step, turn_s: float, seeds: Iterator[int], options: Mapping[str, Any]
) -> Turn:
    number = worked = 1
    latency_s = turn_s
    while report := _report(trial, step, number, seed=next(seeds), **options):
        worked = number
        latency = _LATENCY.search(report)
        latency_s = float(latency[1]) / 1000 if latency else turn_s
        wanted = max(1, round(turn_s / max(latency_s, 1e-6)))
        if wanted <= 2 * number or number == _MOST:
            alone = len(step.scripts) == 1
            times = statement_times(report, step.scripts[0].text) if alone else []
            timed = [name for name, s in times if s >= _SHORTEST_S and len(times) > 1]
            transactions = min(round_125(wanted), _MOST)
            return Turn(transactions, timed, transactions * latency_s)
        number = min(wanted, 20 * number, _MOST)
    return Turn(round_125(worked), [], round_125(worked) * latency_s)


def _report(
    trial: Trial,
    step: Step,
    number: int,
    *,
    seed: int,
    clients: int = 1,
    protocol: str = "prepared",
    variables: Mapping[str, Any] = {},
) -> str | None:
    """The report of pgbench on ``number`` transactions; None if a script fails.

    Raises SpaceError if the disk is full.
    """
    environment = trial.server.environment() | {"PGDATABASE": _TRIED_IN}
    scripts = [(script.text, w) for script, w in zip(step.scripts, step.weights, strict=True)]
    with temporary_directory() as aside:
        command = command_of(trial, aside, scripts, variables)
        command += ["-r", "-M", protocol, "-c", str(clients), "-t", str(number)]
        done = run_client([*command, f"--random-seed={seed}"], environment)
    if done.returncode and says_full(done.stderr):
        raise trial.server.no_space()
    return None if done.returncode else done.stdout


def round_125(number: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50 and so on up to ``number``."""
    power = int(10 ** (len(str(number)) - 1))
    return power * max(step for step in (1, 2, 5) if step * power <= number)


def keep_turns(trial: Trial, turns: Mapping[str, Turn]) -> None:
    """Store the turns in the trial's database, for ``kept_turns`` in later blocks."""
    trial.execute(
        "CREATE TABLE pgstudies_turns"
        " (script text, transactions int, statements text[], seconds float8)"
    )
    for script, turn in turns.items():
        trial.execute(
            "INSERT INTO pgstudies_turns VALUES (%s, %s, %s, %s)",
            [script, turn.transactions, turn.statements, turn.seconds],
        )
        trial.record("load", "transactions", turn.transactions, "transactions", case=script)


def kept_turns(trial: Trial) -> dict[str, Turn]:
    """The turns that ``keep_turns`` stored, by the step's name."""
    rows = trial.execute("SELECT * FROM pgstudies_turns").fetchall()
    return {step: Turn(*turn) for step, *turn in rows}


def number_of_turns(turns: Mapping[str, Turn], wanted: int, arm_s: float) -> int:
    """The turns of an arm in a block: ``wanted``, or fewer so that all steps take ``arm_s``.

    ``arm_s`` (s) includes the first turn, which is not counted; 0 sets no limit.  ``_FEWEST`` are
    always done.
    """
    each_s = sum(turn.seconds for turn in turns.values())
    if not arm_s or not each_s:
        return wanted
    return min(wanted, max(_FEWEST, int(arm_s / each_s) - 1))
