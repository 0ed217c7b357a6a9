"""The directory of one managed server in the run directory, locked by its process and watched."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..errors import ServerError
from ..files import cannot_write, spread
from ..paths import run_dir
from ..programs.accounts import can_execute, client_name, server_account
from .leftovers import SHORT, new_directory, remove, require_safe, sweep

if TYPE_CHECKING:
    from pathlib import Path

    from ..programs.accounts import Account


PORT = 5432
"""Part of the name of the socket; nothing listens on a network."""

# sun_path of <sys/un.h> is 108 bytes on Linux and 104 elsewhere, with the final zero.
_LONGEST_SOCKET_PATH = 103

_ROOM_BYTES = 1_000_000
_MAP = "pgstudies"
SUPERUSER = "postgres"

GUEST = "pgstudies_guest"
"""The unprivileged role that loads and runs what comes from others."""

# Runs when its standard input ends: when we have died, and initdb has ended, whose servers would
# leave shared memory behind if their files went first.
# $1 is the instance's directory, $2 that of its socket; the last line read is the process number of
# the last server.  It is stopped only while it is the server of that directory, as process numbers
# are reused.  It has a minute: a killed server leaves its shared memory (and its postmaster.pid, by
# which the next run frees that), a postmaster waits five seconds for its processes, and a backend
# under valgrind first writes its counts.
_WATCHDOG = """
while read -r line; do pid=$line; done
is_ours() {
    case $(tr '\\0' ' ' <"/proc/$2/cmdline" 2>/dev/null || ps -o args= -p "$2") in
    *"$1/data"*) true;;
    *) false;;
    esac
}
i=0
# A server that we were starting when we died is unknown here, and is about to write its file.
until { [ -n "$pid" ] && is_ours "$1" "$pid"; } || [ ! -d "$1/data" ] || [ $i -ge 20 ]; do
    sleep 0.25
    i=$((i + 1))
    read -r pid <"$1/data/postmaster.pid"
done 2>/dev/null
if [ -n "$pid" ] && is_ours "$1" "$pid"; then
    kill -QUIT "$pid"
    i=0
    while [ $i -lt 240 ] && is_ours "$1" "$pid"; do
        sleep 0.25
        i=$((i + 1))
    done
    is_ours "$1" "$pid" && kill -KILL "$pid" 2>/dev/null
fi
[ -e "$1/data/postmaster.pid" ] && exit
# Repeated, as a copy may be under way; the lock goes last.
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    rm -rf -- "$1/data" "$1/snapshots" "$2" 2>/dev/null && rm -rf -- "$1" 2>/dev/null && break
    sleep 0.25
done
"""


class Instance:
    """``s-<random>`` in the run directory: ``data``, ``snapshots``, ``socket``, ``log``, the owner.

    ``hba`` and ``ident`` allow only the account of this process to connect, by the socket;
    ``access`` is how a rule names the map of accounts to roles.

    ``owner.lock`` is locked while we live; when we die, a small process that outlives us stops the
    server and removes the directory.  Raises SpaceError where the directory cannot be made and
    ServerError where the server's account cannot reach it.
    """

    def __init__(self, account: Account, about: str, access: str = "peer map=") -> None:
        base = prepare_run_dir(account)
        sweep(base)
        try:
            self.path, self._lock = new_directory(base, 0o711)
        except OSError as error:
            raise cannot_write(error, base, "PGSTUDIES_RUN_DIR") from error
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.path.chmod(0o711)
        self.data = self.path / "data"
        self.snapshots = self.path / "snapshots"
        self.log = self.path / "log"
        self.hba = self.path / "pg_hba.conf"
        self.ident = self.path / "pg_ident.conf"
        try:
            self.socket = self._make_socket_directory(account)
            parent = self.socket if self.socket.parent == self.path else self.socket.parent
            self._watchdog = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG, "pgstudies-watchdog", self.path, parent],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            self.snapshots.mkdir(mode=0o711)
            self.snapshots.chmod(0o711)
            self._write_owner(about)
            self._write_access(access)
        except BaseException as error:
            self.remove()
            if isinstance(error, OSError):
                raise cannot_write(error, base, "PGSTUDIES_RUN_DIR") from error
            raise

    def empty_data(self, account: Account) -> None:
        """Remove the stopped server's data, if there is any, and make its directory anew."""
        try:
            if self.data.exists():
                shutil.rmtree(self.data)
            self.make_directory(self.data, account)
        except OSError as error:
            raise cannot_write(error, self.data, "PGSTUDIES_RUN_DIR") from error

    def held_by(self) -> tuple[int, ...]:
        """File descriptors that keep the directory as long as a program that inherits them runs."""
        watched = self._watchdog.stdin if self._watchdog else None
        return (self._lock, watched.fileno()) if watched else (self._lock,)

    def started(self, pid: int) -> None:
        """Tell the watchdog about a server before the server writes its postmaster.pid."""
        if self._watchdog and self._watchdog.stdin:
            with suppress(BrokenPipeError):  # killed; the next run will clean up
                self._watchdog.stdin.write(f"{pid}\n".encode())
                self._watchdog.stdin.flush()

    def is_full(self) -> bool:
        """Whether its disk has less room left than one file of a server takes."""
        return shutil.disk_usage(self.path).free < _ROOM_BYTES

    def make_directory(self, path: Path, account: Account) -> None:
        """Create an empty directory that only the server's account can enter."""
        path.mkdir(mode=0o700)
        account.give(path)

    def remove(self) -> None:
        """Stop the server, remove the directory, end the watchdog."""
        remove(self.path)
        if self._watchdog is not None:
            self._watchdog.communicate()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _make_socket_directory(self, account: Account) -> Path:
        directory = self.path / "socket"
        too_long = len(os.fsencode(directory / f".s.PGSQL.{PORT}")) > _LONGEST_SOCKET_PATH
        if too_long or re.search('[,"]', str(directory)):  # which part the names of a list
            directory = self._make_short_directory() / "socket"
        self.make_directory(directory, account)
        return directory

    def _make_short_directory(self) -> Path:
        """A new directory that nobody else can have planted, noted before it is made."""
        note = self.path / "socket"
        while True:
            directory = SHORT / f"pgstudies-{secrets.token_hex(8)}"
            note.symlink_to(directory)
            try:
                directory.mkdir(mode=0o711)  # fails on whatever is there, a link as well
            except FileExistsError:
                note.unlink()
            else:
                directory.chmod(0o711)
                return directory

    def _write_owner(self, about: str) -> None:
        owner = {
            "pgstudies": 1,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "server": about,
        }
        (self.path / "owner.json").write_text(json.dumps(owner, indent=1), encoding="utf-8")

    def _write_access(self, access: str) -> None:
        # A password would be no safer, and every client would need it.  initdb itself fails for an
        # account without a name, so the kernel can always tell the server who we are.
        name = client_name().replace('"', '""')
        roles = (SUPERUSER, GUEST)
        local = "".join(f"local all {role} {access}{_MAP}\n" for role in roles)
        others = "host all all all reject\n" if access.startswith("peer") else ""
        self.hba.write_text(local + others, encoding="utf-8")
        known = "".join(f'{_MAP} "{name}" {role}\n' for role in roles)
        self.ident.write_text(known, encoding="utf-8")
        for file in (self.hba, self.ident):
            file.chmod(0o644)  # for the server's account, which cannot change it


def place_for_states() -> Instance:
    """A private directory in which runs leave each other prepared states, in ``snapshots``.

    The caller removes it.  Raises StudyError where no managed server could run.
    """
    place = Instance(server_account(), "states that runs share")
    place.path.chmod(0o700)
    return place


def prepare_run_dir(account: Account) -> Path:
    """The run directory, created if missing, safe and within reach of the server's account.

    Raises SpaceError where it cannot be created, ServerError where it is unsafe or out of reach.
    """
    directory = run_dir()
    if not str(directory).isprintable():
        raise ServerError(
            f"No server can run in {str(directory)!r}: set PGSTUDIES_RUN_DIR to another directory."
        )
    try:
        if not directory.exists():
            directory.mkdir(mode=0o711, parents=True, exist_ok=True)
            directory.chmod(0o711)
    except OSError as error:
        raise cannot_write(error, directory, "PGSTUDIES_RUN_DIR") from error
    directory = require_safe(directory)
    if not can_execute(account, directory):
        raise ServerError(
            f"{directory} is out of reach of the account {account.name}, which the server runs as: "
            f"set PGSTUDIES_RUN_DIR to a directory outside private homes."
        )
    spread(directory)
    return directory
