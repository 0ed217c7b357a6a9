"""Running a study: its notebook executed with checked parameters, and put into the book."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from . import paths
from .addresses import is_dsn, parse_dsn, without_password
from .errors import NotebookError, ServerError, SpaceError, StudyError
from .executed import error_of, last_place, without_secrets
from .parameters import checked, declared
from .passwords import holds_password

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

PROFILES = ("quick", "standard", "published")
"""Sizes of a run; the defaults in a notebook are those of quick."""

SUMMARIES = ("scorecard",)
"""Notebooks that measure nothing: they draw together what the studies have found."""

INSTRUMENT = "instrument"
"""The notebook that tests the measuring itself: it runs as the studies do, and reruns no post."""

_AMBIGUOUS = re.compile(r"[a-z]+://(?:[^/]*@[^/]*@|[^/@]*/[^?]*@)")  # an @ of a password, unescaped


@dataclass(frozen=True)
class Plan:
    """A run with everything checked that can be checked before it starts.

    Attributes:
        study: The study's name.
        notebook: Its source notebook.
        profile: One of ``PROFILES``.
        parameters: Name and value of every parameter but ``server``.
        server: The server asked for, with its password; empty for ``$PGSTUDIES_SERVER``.
        injected: What papermill writes into the notebook: no password is in it.

    """

    study: str
    notebook: Path
    profile: str
    parameters: dict[str, Any]
    server: str
    injected: dict[str, Any]


def studies() -> list[str]:
    """The names of all studies, which are those of their notebooks."""
    names = {p.stem for p in paths.NOTEBOOKS.glob("[!._]*.ipynb")}
    return sorted(names.difference(SUMMARIES))


def plan(
    study: str,
    *,
    profile: str = "quick",
    server: str | None = None,
    parameters: Mapping[str, object] | None = None,
) -> Plan:
    """Check a run: ``parameters`` go before the profile's, which go before the notebook's.

    Raises StudyError for an unknown study, profile or parameter, and for a value that is of the
    wrong type or out of its limits.
    """
    if study not in (*studies(), *SUMMARIES):
        known = ", ".join(studies()) or f"none in {paths.NOTEBOOKS}"
        raise StudyError(f"There is no study {study}; the studies are: {known}.")
    notebook = paths.NOTEBOOKS / f"{study}.ipynb"
    given = dict(parameters or {})
    if server and given.setdefault("server", server) != server:
        raise StudyError("Two servers are given: leave out --server or -p server=...")
    known_parameters = declared(notebook)
    if server and all(p.name != "server" for p in known_parameters):
        del given["server"]  # a study that needs none still runs with the others
    values = checked(study, known_parameters, _profile(study, profile) | given)
    asked = str(values.pop("server", ""))
    public(asked or os.environ.get("PGSTUDIES_SERVER", ""))  # is refused here if it is unreadable
    directory = Path(asked).expanduser()
    if asked not in {"", "embedded"} and not is_dsn(asked) and directory.is_dir():
        asked = str(directory.resolve())
    # An address with a password reaches the kernel by its environment only: whatever is injected
    # stays in the notebook, and the notebook goes into the book.
    # Of a summary only what was asked for: its page is not to begin with a cell of parameters.
    injected = dict(values) if study not in SUMMARIES else {n: values[n] for n in given}
    if any(p.name == "server" for p in known_parameters):
        injected["server"] = "" if holds_password(asked) else asked
    return Plan(study, notebook, profile, values, asked, injected)


def run_study(
    study: str,
    *,
    profile: str = "quick",
    server: str | None = None,
    parameters: Mapping[str, object] | None = None,
    fresh: bool = False,
    replay: str | Path | None = None,
    output: Path | None = None,
    terminal: TextIO | None = None,
) -> Path:
    """Execute a study's notebook and return where it is: ``output``, or its place in the book.

    With ``fresh`` an unfinished record is not continued; with ``replay`` a record (or the newest
    complete one below a directory) is analysed instead of measuring.  Progress and warnings go to
    ``terminal``, by default stderr.  The notebook's metadata ``pgstudies`` tell study, profile,
    parameters, record and, without its password, the server; the verdicts on the study's claims
    are kept for ``judged``.

    Raises StudyError as ``plan`` does, or as the notebook did; NotebookError when the notebook
    failed otherwise; KeyboardInterrupt after Ctrl-C, SIGTERM or SIGHUP, with the server stopped.
    """
    chosen = plan(study, profile=profile, server=server, parameters=parameters)
    environment = {"PGSTUDIES_PROFILE": profile}
    if chosen.server:
        environment["PGSTUDIES_SERVER"] = chosen.server
    if fresh:
        environment["PGSTUDIES_FRESH"] = "1"
    if replay is not None:
        from .records import find_record  # noqa: PLC0415  (imports polars)

        environment["PGSTUDIES_REPLAY"] = str(find_record(study, replay))
    target = output or paths.STUDIES / f"{study}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same directory, because a file is moved in one step only within a file system.
    with tempfile.TemporaryDirectory(prefix=f".{study}-", dir=target.parent) as scratch:
        executed = Path(scratch) / f"{study}.ipynb"
        environment["PGSTUDIES_RECORD_FILE"] = str(Path(scratch) / "record")
        environment["PGSTUDIES_JUDGED_FILE"] = str(Path(scratch) / "judged.parquet")
        try:
            document, failure = _execute(chosen, executed, environment, terminal or sys.stderr)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            raise SpaceError(
                f"No space left in {shown(target.parent)}: free some and run the same command "
                f"again; the blocks that are finished are kept."
            ) from error
        if failure is not None and not isinstance(failure, NotebookError):
            raise failure  # its sentence says all that the notebook could
        failed = paths.HTML.parent / "failed" / f"{study}.ipynb"
        kept = target if failure is None else failed
        kept.parent.mkdir(parents=True, exist_ok=True)
        about = _about(chosen, Path(environment["PGSTUDIES_RECORD_FILE"]))
        document["metadata"]["pgstudies"] = about
        document["metadata"]["papermill"] |= {
            "input_path": _in_checkout(chosen.notebook),
            "output_path": _in_checkout(kept),
        }
        text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
        executed.write_text(f"{text}\n", encoding="utf-8")
        executed.replace(kept)
        verdicts = Path(environment["PGSTUDIES_JUDGED_FILE"])
        if failure is None and "record" in about and verdicts.exists():
            from .judged import keep  # noqa: PLC0415  (imports polars)

            keep(verdicts, Path(about["record"]))
    if failure is not None:
        raise NotebookError(
            f"{study} stopped in {failure}; the notebook as far as it came is {shown(kept)}."
        )
    failed.unlink(missing_ok=True)
    return kept


def _execute(
    chosen: Plan, executed: Path, environment: Mapping[str, str], terminal: TextIO
) -> tuple[dict[str, Any], BaseException | None]:
    """The executed notebook, with no password in it, and what it stopped with, if it did."""
    from .kernel import execute  # noqa: PLC0415  (papermill takes its time)

    death = execute(chosen.notebook, executed, chosen.injected, environment, terminal)
    document = without_secrets(
        json.loads(executed.read_text(encoding="utf-8")),
        environment.get("PGSTUDIES_SERVER") or os.environ.get("PGSTUDIES_SERVER", ""),
        os.environ.get("PGPASSWORD", ""),
    )
    failure = error_of(document)
    if failure is None and death is not None:
        failure = NotebookError(f"{last_place(document)}: its kernel {death}")
    return document, failure


def _about(chosen: Plan, record: Path) -> dict[str, Any]:
    about = {"study": chosen.study, "profile": chosen.profile, "parameters": chosen.parameters}
    if chosen.server:
        about["server"] = public(chosen.server)
    if record.exists():
        about["record"] = record.read_text(encoding="utf-8").strip()
    return about


def public(server: str) -> str:
    """The server as a page may show it: an address without its password.

    Raises ServerError when the address cannot be read, or only by cutting a password in two.
    """
    if is_dsn(server) and (
        _AMBIGUOUS.match(server) or not re.fullmatch(r"[\d,]*", parse_dsn(server).get("port", ""))
    ):
        raise ServerError(
            "The address of the server cannot be read: write %40 for an @, %3A for a : and %2F for "
            "a / within a password; better give it in PGPASSWORD or in ~/.pgpass."
        )
    return without_password(server)


def _profile(study: str, profile: str) -> dict[str, object]:
    """The values of a profile; quick needs no file, because it is what the notebook says."""
    if profile not in PROFILES:
        raise StudyError(f"There is no profile {profile}; the profiles are: {', '.join(PROFILES)}.")
    file = paths.PARAMETERS / profile / f"{study}.yaml"
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        if profile == PROFILES[0]:
            return {}
        raise StudyError(f"{study} has no {profile} profile: there is no {shown(file)}.") from None
    except yaml.YAMLError as error:
        raise StudyError(
            f"{shown(file)} is not valid YAML: {' '.join(str(error).split())}."
        ) from None
    if not isinstance(values, dict):
        raise StudyError(f"{shown(file)} must hold lines of the form `name: value`.")
    return values


def shown(path: Path) -> str:
    """The path as short as the user can still use it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _in_checkout(path: Path) -> str:
    return str(path.relative_to(paths.ROOT)) if path.is_relative_to(paths.ROOT) else path.name
