"""The statements that pgbench sends for a script, and what it says about their times."""

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

# A line of pgbench's own report: milliseconds, since 15 failures, and a command's first line.
_COMMAND = re.compile(r"^ +(\d+\.\d{3}) +(?:\d+ )?(.*)$", re.MULTILINE)

_PIPELINE = re.compile(r"\\(?:start|sync|end)pipeline\b[^\n]*")

_LONGEST_NAME = 48


def statements_sent(
    trial: Trial, script: str, *, seed: int, variables: Mapping[str, Any] = {}
) -> dict[str, str]:
    """The statements of one transaction of ``script``, which is run, by their names.

    They are sent by the simple protocol, of which pgbench tells the values, and so not in a
    pipeline.  The name of an only one is empty.  Raises StudyError when pgbench does not take the
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
        names = [statement_name(number, text) for number, text in enumerate(sent, start=1)]
    return dict(zip(names, sent, strict=True))


def statement_times(report: str, script: str) -> list[tuple[str, float]]:
    """What pgbench's report (``-r``) says of a script's statements: their names and times (s).

    Times are those seen by pgbench, in whole microseconds; its own commands are left out.
    """
    found: list[tuple[str, float]] = []
    place = 0
    for time_ms, first_line in _COMMAND.findall(report):
        if first_line.startswith("\\") or "not_shared_blks_dirtied" in first_line:
            continue
        place = max(place, script.find(first_line.rstrip(), place))
        text = first_line if place < 0 else script[place:]
        found.append((statement_name(len(found) + 1, text), float(time_ms) / 1000))
        place += len(first_line.rstrip())
    return found


def statement_name(number: int, text: str) -> str:
    """What a script's statement is called: its number, and its beginning in one line."""
    words = " ".join(text.partition(";")[0].split())
    short = words if len(words) <= _LONGEST_NAME else f"{words[:_LONGEST_NAME].rstrip()}…"
    return f"{number}: {short}"
