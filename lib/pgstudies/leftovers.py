"""What a killed run left behind: found by the locks that are free, and removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psutil

from .locks import try_lock

if TYPE_CHECKING:
    from pathlib import Path

OWNER_LOCK = "owner.lock"
DATA = "data"
PREFIX = "s-"

# Waits until its standard input closes, which the kernel sees to however Python ends; then stops
# the server and removes its directory.  After an orderly end there is nothing left to do.
_WATCHDOG = """
cat > /dev/null
tries=0
while [ -d "$1" ] && [ $tries -lt 100 ]; do
    pid=$(head -n 1 "$1/data/postmaster.pid" 2> /dev/null)
    if [ -n "$pid" ]; then kill -QUIT "$pid" 2> /dev/null || break; fi
    if [ -z "$pid" ] && [ $tries -gt 10 ]; then break; fi
    tries=$((tries + 1))
    sleep 0.1
done
rm -rf "$1"
"""


def start_watchdog(directory: Path) -> subprocess.Popen[bytes]:
    """A small process that outlives this one just long enough to stop the server we left.

    It has a session of its own, so that Ctrl-C in the terminal does not reach it.
    """
    return subprocess.Popen(
        ["sh", "-c", _WATCHDOG, "pgstudies-watchdog", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def sweep(base: Path) -> list[Path]:
    """Stop the servers below ``base`` whose owner is dead, and remove their directories.

    Only directories with a lock file of ours are looked at, and only those whose lock is free.
    Returns what was removed.
    """
    removed = []
    for directory in sorted(base.glob(f"{PREFIX}*")):
        lock_file = directory / OWNER_LOCK
        if not lock_file.is_file() or lock_file.stat().st_uid != os.geteuid():
            continue
        lock = try_lock(lock_file)
        if lock is None:
            continue
        try:
            kill_server(directory / DATA)
            shutil.rmtree(directory, ignore_errors=True)
            removed.append(directory)
        finally:
            os.close(lock)
    return removed


def kill_server(data: Path) -> None:
    """End the server of this data directory without ceremony, if one is running; wait for it."""
    postmaster = find_postmaster(data)
    if postmaster is None:
        return
    children = postmaster.children(recursive=True)
    postmaster.send_signal(signal.SIGQUIT)
    if not _gone(postmaster, timeout_s=10):
        for process in [postmaster, *children]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _gone(postmaster, timeout_s=5)


def find_postmaster(data: Path) -> psutil.Process | None:
    """The process that postmaster.pid names, if it really is the server of ``data``.

    A process number is used again after its process died, so its working directory must agree.
    """
    try:
        number = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        process = psutil.Process(number)
        if process.cwd() == str(data) and process.status() != psutil.STATUS_ZOMBIE:
            return process
    except (FileNotFoundError, ValueError, psutil.Error):
        pass  # no such file or process: nothing of ours is running
    return None


def _gone(process: psutil.Process, timeout_s: float) -> bool:
    """Whether the process ended within the time given; polled, as it need not be our child."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.005)
                continue
        return True
    return False
