"""Starting and stopping the server process of a data directory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
from psycopg.pq import PGconn, Ping

from ...errors import ServerError
from ...files import says_full
from ...host.exclusive import on_core
from ...programs.accounts import server_environment, without_pg_variables
from ...programs.versions import has

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ...programs.accounts import Account


_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 600.0
_KILL_TIMEOUT_S = 20.0
_POLL_S = 0.005
_ANSWER_TO_PING = "the database system is starting up"

_SEMAPHORES = (
    "before 10 every connection needs a System V semaphore: lower max_connections, or raise "
    "kernel.sem"
)

_VALUES = re.compile(r"HINT: +(Available values: .*?)\.?$")

_CRASH_TOLD_S = 1.0
_CRASHED = re.compile(r"(\w[\w ]*) \(PID \d+\) (was terminated by signal .*)")
_WAS_RUNNING = re.compile(r"Failed process was running: (.*)")


class StartError(ServerError):
    """The server did not start; the message is what its log says."""


class Postmaster:
    """A running server process; raises StartError when it does not become ready.

    ``started`` gets its process number at once, long before any file has it.  Not started through
    pg_ctl, which polls only ten times a second.  It leads a session of its own, so that Ctrl-C in
    the terminal does not reach it.
    """

    def __init__(
        self,
        program: Path,
        data: Path,
        log: Path,
        settings: Mapping[str, str],
        *,
        version: int,
        address: str,
        account: Account,
        environment: Mapping[str, str],
        cpu: int | None,
        started: Callable[[int], None],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._data = data
        self._version = version
        self._address = address.encode()
        self._log = log
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        # The log quotes the study's statements and settings, which are private.
        mode = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(log, mode, 0o600), "ab") as output, on_core(cpu):
            self._log_start = output.tell()
            try:
                self._process = subprocess.Popen(
                    [program, "-D", data, *options],
                    stdout=output,
                    stderr=output,
                    env=server_environment(environment),
                    pass_fds=pass_fds,
                    start_new_session=True,
                    **account.popen_arguments(),
                )
            except OSError as error:
                raise StartError(f"{program} cannot be run: {error.strerror}") from error
        try:
            started(self.pid)
            self._wait_until_ready()
        except BaseException:
            self.stop("immediate")
            raise

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    @property
    def ended_well(self) -> bool:
        """Whether it has ended regularly."""
        return self._process.poll() == 0

    def stop(self, mode: str = "fast") -> None:
        """Shut down and wait for the end; a dead server is no error.

        Modes as in pg_ctl: smart, fast, and immediate, which writes nothing.
        """
        if self._process.poll() is not None:
            return
        children = [] if has(self._version, "waits for children") else self._children()
        self._process.send_signal(_SIGNALS[mode])
        try:
            self._process.wait(_KILL_TIMEOUT_S if mode == "immediate" else _STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            if mode != "immediate":
                raise ServerError(
                    f"The server did not stop within {_STOP_TIMEOUT_S:.0f} s and was killed."
                ) from None
        finally:
            # Else the next start would find the shared memory in use.
            _wait_until_dead(children)

    def complaint(self) -> str:
        """The first fatal line of its log, with the values available; else the last line."""
        lines = [line for line in self._log_lines() if _ANSWER_TO_PING not in line]
        for word in ("PANIC:", "FATAL:", "ERROR:"):
            for number, line in enumerate(lines):
                if word in line:
                    message = line.partition(word)[2].strip()
                    values = _VALUES.search(" ".join(lines[number + 1 : number + 2]))
                    more = _SEMAPHORES if "create semaphores" in message else values and values[1]
                    return f"{message} ({more})" if more else message
        return lines[-1].strip() if lines else "it said nothing"

    def crash(self) -> str | None:
        """The line of its log on the first child that died of a signal, and its statement; or None.

        The line may come a moment after the session has ended.
        """
        deadline = time.monotonic() + _CRASH_TOLD_S
        while True:
            lines = self._log_lines()
            for number, line in enumerate(lines):
                if found := _CRASHED.search(line):
                    running = _WAS_RUNNING.search(" ".join(lines[number + 1 : number + 2]))
                    crash = f"{found[1]} {found[2]}"
                    return f"{crash}, running: {running[1]}" if running else crash
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)

    def found_disk_full(self) -> bool:
        """Whether its log says that it, or one of its children, died of a full disk."""
        return any(says_full(x) for x in self._log_lines() if "PANIC:" in x or "FATAL:" in x)

    def _log_lines(self) -> list[str]:
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", "replace").splitlines()

    def pids(self) -> list[int]:
        """Its process number and those of its living children; empty when it has ended."""
        try:
            return [self.pid, *(child.pid for child in psutil.Process(self.pid).children())]
        except psutil.NoSuchProcess:
            return []

    def session_pids(self) -> list[int]:
        """The children that serve a session, including zombies."""
        pids = []
        for pid in self.pids()[1:]:
            try:
                title = " ".join(psutil.Process(pid).cmdline())
            except psutil.ZombieProcess:
                pids.append(pid)
            except psutil.NoSuchProcess:
                continue
            else:
                # An ending process loses its title a moment before it is a zombie.
                if not title or (title.startswith("postgres: ") and "[local]" in title):
                    pids.append(pid)
        return pids

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._is_ready():
            if self._process.poll() is not None:
                raise StartError(self.complaint())
            if time.monotonic() > deadline:
                raise StartError(f"it was not ready after {_START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        if lines[0] != str(self.pid):
            return False
        if has(self._version, "says ready"):
            return len(lines) > 7 and lines[7].strip() == "ready"
        with without_pg_variables():
            return PGconn.ping(self._address) == Ping.OK

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []


def _wait_until_dead(processes: Sequence[psutil.Process]) -> None:
    """Wait for processes whose parent has ended; a zombie counts as ended."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
                time.sleep(_POLL_S)
