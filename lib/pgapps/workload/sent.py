"""The statements that pgbench sends to a server for a script."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pgservers.files import temporary_directory
from pgservers.programs.installations import run_client
from pgstudies.measuring.pgbench import (
    check,
    command_of,
    statement_name,
    statement_times,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgstudies.measuring.trial import Trial

_SENT = re.compile(r"^pgbench: client 0 sending (.*?)\n(?=pgbench: )", re.MULTILINE | re.DOTALL)


def statements_sent(
    trial: Trial, script: str, *, seed: int, variables: Mapping[str, int] = {}
) -> dict[str, str]:
    """The statements of one transaction of ``script``, which is run, by their names.

    The name of an only one is empty.  Raises StudyError when pgbench does not take the script.
    """
    with temporary_directory() as directory:
        command = command_of(trial, directory, script, variables)
        command += ["-t", "1", "-M", "simple", "-r", "--debug", f"--random-seed={seed}"]
        done = run_client(command, trial.server.environment())
    check(trial, done.returncode, done.stderr, script)
    sent = _SENT.findall(done.stderr)
    names = [name for name, _ in statement_times(done.stdout, script)]
    if len(sent) == 1 == len(names):
        return {"": sent[0]}
    if len(names) != len(sent):  # not all were executed, as the script has branches
        names = [statement_name(number, text) for number, text in enumerate(sent, start=1)]
    return dict(zip(names, sent, strict=True))
