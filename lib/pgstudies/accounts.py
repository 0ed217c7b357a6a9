"""The account that owned servers run as: PostgreSQL refuses to run as root."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .errors import ServerError

if TYPE_CHECKING:
    from pathlib import Path

    from .binaries import Binaries


@dataclass(frozen=True)
class Account:
    """An account of this machine, by name and numbers."""

    name: str
    uid: int
    gid: int

    @property
    def as_popen(self) -> dict[str, Any]:
        """Arguments for ``subprocess`` that start a program as this account."""
        if os.geteuid() != 0:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def give(self, path: Path) -> None:
        """Make this account the owner of ``path``."""
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid)


def server_account() -> Account:
    """Ourselves, or for root ``$PGSTUDIES_ACCOUNT``, else ``postgres``, else ``nobody``.

    Raises ServerError when the account named does not exist.
    """
    if os.geteuid() != 0:
        me = pwd.getpwuid(os.geteuid())
        return Account(me.pw_name, me.pw_uid, me.pw_gid)
    named = os.environ.get("PGSTUDIES_ACCOUNT")
    for name in [named] if named else ["postgres", "nobody"]:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise ServerError(
        f"PostgreSQL does not run as root, and there is no other account {named or 'nobody'}: "
        f"set PGSTUDIES_ACCOUNT to an account of this machine."
    )


def reachable(binaries: Binaries, account: Account, base: Path) -> Binaries:
    """The binaries where ``account`` can run them: a copy below ``base`` if they are out of reach.

    An installation inside a private home is such a case.  The copy is made once.
    """
    if _can_run(binaries.bindir, account):
        return binaries
    prefix = binaries.bindir.parent
    package = prefix.parent
    libraries = package.with_name(f"{package.name}.libs")  # where a wheel keeps shared libraries
    stamp = (binaries.bindir / "postgres").stat()
    copy = base / f"install-{binaries.version}-{stamp.st_size:x}-{stamp.st_mtime_ns:x}"
    if not copy.exists():
        aside = base / f"install.{secrets.token_hex(4)}.tmp"
        shutil.copytree(prefix, aside / package.name / prefix.name, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, aside / libraries.name, symlinks=True)
        for path in [aside, *aside.rglob("*")]:
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
        try:
            aside.rename(copy)
        except OSError:  # another process was first
            shutil.rmtree(aside)
    bindir = copy / package.name / prefix.name / binaries.bindir.name
    moved = replace(binaries, bindir=bindir)
    if not _can_run(moved.bindir, account):
        raise ServerError(
            f"The account {account.name} cannot run {binaries.bindir / 'postgres'}, nor its copy "
            f"in {base}: set PGSTUDIES_RUN_DIR to a directory it can reach."
        )
    return moved


def _can_run(bindir: Path, account: Account) -> bool:
    try:
        run = subprocess.run(
            [bindir / "postgres", "--version"], capture_output=True, check=False, **account.as_popen
        )
    except PermissionError:
        return False
    return run.returncode == 0
