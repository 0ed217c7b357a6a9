"""The design of a comparison: every arm on both sides."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NotRequired, Self, TypedDict, cast

import msgspec

from pgservers.errors import StudyError
from pgservers.servers.facts import examined
from pgservers.servers.managed import ManagedServer
from pgservers.servers.settings import merged
from pgstudies.checking import checked
from pgstudies.measuring.design import Design
from pgstudies.records.info import Info

from .observing import ObservedTrial, PlansAndResults, different_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgservers.servers.serve import Server
    from pgstudies.measuring.arms import Arm
    from pgstudies.measuring.trial import Trial
    from pgstudies.records.info import ArmFacts, Setup


BASELINE, COPY, CANDIDATE = "baseline", "baseline (again)", "candidate"
"""The sides of a comparison; records name them so."""

SIDES = (BASELINE, COPY, CANDIDATE)

COMPARED = "compare_"
"""The prefix of a study's name in records of comparisons, so that no page uses them."""


class Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the two: a server, as ``serve`` names it, and settings that only it has."""

    server: str
    settings: dict[str, str] = {}

    def __str__(self) -> str:
        declared = ", ".join(f"{name} = {value}" for name, value in self.settings.items())
        return f"{self.server} with {declared}" if declared else self.server


class OtherRows(TypedDict):
    """Rows of a statement's result that only one side of a comparison has."""

    of: str  # the study's arm
    step: str
    rows: list[tuple[str, str]]  # the side, and the row


class Besides(TypedDict):
    """What the record of a comparison knows besides."""

    comparison: dict[str, Any]  # as ``Comparison.as_dict`` has it
    facts: dict[str, dict[str, Any]]  # of the servers, by arm
    plans: dict[str, dict[str, str]]  # by arm and step
    rows: NotRequired[list[OtherRows]]
    links: NotRequired[list[dict[str, Any]]]  # of programs: block, arm, seed, sha256
    environments: NotRequired[list[dict[str, Any]]]  # of servers: block, arm, padding_bytes


class ComparedInfo(Besides, Info):
    """The whole of it."""


def of_comparison(info: Info) -> ComparedInfo:
    """The same, if it is a comparison's record; else raises StudyError."""
    checked(info, Besides, f"A record of {info['study']} is no comparison")
    return cast("ComparedInfo", info)


@dataclass(frozen=True)
class Comparison:
    """What is compared.

    Attributes:
        baseline: The side that is divided by.
        candidate: The other one.
        pin: Whether studies may keep client and server on one core.

    """

    baseline: Side
    candidate: Side
    pin: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The comparison in the types of JSON."""
        about: dict[str, Any] = msgspec.to_builtins(self)
        return about

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """The comparison from its ``as_dict``; raises StudyError for anything else."""
        return checked(values, cls, "A comparison is invalid")


@dataclass(frozen=True, kw_only=True)
class ComparisonDesign(Design):
    """Every arm chosen on both sides, the baseline twice.

    Attributes:
        comparison: What is compared.
        stands_for: By the name of an arm, the study's own arm and the side it is on.
        links: What the links of all blocks are drawn from, alike for all studies.
        seen: By the name of an arm, what its statements did so far.

    """

    comparison: Comparison
    stands_for: Mapping[str, tuple[Arm, str]]
    links: str
    seen: Mapping[str, PlansAndResults] = field(
        default_factory=lambda: defaultdict(PlansAndResults), compare=False
    )

    @property
    def needed(self) -> None:
        """Whether an arm may be left out: in a comparison any arm, on all sides."""
        return

    def in_force(
        self,
        settings: Mapping[str, str],
        as_then: Mapping[str, str],  # noqa: ARG002  (a study's own run has them)
    ) -> Mapping[str, str]:
        """The study's settings alone: the two servers are compared as they are."""
        return settings

    def own(self, arm: Arm) -> Arm:
        """The study's arm that this one stands for."""
        return self.stands_for[arm.name][0]

    def served(
        self, errors: Mapping[str | None, StudyError], lacking: Mapping[str, str] = {}
    ) -> Self:
        """The design without the arms that a side cannot run; raises StudyError with none left."""
        for error in errors.values():
            raise error
        reasons: dict[str, str] = {}
        for name, reason in lacking.items():
            own, side = self.stands_for[name]
            reasons.setdefault(own.name, f"{reason}, on the {side}")
        arms = [
            replace(arm, not_run=arm.not_run or reasons.get(self.own(arm).name))
            for arm in self.arms
        ]
        if all(arm.not_run for arm in arms):
            raise StudyError(f"No arm can be compared: {arms[0].not_run}.")
        return replace(self, arms=tuple(arms))

    def units(self, arms: Sequence[Arm]) -> tuple[list[Arm], list[list[Arm]]]:
        """No arm is in every group; the sides of an arm run together."""
        names = dict.fromkeys(self.own(arm).name for arm in arms)
        return [], [[arm for arm in arms if self.own(arm).name == name] for name in names]

    def fall_with(self, arm: Arm) -> list[Arm]:
        """All sides of the arm."""
        return [other for other in self.arms if self.own(other).name == self.own(arm).name]

    def fails_on(self, arm: Arm) -> str:
        """The arm's side: an arm that fails on one side is not compared."""
        return f"the {self.stands_for[arm.name][1]}"

    def continues(self, info: Info) -> bool:
        """Complete records of the same two sides count: further blocks are added to theirs."""
        if self.fresh or "comparison" not in info:
            return False
        own, found = self.comparison, Comparison.from_dict(cast("ComparedInfo", info)["comparison"])
        return (found.baseline, found.candidate) == (own.baseline, own.candidate)

    def begin(self, info: Info, block: int, arm: Arm, server: Server) -> None:
        """Draw the size of the server's environment, and link its program anew where it can be.

        All servers of a side have one link in a block, whatever the study.
        """
        if not isinstance(server, ManagedServer):
            return
        side = self.stands_for[arm.name][1]
        seed = random.Random(f"{self.links} {block} {side}").getrandbits(31)  # noqa: S311
        draw = random.Random(f"{info['seed']} {block} {arm.name}")  # noqa: S311  (no secret)
        padding_bytes = draw.randrange(_PADDINGS)
        where = {"block": block, "arm": arm.name}
        server.pad(padding_bytes)
        padded = {**where, "padding_bytes": padding_bytes}
        kept = cast("ComparedInfo", info)
        kept["environments"] = _with(kept.get("environments", []), padded)
        if server.can_relink:
            linked = {**where, "seed": seed, "sha256": server.relink(seed)}
            kept["links"] = _with(kept.get("links", []), linked)

    def trial(self, server: Server, arm: Arm, **where: Any) -> Trial:
        """A trial whose statements and waits are observed."""
        seen = self.seen[arm.name]
        return ObservedTrial(server, arm, own=self.own(arm), seen=seen, **where)

    def note(self, info: Info, trials: Mapping[str, Trial]) -> None:
        """Keep the servers' facts, the plans, and rows that only one side's result has."""
        kept = cast("ComparedInfo", info)
        for name, trial in trials.items():
            if name not in kept["facts"]:
                kept["facts"][name] = examined(trial.server)
            kept["plans"][name] = self.seen[name].plans
        names = {(own.name, side): name for name, (own, side) in self.stands_for.items()}
        for of in dict.fromkeys(of for of, _ in names):
            sides = [self.seen[names[of, s]].rows for s in SIDES if (of, s) in names]
            baseline, *again, candidate = sides
            for step in baseline.keys() & candidate.keys():
                known = any((entry["of"], entry["step"]) == (of, step) for entry in kept["rows"])
                random = any(copy.get(step) != baseline[step] for copy in again)
                found = different_rows(baseline[step], candidate[step])
                if found and not known and not random:
                    rows = [((BASELINE, CANDIDATE)[side], row) for side, row in found]
                    kept["rows"].append({"of": of, "step": step, "rows": rows})

    def describe(self, arm: Arm) -> ArmFacts:
        """The facts of an arm in record.json, with the study's arm (``of``) and the side."""
        own, side = self.stands_for[arm.name]
        return {**super().describe(arm), "of": own.name, "side": side}

    def completed(self, setup: Setup) -> Setup:
        """The same, with the comparison; the rest is added to it."""
        about = self.comparison.as_dict()
        return cast("Setup", {**setup, "comparison": about, "facts": {}, "plans": {}, "rows": []})


_PADDINGS = 4096
"""The number of sizes of the environment: 0 to one page less a byte."""


def _with(entries: Sequence[dict[str, Any]], drawn: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries and what is drawn for a block, in place of what was when it was interrupted."""
    place = drawn["block"], drawn["arm"]
    return [*(e for e in entries if (e["block"], e["arm"]) != place), drawn]


def designed(
    study: str,
    arms: Sequence[Arm],
    comparison: Comparison,
    *,
    links: str = "",
    fresh: bool = False,
) -> ComparisonDesign:
    """The design that runs these arms of a study on every side.

    ``links`` is what programs are relinked by.  With ``fresh`` no earlier record is continued.
    Raises StudyError where none of them can run.
    """
    if all(arm.not_run for arm in arms):
        raise StudyError(f"No arm can be compared: {arms[0].not_run}.")
    stands_for = {f"{arm.name}, {side}": (arm, side) for arm in arms for side in SIDES}
    return ComparisonDesign(
        study=f"{COMPARED}{study}",
        arms=tuple(_on_side(comparison, name, *arm) for name, arm in stands_for.items()),
        pin=comparison.pin,
        fresh=fresh,
        comparison=comparison,
        stands_for=stands_for,
        links=links,
    )


def _on_side(comparison: Comparison, name: str, arm: Arm, side: str) -> Arm:
    settings, server = comparison.baseline.settings, None
    # Where only settings differ, both are the same server's.
    are_two = comparison.candidate.server != comparison.baseline.server
    if side == CANDIDATE:
        settings = comparison.candidate.settings
        server = comparison.candidate.server if are_two else None
    return replace(
        arm,
        name=name,
        server=server,
        settings=merged(arm.settings, settings),
        copy_of=f"{arm.name}, {BASELINE}" if side == COPY else None,
        # Else the baseline would find its code in the caches, from its copy's turns, and the
        # candidate would not: 4 to 6 % for a statement of a millisecond.  A copy that was just
        # written runs a lookup 1.6 % faster than a directory of long ago, so every side has one.
        own_programs=are_two,
    )
