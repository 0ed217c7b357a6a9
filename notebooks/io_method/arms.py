"""The arms of ``io_method.ipynb``: who reads, how many workers, and how far ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pgstudies as pg
from pgservers.errors import StudyError
from pgservers.order import major_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BY_ITSELF = {"io_method": "sync"}
BY_WORKERS = {"io_method": "worker"}
NO_CHECKSUMS = "no checksums"
"""The state of a cluster without data checksums."""
NEWER = 18
"""The first release that has io_method."""


def arms(
    *,
    workers: Sequence[int],
    few_buffers_mb: Sequence[int],
    without_checksums: bool,
    concurrencies: Sequence[int],
    combine_kb: Sequence[int],
    releases: Sequence[str],
    connections: Sequence[int],
    table_mb: int,
    buffers_mb: int,
) -> list[pg.Arm]:
    """Every arm, in the order of the page, by the study's parameters.

    The kernel's cache has to hold the tables of all arms that are up at once.  Raises StudyError
    where a table stays in shared buffers.
    """
    if 4 * table_mb <= buffers_mb:
        raise StudyError(
            f"With {buffers_mb} MB of shared buffers a table of {table_mb} MB stays in them: "
            f"give table_mb more than {buffers_mb // 4}."
        )
    found = [
        _arm("sync", "Each session reads for itself, as up to 17.", BY_ITSELF),
        _arm("worker", "Worker processes read, as many as by default.", BY_WORKERS),
    ]
    for number in workers:
        words = f"{number} worker{'s' if number > 1 else ''} in place of the default."
        found.append(
            _arm(f"worker, {number}", words, BY_WORKERS | {"io_workers": str(number)})
        )
    found.append(
        _arm(
            "io_uring",
            "The kernel reads, and tells when it is done.",
            {"io_method": "io_uring"},
            cases=("cached",),
        )
    )
    for megabytes in few_buffers_mb:
        few = {"shared_buffers": f"{megabytes}MB"}
        said = f"with {megabytes} MB of shared buffers."
        for method, settings in (("sync", BY_ITSELF), ("worker", BY_WORKERS)):
            found.append(
                _arm(
                    f"{method}, {megabytes} MB",
                    f"As {method}, {said}",
                    settings | few,
                    cases=("cached",),
                )
            )
    if without_checksums:
        found += [
            _arm(
                f"{method}, {NO_CHECKSUMS}",
                f"As {method}, in a cluster without data checksums.",
                settings,
                cases=("cached",),
                state=NO_CHECKSUMS,
            )
            for method, settings in (("sync", BY_ITSELF), ("worker", BY_WORKERS))
        ]
    for name, values, unit in (
        ("effective_io_concurrency", concurrencies, ""),
        ("io_combine_limit", combine_kb, "kB"),
    ):
        for value in values:
            more = {name: f"{value}{unit}"}
            if name == "io_combine_limit":
                more["io_max_combine_limit"] = f"{value}kB"
            found.append(
                _arm(
                    f"worker, {name} = {value}{unit}",
                    f"As worker, with {name} = {value}{unit}.",
                    BY_WORKERS | more,
                )
            )
    for release in releases:
        found += of_release(release)
    tables_bytes = max(connections) * table_mb * 2**20
    return [replace(arm, memory_bytes=tables_bytes) for arm in found]


def of_release(release: str) -> list[pg.Arm]:
    """A release as it is, or from 18 on with both methods."""
    number = major_number(release)
    ways: dict[str, Mapping[str, str]] = {release: {}}
    if number >= NEWER:
        ways = {f"{release}, sync": BY_ITSELF, f"{release}, worker": BY_WORKERS}
    return [
        _arm(name, f"Release {name}.", settings, release=release)
        for name, settings in ways.items()
    ]


def _arm(
    name: str,
    description: str,
    settings: Mapping[str, str],
    *,
    cases: Sequence[str] = ("cached", "network"),
    release: str | None = None,
    state: str = "plain",
) -> pg.Arm:
    return pg.Arm(
        name,
        description,
        state=state,
        settings=settings,
        server=release,
        options={"cases": cases},
        not_run=pg.reason_not_available(release) if release else None,
    )
