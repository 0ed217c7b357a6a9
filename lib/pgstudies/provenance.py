"""Which code made a record: versions of the packages and the revision of the checkout."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from typing import TYPE_CHECKING

from .paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def packages() -> dict[str, str]:
    """Version by name: Python, this package, and what it needs in order to run.

    The extras asked for are followed (``psycopg[binary]`` is two packages); what a platform does
    without, and what only tests and JupyterLab need, is left out.
    """
    found = {"python": platform.python_version(), "pgstudies": metadata.version("pgstudies")}
    wanted = _needs("pgstudies", extras=set())
    while wanted:
        name, extras = wanted.popitem()
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if extras:
            wanted |= _needs(name, extras, only_extras=True)
    return dict(sorted(found.items()))


def git_revision(root: Path = ROOT) -> dict[str, str | bool] | None:
    """``revision`` (the full hash) and ``dirty``: whether files differ from it, or are new.

    None where ``root`` is not the top of a repository, or git is missing or refuses to look.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    revision = _git(root, "rev-parse", "--verify", "HEAD")
    changes = _git(root, "status", "--porcelain")
    if top is None or revision is None or changes is None:
        return None
    if os.path.realpath(top) != os.path.realpath(root):
        return None  # an unpacked archive inside somebody else's repository
    return {"revision": revision, "dirty": bool(changes)}


def _needs(name: str, extras: set[str], *, only_extras: bool = False) -> dict[str, set[str]]:
    """Names and extras of the requirements of the installed distribution ``name``."""
    needs: dict[str, set[str]] = {}
    for requirement in metadata.requires(name) or []:
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", requirement)
        if (extra is not None and extra[1] not in extras) or (extra is None and only_extras):
            continue
        match = re.match(r"([\w.-]+)\s*(?:\[([^\]]*)\])?", requirement)
        if match:
            needs[match[1]] = {e.strip() for e in (match[2] or "").split(",") if e.strip()}
    return needs


def _git(root: Path, *arguments: str) -> str | None:
    # A git hook that runs us names its own repository in the environment.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), *arguments],
            env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            check=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
