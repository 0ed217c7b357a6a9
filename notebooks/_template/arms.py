"""The arms of ``_template.ipynb``."""

from __future__ import annotations

import pgstudies as pg


def arms() -> list[pg.Arm]:
    """The arms; first the baseline, which the others' ratios divide by."""
    return [
        pg.Arm("fillfactor 100", "The default."),
        pg.Arm(
            "fillfactor 50",
            "Half of every page is kept free.",
            state="half",
            options={"fill": 50},
        ),
    ]
