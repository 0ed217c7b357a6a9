"""A bisection by the instructions of a unit of work, with its record; and units by their names."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from pgservers.addresses import EMBEDDED
from pgservers.errors import CannotRun, StudyError
from pgservers.terminal import rough_duration, say
from pgstudies.rooms import rooms

from ..counting.counter import Counter
from ..counting.units import units
from ..workload.counting import statement_units
from ..workload.pgbench_options import parameters_of
from .bisection import as_text, moved_functions
from .bisection import bisect as search
from .record import CommitRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import polars as pl

    from pgservers.terminal import Progress

    from ..builds.builder import Builder
    from ..counting.units import Unit


def bisected(
    builder: Builder, progress: Progress, good: str, bad: str, unit: Unit
) -> tuple[str, Path]:
    """Bisect by the instructions of a unit of work; returns the answer and its record."""
    took: list[float] = []
    repository = builder.repository

    def counted(sha: str) -> tuple[pl.DataFrame, str]:
        server = str(builder.build(sha))
        with Counter(server, show=progress.show) as counter:
            return counter.count(unit, twice=False), counter.version_text

    def measure(sha: str) -> float:
        if (sha, unit.name) in record.levels:
            return record.levels[sha, unit.name]
        if sha in record.reasons:
            raise CannotRun(record.reasons[sha])
        about = repository.commit(sha).about
        began = time.monotonic()
        try:
            table, version = counted(sha)
        except CannotRun as reason:
            record.skip(sha, about, str(reason))
            raise
        record.add(sha, {unit.name: table}, description=about, version_text=version)
        took.append(time.monotonic() - began)
        progress.advance()
        return record.levels[sha, unit.name]

    def show(what: str, steps: int) -> None:
        left = f", {rough_duration(steps * sum(took) / len(took))} left" if took else ""
        progress.show(f"{what}{left}")

    parameters = {
        "repo": str(repository.source),
        "good": repository.commit(good).sha,
        "bad": repository.commit(bad).sha,
        "unit": unit.name,
    }
    same = unit.what_counts()
    with continued(), CommitRecord("bisect", parameters, built=builder.how, same=same) as record:
        found = search(repository, good, bad, measure, show=show)
        with repository.held():
            functions = {
                step.commit.sha: moved_functions(step, lambda sha: counted(sha)[0])
                for step in found.steps
                if step.commit.sha in found.levels
            }
        text = as_text(found, unit.name, functions)
        path = record.finish(steps=[asdict(step) for step in found.steps], answer=text)
    return text, path


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
    return _only(name, (unit for study in rooms("study") for unit in units(study)), "unit")


def statements(workload: str) -> list[Unit]:
    """Every statement of a workload as a unit of work; raises as ``parameters_of`` does."""
    parameters = parameters_of(workload, None, {}, say)
    return list(statement_units("workload", EMBEDDED, parameters))


def statement_named(parameters: Mapping[str, Any], name: str) -> Unit:
    """A statement of the workload as a unit of work; raises as ``find_unit`` does."""
    return _only(name, statement_units("workload", EMBEDDED, parameters), "statement")


def _only(name: str, found: Iterable[Unit], kind: str) -> Unit:
    known = {unit.name: unit for unit in found}
    fits = [name] if name in known else [each for each in known if name in each]
    if len(fits) == 1:
        return known[fits[0]]
    about = (
        f"{len(fits)} {kind}s have {name!r} in their names" if fits else f"no {kind} is {name!r}"
    )
    names = "".join(f"\n  {each}" for each in fits or known)
    raise StudyError(f"Name one {kind}: {about}.  There are:{names}")
