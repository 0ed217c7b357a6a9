"""The arms of ``sync_scans.ipynb``: scans out of step and in step, and what varies them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import psutil

import pgstudies as pg
from pgapps.builds.served import on_commits
from pgservers.errors import StudyError
from pgservers.order import major_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OUT = "Every scan begins at page 0"
IN = "A scan begins where another one is"
BOTH = (("off", OUT), ("on", IN))
ROOMY, LIMITED = ("warm", "cold"), ("small memory", "small and slow")
DIRECT = {"debug_io_direct": "data"}

COMMITS = {
    "none": ("0a6f2ee84d", "off", "No ring, nothing in step: 8.3devel, 30 May 2007."),
    "ring": ("6d6d14b6d5", "off", "The ring of buffers alone: 8.3devel, 7 June 2007."),
    "ring and synchronized": ("a04a423599", "on", "Both: 8.3devel, 8 June 2007."),
}
"""The commit of each of these arms, whether its scans are in step, and what it is."""

JUDGING = "none", "ring and synchronized"
"""The post compares with plain 8.2.3, which has neither."""


def arms(
    *,
    scans: Sequence[int],
    machines: Sequence[str],
    table_mb: int,
    window: int,
    small_bytes: int,
    io_methods: Sequence[str],
    concurrencies: Sequence[int],
    combine_kb: Sequence[int],
    offsets: Sequence[float],
    releases: Sequence[str],
    schedulers: Sequence[str],
    limits: str,
    repo: str,
) -> list[pg.Arm]:
    """Every arm, in the order of the page.

    ``window`` is what the kernel reads ahead (bytes), ``small_bytes`` what a machine of small
    memory has beside what each session needs; the other arguments are the study's parameters.
    """
    too_small = reason_too_small(crowd(scans), window, small_bytes)
    found = of_the_post(scans, too_small)
    if offsets:
        found.append(behind(scans, table_mb))
    if "cold" in machines:
        found.append(without_ring(scans, table_mb))
    if "direct" in machines:
        found += past_the_kernel()
        found += looking_ahead(io_methods, concurrencies, combine_kb)
    for release in releases:
        found += of_release(release, with_direct="direct" in machines)
    for scheduler in schedulers:
        found += under_scheduler(scheduler, limits)
    return found + of_commits(repo, scans, table_mb)


def table_size(table_mb: int, buffers_mb: int) -> int:
    """The size of the table (MB): for 0, a quarter more than the machine's memory.

    Raises StudyError when it would not be scanned in step.
    """
    size_mb = table_mb or int(1.25 * psutil.virtual_memory().total / 2**20)
    if 4 * size_mb <= buffers_mb:
        raise StudyError(
            f"A table of {size_mb} MB is not scanned in step with {buffers_mb} MB of shared "
            f"buffers: that begins above a quarter of them, so give table_mb more than "
            f"{buffers_mb // 4}."
        )
    return size_mb


def crowd(scans: Sequence[int]) -> int:
    """The most scans of those that are no more than four: for what more would overdo."""
    return max((n for n in scans if n <= 4), default=min(scans))


def reason_too_small(count: int, window: int, small_bytes: int) -> str | None:
    """Why so many scans that read by themselves cannot be had in small memory, or None."""
    if 2 * count * window <= small_bytes:
        return None
    return (
        f"the kernel reads {window / 2**20:.0f} MB ahead for each scan, and {count} scans "
        "that read by themselves would fill the memory that goes with a table this small"
    )


def of_the_post(scans: Sequence[int], too_small: str | None) -> list[pg.Arm]:
    """Off, on, and on with the ring of buffers that it had from 8.3 to 17."""
    return [
        _arm("off", f"{OUT}.", "off", (*ROOMY, *LIMITED), scans),
        _arm("on", f"{IN}.", "on", (*ROOMY, *LIMITED), scans),
        _arm(
            "on, small ring",
            "The same without look-ahead.",
            "on",
            ("small and slow",),
            [crowd(scans)],
            settings={"effective_io_concurrency": "0"},
            not_run=too_small,
        ),
    ]


def behind(scans: Sequence[int], table_mb: int) -> pg.Arm:
    """The removed offset: a client starts a scan some way behind another."""
    quarter = {"shared_buffers": f"{max(1, table_mb // 4)}MB"}
    words = "Some way behind, by the client, past the kernel's cache."
    return _arm("behind", words, "on", (), scans, settings=DIRECT | quarter)


def without_ring(scans: Sequence[int], table_mb: int) -> pg.Arm:
    """A table that is smaller than a quarter of shared buffers."""
    fits = {"shared_buffers": f"{5 * table_mb}MB"}
    words = "Shared buffers have room for the table."
    return _arm("no ring", words, "on", ROOMY, scans, settings=fits)


def past_the_kernel() -> list[pg.Arm]:
    """Two scans with direct I/O, off and on."""
    words = "past the kernel's cache."
    return [
        _direct("direct, off", f"{OUT}, {words}", "off"),
        _direct("direct", f"{IN}, {words}", "on"),
    ]


def looking_ahead(
    io_methods: Sequence[str], concurrencies: Sequence[int], combine_kb: Sequence[int]
) -> list[pg.Arm]:
    """Two scans in step with direct I/O, for every way in which 18 can read ahead."""
    found = []
    for method, concurrency, combine in itertools.product(
        io_methods, concurrencies, combine_kb
    ):
        look_ahead = {
            "io_method": method,
            "effective_io_concurrency": str(concurrency),
            "io_combine_limit": f"{combine}kB",
        }
        said = ", ".join(f"{k} = {v}" for k, v in look_ahead.items())
        name = f"direct, {method} {concurrency}×{combine}"
        words = f"In step, with {said}."
        found.append(_direct(name, words, "on", settings=look_ahead))
    return found


def of_release(release: str, *, with_direct: bool) -> list[pg.Arm]:
    """Two scans on another release, with direct I/O too where that is measured and it has it."""
    found = []
    for sync, said in BOTH:
        words = f"{said}, on {release}."
        slow = ("small and slow",)
        found.append(_arm(sync, words, sync, slow, [2], release=release))
        if with_direct and major_number(release) >= 16:
            name = {"off": "direct, off", "on": "direct"}[sync]
            words = f"{said}, past the kernel's cache."
            found.append(_direct(name, words, sync, release=release))
    return found


def under_scheduler(scheduler: str, limits: str) -> list[pg.Arm]:
    """Scans in small memory while the disk has this I/O scheduler."""
    words = "a modelled disk has no I/O scheduler: ask for limits = kernel"
    return [
        _arm(
            f"{sync}, {scheduler}",
            f"{said}, with the I/O scheduler {scheduler}.",
            sync,
            ("small memory",),
            [2, 4],
            scheduler=scheduler,
            not_run=words if limits == "modelled" else None,
        )
        for sync, said in BOTH
    ]


def of_commits(repo: str, scans: Sequence[int], table_mb: int) -> list[pg.Arm]:
    """Without the ring and scans in step, with the ring, and with both, as committed in 2007.

    Shared buffers have room for a ring of 256 kB for each scan, and for little else: without a
    ring, what one scan leaves there spares the next one the disk.
    """
    buffers = {"shared_buffers": f"{max(2, table_mb // 32, max(scans) // 4)}MB"}
    slow = ("small and slow",)
    listed = []
    for name, (commit, sync, said) in COMMITS.items():
        arm = _arm(name, said, sync, slow, scans, settings=buffers, of_commit=True)
        listed.append((arm, commit))
    return on_commits(repo, listed)


def has_drive(arm: pg.Arm, case: str) -> bool:
    """Whether the scans of an arm run on this modelled drive; commits only where they judge."""
    return arm.name in {"off", "on"} or (arm.name in JUDGING and case == "cfq")


def _arm(
    name: str,
    description: str,
    sync: str,
    cases: Sequence[str],
    counts: Sequence[int],
    *,
    settings: Mapping[str, str] | None = None,
    scheduler: str | None = None,
    release: str | None = None,
    not_run: str | None = None,
    of_commit: bool = False,
) -> pg.Arm:
    options = {
        "sync": sync,
        "cases": cases,
        "counts": counts,
        "scheduler": scheduler,
        "of_commit": of_commit,
    }
    return pg.Arm(
        f"{name}, {release}" if release else name,
        description,
        server=release,
        settings=settings or {},
        options=options,
        not_run=pg.reason_not_available(release) if release else not_run,
    )


def _direct(
    name: str,
    description: str,
    sync: str,
    *,
    settings: Mapping[str, str] | None = None,
    release: str | None = None,
) -> pg.Arm:
    return _arm(
        name,
        description,
        sync,
        ("direct",),
        (2,),
        settings={**DIRECT, **(settings or {})},
        release=release,
    )
