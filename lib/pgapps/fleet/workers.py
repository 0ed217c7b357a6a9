"""What a worker does in its one thread: start the processes of blocks and watch them."""

from __future__ import annotations

import json
import platform
import re
import socket
import subprocess
import sys
import threading
from collections import deque
from importlib import metadata
from typing import Any

from distributed import get_worker

from pgservers.errors import ServerError, StudyError
from pgservers.host.facts import git_revision, packages
from pgservers.servers.instance import Instance, place_for_states

from .ledger import SweepBlock

MEASURING = "measuring"
"""The Dask resource of which each worker has one and each block takes one."""

TOPIC = "pgstudies"
"""The topic on which workers send messages for the user."""

_NOTICE = re.compile(r"(Waiting|Removed what)\b.*")

STATES_S = 1800.0
"""How long prepared states are kept for a next block (s); the client may have been killed."""

_running: dict[subprocess.Popen[str], str] = {}  # by process, the ledger that it fills

_aborted: set[subprocess.Popen[str]] = set()


def of_host(name: str) -> str:
    """The Dask resource that ties a block to the worker of its host."""
    return f"host {name}"


def resources_of(name: str) -> dict[str, float]:
    """The resources of the worker of that name; it also answers to its machine's name."""
    return {MEASURING: 1, of_host(name): 1, of_host(socket.gethostname()): 1}


class LostError(Exception):
    """A block was lost with its process or its server, and may be measured again."""


def measure_block(request: dict[str, Any]) -> tuple[int, str]:
    """Measure a block in a process of its own; returns its exit code and error message.

    ``request`` is that of ``block.carry_out``, but for its states, and with the ``versions`` of the
    sweep.  Raises LostError if another try may succeed.
    """
    block = SweepBlock(**request["block"])
    try:
        refuse_other_versions(block.host, versions_here(), request.pop("versions"))
    except StudyError as error:
        return error.exit_code, str(error)
    code, message = _measured(request | {"states": _states.directory()}, block)
    if code < 0 or code == ServerError.exit_code:
        why = message or f"it was ended by signal {-code}"
        get_worker().log_event(TOPIC, {"host": block.host, "says": f"{block}: {why}"})
        raise LostError(why)
    return code, message


def _measured(request: dict[str, Any], block: SweepBlock) -> tuple[int, str]:
    """The exit code and the message of the block's process; minus the signal that ended it."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pgapps.fleet.block"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _running[process] = request["ledger"]
    get_worker().log_event(TOPIC, {"host": block.host, "begins": block.path})
    last: deque[str] = deque(maxlen=3)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        # Its input stays open while this process lives: its end means that the worker died.
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        for line in process.stderr:
            last.append(line.strip())
            if notice := _NOTICE.search(line):
                get_worker().log_event(TOPIC, {"host": block.host, "says": notice[0]})
        message = process.stdout.read().strip()
        code = process.wait()
        # An aborted block is not lost, however its process ended.
        return 130 if process in _aborted else code, message or " ".join(last)
    finally:
        _states.keep_for(STATES_S)
        _running.pop(process)
        _aborted.discard(process)
        with process:  # closes its input after an error here
            pass


def abort_running(ledger: str) -> None:
    """Stop the block, with its server, that this worker measures for a ledger."""
    for process, theirs in list(_running.items()):
        if theirs == ledger:
            _aborted.add(process)
            process.terminate()


class _States:
    """The directory of prepared states for later blocks on this host; removed with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place: Instance | None = None
        self._timer: threading.Timer | None = None

    def directory(self) -> str:
        """The directory, made if need be; an empty text if no managed server can run here."""
        with self._lock:
            self._stop_timer()
            if self._place is None:
                try:
                    self._place = place_for_states()
                except StudyError:  # a block that needs it will say why
                    return ""
            return str(self._place.snapshots)

    def keep_for(self, seconds: float) -> None:
        """Remove the directory after ``seconds``, unless it is used before."""
        with self._lock:
            self._stop_timer()
            self._timer = threading.Timer(seconds, self.remove)
            self._timer.daemon = True
            self._timer.start()

    def remove(self) -> None:
        """Remove the directory and its contents."""
        with self._lock:
            self._stop_timer()
            place, self._place = self._place, None
        if place is not None:
            place.remove()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


_states = _States()


def forget_states() -> None:
    """Remove the prepared states after a sweep, unless a block of another sweep uses them."""
    if not _running:
        _states.remove()


def versions_here() -> dict[str, str]:
    """The host, and by name the versions of all that measures here."""
    revision = git_revision() or {}
    changed = " and changes" if revision.get("dirty") else ""
    return {
        "host": socket.gethostname(),
        **packages(),
        "python": platform.python_version(),
        "distributed": metadata.version("distributed"),
        "checkout": f"{revision.get('revision', 'unknown')}{changed}",
    }


def refuse_other_versions(host: str, theirs: dict[str, str], ours: dict[str, str]) -> None:
    """Raise StudyError if ``host`` has other versions than this machine."""
    for name in sorted((ours.keys() | theirs.keys()) - {"host"}):
        if ours.get(name) != theirs.get(name):
            raise StudyError(
                f"{host} has {name} {theirs.get(name, 'not at all')}, and here it is "
                f"{ours.get(name, 'not there')}: check out the same revision on all hosts and run "
                f"`make install` there."
            )
