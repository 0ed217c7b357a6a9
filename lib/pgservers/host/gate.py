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
    sentences = _on_others(seen) | _on_the_processor(seen) | _on_memory_and_disk(seen)
    return [Finding(name, sentence) for name, sentence in sentences.items()]


def _on_others(seen: Situation) -> dict[str, str]:
    found = {}
    if seen.load_average is not None and seen.load_average > MAX_LOAD_PER_CORE * seen.cores:
        found["load"] = (
            f"The load average is {seen.load_average:.1f} on {_count(seen.cores, 'core')}: other "
            "work is running, or was until a moment ago, as after another study. While it lasts, "
            "times are longer and less steady."
        )
    hungry = [p for p in seen.processes if p.cpu_share > MAX_CPU_SHARE]
    if hungry:
        hungry.sort(key=lambda p: p.cpu_share, reverse=True)
        named = ", ".join(f"{p.name} (process {p.pid}, {p.cpu_share:.0%})" for p in hungry[:3])
        more = f" and {len(hungry) - 3} more" if len(hungry) > 3 else ""
        found["processes"] = f"Using CPU now, in percent of one core: {named}{more}."
    postmasters = [str(p.pid) for p in seen.processes if p.postmaster]
    if postmasters:
        found["servers"] = (
            f"{_count(len(postmasters), 'other PostgreSQL server')} on this machine "
            f"(process {', '.join(postmasters)}): memory, disk and cores are shared."
        )
    if seen.steal_share is not None and seen.steal_share > MAX_STEAL_SHARE:
        found["steal"] = (
            f"The hypervisor gives {seen.steal_share:.0%} of this machine's CPU time to others: "
            "times will vary for reasons that cannot be seen from here."
        )
    return found


def _on_the_processor(seen: Situation) -> dict[str, str]:
    found = {}
    if seen.cpu_quota_cores is not None:
        found["quota"] = (
            f"A CPU quota of {seen.cpu_quota_cores:g} cores holds for this process (cgroup): "
            "what exceeds it is stopped for a while, which looks like a slow statement."
        )
    if seen.governor not in {None, "performance"}:
        found["governor"] = (
            f'The CPU frequency governor is "{seen.governor}": '
            'the clock changes with the load; "performance" is steadier.'
        )
    if seen.throttled:
        found["heat"] = (
            "The processor is slowed down because it is hot: times will be longer until it cools."
        )
    if seen.on_battery:
        found["battery"] = (
            "This machine runs on its battery: the processor may be slowed down to save power."
        )
    return found


def _on_memory_and_disk(seen: Situation) -> dict[str, str]:
    found = {}
    if seen.swap_used_bytes is not None and seen.swap_used_bytes > MAX_SWAP_USED_BYTES:
        found["swap"] = (
            f"{size_text(seen.swap_used_bytes)} of swap are in use: "
            "memory was short, and pages may have to come back from disk."
        )
    if seen.memory_available_bytes < MIN_MEMORY_SHARE * seen.memory_bytes:
        found["memory"] = (
            f"{size_text(seen.memory_available_bytes)} of {size_text(seen.memory_bytes)} memory "
            "are available: the kernel may drop the pages that a warm run relies on."
        )
    if seen.disk_free_bytes < MIN_DISK_BYTES:
        found["disk"] = (
            f"{size_text(seen.disk_free_bytes)} are free at {seen.disk}: a study of standard size "
            f"needs {size_text(MIN_DISK_BYTES)}, and a file system that is nearly full is slow."
        )
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
