"""Why a run of ``sync_scans.ipynb`` cannot judge a claim: each gives a reason, or None."""

from __future__ import annotations

import math


def no_chance(apart, in_step, most):
    """Why it cannot tell what synchronization does, by the tables read out of step and in step."""
    if apart is None or in_step is None:
        return "memory and disk could not be made small and slow here"
    if apart <= most / 2:
        return f"{most} scans out of step read only {apart:.1f} tables, so memory was not small"
    if in_step >= 0.75 * apart:
        return f"scans did not stay in step: {most} read {in_step:.1f} tables, {apart:.1f} without"
    return None


def few(count, stagger):
    """Why so few scans cannot be twice as fast in step as out of it."""
    gain = count / (
        1 + stagger * (count - 1)
    )  # at most, where all of it is reading
    if gain > 2.5:
        return None
    return f"not at this size: {count} scans gain at most {gain:.1f} times"


def small(table_bytes, window, margin):
    """Why no scan's time is known to within the margin, the table being so small.

    ``window`` is what the kernel reads ahead (bytes): one where a scan begins, one where it ends.
    """
    share = 2 * window / table_bytes
    if share <= margin:
        return None
    return (
        f"not at this size: the kernel reads {window / 2**20:.0f} MB ahead, and two such "
        f"windows are {100 * share:.0f} % of the table"
    )


def crowded(table_bytes, window, count, stagger):
    """Why scans that lose step for a moment cannot find it again, memory being so small.

    Memory is an eighth of the table; each scan out of step reads two windows ahead (bytes).
    """
    at_once = min(count, 1 + math.ceil(1 / stagger))
    wanted = 2 * window * at_once
    if wanted <= table_bytes / 8:
        return None
    return (
        f"not at this size: {at_once} scans at a time may read {wanted / 2**20:.0f} MB ahead, and "
        f"an eighth of the table is {table_bytes / 8 / 2**20:.0f} MB"
    )


def parted(count, in_step, stagger):
    """Why so many scans in step are not what this run has, though they shared much."""
    wanted = 1 + stagger * (count - 1)
    if in_step <= 1.3 * wanted:
        return None
    return f"scans lost step here: {count} read {in_step:.1f} tables, {wanted:.1f} if none does"


def no_cores(makespan_s, read_bytes, bytes_per_second):
    """Why the processor, and not the disk, decided how long scans took; a value for each group."""
    share = (read_bytes / bytes_per_second / makespan_s).median()
    if share is None or share >= 0.8:
        return None
    return f"the disk was at work {100 * share:.0f} % of the time: cores were too few or too busy"
