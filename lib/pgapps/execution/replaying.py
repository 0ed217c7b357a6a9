"""The kernel of a replay, ``python -m`` of this: it starts no program and opens no connection.

Our own code starts none in a replay; this refuses what a notebook starts all the same.
"""

from __future__ import annotations

import errno
import sys
from typing import NoReturn

_PROGRAMS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile"}

_REFUSED = (
    _PROGRAMS
    | {"os.system", "pty.spawn", "subprocess.Popen"}
    | {
        f"socket.{what}"
        for what in ("connect", "getaddrinfo", "gethostbyname", "sendmsg", "sendto")
    }
)
"""Python's audit events."""


def _refuse(*_: object) -> NoReturn:
    raise PermissionError(errno.EPERM, "a replay starts no program and opens no connection")


def _look(event: str, _: object) -> None:
    if event in _REFUSED:
        _refuse()


def forbid() -> None:
    """Make every start of a program and every connection of this process a PermissionError."""
    import psycopg.generators  # noqa: PLC0415

    psycopg.generators.connect = _refuse  # libpq connects without an event
    sys.addaudithook(_look)


if __name__ == "__main__":
    sys.modules["debugpy"] = None  # type: ignore[assignment]  # it asks a program for the machine
    from ipykernel import kernelapp

    forbid()
    kernelapp.launch_new_instance()
