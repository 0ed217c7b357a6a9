"""Loading a workload's schema, and finding out how often a script runs in a turn."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg import sql

from pgstudies.errors import CannotRun, StudyError
from pgstudies.programs import find_binaries, run_client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from subprocess import CompletedProcess

    from pgstudies.measuring import Trial

MOST = 100_000
"""Transactions of a turn, at most."""

WITHOUT_TRYING = 10
"""Transactions of a turn where none can be tried beforehand: on an external server."""

TURNS = "pgstudies_turns"
"""The table that keeps how often each script runs in a turn."""

_TRIED_IN = "pgstudies_tried"

_FAILED = re.compile(r"^psql:[^\n]*?:(\d+): ERROR:\s*(.*)$", re.MULTILINE)

_UNKNOWN = "unrecognized configuration parameter"
"""What an older server says of a line that a newer pg_dump writes; its absence changes nothing."""

_LATENCY = re.compile(r"latency average = ([\d.]+) ms")


def load(
    environment: Mapping[str, str], schema: Path, server: str
) -> None:
    """Load a script of psql or a dump into the database that ``environment`` leads to.

    Raises StudyError with the first statement that fails, by its line, and CannotRun without psql.
    """
    with tempfile.TemporaryDirectory(prefix="pgstudies-") as aside:
        script = schema
        if _is_dump(schema):
            script = Path(aside) / "dump.sql"
            done = _run(
                "pg_restore",
                [
                    "--no-owner",
                    "--no-privileges",
                    f"--file={script}",
                    str(schema),
                ],
                {},
            )
            if done.returncode:
                raise StudyError(
                    f"{schema} cannot be restored: {_last(done.stderr)}."
                )
        quiet = ["--no-psqlrc", "--quiet", f"--output={os.devnull}"]
        done = _run("psql", [*quiet, f"--file={script}"], environment)
    for line, said in _FAILED.findall(done.stderr):
        if _UNKNOWN not in said:
            raise StudyError(
                f"{schema}, line {line}, fails on {server}: {said}."
            )
    if done.returncode:
        raise StudyError(
            f"{schema} cannot be loaded into {server}: {_last(done.stderr)}."
        )


def _is_dump(schema: Path) -> bool:
    if schema.is_dir():
        return True
    with schema.open("rb") as content:
        return content.read(5) == b"PGDMP"


def tried(
    trial: Trial, schema: Path, scripts: Mapping[str, str], turn_s: float
) -> dict[str, int]:
    """How many transactions of each script take about so long: 1, 2, 5, 10 and so on.

    ``scripts`` has the scripts' texts by their names.  They are tried in a copy of the database,
    which is dropped afterwards.  A script that fails is run once.
    """
    if not trial.server.capabilities.has("restart"):
        return dict.fromkeys(scripts, WITHOUT_TRYING)
    database = sql.Identifier(_TRIED_IN)
    trial.execute(sql.SQL("CREATE DATABASE {}").format(database))
    environment = trial.server.environment() | {"PGDATABASE": _TRIED_IN}
    try:
        load(environment, schema, str(trial.server.version_text))
        pgbench = trial.server.capabilities.pgbench
        return {
            name: round_125(
                _found(str(pgbench), text, turn_s, environment)
            )
            for name, text in scripts.items()
        }
    finally:
        trial.execute(sql.SQL("DROP DATABASE {}").format(database))


def _found(
    pgbench: str, text: str, turn_s: float, environment: Mapping[str, str]
) -> int:
    number = 1
    while number < MOST:
        latency_s = _latency_s(pgbench, text, number, environment)
        if latency_s is None:
            return 1
        wanted = max(1, round(turn_s / max(latency_s, 1e-6)))
        if wanted <= 2 * number:
            return wanted
        number = min(wanted, 20 * number, MOST)
    return MOST


def _latency_s(
    pgbench: str, text: str, number: int, environment: Mapping[str, str]
) -> float | None:
    """What a transaction takes in the mean of so many; None where the script fails."""
    with tempfile.TemporaryDirectory(prefix="pgstudies-") as aside:
        file = Path(aside) / "script.sql"
        file.write_text(text, encoding="utf-8")
        options = [
            "-n",
            "-c",
            "1",
            "-M",
            "prepared",
            "-t",
            str(number),
            "--random-seed=1",
        ]
        done = run_client(
            [pgbench, *options, "-f", str(file)], environment
        )
    found = _LATENCY.search(done.stdout)
    return (
        float(found[1]) / 1000 if found and done.returncode == 0 else None
    )


def round_125(number: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50 and so on that is not larger."""
    power = int(10 ** (len(str(number)) - 1))
    return power * max(
        step for step in (1, 2, 5) if step * power <= number
    )


def keep_turns(trial: Trial, turns: Mapping[str, int]) -> None:
    """Keep the numbers of transactions in the database, where later blocks find them."""
    table = sql.Identifier(TURNS)
    trial.execute(
        sql.SQL("CREATE TABLE {} (script text, transactions int)").format(
            table
        )
    )
    for script, number in turns.items():
        trial.execute(
            sql.SQL("INSERT INTO {} VALUES (%s, %s)").format(table),
            [script, number],
        )
        trial.record(
            "load", "transactions", number, "transactions", case=script
        )


def kept_turns(trial: Trial) -> dict[str, int]:
    """The numbers of transactions, by script."""
    query = sql.SQL("SELECT script, transactions FROM {}").format(
        sql.Identifier(TURNS)
    )
    with closing(trial.execute(query)) as cursor:
        return dict(cursor.fetchall())


def _run(
    name: str, options: Sequence[str], environment: Mapping[str, str]
) -> CompletedProcess[str]:
    program = find_binaries().program(name)
    if program is None:
        raise CannotRun(f"there is no {name} beside the embedded server")
    return run_client([str(program), *options], environment)


def _last(said: str) -> str:
    return (said.strip().splitlines() or ["it said nothing"])[-1].rstrip(
        "."
    )
