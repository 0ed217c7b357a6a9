"""The journal of a run of all studies, by which the same command continues it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgservers import paths
from pgservers.files import try_lock
from pgstudies.records.writing import fingerprint
from pgstudies.rooms import find_room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..execution.plan import PlannedRun


def mark_of(planned: PlannedRun) -> str:
    """A digest of everything that decides whether a study must run again, without passwords."""
    what = [
        planned.profile,
        planned.parameters,
        planned.server.public,
        find_room(planned.study).mark,
        str(paths.records_dir()),
    ]
    return fingerprint({planned.study: what})


@contextmanager
def journal(
    marks: Mapping[str, str], *, fresh: bool = False
) -> Iterator[tuple[list[str], Callable[[str], object]]]:
    """Yields the studies that an interrupted run has finished, and a function to note another.

    ``marks`` has the ``mark_of`` each study.  The run counts as interrupted until this context is
    left without an exception.  A second run at the same time neither reads nor writes a journal.
    """
    file = paths.BUILD / "run-all"
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = try_lock(file)
    if descriptor is None:
        yield [], lambda _: None
        return
    try:
        if fresh:
            os.truncate(descriptor, 0)
        known = file.read_text(encoding="utf-8").split("\n")
        done = [
            study
            for study, mark in marks.items()
            if f"{study} {mark}" in known and (paths.STUDIES / f"{study}.ipynb").exists()
        ]
        os.lseek(descriptor, 0, os.SEEK_END)
        yield done, lambda study: os.write(descriptor, f"{study} {marks[study]}\n".encode())
        file.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
