"""What processes have used, by the kernel: CPU time, and bytes from the device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def scheduled(*pids: int) -> tuple[float, float] | tuple[None, None]:
    """CPU time of processes so far, and the time for which they waited for a core (s).

    Exact once they sleep; both are None where the system hides it or does not account for it.
    """
    try:
        both = [Path(f"/proc/{pid}/schedstat").read_text().split()[:2] for pid in pids]
        used, waited = [[int(value) for value in values] for values in zip(*both, strict=True)]
    except (OSError, ValueError):
        return None, None
    # 0 for a process where the kernel does not account
    return (sum(used) / 1e9, sum(waited) / 1e9) if all(used) else (None, None)


def device_bytes(pids: Iterable[int]) -> float | None:
    """Bytes that these processes read from the device (/proc/<pid>/io); None where hidden."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a worker that has ended, before the file was opened or while it was read
        except OSError:
            return None
        total += next(int(x.split()[1]) for x in lines if x.startswith("read_bytes"))
    return float(total)
