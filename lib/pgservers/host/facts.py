"""The machine and the code, as a record keeps them."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from ..paths import ROOT
from .disks import find_disk, scheduler_of

if TYPE_CHECKING:
    from collections.abc import Callable

    T = TypeVar("T")


CPU = Path("/sys/devices/system/cpu")


def allowed_cores() -> list[int] | None:
    """The numbers of the cores that this process may run on; None where that is unknown."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def boot_id() -> str | None:
    """The kernel's name for this boot; None where it has none."""
    return _read(Path("/proc/sys/kernel/random/boot_id"))


def host_facts(path: Path) -> dict[str, Any]:
    """The machine, and the file system and disk under ``path``, which need not exist yet.

    Every value is fit for JSON, and None where unknown:

    - ``hostname``, ``os`` (the distribution's name for itself), ``kernel`` (name and release)
    - ``booted_at``: UTC, ISO 8601; ``boot_id``: the kernel's name for this boot
    - ``virtualization``: the hypervisor or container that shows itself, "none seen", or None
    - ``cpu_model``, ``architecture``, ``physical_cores``, ``logical_cores``
    - ``allowed_cores``: numbers of the cores this process may run on
    - ``cpu_mhz`` and ``cpu_max_mhz``: MHz of the first core; ``cpu_governor``: of every core,
      joined by "," where they differ
    - ``clock_source``: where the kernel reads the time
    - ``memory_bytes``, ``swap_bytes``: size, not use
    - ``load_average``: runnable tasks over 1, 5 and 15 minutes
    - ``file_system``: type; ``mount_point``; ``mount_options``: as the kernel prints them
    - ``device``: the whole disk's name, such as "nvme0n1"; ``device_scheduler``: its I/O scheduler;
      ``device_rotational``: whether it says that it spins; ``device_read_ahead_bytes``

    Never raises.
    """
    where = nearest_existing(path)
    mount = mount_of(where)
    frequency = known(psutil.cpu_freq)
    return {
        "hostname": known(socket.gethostname),
        "os": known(_os_name),
        "kernel": f"{platform.system()} {platform.release()}",
        "booted_at": known(
            lambda: datetime.fromtimestamp(psutil.boot_time(), UTC).isoformat(timespec="seconds")
        ),
        "boot_id": boot_id(),
        "virtualization": known(_virtualization),
        "cpu_model": cpu_model(),
        "architecture": platform.machine() or None,
        "physical_cores": known(lambda: psutil.cpu_count(logical=False)),
        "logical_cores": os.cpu_count(),
        "allowed_cores": allowed_cores(),
        "cpu_mhz": frequency.current if frequency else None,
        "cpu_max_mhz": (frequency.max or None) if frequency else None,
        "cpu_governor": governor(),
        "clock_source": _read(
            Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        ),
        "memory_bytes": known(lambda: psutil.virtual_memory().total),
        "swap_bytes": known(lambda: psutil.swap_memory().total),
        "load_average": known(lambda: list(os.getloadavg())),
        "file_system": mount.fstype if mount else None,
        "mount_point": mount.mountpoint if mount else None,
        "mount_options": mount.opts if mount else None,
    } | _device_facts(where, mount.device if mount else None)


def nearest_existing(path: Path) -> Path:
    """``path`` itself, or the nearest directory above it that exists."""
    path = path.absolute()
    return next((p for p in (path, *path.parents) if known(p.exists)), Path("/"))


def mount_of(path: Path) -> Any:
    """The mount that holds the existing ``path``, as psutil describes it; None where unknown."""
    real = known(path.resolve) or path
    mounts = known(lambda: psutil.disk_partitions(all=True)) or []
    holding = [m for m in mounts if real.is_relative_to(m.mountpoint)]
    # Of two mounts at one place the later hides the earlier, hence the reversal.
    return max(reversed(holding), key=lambda m: len(Path(m.mountpoint).parts), default=None)


def governor(root: Path = CPU) -> str | None:
    """The frequency governor of the cores, joined by "," where they differ; None without one."""
    files = known(lambda: sorted(root.glob("cpu[0-9]*/cpufreq/scaling_governor"))) or []
    return ",".join(sorted({g for g in map(_read, files) if g})) or None


def _device_facts(path: Path, source: str | None) -> dict[str, Any]:
    disk = known(lambda: find_disk(path, source))
    read_ahead_kb = _read(disk / "queue/read_ahead_kb") if disk else None
    rotational = _read(disk / "queue/rotational") if disk else None
    return {
        "device": disk.name if disk else None,
        "device_scheduler": scheduler_of(disk) if disk else None,
        "device_rotational": rotational == "1" if rotational else None,
        "device_read_ahead_bytes": int(read_ahead_kb) * 1024 if read_ahead_kb else None,
    }


def _os_name() -> str:
    if platform.system() == "Linux":
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    return platform.platform()


def cpu_model() -> str | None:
    """The processor's own name for its model; None where it is unknown."""
    return known(lambda: _cpuinfo().get("model name")) or platform.processor() or None


def _cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo, field by field."""
    first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0]
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def _virtualization() -> str | None:
    seen = []
    kind = _read(Path("/sys/hypervisor/type"))
    if kind:
        seen.append(kind)
    elif "hypervisor" in _cpuinfo().get("flags", "").split():
        names = [_read(Path("/sys/class/dmi/id") / n) for n in ("sys_vendor", "product_name")]
        seen.append(" ".join(filter(None, names)) or "unnamed hypervisor")
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        seen.append("container")
    return ", ".join(seen) or "none seen"


def _read(path: Path) -> str | None:
    return known(lambda: path.read_text(encoding="utf-8").strip())


def known(ask: Callable[[], T]) -> T | None:
    """The result of ``ask``, or None if the system or our rights do not allow it."""
    try:
        return ask()
    except (OSError, ValueError, LookupError, AttributeError, RuntimeError, psutil.Error):
        return None


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


def postgres_revision(directory: Path) -> str | None:
    """The revision of the PostgreSQL checkout in which a directory lies, short, + if changed.

    None where it lies in none, or in a checkout of something else.
    """
    top = _git(directory, "rev-parse", "--show-toplevel")
    revision = _git(directory, "rev-parse", "--short=10", "HEAD")
    if top is None or revision is None or not (Path(top) / "src" / "backend").is_dir():
        return None
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return f"{revision}+" if changes else revision


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
