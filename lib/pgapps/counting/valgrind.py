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
    from collections.abc import Sequence
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer


EVENTS = {"Ir": "instructions", "Dr": "reads", "Dw": "writes", "DLmr": "read_misses"}
EVENTS |= {"DLmw": "write_misses"}
"""Callgrind's names of events and ours; all but the first are simulated only on request."""

_END = "ShutdownXLOG"
"""Counting stops before this function: its checkpoint is not work of the statements."""

_BY_THE_CLOCK = ("pgstat_report_stat", "pgstat_assoc_relation", "pg_initialize_timing_tsc")
"""At most once a second, between statements, the server hands on its statistics and begins them
anew for each relation that is used next; from 19 on it measures a clock when it starts, in a loop.
Left out, as no two runs agree."""

_LINE = re.compile(r"\s*((?:(?:[\d,]+|\.)\s+)+)(\S*?):(.+?)(?: \[([^\]]*)\])?")

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


def count(
    server: ManagedServer,
    state: str,
    script: str,
    *,
    settings: dict[str, str],
    inside: Sequence[str] = (),
    without: Sequence[str] = (),
    cache_sim: bool = False,
) -> pl.DataFrame:
    """What a single-user backend executes for ``script``, from its start to the end of the script.

    With ``inside``, only what the first of these functions executes, without what the others do
    within it; the functions in ``without`` are not counted.  Columns: ``function``, ``inclusive``,
    ``own`` (both instructions), and with ``cache_sim`` the other names of ``EVENTS``, inclusive.
    The row of the whole has an empty function.  Raises CannotRun where a statement fails, or the
    backend crashes.
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
        f"--cache-sim={'yes' if cache_sim else 'no'}",
    ]
    apart = inside or (*_BY_THE_CLOCK, *without)
    under += [f"--toggle-collect={name}" for name in apart]
    # The last word, as a function to toggle at implies that nothing is collected before.
    under.append(f"--collect-atstart={'no' if inside else 'yes'}")
    setarch = shutil.which("setarch")
    if setarch:  # else addresses, and with them what is aligned how, differ from run to run
        under = [setarch, os.uname().machine, "--addr-no-randomize", *under]
    status, output = server.run_alone(state, script, settings=settings, under=under)
    if status:
        raise CannotRun(_why(server, status, output, version))
    before_end = found.with_name("counts.1")
    if not before_end.exists():
        raise CannotRun(f"{version} wrote no counts: {_last(output)}")
    return _profile(before_end, [*EVENTS] if cache_sim else ["Ir"])


def _profile(file: Path, events: Sequence[str]) -> pl.DataFrame:
    """The inclusive and own counts of every function, as ``callgrind_annotate`` prints them."""
    names = [EVENTS[event] for event in events]
    inclusive = _annotated(file, events, "yes", names)
    own = _annotated(file, events, "no", names)
    both = inclusive.rename({"instructions": "inclusive"}).join(
        own.select("function", own="instructions"), on="function", how="full", coalesce=True
    )
    nameless = pl.col("function").str.starts_with(NO_NAME)  # they include each other
    return (
        both.fill_null(0)
        .with_columns(inclusive=pl.when(nameless).then("own").otherwise("inclusive"))
        .select("function", "inclusive", "own", *names[1:])
    )


def _annotated(file: Path, events: Sequence[str], inclusive: str, names: list[str]) -> pl.DataFrame:
    program = str(shutil.which("callgrind_annotate"))
    options = ["--threshold=100", "--auto=no", "--show-percs=no"]
    options += [f"--show={','.join(events)}", f"--inclusive={inclusive}"]
    # What the server's account has written is read by that account.
    text = run_as(server_account(), [program, *options, str(file)])
    rows = [row for line in text.splitlines() if (row := _row(line, len(events))) is not None]
    frame = pl.DataFrame(
        rows, orient="row", schema={"function": pl.String, **dict.fromkeys(names, pl.Int64)}
    )
    # Of the shapes of one function the outermost includes the others; what each does itself adds.
    how = pl.max if inclusive == "yes" else pl.sum
    return frame.group_by("function", maintain_order=True).agg(how(*names))


def _row(line: str, events: int) -> tuple[str | int, ...] | None:
    if line.endswith("  PROGRAM TOTALS"):
        counts = line.split()[:events]
        return ("", *map(_number, counts))
    match = _LINE.fullmatch(line)
    if match is None or len(match[1].split()) != events:
        return None
    return (_name(match[3], match[4] or ""), *map(_number, match[1].split()))


def _name(function: str, library: str) -> str:
    """The function's name as in its source; the name of the file for code without symbols."""
    name = _SHAPES.sub("", function)
    return f"{NO_NAME} in {library.rpartition('/')[2]}" if _NAMELESS.fullmatch(name) else name


def _number(text: str) -> int:
    return 0 if text == "." else int(text.replace(",", ""))


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
