"""The kernel of a replay, run by ``python -m``: it starts no program and opens no connection.

Our own code does neither in a replay; here a notebook's code is refused both.
"""

from __future__ import annotations

import errno
import sys
from typing import NoReturn

_REFUSED = {
    *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile"),
    *("os.system", "pty.spawn", "subprocess.Popen"),
    *("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"),
    *("socket.sendmsg", "socket.sendto"),
}
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
