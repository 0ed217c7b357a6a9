"""The steps of a workload's run: each script alone, or several mixed as pgbench mixes them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgservers.errors import ServerError, SpaceError, StudyError
from pgservers.programs.installations import counts_failures
from pgstudies.measuring.pgbench import pgbench

from .scripts import read_workload
from .sent import statement_times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pgstudies.measuring.trial import Trial

    from .scripts import Script, Workload
    from .turns import Turn

_PLACE = re.compile(r"script(\d*)\.sql:(\d+): ")

# Errors of statements that cannot be prepared, but may run as text.
_NEEDS_TEXT = re.compile(
    r"multiple commands into a prepared|could not determine data type|operator does not exist"
    r"|operator is not unique|syntax error at or near \"\$\d"
)

_FAILURE = re.compile(r"deadlock detected|could not serialize access")


@dataclass(frozen=True)
class Step:
    """What is timed as one: a script, or a mix of scripts with their weights."""

    scripts: Sequence[Script]
    weights: Sequence[int] = (1,)

    @property
    def name(self) -> str:
        """The names of the scripts, with their weights in a mix."""
        if len(self.scripts) == 1:
            return self.scripts[0].name
        weighted = zip(self.scripts, self.weights, strict=True)
        return ", ".join(f"{script.name}@{weight}" for script, weight in weighted)

    def look(self, trial: Trial, *, seed: int, protocol: str, variables: Mapping[str, Any]) -> None:
        """Run each script once, so that a comparison sees its statements; raises as ``run``."""
        for number, script in enumerate(self.scripts):
            with _described([script], script.name, trial, protocol):
                trial.look(script.name, script.text, seed=seed + number, variables=variables)

    def run(
        self, trial: Trial, step: str, turn: Turn, *, protocol: str, case: str = "", **options: Any
    ) -> None:
        """Run a turn by ``pgbench``, with its other ``options``, and time its statements.

        Raises StudyError, with file and line, if pgbench refuses a script.
        """

        def keep_times(report: str) -> None:
            for name, duration_s in statement_times(report, self.scripts[0].text):
                if name in turn.statements:
                    trial.record(step, "duration_s", duration_s, "s", case=name)

        weighted = zip(self.scripts, self.weights, strict=True)
        mix = {script.name: (script.text, weight) for script, weight in weighted}
        with _described(self.scripts, self.name, trial, protocol):
            pgbench(
                trial,
                step,
                mix if len(mix) > 1 else self.scripts[0].text,
                transactions=turn.transactions,
                protocol=protocol,
                report=keep_times if turn.statements and not case else None,
                case=case,
                **options,
            )


def steps_of(workload: Workload) -> list[Step]:
    """The workload's mix, or each of its scripts."""
    if workload.weights:
        return [Step(workload.scripts, workload.weights)]
    return [Step([script]) for script in workload.scripts]


@contextmanager
def _described(scripts: Sequence[Script], name: str, trial: Trial, protocol: str) -> Iterator[None]:
    """Add the file and the line of a script to pgbench's errors, and what may help."""
    try:
        yield
    except (ServerError, SpaceError):
        raise
    except StudyError as error:
        text, advice, where = str(error), "", name
        if protocol != "simple" and _NEEDS_TEXT.search(text):
            advice = "it may run as pgbench sends it by default: -p protocol=simple"
        counts = counts_failures(trial.server.capabilities.pgbench)
        if not counts and _FAILURE.search(text):
            advice = "pgbench before 15 ends there, later ones count such failures and go on"
        if advice:
            text = f"{text.rstrip('.')} ({advice})"
        if place := _PLACE.search(text):
            script = scripts[int(place[1] or 1) - 1]
            where = f"{script.file.name}, line {script.line - 1 + int(place[2])}"
        elif len(scripts) == 1:
            where = scripts[0].file.name
        text = _PLACE.sub("", text, count=1)
        raise StudyError(f"{where}, on {trial.server.version_text}: {text}") from error


def defined(texts: Sequence[str]) -> dict[str, str]:
    """The variables in ``name=value``, as for pgbench's -D; raises StudyError for other texts."""
    found = dict(text.partition("=")[::2] for text in texts)
    for text in texts:
        if not re.fullmatch(r"[A-Za-z_]\w*=.*", text, re.DOTALL) or text.startswith("pgstudies_"):
            raise StudyError(f"A variable of the scripts is given as name=value, not {text!r}.")
    return found


def runnable(parameters: Mapping[str, Any]) -> Workload:
    """The workload of a run's parameters; raises as ``read_workload`` and ``defined``."""
    defined(parameters.get("define", ()))
    return read_workload(parameters["directory"], parameters.get("mix", ()))
