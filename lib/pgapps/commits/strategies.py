"""How a bisection measures a commit: by the instructions of a unit of work."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from pgservers.addresses import EMBEDDED
from pgservers.errors import CannotRun, StudyError
from pgservers.terminal import rough_duration, say
from pgstudies.rooms import rooms

from ..counting.counter import Counter
from ..counting.units import units
from ..workload.counting import statement_units
from .bisection import WORTH
from .bisection import bisect as search
from .record import CommitRecord
from .report import as_text, moved_functions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from pgservers.terminal import Progress

    from ..builds.builder import Builder
    from ..builds.repository import Repository
    from ..counting.units import Unit
    from .bisection import Found


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


def _only(name: str, known: Collection[str], kind: str) -> str:
    fits = [name] if name in known else [each for each in known if name in each]
    if len(fits) == 1:
        return fits[0]
    about = (
        f"{len(fits)} {kind}s have {name!r} in their names" if fits else f"no {kind} is {name!r}"
    )
    names = "".join(f"\n  {each}" for each in fits or known)
    raise StudyError(f"Name one {kind}: {about}.  There are:{names}")
