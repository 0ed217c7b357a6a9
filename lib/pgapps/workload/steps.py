"""The steps of a workload's run: each script alone, or several mixed as pgbench mixes them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from pgservers.errors import ServerDied, ServerError, SpaceError, StudyError
from pgservers.programs.installations import counts_failures
from pgservers.servers.base import ends_session
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
    r"|operator is not unique|syntax error at or near \"\$\d|bind message supplies \d+ parameters"
)

_QUOTED = re.compile(
    r"""--[^\n]*|/\*.*?\*/|(?P<quoted>'(?:[^']|'')*'|"[^"]*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)""",
    re.DOTALL,
)
_VARIABLE = re.compile(r"(?<!:):([A-Za-z_]\w*)")

_GONE = re.compile(r"server closed the connection|terminating connection|Lost connection")

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

        Raises StudyError, with file and line, if pgbench refuses a script, and ServerDied if the
        server crashes.
        """

        def keep_times(report: str) -> None:
            for name, duration_s in statement_times(report, self.scripts[0].text):
                # pgbench takes no time anew if the answer is there when it first looks: 0.
                if name in turn.statements and duration_s:
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
        if _GONE.search(text) and (crash := trial.server.crash()):
            died = ServerDied(f"{where}, on {trial.server.version_text}: {crash}")
            died.crashed = True
            raise (trial.server.space_error(died) or died) from error
        text = _PLACE.sub("", text, count=1)
        raise StudyError(f"{where}, on {trial.server.version_text}: {text}") from error


@contextmanager
def noted(failed: dict[str, str], step: Step, of: Sequence[Step]) -> Iterator[None]:
    """Note in ``failed``, by name, why a step cannot run; the others go on.

    If it ends the server, that is noted and raised: the block is measured again without the step.
    Raises StudyError if none of the steps can run.
    """
    try:
        yield
    except (ServerDied, psycopg.Error) as error:
        if isinstance(error, ServerDied) or ends_session(error):
            failed[step.name] = f"the server went away: {error}".strip().splitlines()[0]
        raise
    except (ServerError, SpaceError):
        raise
    except StudyError as error:
        failed[step.name] = str(error)
    if len(failed) == len(of):
        raise StudyError(f"No script can run: {'; '.join(failed.values())}")


def defined(texts: Sequence[str]) -> dict[str, str]:
    """The variables in ``name=value``, as for pgbench's -D; raises StudyError for other texts."""
    found = dict(text.partition("=")[::2] for text in texts)
    for text in texts:
        if not re.fullmatch(r"[A-Za-z_]\w*=.*", text, re.DOTALL) or text.startswith("pgstudies_"):
            raise StudyError(f"A variable of the scripts is given as name=value, not {text!r}.")
    return found


def altered(workload: Workload, protocol: str) -> dict[str, str]:
    """The scripts that cannot run under the protocol, by name, each with the reason.

    Unless statements are sent as text, pgbench makes a parameter of each :name, in quotes as well.
    """
    if protocol == "simple":
        return {}
    reasons = {}
    for script in workload.scripts:
        quoted = [part["quoted"] or "" for part in _QUOTED.finditer(script.text)]
        found = [f":{name}" for part in quoted for name in _VARIABLE.findall(part)]
        if found:
            reasons[script.name] = (
                f"pgbench takes {', '.join(found)} in quotes for variables; -p protocol=simple "
                f"sends the text as it is"
            )
    return reasons


def runnable(parameters: Mapping[str, Any]) -> Workload:
    """The workload of a run's parameters; raises as ``read_workload`` and ``defined``."""
    defined(parameters.get("define", ()))
    return read_workload(parameters["directory"], parameters.get("mix", ()))
