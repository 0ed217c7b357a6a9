"""Running a backend under valgrind's callgrind, and reading what it counted."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import polars as pl

from pgservers.errors import CannotRun
from pgservers.programs.accounts import run_as, server_account
from pgservers.tools import installing

from .by_function import NO_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer

    from .units import Unit


_END = "ShutdownXLOG"
"""Counting stops before this function: its checkpoint is not work of the statements."""

_BY_THE_CLOCK = ("pgstat_report_stat", "pgstat_assoc_relation", "pg_initialize_timing_tsc")
"""Not counted, as no two runs agree: between statements, at most once a second, the server reports
its statistics and starts new ones for each relation; from 19 on it calibrates a clock at start."""

_LINE = re.compile(r"\s*([\d,]+)\s+(?:PROGRAM TOTALS|\S*?:(.+?)(?: \[([^\]]*)\])?)")

# The same function in other shapes: of a recursion, or cut up by the compiler.
_SHAPES = re.compile(r"('\d+|\.(isra|part|constprop|cold|lto_priv)(\.\d+)*|@@?[\w.]+)+$")

_NAMELESS = re.compile(r"0x[0-9a-f]+|\?\?\?")


def reason_no_valgrind() -> str | None:
    """Why nothing can be counted here, and what to install; None if it can."""
    missing = next((p for p in ("valgrind", "callgrind_annotate") if not shutil.which(p)), None)
    if missing is None:
        return None
    return f"there is no {missing} on PATH ({installing('valgrind')}, or conda-forge's valgrind)"


@functools.cache
def valgrind_version() -> str:
    """The version of valgrind, such as ``valgrind-3.19.0``; raises CannotRun without it."""
    reason = reason_no_valgrind()
    if reason:
        raise CannotRun(reason)
    done = subprocess.run(["valgrind", "--version"], check=False, capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"valgrind cannot be run here: {_last(done.stderr)}")
    return done.stdout.strip()


def count(server: ManagedServer, state: str, unit: Unit, settings: dict[str, str]) -> pl.DataFrame:
    """What a single-user backend executes for the unit's script, from its start to its end.

    Columns: ``function``, ``inclusive``, ``own`` (both instructions).  The row of the whole has an
    empty function.  Raises CannotRun if a statement fails, or the backend crashes.
    """
    version = valgrind_version()
    found = server.workplace / "counts"
    for old in server.workplace.glob("counts*"):
        old.unlink()
    under: list[str | Path] = [
        str(shutil.which("valgrind")),
        "--tool=callgrind",
        "--vgdb=no",  # a backend that is killed would leave its pipes
        f"--callgrind-out-file={found}",
        f"--log-file={server.workplace / 'valgrind.log'}",
        f"--dump-before={_END}",
    ]
    apart = unit.inside or (*_BY_THE_CLOCK, *unit.without)
    under += [f"--toggle-collect={name}" for name in apart]
    # Must come last: a function to toggle at implies that nothing is collected before.
    under.append(f"--collect-atstart={'no' if unit.inside else 'yes'}")
    setarch = shutil.which("setarch")
    if setarch:  # else addresses, and with them alignments, differ from run to run
        under = [setarch, os.uname().machine, "--addr-no-randomize", *under]
    status, output = server.run_alone(state, unit.script, settings=settings, under=under)
    if status:
        raise CannotRun(_why(server, status, output, version))
    before_end = found.with_name("counts.1")
    if not before_end.exists():
        raise CannotRun(f"{version} wrote no counts: {_last(output)}")
    # Of the shapes of one function the outermost includes the others; what each does itself adds.
    inclusive = _annotated(before_end, "--inclusive=yes", pl.max("count").alias("inclusive"))
    own = _annotated(before_end, "--inclusive=no", pl.sum("count").alias("own"))
    nameless = pl.col("function").str.starts_with(NO_NAME)  # they include each other
    return (
        inclusive.join(own, on="function", how="full", coalesce=True)
        .fill_null(0)
        .with_columns(inclusive=pl.when(nameless).then("own").otherwise("inclusive"))
    )


def _annotated(file: Path, option: str, counts: pl.Expr) -> pl.DataFrame:
    """What ``callgrind_annotate`` prints: function, and ``counts`` over its lines."""
    program = str(shutil.which("callgrind_annotate"))
    options = ["--threshold=100", "--auto=no", "--show-percs=no", "--show=Ir", option]
    # The server's account wrote the file, so that account reads it.
    text = run_as(server_account(), [program, *options, str(file)])
    rows = [row for line in text.splitlines() if (row := _row(line)) is not None]
    frame = pl.DataFrame(rows, orient="row", schema={"function": pl.String, "count": pl.Int64})
    return frame.group_by("function", maintain_order=True).agg(counts)


def _row(line: str) -> tuple[str, int] | None:
    """The function's name as in its source, empty for the whole, and its count.

    Code without symbols is named by its file.  None for a line without a count.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    count, function, library = match.groups(default="")
    name = _SHAPES.sub("", function)
    if _NAMELESS.fullmatch(name):
        name = f"{NO_NAME} in {library.rpartition('/')[2]}"
    return name, int(count.replace(",", ""))


def _why(server: ManagedServer, status: int, output: str, version: str) -> str:
    """One sentence for a backend that did not end as it should."""
    for word in ("ERROR:", "FATAL:", "PANIC:"):
        line = next((line for line in output.splitlines() if word in line), None)
        if line:
            return f"a statement fails in a single-user backend: {line.partition(word)[2].strip()}"
    log = server.workplace / "valgrind.log"
    logged = log.read_text(errors="replace") if log.exists() else ""
    about = re.search(r"valgrind: .*|Process terminating with default action of signal .*", logged)
    how = about[0].strip(" .") if about else f"it ended with status {status}"
    return f"{server.version_text} crashed under {version} ({how}): nothing was counted"


def _last(output: str) -> str:
    return (output.strip().splitlines() or ["it said nothing"])[-1].strip()
