"""The arms of ``swept.ipynb``."""

from __future__ import annotations

import pgstudies as pg


def arms(*, twice: bool) -> list[pg.Arm]:
    """One row, and two or one."""
    return [
        pg.Arm("one", options={"rows": 1}),
        pg.Arm("two", options={"rows": 2 if twice else 1}),
    ]
