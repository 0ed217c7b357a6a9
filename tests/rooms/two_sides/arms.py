"""The arms of ``two_sides.ipynb``."""

from __future__ import annotations

import pgstudies as pg


def arms() -> list[pg.Arm]:
    """Two that are alike, and one that the candidate refuses."""
    return [
        pg.Arm("plain", "As it is."),
        pg.Arm("other", "A copy.", state="other"),
        pg.Arm("refusing", "Cannot run on the candidate.", options={"refuse": True}),
    ]
