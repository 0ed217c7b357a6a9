"""The run of a study: its notebook is executed with checked parameters, for the book."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgservers import paths
from pgservers.errors import NotebookError
from pgservers.files import cannot_write, is_full, temporary_directory, write_file
from pgservers.paths import for_display, in_checkout
from pgservers.terminal import LinesOnly
from pgstudies.rooms import find_room, tell_whose
from pgstudies.run_options import Replies, RunOptions

from .executed import error_of, hiding, last_place, without_secrets
from .plan import plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import TextIO

    import polars as pl

    from .plan import PlannedRun


@dataclass(frozen=True)
class Executed:
    """A notebook that was executed to its end.

    Attributes:
        notebook: Its path.
        record: The record it rests on; None if it measures nothing.
        verdicts: The table of ``judge``; None if no claim was judged.

    """

    notebook: Path
    record: Path | None
    verdicts: pl.DataFrame | None


def run_study(
    study: str,
    *,
    profile: str = "quick",
    server: str | None = None,
    parameters: Mapping[str, object] | None = None,
    replay: str | Path | None = None,
    **how: Any,
) -> Executed:
    """``plan`` a run, and ``run_planned`` it; raises as they do."""
    chosen = plan(study, profile=profile, server=server, parameters=parameters, replay=replay)
    return run_planned(chosen, **how)


def run_planned(
    chosen: PlannedRun,
    *,
    fresh: bool = False,
    output: Path | None = None,
    terminal: TextIO | LinesOnly | None = None,
) -> Executed:
    """Execute a study's notebook into ``output``, or into its place in the book.

    With ``fresh`` an unfinished record is not continued.  Progress and warnings go to ``terminal``,
    by default stderr.  The notebook's metadata ``pgstudies`` has study, profile, parameters, record
    and, without its password, the server.

    Raises StudyError if the notebook did; NotebookError if the notebook failed otherwise;
    KeyboardInterrupt after Ctrl-C, SIGTERM or SIGHUP, with the server stopped.
    """
    study = chosen.study
    tell_whose(find_room(study))
    target = output or paths.STUDIES / f"{study}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, because a file can be renamed only within a file system.
    with temporary_directory(target.parent, hidden=True) as scratch:
        executed = scratch / f"{study}.ipynb"
        options = RunOptions(
            server=chosen.server.text,
            replay=str(chosen.replay or ""),
            fresh=fresh,
            profile=chosen.profile,
            replies=str(scratch),
        )
        try:
            document, failure = _execute(chosen, executed, options, terminal or sys.stderr)
        except OSError as error:
            if not is_full(error):
                raise
            raise cannot_write(error, for_display(target.parent)) from error
        if failure is not None and not isinstance(failure, NotebookError):
            raise failure  # the notebook says no more than its sentence
        replied = Replies(scratch)
        failed = paths.BUILD / "failed" / f"{study}.ipynb"
        kept = target if failure is None else failed
        document["metadata"]["pgstudies"] = _about(chosen, replied.record)
        document["metadata"]["papermill"] |= {
            "input_path": in_checkout(chosen.notebook),
            "output_path": in_checkout(kept),
        }
        write_file(kept, json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        if failure is not None:
            raise NotebookError(
                f"{study} stopped in {failure}; the notebook as far as it came is "
                f"{for_display(kept)}."
            )
        failed.unlink(missing_ok=True)
        if replied.record is not None:
            from pgstudies.records.writing import mark_read  # noqa: PLC0415  (imports polars)

            mark_read(replied.record)
        return Executed(kept, replied.record, replied.verdicts)


def read_studies(records: Mapping[str, Path | None]) -> list[Executed]:
    """Execute notebooks without measuring into the book, one on each core at a time.

    ``records`` has the ``replay`` of ``run_study`` for each study; None for a summary.  Raises as
    ``run_study`` does, once all notebooks that were begun have ended.
    """
    from .kernel import quiet  # noqa: PLC0415  (papermill takes its time)

    terminal = LinesOnly(sys.stderr)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with quiet(), ThreadPoolExecutor(cores) as pool:
        begun = [
            pool.submit(run_study, study, replay=record, terminal=terminal)
            for study, record in records.items()
        ]
        try:
            return [one.result() for one in begun]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _execute(
    chosen: PlannedRun, executed: Path, options: RunOptions, terminal: TextIO | LinesOnly
) -> tuple[dict[str, Any], BaseException | None]:
    """The executed notebook, without passwords, and the error that stopped it, or None."""
    from .kernel import execute  # noqa: PLC0415  (papermill takes its time)

    stopped = execute(chosen.notebook, executed, chosen.injected, options, terminal)
    hide = hiding(chosen.server, os.environ.get("PGPASSWORD", ""))
    document = without_secrets(json.loads(executed.read_text(encoding="utf-8")), hide)
    if stopped is None:
        return document, None
    if isinstance(stopped, str):
        return document, NotebookError(f"{last_place(document)}: its kernel {stopped}")
    return document, error_of(document, stopped, hide)


def _about(chosen: PlannedRun, record: Path | None) -> dict[str, Any]:
    about = {"study": chosen.study, "profile": chosen.profile, "parameters": chosen.parameters}
    if chosen.server.text and chosen.replay is None:  # a record names its own
        about["server"] = chosen.server.public
    if record is not None:
        about["record"] = str(record)
    return about
