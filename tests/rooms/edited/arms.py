"""The arms of ``edited.ipynb``."""

from __future__ import annotations

import pgstudies as pg


def arms() -> list[pg.Arm]:
    """The arms to be measured."""
    return [pg.Arm("plain", options={"key": 7})]
