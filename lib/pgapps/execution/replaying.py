"""The kernel of a replay, ``python -m`` of this: it starts no program and opens no connection.

Nothing of ours does so in a replay.  This stands behind that, should a notebook do it all the same.
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


def main() -> None:
    """Start the kernel on what is left of the command line."""
    import psycopg.generators  # noqa: PLC0415
    from ipykernel import kernelapp  # noqa: PLC0415

    psycopg.generators.connect = _refuse  # libpq connects without an event
    sys.addaudithook(_look)
    kernelapp.launch_new_instance()


if __name__ == "__main__":
    main()
