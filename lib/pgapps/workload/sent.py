"""The statements that pgbench sends for a script, and the times that it reports for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pgservers.files import temporary_directory
from pgservers.programs.installations import run_client
from pgstudies.measuring.pgbench import check, command_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgstudies.measuring.trial import Trial

_SENT = re.compile(r"^pgbench: client 0 sending (.*?)\n(?=pgbench: )", re.MULTILINE | re.DOTALL)

# A line of pgbench's report (-r): milliseconds, failures from 15 on, and a command's first line.
_COMMAND = re.compile(r"^ +(\d+\.\d{3}) +(?:\d+ )?(.*)$", re.MULTILINE)

_PIPELINE = re.compile(r"\\(?:start|sync|end)pipeline\b[^\n]*")


def statements_sent(
    trial: Trial, script: str, *, seed: int, variables: Mapping[str, Any] = {}
) -> dict[str, str]:
    """Run one transaction of ``script``; returns the statements sent, by name.

    They are sent by the simple protocol, for which pgbench prints the values, and so not in a
    pipeline.  A single statement has an empty name.  Raises StudyError if pgbench refuses the
    script.
    """
    script = _PIPELINE.sub("", script)
    with temporary_directory() as directory:
        command = command_of(trial, directory, [(script, 1)], variables)
        command += ["-t", "1", "-M", "simple", "-r", "--debug", f"--random-seed={seed}"]
        done = run_client(command, trial.server.environment())
    check(trial, done.returncode, done.stderr, [script])
    sent = _SENT.findall(done.stderr)
    names = [name for name, _ in statement_times(done.stdout, script)]
    if len(sent) == 1 == len(names):
        return {"": sent[0]}
    if len(names) != len(sent):  # not all were executed, as the script has branches
        names = [_name(number, text) for number, text in enumerate(sent, start=1)]
    return dict(zip(names, sent, strict=True))


def statement_times(report: str, script: str) -> list[tuple[str, float]]:
    """The names of a script's statements and their times (s) in pgbench's report (``-r``).

    pgbench reports whole microseconds; its own commands are left out.
    """
    found: list[tuple[str, float]] = []
    place = 0
    for time_ms, first_line in _COMMAND.findall(report):
        if first_line.startswith("\\") or "not_shared_blks_dirtied" in first_line:
            continue
        place = max(place, script.find(first_line.rstrip(), place))
        text = first_line if place < 0 else script[place:]
        found.append((_name(len(found) + 1, text), float(time_ms) / 1000))
        place += len(first_line.rstrip())
    return found


def _name(number: int, text: str) -> str:
    """The name of a statement: its number, and its beginning on one line."""
    words = " ".join(text.partition(";")[0].split())
    short = words if len(words) <= 48 else f"{words[:48].rstrip()}…"
    return f"{number}: {short}"
