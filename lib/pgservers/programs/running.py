"""Running compilers, make and git: in an environment of our own, and no longer than we live."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import IO

NO_PROCESSES = (
    "No more processes can be started (`ulimit -u` says how many this account may have): end some, "
    "or raise the limit."
)

_SAYS_NO_PROCESSES = re.compile(r"[Cc]annot fork|Resource temporarily unavailable")

_KEPT_VARIABLES = ("PATH", "HOME", "TMPDIR")
_LONGEST_S = 1e6

# Runs "$@", and kills all that it has started when standard input ends: when we have died.
_WITH_US = """
exec 3<&0 </dev/null
{ read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 &
"$@" 3<&-
status=$?
exec 2>/dev/null
kill -KILL $!
wait $!
exit $status
"""


def build_environment() -> dict[str, str]:
    """The environment of compilers, make and git: ours without CFLAGS, DESTDIR or GIT_DIR."""
    kept = {n: v for n, v in os.environ.items() if n in _KEPT_VARIABLES or n.startswith("CCACHE_")}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C"}


def run_with_us(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    environment: dict[str, str],
    log: IO[bytes] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, in a session of its own; if we end first, it is killed.

    Kills its children too.  Other accounts cannot change the files that it creates.  Its output
    goes to ``log``, else into the result.  Raises StudyError where no process can be started, and
    OSError where ``cwd`` cannot be entered.
    """
    reading, held = os.pipe()
    try:
        with subprocess.Popen(
            ["/bin/sh", "-c", _WITH_US, "sh", *command],
            cwd=cwd,
            env=environment,
            stdin=reading,
            stdout=subprocess.PIPE if log is None else log,
            stderr=subprocess.PIPE if log is None else subprocess.STDOUT,
            start_new_session=True,
            umask=0o022,
        ) as process:
            try:
                # Without a time limit it would wait on after Ctrl-C, see ``run_alone``.
                output, errors = process.communicate(timeout=_LONGEST_S)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    except BlockingIOError:
        raise StudyError(NO_PROCESSES) from None
    finally:
        os.close(held)
        os.close(reading)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def says_no_processes(line: str) -> bool:
    """Whether a shell, a compiler or make failed because no more processes can be started."""
    return bool(_SAYS_NO_PROCESSES.search(line))
