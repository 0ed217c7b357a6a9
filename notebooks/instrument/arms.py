"""The arms of ``instrument.ipynb``: the same work, and so much more of it."""

from __future__ import annotations

import pgstudies as pg

TIMES = 100
"""So often the baseline runs the statement."""
PLANTED = [2, 10]
"""How much more often the others do (%)."""


def arms() -> list[pg.Arm]:
    """The arms, the baseline first."""
    return [
        pg.Arm(
            f"{percent} % more" if percent else "baseline",
            f"The statement {TIMES + percent} times.",
            options={"times": TIMES + percent},
        )
        for percent in [0, *PLANTED]
    ]
