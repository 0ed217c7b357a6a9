"""A look at the machine before measuring: what would disturb the times, in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..files import size_text
from .situation import Situation, look

if TYPE_CHECKING:
    from pathlib import Path


GB = 10**9

MAX_LOAD_PER_CORE = 0.5

MAX_CPU_SHARE = 0.2  # of one core, by one process that is not ours

MAX_SWAP_USED_BYTES = GB // 16

MAX_STEAL_SHARE = 0.02

MIN_MEMORY_SHARE = 0.2

MIN_DISK_BYTES = 5 * GB


@dataclass(frozen=True)
class Finding:
    """Something that may disturb a measurement; nothing is refused for it."""

    name: str
    sentence: str


def gate(path: Path) -> list[Finding]:
    """What would disturb a measurement whose data lies at ``path``; takes half a second."""
    return findings_in(look(path))


def findings_in(seen: Situation) -> list[Finding]:
    """One finding for each thing that may disturb; an empty list for a quiet machine."""
    sentences = {
        "load": _load(seen),
        "processes": _processes(seen),
        "servers": _servers(seen),
        "steal": _steal(seen),
        "quota": _quota(seen),
        "governor": _governor(seen),
        "heat": _heat(seen),
        "battery": _battery(seen),
        "swap": _swap(seen),
        "memory": _memory(seen),
        "disk": _disk(seen),
    }
    return [Finding(name, sentence) for name, sentence in sentences.items() if sentence]


def _load(seen: Situation) -> str | None:
    if seen.load_average is None or seen.load_average <= MAX_LOAD_PER_CORE * seen.cores:
        return None
    return (
        f"The load average is {seen.load_average:.1f} on {_count(seen.cores, 'core')}: other work "
        "is running, or was until a moment ago, as after another study. While it lasts, times are "
        "longer and less steady."
    )


def _processes(seen: Situation) -> str | None:
    hungry = [p for p in seen.processes if p.cpu_share > MAX_CPU_SHARE]
    if not hungry:
        return None
    hungry.sort(key=lambda p: p.cpu_share, reverse=True)
    named = ", ".join(f"{p.name} (process {p.pid}, {p.cpu_share:.0%})" for p in hungry[:3])
    more = f" and {len(hungry) - 3} more" if len(hungry) > 3 else ""
    return f"Using CPU now, in percent of one core: {named}{more}."


def _servers(seen: Situation) -> str | None:
    postmasters = [str(p.pid) for p in seen.processes if p.postmaster]
    if not postmasters:
        return None
    return (
        f"{_count(len(postmasters), 'other PostgreSQL server')} on this machine "
        f"(process {', '.join(postmasters)}): memory, disk and cores are shared."
    )


def _steal(seen: Situation) -> str | None:
    if seen.steal_share is None or seen.steal_share <= MAX_STEAL_SHARE:
        return None
    return (
        f"The hypervisor gives {seen.steal_share:.0%} of this machine's CPU time to others: "
        "times will vary for reasons that cannot be seen from here."
    )


def _quota(seen: Situation) -> str | None:
    if seen.cpu_quota_cores is None:
        return None
    return (
        f"A CPU quota of {seen.cpu_quota_cores:g} cores holds for this process (cgroup): "
        "what exceeds it is stopped for a while, which looks like a slow statement."
    )


def _governor(seen: Situation) -> str | None:
    if seen.governor in {None, "performance"}:
        return None
    return (
        f'The CPU frequency governor is "{seen.governor}": '
        'the clock changes with the load; "performance" is steadier.'
    )


def _heat(seen: Situation) -> str | None:
    if not seen.throttled:
        return None
    return "The processor is slowed down because it is hot: times will be longer until it cools."


def _battery(seen: Situation) -> str | None:
    if not seen.on_battery:
        return None
    return "This machine runs on its battery: the processor may be slowed down to save power."


def _swap(seen: Situation) -> str | None:
    if seen.swap_used_bytes is None or seen.swap_used_bytes <= MAX_SWAP_USED_BYTES:
        return None
    return (
        f"{size_text(seen.swap_used_bytes)} of swap are in use: "
        "memory was short, and pages may have to come back from disk."
    )


def _memory(seen: Situation) -> str | None:
    if seen.memory_available_bytes >= MIN_MEMORY_SHARE * seen.memory_bytes:
        return None
    return (
        f"{size_text(seen.memory_available_bytes)} of {size_text(seen.memory_bytes)} memory "
        "are available: "
        "the kernel may drop the pages that a warm run relies on."
    )


def _disk(seen: Situation) -> str | None:
    if seen.disk_free_bytes >= MIN_DISK_BYTES:
        return None
    return (
        f"{size_text(seen.disk_free_bytes)} are free at {seen.disk}: a study of standard size "
        f"needs {size_text(MIN_DISK_BYTES)}, and a file system that is nearly full is slow."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
