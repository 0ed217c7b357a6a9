"""The arms of ``releases.ipynb``: a release each, and the server that the reader names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pgstudies as pg
from pgservers.programs.releases import find_release

if TYPE_CHECKING:
    from collections.abc import Sequence


def arms(*, server: str, releases: Sequence[str]) -> list[pg.Arm]:
    """The releases, and a server of the reader's own last, or where no release is at hand."""
    listed = [_arm(release) for release in releases]
    if server or all(arm.not_run for arm in listed):
        listed.append(
            pg.Arm(
                "this server",
                "In its own way: the server that the parameter names.",
                options={"built": None},
            )
        )
    return listed


def _arm(release: str) -> pg.Arm:
    built = find_release(release).built
    return pg.Arm(
        release,
        built,
        options={"built": built},
        server=release,
        not_run=pg.reason_not_available(release),
    )
