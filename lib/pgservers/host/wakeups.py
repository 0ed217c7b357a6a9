"""How long a process takes to wake another: what asynchronous reads through workers cost."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np

from ..errors import CannotRun

_ECHO = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
while byte := os.read(0, 1):
    os.write(1, byte)
"""

_ENDED = "the process that was to be woken ended"


def wake_up_seconds(*, same_core: bool, trips: int = 1_000) -> float:
    """How long one process takes to wake another over a pipe (s), on the same core or another.

    The median of half a round trip; a microsecond of it is Python's.  Raises CannotRun where
    processes cannot be bound to cores, or there is no second core.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise CannotRun("processes cannot be bound to cores here")
    before = os.sched_getaffinity(0)
    ours, *others = sorted(before)
    if not same_core and not others:
        raise CannotRun("there is one core")
    theirs = ours if same_core else others[0]
    command = [sys.executable, "-S", "-I", "-c", _ECHO, str(theirs)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as echo:
        assert echo.stdin is not None
        assert echo.stdout is not None
        there, back = echo.stdin.fileno(), echo.stdout.fileno()
        os.sched_setaffinity(0, {ours})
        try:
            took = []
            for _ in range(trips + trips // 10):
                begin = time.perf_counter()
                os.write(there, b".")
                if not os.read(back, 1):
                    raise CannotRun(_ENDED)
                took.append(time.perf_counter() - begin)
        except BrokenPipeError:
            raise CannotRun(_ENDED) from None
        finally:
            os.sched_setaffinity(0, before)
            echo.stdin.close()
    return float(np.median(took[trips // 10 :])) / 2
