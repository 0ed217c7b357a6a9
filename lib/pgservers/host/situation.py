"""The state of this machine: the facts that the gate judges."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from .facts import CPU, governor, known, nearest_existing


@dataclass(frozen=True)
class Process:
    """Another process; ``cpu_share`` is a fraction of one core."""

    pid: int
    name: str
    cpu_share: float
    postmaster: bool = False


@dataclass(frozen=True)
class Situation:
    """What the gate looks at.  Sizes in bytes, shares as fractions, None where unknown.

    ``throttled``: how often a core was slowed down for its heat while we looked.
    """

    cores: int
    load_average: float | None
    processes: tuple[Process, ...]
    steal_share: float | None
    cpu_quota_cores: float | None
    governor: str | None
    throttled: int | None
    on_battery: bool | None
    swap_used_bytes: int | None
    memory_bytes: int
    memory_available_bytes: int
    disk: Path
    disk_free_bytes: int


def look(path: Path, *, sample_s: float = 0.5) -> Situation:
    """The situation of the machine now; shares of CPU are taken over ``sample_s`` seconds."""
    where = nearest_existing(path)
    memory = psutil.virtual_memory()
    before = throttle_count()
    processes, steal_share = _busy(sample_s)
    after = throttle_count()
    throttled = None if before is None or after is None else after - before
    return Situation(
        cores=os.cpu_count() or 1,
        load_average=known(lambda: os.getloadavg()[0]),
        processes=processes,
        steal_share=steal_share,
        cpu_quota_cores=cpu_quota_cores(),
        governor=governor(),
        throttled=throttled,
        on_battery=_on_battery(),
        swap_used_bytes=known(lambda: int(psutil.swap_memory().used)),
        memory_bytes=memory.total,
        memory_available_bytes=memory.available,
        disk=where,
        disk_free_bytes=shutil.disk_usage(where).free,
    )


def throttle_count(root: Path = CPU) -> int | None:
    """How often cores were throttled for heat since the boot; None if not counted."""
    counters = root.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    counts = known(lambda: [int(counter.read_text(encoding="ascii")) for counter in counters])
    return sum(counts) if counts else None


def _on_battery() -> bool | None:
    """Whether the machine runs on battery; None if unknown."""
    battery = known(lambda: psutil.sensors_battery())  # noqa: PLW0108  (some systems lack it)
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def _busy(sample_s: float) -> tuple[tuple[Process, ...], float | None]:
    """The processes that are not ours with their share of a core, and the share of time stolen."""
    me = psutil.Process()
    family = {p.pid for p in (me, *me.parents(), *me.children(recursive=True))}
    used_s = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid not in family:
                used_s[process] = _cpu_seconds(process)
    ticks, begin = psutil.cpu_times(), time.monotonic()
    time.sleep(sample_s)
    elapsed_s, steal_share = time.monotonic() - begin, stolen_share(ticks, psutil.cpu_times())
    processes = []
    for process, before_s in used_s.items():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile, or is hidden from us
            share = (_cpu_seconds(process) - before_s) / elapsed_s
            is_postmaster = _is_postmaster(process)
            processes.append(Process(process.pid, process.name(), share, is_postmaster))
    return tuple(processes), steal_share


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _is_postmaster(process: psutil.Process) -> bool:
    """Whether it is a server's first process: the others call themselves "postgres: ..."."""
    if process.name() not in {"postgres", "postmaster", "postgres.exe"}:
        return False
    words = process.cmdline()
    return bool(words) and not words[0].startswith("postgres: ")


def stolen_share(before: Any, after: Any) -> float | None:
    """The fraction of time stolen by the host between two readings of psutil; None if unknown."""
    if not hasattr(after, "steal"):
        return None
    # Guest time is counted a second time in user and nice time.
    kinds = [k for k in after._fields if not k.startswith("guest")]
    total = sum(getattr(after, k) - getattr(before, k) for k in kinds)
    return (after.steal - before.steal) / total if total > 0 else None


def cpu_quota_cores(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """The tightest CPU quota on this process or a group above it, in cores; None without one."""
    quotas = []
    for line in (known(lambda: membership.read_text(encoding="utf-8")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            tops = [root, root / "unified"]
        elif "cpu" in controllers.split(","):
            tops = [root / "cpu", root / controllers]
        else:
            continue
        inner = Path(path.lstrip("/"))
        quotas += [_quota_at(top / group) for top in tops for group in (inner, *inner.parents)]
    return min((q for q in quotas if q is not None), default=None)


def _quota_at(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (group / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return None if quota in {"max", "-1"} else int(quota) / int(period)
