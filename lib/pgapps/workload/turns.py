"""How often each script of a workload runs in a turn."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from psycopg import sql

from pgservers.files import says_full, temporary_directory
from pgservers.programs.installations import run_client
from pgservers.servers.managed import ManagedServer, open_to_guest
from pgstudies.measuring.pgbench import command_of

from .loading import load
from .sent import statement_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pgstudies.measuring.trial import Trial

    from .loading import Tables
    from .steps import Step

MOST = 100_000
"""The most transactions of a turn."""

WITHOUT_TRYING = 10
"""Transactions of a turn where none can be tried beforehand: on an external server."""

FEWEST = 3
"""The fewest turns of a block: their trimmed mean leaves out one disturbed turn."""

SHORTEST_S = 100e-6
"""Shorter statements are not timed: pgbench reports whole microseconds, too coarse for them."""

TURNS = "pgstudies_turns"
"""The table that stores how often each script runs in a turn."""

_TRIED_IN = "pgstudies_tried"

_LATENCY = re.compile(r"latency average = ([\d.]+) ms")


@dataclass(frozen=True)
class Turn:
    """How often a step runs in a turn, which statements are timed singly, and its time (s)."""

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

    ``options`` are those of ``_report``.  They are tried in a database of their own, which is
    dropped afterwards.  A step that fails when repeated gets the largest number that worked.
    """
    server = trial.server
    if not isinstance(server, ManagedServer):
        return {step.name: Turn(WITHOUT_TRYING, [], turn_s) for step in steps}
    database = sql.Identifier(_TRIED_IN)
    with server.as_superuser() as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(database))
    with server.as_superuser(_TRIED_IN) as connection:
        open_to_guest(connection)
    load(trial, tables, database=_TRIED_IN)
    say = partial(_report, trial, seeds=count(1), **options)
    found = {step.name: _turn(step, turn_s, partial(say, step)) for step in steps}
    with server.as_superuser() as connection:
        connection.execute(sql.SQL("DROP DATABASE {}").format(database))
    return found


def _turn(step: Step, turn_s: float, say: Callable[[int], str | None]) -> Turn:
    number = worked = 1
    latency_s = turn_s
    while report := say(number):
        worked = number
        latency = _LATENCY.search(report)
        latency_s = float(latency[1]) / 1000 if latency else turn_s
        wanted = max(1, round(turn_s / max(latency_s, 1e-6)))
        if wanted <= 2 * number or number == MOST:
            alone = len(step.scripts) == 1
            times = statement_times(report, step.scripts[0].text) if alone else []
            long = [name for name, s in times if s >= SHORTEST_S]
            transactions = min(round_125(wanted), MOST)
            timed = long if len(times) > 1 else []
            return Turn(transactions, timed, transactions * latency_s)
        number = min(wanted, 20 * number, MOST)
    return Turn(round_125(worked), [], round_125(worked) * latency_s)


def _report(
    trial: Trial,
    step: Step,
    number: int,
    *,
    seeds: Iterator[int],
    clients: int = 1,
    protocol: str = "prepared",
    variables: Mapping[str, Any] = {},
) -> str | None:
    """What pgbench reports of so many transactions; None where a script fails.

    No seed is used twice, as rows with random keys may be inserted.  Raises SpaceError where the
    disk does not hold what it writes.
    """
    environment = trial.server.environment() | {"PGDATABASE": _TRIED_IN}
    scripts = [(script.text, w) for script, w in zip(step.scripts, step.weights, strict=True)]
    with temporary_directory() as aside:
        command = command_of(trial, aside, scripts, variables)
        command += ["-r", "-M", protocol, "-c", str(clients), "-t", str(number)]
        done = run_client([*command, f"--random-seed={next(seeds)}"], environment)
    if done.returncode and says_full(done.stderr):
        raise trial.server.no_space()
    return None if done.returncode else done.stdout


def round_125(number: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50 and so on up to ``number``."""
    power = int(10 ** (len(str(number)) - 1))
    return power * max(step for step in (1, 2, 5) if step * power <= number)


def keep_turns(trial: Trial, turns: Mapping[str, Turn]) -> None:
    """Keep the turns in the database, where later blocks find them."""
    table = sql.Identifier(TURNS)
    columns = "script text, transactions int, statements text[], seconds float8"
    create = f"CREATE TABLE {{}} ({columns})"
    trial.execute(sql.SQL(create).format(table))
    for script, turn in turns.items():
        trial.execute(
            sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s)").format(table),
            [script, turn.transactions, turn.statements, turn.seconds],
        )
        trial.record(
            "load",
            "transactions",
            turn.transactions,
            "transactions",
            case=script,
        )


def kept_turns(trial: Trial) -> dict[str, Turn]:
    """The turns, by script."""
    query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(TURNS))
    with closing(trial.execute(query)) as cursor:
        return {script: Turn(*turn) for script, *turn in cursor.fetchall()}


def number_of_turns(turns: Mapping[str, Turn], wanted: int, arm_s: float) -> int:
    """The turns that an arm does in a block: ``wanted``, or fewer where they would take longer.

    ``arm_s`` is what all scripts may take in a block (s), 0 any time.  ``FEWEST`` are done all the
    same.
    """
    each_s = sum(turn.seconds for turn in turns.values())
    if not arm_s or not each_s:
        return wanted
    return min(wanted, max(FEWEST, int(arm_s / each_s) - 1))
