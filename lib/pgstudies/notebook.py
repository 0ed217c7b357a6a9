"""A notebook's study as one object, from the parameters to the verdicts."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from IPython.display import HTML

from pgservers.errors import StudyError
from pgservers.terminal import tell

from .analysis.agreement import counted_effects, judge
from .analysis.claims import claims
from .analysis.effects import paired_effects
from .analysis.pairing import BY, TIMES, block_values, round_values
from .analysis.published import published
from .analysis.runs import environments_apart, runs_apart
from .analysis.tables import claim_table, verdict_table
from .charts.claims import claims_chart, today, verdict_strip
from .charts.tables import about, began, style_jupyterlab
from .measuring.arms import Arm, arm_table
from .measuring.measure import measure
from .measuring.session import Measurement
from .parameters import parameter_table, study_parameters
from .records.counts import claims_counted
from .records.reading import Record, find_record, list_records, read_record
from .records.verdicts import reference_verdicts
from .rooms import study_module
from .run_options import RunOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
    from types import ModuleType

    import altair as alt

    from .analysis.agreement import Claim
    from .measuring.session import Procedure
    from .measuring.trial import Trial


class Study:
    """A study: its parameters, arms, published numbers, record and verdicts.

    In the order of a page::

        study = pg.study("cluster_order", globals())  # below the cell of parameters
        study.parameters                # what this run is given, and what it means
        study.published()               # the post's numbers
        study.arms()                    # what is compared, by the study's arms.py
        record = study.measure(prepare, procedure, settings=settings)
        study.summary()                 # the record, and what was not run
        study.claims()                  # what the post claims, and how it will be judged
        study.judge(effects)            # the verdict on each claim of claims.toml
        study.answer()                  # the same in a few lines, and what it means today
        study.beside()                  # its figures as a chart
        study.about()                   # where and how it was measured, and the files

    An interrupted ``measure`` leaves a record with which the next run goes on; PGSTUDIES_REPLAY has
    one read instead.  To explore, all polars frames (``study.samples?`` tells the columns)::

        study.samples                   # every measured value
        study.blocks()                  # one value for each block
        study.effects()                 # every arm against the first, with intervals
        study.records()                 # the runs of this machine and of the project
        study.compare_with(record)      # this run and another, and what differs between them
    """

    def __init__(
        self, name: str, values: Mapping[str, Any], namespace: Mapping[str, Any] = {}
    ) -> None:
        self.name = name
        self.verdicts: pl.DataFrame | None = None
        self._values = values
        self._namespace = namespace
        self._arms: list[Arm] = []
        self._claims: list[Claim] | None = None
        self._computed: Collection[str] = ()  # parameters that the page gives its arms anew
        self._record: Record | None = None

    @property
    def parameters(self) -> pl.DataFrame:
        """A table of parameter, value and what it is, as the notebook has them now."""
        return parameter_table(self.name, self._values)

    def module(self, name: str) -> ModuleType:
        """A Python module that lies beside the notebook.  Raises StudyError when there is none."""
        return study_module(self.name, name)

    def published(self, table: str | None = None) -> pl.DataFrame:
        """A table of ``published.toml``, which describes its columns; the first one by default."""
        return published(self.name, table)

    @property
    def replays(self) -> bool:
        """Whether a record is read in place of measuring, and nothing is asked of this machine."""
        return bool(RunOptions.given().replay)

    def arms(self, **more: Any) -> pl.DataFrame:
        """The arms to be measured: arm, what it is, not run (why, or null).

        ``arms`` of arms.py makes them from the parameters that it names and from ``more``.  In a
        replay they are the record's, and no program is looked for.
        """
        if self.replays:
            arms = read_record(find_record(self.name, RunOptions.given().replay)).info["arms"]
            self._arms = [Arm(a["name"], a["description"], not_run=a["not_run"]) for a in arms]
            return arm_table(self._arms)
        make = self.module("arms").arms
        known = {**self._values, **more}
        asked = inspect.signature(make).parameters
        for name, wanted in asked.items():
            if wanted.default is wanted.empty and name not in known:
                raise StudyError(f"arms.py asks for {name}, which is not among {', '.join(known)}.")
        self._arms = make(**{name: known[name] for name in asked if name in known})
        self._computed = more.keys()
        return arm_table(self._arms)

    def measurement(
        self,
        prepare: Callable[[Trial, Arm], None],
        procedure: Procedure,
        *,
        settings: Mapping[str, str],
        also: Mapping[str, Any] = {},
        **how: Any,
    ) -> Measurement:
        """What ``measure`` would measure, given the same arguments; raises the same StudyError."""
        for name, value in self._values.items():
            if name not in self._computed and self._namespace.get(name, value) != value:
                raise StudyError(f"{name} was changed: run the cells from pg.study on again.")
        if not self._arms:
            self.arms()
        named = {"repo": Path(self._values["repo"]).name} if "repo" in self._values else {}
        return Measurement(
            study=self.name,
            arms=self._arms,
            prepare=prepare,
            procedure=procedure,
            parameters={**self._values, **named, **also},  # a path says something about the machine
            settings=settings,
            **how,
        )

    def measure(
        self,
        prepare: Callable[[Trial, Arm], None],
        procedure: Procedure,
        *,
        settings: Mapping[str, str],
        also: Mapping[str, Any] = {},
        **how: Any,
    ) -> Record:
        """Measure the arms and return the record, which is ``record`` from then on.

        ``prepare(trial, arm)`` builds what an arm starts from; ``procedure(trial, arm)`` is what is
        measured, each ``yield`` the end of a turn.  ``settings`` hold for all servers; ``also`` is
        noted beside the parameters; ``how`` has the rest of ``Measurement``.  Raises what
        ``measuring.measure`` raises.
        """
        what = self.measurement(prepare, procedure, settings=settings, also=also, **how)
        self._record = measure(what)
        return self._record

    @property
    def record(self) -> Record:
        """The record that was measured or read.  Raises StudyError before."""
        if self._record is None:
            raise StudyError("Nothing is measured yet: run the cell with study.measure first.")
        return self._record

    @property
    def samples(self) -> pl.DataFrame:
        """Every measured value, without those of the preparation.

        Columns: block, group, turn, position (of the arm's turn), part, arm, case, step, iteration,
        metric, value, unit, started_at, copy_of, after (the arm before); ``Record`` says more.
        """
        return self.record.measured

    def summary(self, **more: object) -> HTML:
        """The record in a line, with what the study says in ``more``, and what was not run."""
        return HTML(began(self.record, more))  # type: ignore[no-untyped-call]

    def blocks(
        self, samples: pl.DataFrame | None = None, *, by: Sequence[str] = BY
    ) -> pl.DataFrame:
        """A value for each block, arm and kind of ``samples`` (all): see ``pg.block_values``."""
        return block_values(self.samples if samples is None else samples, by=by)

    def effects(
        self,
        samples: pl.DataFrame | None = None,
        *,
        baseline: str | None = None,
        by: Sequence[str] = BY,
    ) -> pl.DataFrame:
        """Every arm of ``samples`` (all) against ``baseline`` (the first): ``pg.paired_effects``.

        Times are paired by rounds, counts by blocks.
        """
        return _effects(self.record, samples, baseline, by)

    def claims(
        self,
        *,
        places: Mapping[str, object] = {},
        published: Mapping[str, float | None] = {},
        not_tested: str | None = None,
    ) -> pl.DataFrame:
        """The claims as this run will judge them: see ``analysis.tables.claim_table``.

        The arguments are those of ``analysis.claims.claims``; ``judge`` takes these claims.
        """
        self._claims = claims(self.name, places=places, published=published, not_tested=not_tested)
        return claim_table(self._claims)

    def judge(
        self,
        *effects: pl.DataFrame,
        not_run: Mapping[str, str] = {},
        conditions: Mapping[str, str | None] | Callable[[Claim], str | None] | None = None,
    ) -> pl.DataFrame:
        """The verdict on each claim by the row that fits: see ``analysis.tables.verdict_table``.

        ``not_run`` and ``conditions``, which may be a function of the claim, are those of
        ``analysis.agreement.judge``, whose table is ``verdicts`` from then on.
        """
        asked = claims(self.name) if self._claims is None else self._claims
        unmet = {c.id: conditions(c) for c in asked} if callable(conditions) else conditions or {}
        counted = claims_counted()
        self.verdicts = judge(
            asked,
            pl.concat([*effects, counted_effects(asked, counted)], how="diagonal_relaxed"),
            not_run={**not_run, **self.record.reasons},
            conditions=unmet,
        )
        replies = RunOptions.given().reply()
        if replies is not None:
            replies.tell_verdicts(self.verdicts)
        return verdict_table(self.verdicts, counted)

    def answer(self) -> HTML:
        """The answer: each claim as published, now and in this run, and what it means today."""
        if self.verdicts is None:
            raise StudyError("Nothing is judged yet: run the cell with study.judge first.")
        reference = reference_verdicts(self.name)
        strip = verdict_strip(self.verdicts, self.record, reference).data
        means = today(self.name, self.verdicts, reference, self.record.info).data
        return HTML(strip + means)  # type: ignore[no-untyped-call]

    def beside(self) -> alt.LayerChart | None:
        """The figures of the answer as a chart; None if no claim has a figure."""
        assert self.verdicts is not None
        return claims_chart(self.verdicts, self.record, reference_verdicts(self.name))

    def about(self) -> HTML:
        """Where and how it was measured, what the gate found, unmet settings, and the files."""
        return HTML(about(self.record))  # type: ignore[no-untyped-call]

    def records(self) -> pl.DataFrame:
        """The runs of this study, of this user and of the project: see ``pg.list_records``."""
        return list_records(self.name)

    def compare_with(
        self,
        other: Record | str | Path,
        *,
        baseline: str | None = None,
        by: Sequence[str] = BY,
        metrics: Sequence[str] = TIMES,
    ) -> pl.DataFrame:
        """The effects of this run and another, and what differs: see ``pg.runs_apart``.

        Prints how their servers, hosts, settings and parameters differ, which may be the reason.

        ``other`` is a record, its directory, or its name in ``records()``.  What all blocks of a
        run have in common is not in its intervals, so runs can differ by that alone.
        """
        if not isinstance(other, Record):
            named = [p for p in self.records()["path"] if Path(p).name == str(other)]
            other = read_record(find_record(self.name, named[0] if named else other))
        here, there = (
            _effects(run, run.measured.filter(pl.col("metric").is_in(metrics)), baseline, by)
            for run in (self.record, other)
        )
        tell(environments_apart(self.record, other))
        return runs_apart(here, there, by=by)


def study(name: str, namespace: MutableMapping[str, Any]) -> Study:
    """The study that a notebook is about; ``namespace`` is its ``globals()``.

    The parameters there are checked, and put back in their types.  Raises StudyError.
    """
    found = Study(name, study_parameters(name, namespace), namespace)
    style_jupyterlab()
    return found


def _effects(
    record: Record, samples: pl.DataFrame | None, baseline: str | None, by: Sequence[str]
) -> pl.DataFrame:
    samples = record.measured if samples is None else samples
    first = baseline or record.arms.filter("baseline")["name"][0]
    is_time = pl.col("metric").is_in(TIMES)
    parts = ((round_values, samples.filter(is_time)), (block_values, samples.filter(~is_time)))
    tables = [
        paired_effects(of(part, by=by), baseline=first, by=by)
        for of, part in parts
        if first in part["arm"]
    ]
    if not tables:
        raise StudyError(f"Nothing was measured of {first!r}: name another baseline.")
    return pl.concat(tables, how="diagonal_relaxed")
