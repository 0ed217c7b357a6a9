"""How ``instrument.ipynb`` watches the machine: time stolen, others on our core, its speed."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import psutil

from pgservers.host.facts import CPU
from pgservers.host.situation import stolen_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pgstudies.measuring.trial import Trial


_LOOP = range(200_000)  # two milliseconds: of one alone, chance has 4 %


@contextlib.contextmanager
def watched(trial: Trial, step: str = "machine") -> Iterator[Callable[[], None]]:
    """Record what the machine does meanwhile, as far as it tells; the rest is noted as left out.

    What it gives is to be called at the beginning of every turn, and records

    - ``spin_s``: wall time of a loop of fixed length
    - ``waited``: the share of that time in which others had our core

    At the end follows, over all turns,

    - ``stolen``: the share of our core's time (of all cores', where we are not pinned) that the
      host gave to other machines
    - ``switches_per_s`` of the whole machine, ``involuntary_per_s`` of our two processes
    - ``load_average``, and ``frequency_mhz`` of the core
    """
    ticks, switches, begin = _ticks(), _switches(trial), time.monotonic()
    yield lambda: _spin(trial, step)
    elapsed_s, after = time.monotonic() - begin, _switches(trial)
    stolen = stolen_share(ticks, _ticks())
    if stolen is None:
        trial.leave_out(
            "stolen",
            "",
            "this system does not tell how much time its host took",
        )
    else:
        trial.record(step, "stolen", stolen, "share")
    for metric, count in after.items():
        trial.record(step, metric, (count - switches[metric]) / elapsed_s, "1/s")
    if hasattr(os, "getloadavg"):
        trial.record(step, "load_average", os.getloadavg()[0], "processes")
    mhz = frequency_mhz()
    if mhz is None:
        trial.leave_out(
            "frequency_mhz",
            "",
            "this system does not tell the clock of its cores",
        )
    else:
        trial.record(step, "frequency_mhz", mhz, "MHz")


def frequency_mhz(root: Path = CPU) -> float | None:
    """The clock of the cores now, in MHz; None where the kernel does not measure it.

    A virtual machine is told one number for all its life, which psutil would pass on.
    """
    if not any(root.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")):
        return None
    frequency = psutil.cpu_freq()
    return float(frequency.current) if frequency else None


def _spin(trial: Trial, step: str) -> None:
    wall, cpu = time.perf_counter(), time.thread_time()
    sum(_LOOP)
    cpu_s, wall_s = time.thread_time() - cpu, time.perf_counter() - wall
    trial.record(step, "spin_s", wall_s, "s")
    trial.record(step, "waited", max(0.0, 1 - cpu_s / wall_s), "share")


def _ticks() -> Any:
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    cores = psutil.cpu_times(percpu=True)
    (core,) = allowed if len(allowed) == 1 else (len(cores),)
    return cores[core] if core < len(cores) else psutil.cpu_times()


def _switches(trial: Trial) -> dict[str, float]:
    ours = [
        os.getpid(),
        *(
            [trial.connection.info.backend_pid]
            if trial.server.capabilities.has("processes")
            else []
        ),
    ]
    counts: dict[str, float] = {"switches_per_s": psutil.cpu_stats().ctx_switches}
    with contextlib.suppress(psutil.Error, NotImplementedError):
        counts["involuntary_per_s"] = sum(
            psutil.Process(pid).num_ctx_switches().involuntary for pid in ours
        )
    return counts
