"""How a bisection measures a commit: by counting, by a plan, or by time against an end."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from pgservers.addresses import EMBEDDED
from pgservers.errors import CannotRun, ServerError, SpaceError, StudyError
from pgservers.servers.serve import serve
from pgservers.terminal import rough_duration, say
from pgstudies.rooms import rooms

from ..compare.design import Side
from ..compare.judging.measured import compared_effects
from ..compare.plan import Fit
from ..compare.request import Request, share_cores_alike, typed
from ..compare.run import measured_blocks
from ..counting.counter import Counter
from ..counting.units import units
from ..workload.counting import statement_units
from ..workload.steps import runnable, steps_of
from .bisection import WORTH
from .bisection import bisect as search
from .record import RATIO, SHAPE, CommitRecord
from .report import as_text, moved_functions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from pgservers.terminal import Progress

    from ..builds.builder import Builder
    from ..builds.repository import Repository
    from ..counting.units import Unit
    from .bisection import Found, Step


LOOKS = (8, 12, 18, 27)
"""Blocks after which a comparison of two builds is looked at, until it says which end is nearer."""

SAMPLED = {"default_statistics_target": "1000", "autovacuum": "off", "fsync": "off"}
"""For plans: statistics of up to 300,000 rows are of all of them, and the same each time."""


@dataclass(frozen=True)
class Bench:
    """Where commits are built and measured, and between which ends."""

    builder: Builder
    repository: Repository
    progress: Progress
    ends: tuple[str, str]

    def about(self, sha: str) -> str:
        """A commit in words, for the record."""
        return self.repository.commit(sha).about


@dataclass(frozen=True)
class Look:
    """How a commit gets its number, and how a change of it is reported.

    Attributes:
        what: The name of what is measured.
        about: More parameters of the record.
        same: What must be alike for a record to be continued.
        measure: Writes a commit's number into the record; raises CannotRun.
        answer: The result, as text.
        describe: Puts a number into words.
        worth: The part of the whole below which no further step is searched for; None for the
            default.

    """

    what: str
    measure: Callable[[str, CommitRecord], None]
    answer: Callable[[Found, CommitRecord], str]
    about: Mapping[str, Any] = field(default_factory=dict)
    same: Sequence[Any] = ()
    describe: Callable[[float], str] = "{:,.0f}".format
    worth: float | None = None


def bisected(bench: Bench, look: Look) -> tuple[str, Path]:
    """Run a bisection; returns its answer and its record."""
    took: list[float] = []
    repository, progress = bench.repository, bench.progress

    def measure(sha: str) -> float:
        if (sha, look.what) in record.levels:
            return record.levels[sha, look.what]
        if sha in record.reasons:
            raise CannotRun(record.reasons[sha])
        began = time.monotonic()
        try:
            look.measure(sha, record)
        except CannotRun as reason:
            record.skip(sha, bench.about(sha), str(reason))
            raise
        took.append(time.monotonic() - began)
        progress.advance()
        return record.levels[sha, look.what]

    def show(what: str, steps: int) -> None:
        left = f", {rough_duration(steps * sum(took) / len(took))} left" if took else ""
        progress.show(f"{what}{left}")

    good, bad = bench.ends
    parameters = {
        "repo": str(repository.source),
        "good": repository.commit(good).sha,
        "bad": repository.commit(bad).sha,
        "unit": look.what,
        **look.about,
    }
    worth = WORTH if look.worth is None else look.worth
    how = bench.builder.how
    with continued(), CommitRecord("bisect", parameters, built=how, same=look.same) as record:
        found = search(
            repository, good, bad, measure, show=show, describe=look.describe, worth=worth
        )
        text = look.answer(found, record)
        path = record.finish(steps=[step.as_dict() for step in found.steps], answer=text)
    return text, path


def by_counting(bench: Bench, unit: Unit) -> Look:
    """By the instructions of a unit of work."""

    def counted(sha: str) -> tuple[pl.DataFrame, str]:
        server = str(bench.builder.build(sha))
        with Counter(server, show=bench.progress.show) as counter:
            return counter.count(unit, twice=False), counter.version_text

    def measure(sha: str, record: CommitRecord) -> None:
        table, version = counted(sha)
        record.add(sha, {unit.name: table}, description=bench.about(sha), version_text=version)

    def answer(found: Found, _: CommitRecord) -> str:
        with bench.repository.held():
            functions = {
                step.commit.sha: moved_functions(step, lambda sha: counted(sha)[0])
                for step in found.steps
                if step.commit.sha in found.levels
            }
        return as_text(found, unit.name, functions)

    return Look(unit.name, measure, answer, same=unit.what_counts())


def by_plan(bench: Bench, unit: Unit) -> Look:
    """By the plan of a workload's statement, on its data, loaded and analyzed anew."""

    def planned(sha: str) -> tuple[str, str]:
        server_of = str(bench.builder.build(sha))
        with serve(server_of, settings=SAMPLED | dict(unit.settings)) as server:
            bench.progress.show("loading the workload")
            assert unit.load is not None
            unit.load(server)
            with server.connect() as connection:
                rows = connection.execute(f"EXPLAIN (COSTS OFF) {unit.query}".encode()).fetchall()
            return "\n".join(line for (line,) in rows), server.version_text

    def measure(sha: str, record: CommitRecord) -> None:
        plan, version = planned(sha)
        shapes = list(dict.fromkeys([*(p[unit.name] for p in record.plans.values()), plan]))
        record.note(
            sha,
            unit.name,
            1 + shapes.index(plan),
            metric=SHAPE,
            description=bench.about(sha),
            version_text=version,
            plan=plan,
        )

    def answer(found: Found, record: CommitRecord) -> str:
        def both(step: Step) -> list[str]:
            after = record.plans.get(step.commit.sha) or record.plans[_first_after(found, step)]
            plans = {"before": record.plans[step.since], "after": after}
            return [
                line
                for name, plan in plans.items()
                for line in (
                    f"  {name}:",
                    *(f"    {each}" for each in plan[unit.name].splitlines()),
                )
            ]

        return as_text(
            found,
            unit.name,
            {},
            headline=lambda _: "another plan",
            more=both,
            limits="Plans of data that each commit's own server loaded and analyzed.",
        )

    about = {"by": "plan"}
    same = [unit.query, unit.loaded, SAMPLED]
    return Look(
        unit.name, measure, answer, about=about, same=same, describe=lambda n: f"plan {n:.0f}"
    )


def _first_after(found: Found, step: Step) -> str:
    """A commit with the number that a step leads to."""
    return next(sha for sha, level in found.levels.items() if level == step.after)


def by_time(bench: Bench, parameters: Mapping[str, Any], script: str) -> Look:
    """By the time of a workload's script, in turns with the good end."""
    good, bad = (bench.repository.commit(end).sha for end in bench.ends)

    def measure(sha: str, record: CommitRecord) -> None:
        ratio, version = 1.0, "PostgreSQL"
        if sha != good:
            whole = record.levels.get((bad, script))
            middle = 1.0 if whole is None else math.sqrt(whole)
            ratio, version = _compared(bench, (good, sha), parameters, script, middle)
        record.note(
            sha,
            script,
            ratio,
            metric=RATIO,
            description=bench.about(sha),
            version_text=version,
        )

    def answer(found: Found, _: CommitRecord) -> str:
        return as_text(
            found,
            script,
            {},
            headline=lambda step: f"{100 * (step.after / step.before - 1):+.1f} % time",
            limits=f"Times in turns with {bench.ends[0]}, of which these are ratios.",
        )

    return Look(
        script,
        measure,
        answer,
        about={"by": "time", **parameters},
        describe="{:.3f} times the time".format,
        worth=0.5,  # what is between two ends that are near may be noise
    )


def _compared(
    bench: Bench,
    pair: tuple[str, str],
    parameters: Mapping[str, Any],
    script: str,
    middle: float,
) -> tuple[float, str]:
    """The ratio of a script's time on the second build, and its version.

    Blocks are added until the confidence sequence excludes ``middle``.  Raises CannotRun where it
    never does.
    """
    baseline, candidate = (Side(str(bench.builder.build(sha))) for sha in pair)
    request = typed(
        Request(
            baseline,
            candidate,
            studies=("workload",),
            parameters=parameters,
            case=script,
            pin=share_cores_alike(baseline, candidate),
        )
    )
    for blocks in LOOKS:
        try:
            (found,) = measured_blocks(request, Fit(blocks, {"workload": ()}))
            effects = compared_effects([found], case=script, anytime=True)
        except (ServerError, SpaceError):
            raise
        except StudyError as error:
            raise CannotRun(str(error)) from None
        (row,) = effects.filter(step=script, case="").iter_rows(named=True)
        if row["low"] is not None and not row["low"] <= middle <= row["high"]:
            facts = found.infos[-1]["servers"].get(candidate.server, {})
            return row["ratio"], str(facts.get("version_text", "PostgreSQL"))
    raise CannotRun(
        f"{LOOKS[-1]} blocks do not decide whether it takes more or less than {middle:.3f} times "
        f"as long as {bench.ends[0]}: {row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
    )


@contextmanager
def continued() -> Iterator[None]:
    """End after Ctrl-C with a sentence and the code for it."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; what is measured is kept: run it again to continue.")
        raise typer.Exit(130) from None


def find_unit(name: str) -> Unit:
    """The unit of that name, or the only one with it in its name; raises StudyError otherwise."""
    known = {unit.name: unit for study in rooms("study") for unit in units(study)}
    return known[_only(name, known, "unit")]


def statement_named(parameters: Mapping[str, Any], name: str) -> Unit:
    """A statement of the workload as a unit of work; raises as ``find_unit`` does."""
    found = statement_units("workload", EMBEDDED, parameters)
    known: dict[str, Unit] = {unit.name: unit for unit in found}
    return known[_only(name, known, "statement")]


def script_named(parameters: Mapping[str, Any], name: str) -> str:
    """The name of a workload's script, or of its mix; raises as ``find_unit`` does."""
    return _only(name, [step.name for step in steps_of(runnable(parameters))], "script")


def _only(name: str, known: Collection[str], kind: str) -> str:
    fits = [name] if name in known else [each for each in known if name in each]
    if len(fits) == 1:
        return fits[0]
    about = (
        f"{len(fits)} {kind}s have {name!r} in their names" if fits else f"no {kind} is {name!r}"
    )
    names = "".join(f"\n  {each}" for each in fits or known)
    raise StudyError(f"Name one {kind}: {about}.  There are:{names}")
