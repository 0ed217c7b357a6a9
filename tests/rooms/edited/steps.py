"""A step of ``edited.ipynb``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgstudies.measuring.trial import Trial


def find(trial: Trial, key: int) -> None:
    """Find a row."""
    trial.timed("find", f"SELECT i FROM t WHERE i = {key}")
