"""The arms of ``instrument.ipynb``: the same work, so much more of it, and a carry-over."""

from __future__ import annotations

import pgstudies as pg

TIMES = 100
"""So often the baseline runs the statement."""
PLANTED = [2, 10]
"""How much more often the others do (%)."""

EMPTIES, LIVES = "empties the cache", "lives in the cache"
"""The arms of a planted carry-over, which take part in nothing else."""


def arms() -> list[pg.Arm]:
    """The arms, the baseline first."""
    of_work = [
        pg.Arm(
            f"{percent} % more" if percent else "baseline",
            f"The statement {TIMES + percent} times.",
            options={"times": TIMES + percent},
        )
        for percent in [0, *PLANTED]
    ]
    return [
        *of_work,
        pg.Arm(
            EMPTIES,
            "Writes more memory than the second-level cache holds.",
            options={"times": 0, "does": "empties"},
        ),
        pg.Arm(
            LIVES,
            "Reads memory that fits into that cache, in random order.",
            options={"times": 0, "does": "lives"},
        ),
    ]
