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

from ..workload.statements import without_comments
from .observing import ObservedTrial, PlansAndResults, different_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgservers.servers.serve import Server
    from pgstudies.measuring.arms import Arm
    from pgstudies.measuring.trial import Trial
    from pgstudies.records.info import ArmFacts, Setup


BASELINE, COPY, CANDIDATE = "baseline", "baseline (again)", "candidate"
"""The names of the sides in records."""

SIDES = (BASELINE, COPY, CANDIDATE)

COMPARED = "compare_"
"""Prefix of the study's name in records of comparisons, so that no page of the study uses them."""


class Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One side of a comparison.

    Attributes:
        server: The server, as ``serve`` names it.
        settings: The settings of this side alone.
        sql: The lines of SQL that is executed on this side alone once a workload is loaded.

    """

    server: str
    settings: dict[str, str] = {}
    sql: tuple[str, ...] = ()

    def __str__(self) -> str:
        declared = [f"{name} = {value}" for name, value in self.settings.items()]
        declared += [" ".join(without_comments("\n".join(self.sql)).split())] if self.sql else []
        return f"{self.server} with {', '.join(declared)}" if declared else self.server


class OtherRows(TypedDict):
    """Rows of a statement's result that only one side returned."""

    of: str  # the study's arm
    step: str
    rows: list[tuple[str, str]]  # the side, and the row


class Besides(TypedDict):
    """The keys that only the record of a comparison has."""

    comparison: dict[str, Any]  # in the types of JSON
    facts: dict[str, dict[str, Any]]  # of the servers, by arm
    plans: dict[str, dict[str, str]]  # by arm and step
    analyzed: NotRequired[dict[str, dict[str, str]]]  # likewise
    rows: NotRequired[list[OtherRows]]
    links: NotRequired[list[dict[str, Any]]]  # of programs: block, arm, seed, sha256
    environments: NotRequired[list[dict[str, Any]]]  # of servers: block, arm, padding_bytes


class ComparedInfo(Besides, Info):
    """The contents of a comparison's record.json."""


def of_comparison(info: Info) -> ComparedInfo:
    """``info`` as a comparison's; raises StudyError for another record."""
    checked(info, Besides, f"A record of {info['study']} is no comparison")
    return cast("ComparedInfo", info)


@dataclass(frozen=True)
class Comparison:
    """The two sides, and whether studies may ``pin`` client and server to one core."""

    baseline: Side
    candidate: Side
    pin: bool = True

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """The comparison from the types of JSON; raises StudyError for anything else."""
        return checked(values, cls, "A comparison is invalid")


@dataclass(frozen=True, kw_only=True)
class ComparisonDesign(Design):
    """Every arm chosen on both sides, the baseline twice.

    Attributes:
        comparison: The two sides.
        stands_for: By the name of an arm, the study's own arm and its side.
        links: The seed of the order of links, the same for all studies.
        seen: By the name of an arm, the plans and results of its statements so far.

    """

    comparison: Comparison
    stands_for: Mapping[str, tuple[Arm, str]]
    links: str
    seen: Mapping[str, PlansAndResults] = field(
        default_factory=lambda: defaultdict(PlansAndResults), compare=False
    )

    @property
    def needed(self) -> None:
        """None: any arm may be left out, on all sides."""
        return

    def in_force(
        self,
        settings: Mapping[str, str],
        as_then: Mapping[str, str],  # noqa: ARG002  (for a study's own run)
    ) -> Mapping[str, str]:
        """The study's settings without ``as_then``: servers are compared as they are."""
        return settings

    def own(self, arm: Arm) -> Arm:
        """The study's arm that this one stands for."""
        return self.stands_for[arm.name][0]

    def served(
        self, errors: Mapping[str | None, StudyError], lacking: Mapping[str, str] = {}
    ) -> Self:
        """The design without the arms that a side cannot run.

        Raises StudyError if no arm is left, and the error of a server that could not be started.
        """
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
        """The arm's side, in words: an arm that fails on one side is not compared."""
        return f"the {self.stands_for[arm.name][1]}"

    def continues(self, info: Info) -> bool:
        """Whether the record is of the same two sides; a complete one gets further blocks too."""
        if self.fresh or "comparison" not in info:
            return False
        found = Comparison.from_dict(cast("ComparedInfo", info)["comparison"])
        return replace(found, pin=self.comparison.pin) == self.comparison

    def begin(self, info: Info, block: int, arm: Arm, server: Server) -> None:
        """Draw the size of the server's environment, and relink its program if that is possible.

        In a block all servers of a side have the same link, whatever the study.
        """
        if not isinstance(server, ManagedServer):
            return
        side = self.stands_for[arm.name][1]
        seed = random.Random(f"{self.links} {block} {side}").getrandbits(31)  # noqa: S311
        draw = random.Random(f"{info['seed']} {block} {arm.name}")  # noqa: S311  (no secret)
        where: dict[str, Any] = {"block": block, "arm": arm.name}
        padded = {**where, "padding_bytes": draw.randrange(_PADDINGS)}
        server.pad(padded["padding_bytes"])
        kept = cast("ComparedInfo", info)
        kept["environments"] = _with(kept.get("environments", []), padded)
        if server.can_relink:
            linked = {**where, "seed": seed, "sha256": server.relink(seed)}
            kept["links"] = _with(kept.get("links", []), linked)

    def trial(self, server: Server, arm: Arm, **where: Any) -> Trial:
        """A trial that observes its statements and waits."""
        return ObservedTrial(server, arm, own=self.own(arm), seen=self.seen[arm.name], **where)

    def note(self, info: Info, trials: Mapping[str, Trial]) -> None:
        """Keep the servers' facts, the plans, and the rows that only one side's results have."""
        kept = cast("ComparedInfo", info)
        for name, trial in trials.items():
            if name not in kept["facts"]:
                kept["facts"][name] = examined(trial.server)
            kept["plans"][name] = self.seen[name].plans
            kept["analyzed"] = {**kept.get("analyzed", {}), name: self.seen[name].analyzed}
        known = {(entry["of"], entry["step"]) for entry in kept["rows"]}
        for of in dict.fromkeys(own.name for own, _ in self.stands_for.values()):
            baseline, copy, candidate = (self.seen[_on(side, of)].rows for side in SIDES)
            for step in baseline.keys() & candidate.keys():
                is_random = copy.get(step) != baseline[step]
                found = different_rows(baseline[step], candidate[step])
                if found and not is_random and (of, step) not in known:
                    rows = [((BASELINE, CANDIDATE)[side], row) for side, row in found]
                    kept["rows"].append({"of": of, "step": step, "rows": rows})

    def describe(self, arm: Arm) -> ArmFacts:
        """The facts of an arm in record.json, with the study's arm (``of``) and the side."""
        own, side = self.stands_for[arm.name]
        return {**super().describe(arm), "of": own.name, "side": side}

    def completed(self, setup: Setup) -> Setup:
        """``setup`` with the comparison, and with the keys that blocks add to."""
        about = msgspec.to_builtins(self.comparison)
        return cast("Setup", {**setup, "comparison": about, "facts": {}, "plans": {}, "rows": []})


_PADDINGS = 4096
"""The number of sizes of the environment: 0 to one page less a byte."""


def _with(entries: Sequence[dict[str, Any]], drawn: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries and ``drawn``, in place of what an interrupted try of the block has drawn."""
    place = drawn["block"], drawn["arm"]
    return [*(e for e in entries if (e["block"], e["arm"]) != place), drawn]


def _on(side: str, arm: str) -> str:
    """The name of a study's arm on a side."""
    return f"{arm}, {side}"


def designed(
    study: str,
    arms: Sequence[Arm],
    comparison: Comparison,
    *,
    links: str = "",
    fresh: bool = False,
) -> ComparisonDesign:
    """The design that runs these arms of a study on every side.

    ``links`` is the seed of the order of links.  With ``fresh`` no earlier record is continued.
    """
    stands_for = {
        _on(side, arm.name): (_with_sql(comparison, arm, side), side)
        for arm in arms
        for side in SIDES
    }
    return ComparisonDesign(
        study=f"{COMPARED}{study}",
        arms=tuple(_on_side(comparison, *of) for of in stands_for.values()),
        pin=comparison.pin,
        fresh=fresh,
        comparison=comparison,
        stands_for=stands_for,
        links=links,
    )


def _with_sql(comparison: Comparison, arm: Arm, side: str) -> Arm:
    """The study's arm, from a state of its own if this side has SQL."""
    lines = (comparison.candidate if side == CANDIDATE else comparison.baseline).sql
    if not lines:
        return arm
    of = CANDIDATE if side == CANDIDATE else BASELINE
    return replace(arm, state=f"{arm.state}, {of}", options={**arm.options, "sql": [*lines]})


def _on_side(comparison: Comparison, arm: Arm, side: str) -> Arm:
    is_candidate = side == CANDIDATE
    chosen = comparison.candidate if is_candidate else comparison.baseline
    # If only settings differ, all sides run on one server.
    are_two = comparison.candidate.server != comparison.baseline.server
    return replace(
        arm,
        name=_on(side, arm.name),
        server=chosen.server if is_candidate and are_two else None,
        settings=merged(arm.settings, chosen.settings),
        copy_of=_on(BASELINE, arm.name) if side == COPY else None,
        # Without copies the baseline would find its code in the caches after its copy's turns, and
        # the candidate would not: 4 to 6 % for a statement of a millisecond.  As a copy just
        # written runs a lookup 1.6 % faster than an old directory, every side has one.
        own_programs=are_two,
    )
