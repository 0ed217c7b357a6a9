"""How the bench prints a figure."""

from __future__ import annotations

import sys


def report(what: str, measured: str, wanted: str) -> None:
    """One line: what was measured, what came out, and what is wanted."""
    print(f"{what:<62} {measured:>18}   {wanted}")
    sys.stdout.flush()
