"""What the doctor says of one thing: a line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One thing examined.

    Attributes:
        name: What was examined.
        ok: True if it is as wished, None if something will be left out, False if no study can run.
        sentence: What was found, and what follows from it.
        exit_code: For scripts, when ``ok`` is False.

    """

    name: str
    ok: bool | None
    sentence: str
    exit_code: int = 0

    @property
    def line(self) -> str:
        """The check as ``pgstudies doctor`` prints it."""
        mark = {True: "ok", None: "--", False: "NO"}[self.ok]
        return f"{mark}  {self.name:15} {self.sentence}"
