"""The arms of ``workload.ipynb``: the reader's server, and releases beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pgstudies as pg

if TYPE_CHECKING:
    from collections.abc import Sequence

OWN = "this server"
EXAMPLE = Path(__file__).parent / "example"
"""The workload that is measured where the reader names none."""


def arms(*, releases: Sequence[str]) -> list[pg.Arm]:
    """The server that the parameter names, the baseline, and a release each."""
    return [
        pg.Arm(OWN, "The server that the parameter names."),
        *(
            pg.Arm(
                release,
                f"Release {release}.",
                server=release,
                not_run=pg.reason_not_available(release),
            )
            for release in releases
        ),
    ]
