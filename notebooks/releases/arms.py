"""The arms of ``releases.ipynb``: a release or build each, and the server that the reader names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pgstudies as pg
from pgapps.counting.points import points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgapps.counting.points import Point


def arms(*, server: str, releases: Sequence[str]) -> list[pg.Arm]:
    """The releases, and a server of the reader's own last, or where no release is at hand."""
    listed = [_arm(point) for point in points(releases)]
    if server or all(arm.not_run for arm in listed):
        listed.append(
            pg.Arm(
                "this server",
                "In its own way: the server that the parameter names.",
                options={"built": None},
            )
        )
    return listed


def _arm(point: Point) -> pg.Arm:
    return pg.Arm(
        point.name,
        point.built or "build not known",
        options={"built": point.built},
        server=point.server,
        not_run=point.reason,
    )
