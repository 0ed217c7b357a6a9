"""Arms: each is one way of doing what a study measures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Arm:
    """One way of doing it: a prepared state, server settings, options for the procedure.

    Attributes:
        name: What the pages call it.
        description: One sentence for the page.
        state: Which prepared state it starts from; arms naming the same state share it.
        settings: Server settings that differ from the study's.
        options: Values that the study's own procedure looks up.
        server: The server it runs on, in the words of ``serve``; None is the study's own.
        since: The first release that it can run on, such as "18".
        copy_of: The arm this one is a second copy of (the A/A pair).
        not_run: Why it cannot run here, known beforehand.
        memory_bytes: What it takes beside shared buffers, for all arms are up at once.
        together: Arms of one such name are up at once, however many groups there are.
        extension: One of our C extensions that it needs, built for the server that it runs on.
        own_programs: Whether it runs from a copy of its server's programs.  Arms of a server share
            one, and their second copies another, so that neither warms the caches for the other.

    """

    name: str
    description: str = ""
    state: str = "plain"
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    server: str | None = None
    since: str | None = None
    copy_of: str | None = None
    not_run: str | None = None
    memory_bytes: int = 0
    together: str | None = None
    extension: str | None = None
    own_programs: bool = False


def arm_table(arms: Sequence[Arm]) -> pl.DataFrame:
    """The arms for readers: arm, what it is, not run (why, or null)."""
    schema = dict.fromkeys(["arm", "what it is", "not run"], pl.String())
    rows = [(arm.name, arm.description, arm.not_run) for arm in arms]
    return pl.DataFrame(rows, schema=schema, orient="row")


def baseline_of(arms: Sequence[Arm]) -> Arm:
    """The first arm that can run, as far as known; the first arm if none can."""
    return next((arm for arm in arms if arm.not_run is None), arms[0])
