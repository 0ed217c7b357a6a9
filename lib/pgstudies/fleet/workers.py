"""What the worker of a host does, in its one thread: it starts blocks and watches them."""

from __future__ import annotations

import json
import platform
import re
import socket
import subprocess
import sys
from collections import deque
from importlib import metadata
from typing import Any

from distributed import get_worker

from ..host.facts import git_revision, packages

SLOT = {"bench": 1}
"""Every worker has one, and a block takes it."""


TOPIC = "pgstudies"
"""Where workers say what a user should hear at once."""


_TOLD = re.compile(r"(Waiting|Removed what)\b.*")


_running: set[subprocess.Popen[str]] = set()


def measure_unit(request: dict[str, Any]) -> tuple[int, str]:
    """Have a unit measured by a process of its own: its exit code, and what it said of an error.

    ``request`` is that of ``block.carry_out``.  A negative code is the signal that ended it.
    """
    host = request["unit"]["host"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pgstudies.fleet.block"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _running.add(process)
    last: deque[str] = deque(maxlen=3)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        # Its input stays open for as long as this process lives: that is how it knows.
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        for line in process.stderr:
            last.append(line.strip())
            if told := _TOLD.search(line):
                get_worker().log_event(TOPIC, {"host": host, "says": told[0]})
        said = process.stdout.read().strip()
        return process.wait(), said or " ".join(last)
    finally:
        _running.discard(process)
        with process:  # closes its input, should we leave early
            pass


def abort_running() -> None:
    """Stop the blocks that this worker runs, servers first."""
    for process in list(_running):
        process.terminate()


def versions_here() -> dict[str, str]:
    """Who a worker is and what it would measure with: host, then versions by name."""
    revision = git_revision() or {}
    changed = " and changes" if revision.get("dirty") else ""
    return {
        "host": socket.gethostname(),
        **packages(),
        "python": platform.python_version(),
        "distributed": metadata.version("distributed"),
        "checkout": f"{revision.get('revision', 'unknown')}{changed}",
    }
