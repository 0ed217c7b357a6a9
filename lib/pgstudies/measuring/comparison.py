"""A comparison of two servers: what was asked for, and the arms of a study on both sides."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from ..errors import StudyError
from ..paths import records_dir
from ..records.reading import infos_below, read_info
from ..servers.settings import merged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ._arms import Arm


BASELINE, AGAIN, CANDIDATE = "baseline", "baseline again", "candidate"


SIDES = (BASELINE, AGAIN, CANDIDATE)


COMPARED = "compare_"
"""How the records of comparisons are named: before the study's name, so that no page takes them."""


REQUEST = "PGSTUDIES_COMPARE"
"""The environment variable by which the notebook of a study learns of the comparison."""


@dataclass(frozen=True)
class Comparison:
    """What is compared, in which arms of a study, and for how long.

    Attributes:
        baseline: The side that is divided by.
        candidate: The other one.
        arms: The names of the study's arms; empty for all that run on the study's own server.
        copies: Whether a second copy of the baseline runs as well (A/A).
        pin: Whether studies may keep client and server on one core.
        seconds: No block but the first begins that would probably end later than this; 0 for no
            limit.
        since: Blocks measured before this time (UTC) do not count; empty for all.
        told: The file into which ``measure`` writes the fingerprint of its records.

    """

    baseline: Side
    candidate: Side
    arms: tuple[str, ...] = ()
    copies: bool = True
    pin: bool = True
    seconds: float = 0.0
    since: str = ""
    told: str = ""

    def to_json(self) -> str:
        """The comparison as text, for ``$PGSTUDIES_COMPARE``."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """The comparison that ``to_json`` wrote."""
        values = json.loads(text)
        sides = {name: Side(**values[name]) for name in (BASELINE, CANDIDATE)}
        return cls(**values | sides | {"arms": tuple(values["arms"])})


def asked() -> Comparison | None:
    """The comparison that this process is part of; None in an ordinary run."""
    text = os.environ.get(REQUEST)
    return Comparison.from_json(text) if text else None


def both_sides(comparison: Comparison, arms: Sequence[Arm]) -> list[Arm]:
    """Every chosen arm of a study on both servers, the baseline twice.

    The baseline is the study's own server.  Raises StudyError for an unknown arm, and when none
    can run.
    """
    own = {arm.name: arm for arm in arms if arm.server is None}
    unknown = [name for name in comparison.arms if name not in own]
    if unknown:
        raise StudyError(
            f"The study has no arm {unknown[0]!r} to compare; there is {', '.join(own)}."
        )
    chosen = [own[name] for name in comparison.arms or own]
    if all(arm.not_run for arm in chosen):
        raise StudyError(f"No arm can be compared: {chosen[0].not_run}.")
    # One server for both where only settings differ: it is started anew for every trial.
    other = comparison.candidate.server
    servers = {CANDIDATE: None if other == comparison.baseline.server else other}
    settings = {CANDIDATE: comparison.candidate.settings}
    return [
        replace(
            arm,
            name=f"{arm.name}, {name}",
            plays=arm.name,
            side=name,
            server=servers.get(name),
            settings=merged(arm.settings, settings.get(name, comparison.baseline.settings)),
            repeats=f"{arm.name}, {BASELINE}" if name == AGAIN else None,
        )
        for arm in chosen
        for name in SIDES
        if comparison.copies or name != AGAIN
    ]


def played(arm: Arm) -> Arm:
    """The study's own arm, as its procedure knows it."""
    return replace(arm, name=arm.plays, server=None, repeats=None) if arm.plays else arm


def records_of(study: str, mark: str, since: str = "") -> list[Path]:
    """The records of one comparison, oldest first; ``study`` is its name in the records.

    ``since`` leaves out those begun before.
    """
    found = infos_below(records_dir(), study)
    return [d for d, i in found if i.get("fingerprint") == mark and str(i["started_at"]) >= since]


def blocks_compared(study: str, mark: str, since: str = "") -> int:
    """How many blocks the complete records of a comparison have; the next begins after them."""
    infos = [read_info(directory) for directory in records_of(study, mark, since)]
    done = [entry["block"] for i in infos if i["status"] == "complete" for entry in i["timeline"]]
    return max(done, default=0)


@dataclass(frozen=True)
class Side:
    """One of the two: a server in the words of ``serve``, and settings that only it has."""

    server: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        declared = ", ".join(f"{name} = {value}" for name, value in self.settings.items())
        return f"{self.server} with {declared}" if declared else self.server
