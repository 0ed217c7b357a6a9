"""A comparison of two servers: what was asked for, and its records."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..paths import records_dir
from ..records.reading import infos_below, read_info

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ._design import Arm


BASELINE, AGAIN, CANDIDATE = "baseline", "baseline (again)", "candidate"


SIDES = (BASELINE, AGAIN, CANDIDATE)


COMPARED = "compare_"
"""How the records of comparisons are named: before the study's name, so that no page takes them."""


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

    """

    baseline: Side
    candidate: Side
    arms: tuple[str, ...] = ()
    copies: bool = True
    pin: bool = True
    seconds: float = 0.0
    since: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The comparison in the types of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """The comparison of which ``as_dict`` made this."""
        sides = {name: Side(**values[name]) for name in (BASELINE, CANDIDATE)}
        return cls(**{**values, **sides, "arms": tuple(values["arms"])})


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
