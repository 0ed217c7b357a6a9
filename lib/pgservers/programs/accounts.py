"""The account that managed servers run as, and running programs as that account."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from ..errors import ServerError, SpaceError
from ..files import says_full

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


_KEPT_VARIABLES = ("PATH", "TZ", "LD_LIBRARY_PATH", "LD_PRELOAD")

_environment_lock = Lock()


@dataclass(frozen=True)
class Account:
    """An account on this machine; ``switch`` is true if we are root and must switch to it."""

    name: str
    uid: int
    gid: int
    switch: bool

    def give(self, path: Path) -> None:
        """Make the account the owner of ``path``, which we just created."""
        if self.switch:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def popen_arguments(self) -> dict[str, Any]:
        """Arguments for ``subprocess`` that run a program as this account and out of any home."""
        arguments: dict[str, Any] = {"cwd": "/", "stdin": subprocess.DEVNULL}
        if self.switch:
            arguments |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        return arguments


def server_account() -> Account:
    """Our own account; for root, which PostgreSQL refuses, an unprivileged one.

    That is ``$PGSTUDIES_ACCOUNT``, else ``postgres`` if it exists, else ``nobody``.  Raises
    ServerError when it does not exist or is root itself.
    """
    if os.geteuid() != 0:
        return Account(str(os.geteuid()), os.geteuid(), os.getegid(), switch=False)
    configured = os.environ.get("PGSTUDIES_ACCOUNT")
    for name in [configured] if configured else ["postgres", "nobody"]:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid == 0:
            raise ServerError(
                "PostgreSQL does not run as root: set PGSTUDIES_ACCOUNT to another account."
            )
        return Account(name, entry.pw_uid, entry.pw_gid, switch=True)
    raise ServerError(
        f"PostgreSQL does not run as root, and there is no account {configured or 'nobody'} on "
        f"this machine: set PGSTUDIES_ACCOUNT to one that exists."
    )


def client_name() -> str:
    """The name of this process's account in the system; raises ServerError if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise ServerError(
            f"The account {os.geteuid()} has no name on this machine, and PostgreSQL asks for one: "
            f"add it to /etc/passwd, or run as another account."
        ) from None


def server_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a server: a few of our variables, no locale, and ``extra``."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C", **(extra or {})}


def run_as(
    account: Account,
    command: Sequence[str | Path],
    extra: Mapping[str, str] | None = None,
    *,
    pass_fds: Sequence[int] = (),
) -> str:
    """Run a program to its end as ``account`` and return its output.

    If interrupted, kills the program and waits for what it has started.  Raises SpaceError when
    the program found the disk full, ServerError when it failed otherwise.
    """
    try:
        process: subprocess.Popen[str] = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=server_environment(extra),
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C in the terminal would kill a server that initdb runs
            **account.popen_arguments(),
        )
    except OSError as error:
        raise ServerError(
            f"{command[0]} cannot be run as {account.name}: {error.strerror}."
        ) from error
    with process:
        try:
            output, _ = process.communicate()
        except BaseException:
            process.kill()
            # Its servers end with their input, and give their shared memory back, if they are let.
            process.communicate()
            raise
    if process.returncode == 0:
        return output
    lines = output.strip().splitlines()
    trouble = next((x for x in lines if "error" in x.lower() or "fatal" in x.lower()), "")
    sentence = f"{command[0]} failed: {trouble or (lines[-1] if lines else 'it said nothing')}"
    if any(map(says_full, lines)):
        raise SpaceError(
            f"{sentence}; free some space, or set PGSTUDIES_RUN_DIR to a directory on another disk."
        )
    raise ServerError(sentence)


def can_execute(account: Account, path: Path) -> bool:
    """Whether the account may run the program, or enter the directory, at ``path``."""
    if not account.switch:
        return os.access(path, os.X_OK)
    command = ["/usr/bin/env", "test", "-x", str(path)]
    environment, arguments = server_environment(), account.popen_arguments()
    return subprocess.run(command, check=False, env=environment, **arguments).returncode == 0


@contextmanager
def without_pg_variables() -> Iterator[None]:
    """Hide PGOPTIONS, PGSERVICE and the like: they are meant for the user's own servers."""
    with _environment_lock:
        names = [n for n in os.environ if n.startswith("PG") and not n.startswith("PGSTUDIES_")]
        hidden = {name: os.environ[name] for name in names}
        for name in hidden:
            del os.environ[name]
        try:
            yield
        finally:
            os.environ.update(hidden)


def open_to_all(tree: Path) -> None:
    """Let every account read ``tree`` and execute its programs, and none change it."""
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            readable = mode | (0o555 if path.is_dir() or mode & 0o100 else 0o444)
            path.chmod(readable & ~0o022)


def make_open_directory(directory: Path) -> None:
    """Create a directory and its missing parents; every account may read the last two.

    Only we can change what is created.
    """
    for path in [*reversed(directory.parents), directory]:
        if not path.exists():
            path.mkdir(mode=0o755, exist_ok=True)
            if path in (directory.parent, directory):
                path.chmod(0o755)  # for the account that root's servers run as


def others_can_change(path: Path, *, above: Path | None = None) -> bool:
    """Whether accounts other than ours and root could put programs there for us to run.

    A directory that is above ``above``, such as /tmp, may be sticky: others cannot remove or rename
    our files there, unless they own the directory.
    """
    status = path.stat()
    if status.st_uid not in {0, os.geteuid()}:
        return True
    others, group = status.st_mode & 0o002, status.st_mode & 0o020
    if not others and not (group and not _is_private(status.st_gid)):
        return False
    sticky = bool(status.st_mode & 0o1000)
    return not (sticky and above is not None and path in above.resolve().parents)


def _is_private(group: int) -> bool:
    """Whether our account is the group's only member: many systems create one for every user."""
    try:
        name, _, _, members = grp.getgrgid(group)
        return name == pwd.getpwuid(os.geteuid()).pw_name and set(members) <= {name}
    except KeyError:
        return False
