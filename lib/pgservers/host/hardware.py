"""The instructions of a process, counted by its processor (Linux's perf_event_open)."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path

from ..errors import CannotRun

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _INSTRUCTIONS = 0, 1

# perf_event_attr of version 0: type, its own size, config, three fields that are not used here,
# flags, and three more such fields.
_ATTRIBUTES = struct.Struct("IIQQQQQIIQ")

_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


class InstructionCounter:
    """Counts the instructions that a process executes from now on, without those of the kernel.

    Raises CannotRun, with the reason, where they cannot be counted, as in most virtual machines.
    """

    def __init__(self, pid: int) -> None:
        number = _SYSCALL.get(platform.machine())
        if platform.system() != "Linux" or number is None:
            raise CannotRun("the processor's counters are read on Linux only (x86-64, ARM64)")
        flags = _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
        size = _ATTRIBUTES.size
        attributes = _ATTRIBUTES.pack(_HARDWARE, size, _INSTRUCTIONS, 0, 0, 0, flags, 0, 0, 0)
        library = ctypes.CDLL(None, use_errno=True)
        self._file: int = library.syscall(number, attributes, pid, -1, -1, _CLOSE_ON_EXEC)
        if self._file < 0:
            raise CannotRun(_why(ctypes.get_errno()))

    def read(self) -> float:
        """The number of instructions executed."""
        return float(struct.unpack("Q", os.read(self._file, 8))[0])

    def close(self) -> None:
        """Stop counting."""
        os.close(self._file)


def reason_no_counter() -> str | None:
    """Why instructions cannot be counted here; None where they can."""
    try:
        InstructionCounter(os.getpid()).close()
    except CannotRun as reason:
        return str(reason)
    return None


def _why(code: int) -> str:
    if code in {errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP}:
        return "the processor's counters are not available, as in most virtual machines"
    if code in {errno.EACCES, errno.EPERM}:
        level = _PARANOID.read_text().strip() if _PARANOID.exists() else "unknown"
        return (
            f"the kernel does not allow it (kernel.perf_event_paranoid is {level}: up to 2, "
            f"programs of one's own account may be counted, by root all)"
        )
    return f"the kernel does not count them: {os.strerror(code)}"
