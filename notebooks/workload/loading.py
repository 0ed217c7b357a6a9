"""Loading a workload's schema, and finding out how often a script runs in a turn."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from psycopg import sql

from pgstudies.errors import CannotRun, StudyError
from pgstudies.measuring import statement_times
from pgstudies.paths import run_dir
from pgstudies.programs import (
    client_environment,
    find_binaries,
    run_client,
)
from pgstudies.servers import require_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pgstudies.measuring import Trial

MOST = 100_000
"""Transactions of a turn, at most."""

WITHOUT_TRYING = 10
"""Transactions of a turn where none can be tried beforehand: on an external server."""

SHORTEST_S = 100e-6
"""pgbench tells what a statement takes in whole microseconds: of less that is too coarse."""

TURNS = "pgstudies_turns"
"""The table that keeps how often each script runs in a turn."""

_TRIED_IN = "pgstudies_tried"

_FAILED = re.compile(r"^psql:[^\n]*?:(\d+): ERROR:\s*(.*)$", re.MULTILINE)

_UNKNOWN = "unrecognized configuration parameter"
"""What an older server says of a line that a newer pg_dump writes; its absence changes nothing."""

_PART = 1_000_000

_LATENCY = re.compile(r"latency average = ([\d.]+) ms")


def load(
    trial: Trial,
    schema: Path | None,
    *,
    scale: int = 1,
    database: str | None = None,
) -> None:
    """Load a script of psql or a dump into the trial's database, or another of its server.

    Without a schema, pgbench makes its own tables, of that ``scale``.  Raises StudyError with the
    first statement that fails, by its line, SpaceError where the disk does not hold twice what is
    loaded, and CannotRun without psql.
    """
    environment = trial.server.environment()
    environment |= {"PGDATABASE": database} if database else {}
    server = str(trial.server.version_text)
    if schema is None:
        pgbench = str(trial.server.capabilities.pgbench)
        options = ["-i", "-q", "-s", str(scale), "-I", "dtgvp"]
        done = run_client([pgbench, *options], environment)
        if done.returncode:
            raise StudyError(
                f"pgbench's tables cannot be made on {server}: {_last(done.stderr)}."
            )
        return
    if trial.server.capabilities.has("restart"):
        size = 2 * _size(schema)
        require_space(run_dir(), size, f"the rows of {schema.name}")
    with tempfile.TemporaryDirectory(prefix="pgstudies-") as aside:
        told = Path(aside) / "told"
        quiet = ["--no-psqlrc", "--quiet", f"--output={os.devnull}"]
        psql = [str(_program("psql")), *quiet, "--file=-"]
        with told.open("wb") as errors, _opened(schema) as rows:
            status = _fed(trial, psql, rows, errors, environment)
        said = told.read_text(encoding="utf-8", errors="replace")
    for line, complaint in _FAILED.findall(said):
        if _UNKNOWN not in complaint:
            raise StudyError(
                f"{schema}, line {line}, fails on {server}: {complaint}."
            )
    if status:
        raise StudyError(
            f"{schema} cannot be loaded into {server}: {_last(said)}."
        )


@contextmanager
def _opened(schema: Path) -> Iterator[IO[bytes]]:
    """The SQL of a script, or of a dump as ``pg_restore`` writes it."""
    if not _is_dump(schema):
        with schema.open("rb") as script:
            yield script
        return
    options = ["--no-owner", "--no-privileges", "--file=-", str(schema)]
    with (
        tempfile.TemporaryFile() as told,
        subprocess.Popen(
            [str(_program("pg_restore")), *options],
            stdout=subprocess.PIPE,
            stderr=told,
            env=client_environment({}),
        ) as restoring,
    ):
        assert restoring.stdout is not None
        yield restoring.stdout
        restoring.stdout.close()
        if restoring.wait():
            told.seek(0)
            said = told.read().decode(errors="replace")
            raise StudyError(
                f"{schema} cannot be restored: {_last(said)}."
            )


def _fed(
    trial: Trial,
    psql: Sequence[str],
    rows: IO[bytes],
    errors: IO[bytes],
    environment: Mapping[str, str],
) -> int:
    """Let psql read it all, and say how much it has read; its exit status."""
    with subprocess.Popen(
        psql,
        stdin=subprocess.PIPE,
        stderr=errors,
        env=client_environment(environment),
    ) as process:
        assert process.stdin is not None
        done = 0
        with suppress(BrokenPipeError):
            while part := rows.read(_PART):
                process.stdin.write(part)
                done += len(part)
                trial.show(f"loading, {done / 1e6:,.0f} MB")
            process.stdin.close()
        trial.show("loading")
        return process.wait()


def _size(schema: Path) -> int:
    """Bytes of a script, or a dump."""
    files = schema.iterdir() if schema.is_dir() else [schema]
    return sum(file.stat().st_size for file in files)


def _is_dump(schema: Path) -> bool:
    if schema.is_dir():
        return True
    with schema.open("rb") as content:
        return content.read(5) == b"PGDMP"


@dataclass(frozen=True)
class Turn:
    """How often a script runs in a turn, and which of its statements are timed one by one."""

    transactions: int
    statements: list[str]


def tried(
    trial: Trial,
    schema: Path | None,
    scripts: Mapping[str, str],
    turn_s: float,
    *,
    options: Mapping[str, Any],
    scale: int = 1,
) -> dict[str, Turn]:
    """The turn of each script that takes about so long: 1, 2, 5, 10 transactions and so on.

    ``scripts`` has the scripts' texts by their names, ``options`` are those of ``_said``.  They are
    tried in a copy of the database, which is dropped afterwards.  A script that fails is run once.
    """
    if not trial.server.capabilities.has("restart"):
        return dict.fromkeys(scripts, Turn(WITHOUT_TRYING, []))
    database = sql.Identifier(_TRIED_IN)
    trial.execute(sql.SQL("CREATE DATABASE {}").format(database))
    environment = trial.server.environment() | {"PGDATABASE": _TRIED_IN}
    pgbench = str(trial.server.capabilities.pgbench)
    try:
        load(trial, schema, scale=scale, database=_TRIED_IN)
        return {
            name: _turn(
                text,
                turn_s,
                partial(_said, pgbench, text, environment, **options),
            )
            for name, text in scripts.items()
        }
    finally:
        trial.execute(sql.SQL("DROP DATABASE {}").format(database))


def _turn(
    text: str, turn_s: float, say: Callable[[int], str | None]
) -> Turn:
    number = 1
    while said := say(number):
        latency = _LATENCY.search(said)
        latency_s = float(latency[1]) / 1000 if latency else turn_s
        wanted = max(1, round(turn_s / max(latency_s, 1e-6)))
        if wanted <= 2 * number or number == MOST:
            times = statement_times(said, text)
            long = [name for name, s in times if s >= SHORTEST_S]
            return Turn(
                min(round_125(wanted), MOST),
                long if len(times) > 1 else [],
            )
        number = min(wanted, 20 * number, MOST)
    return Turn(1, [])


def _said(
    pgbench: str,
    text: str,
    environment: Mapping[str, str],
    number: int,
    *,
    clients: int = 1,
    protocol: str = "prepared",
    variables: Mapping[str, int] = {},
) -> str | None:
    """What pgbench reports of so many transactions; None where the script fails."""
    with tempfile.TemporaryDirectory(prefix="pgstudies-") as aside:
        file = Path(aside) / "script.sql"
        file.write_text(text, encoding="utf-8")
        command = [pgbench, "-n", "-r", "-f", str(file), "-M", protocol]
        command += ["-c", str(clients), "-t", str(number)]
        command += [f"-D{name}={v}" for name, v in variables.items()]
        done = run_client([*command, "--random-seed=1"], environment)
    return None if done.returncode else done.stdout


def round_125(number: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50 and so on that is not larger."""
    power = int(10 ** (len(str(number)) - 1))
    return power * max(
        step for step in (1, 2, 5) if step * power <= number
    )


def keep_turns(trial: Trial, turns: Mapping[str, Turn]) -> None:
    """Keep the turns in the database, where later blocks find them."""
    table = sql.Identifier(TURNS)
    create = "CREATE TABLE {} (script text, transactions int, statements text[])"
    trial.execute(sql.SQL(create).format(table))
    for script, turn in turns.items():
        trial.execute(
            sql.SQL("INSERT INTO {} VALUES (%s, %s, %s)").format(table),
            [script, turn.transactions, turn.statements],
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
    query = sql.SQL(
        "SELECT script, transactions, statements FROM {}"
    ).format(sql.Identifier(TURNS))
    with closing(trial.execute(query)) as cursor:
        return {script: Turn(*turn) for script, *turn in cursor.fetchall()}


def _program(name: str) -> Path:
    program = find_binaries().program(name)
    if program is None:
        raise CannotRun(f"there is no {name} beside the embedded server")
    return program


def _last(said: str) -> str:
    return (said.strip().splitlines() or ["it said nothing"])[-1].rstrip(
        "."
    )
