"""Running a study: its notebook executed with checked parameters, and put into the book."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import paths
from ..errors import NotebookError, SpaceError
from ..paths import in_checkout, shown
from ._plan import plan, public
from .executed import error_of, hiding, last_place, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TextIO

    from ._plan import Plan


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
    keep: Callable[[Path, Path], None] | None = None,
) -> Path:
    """Execute a study's notebook and return where it is: ``output``, or its place in the book.

    With ``fresh`` an unfinished record is not continued; with ``replay`` a record (or the newest
    complete one below a directory) is analysed instead of measuring.  Progress and warnings go to
    ``terminal``, by default stderr.  The notebook's metadata ``pgstudies`` tell study, profile,
    parameters, record and, without its password, the server; the verdicts on the study's claims
    are handed to ``keep``, with the record.

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
        from ..records.reading import find_record  # noqa: PLC0415  (imports polars)

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
            "input_path": in_checkout(chosen.notebook),
            "output_path": in_checkout(kept),
        }
        text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
        executed.write_text(f"{text}\n", encoding="utf-8")
        executed.replace(kept)
        verdicts = Path(environment["PGSTUDIES_JUDGED_FILE"])
        if keep and failure is None and "record" in about and verdicts.exists():
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
    from ._kernel import execute  # noqa: PLC0415  (papermill takes its time)

    stopped = execute(chosen.notebook, executed, chosen.injected, environment, terminal)
    hide = hiding(
        environment.get("PGSTUDIES_SERVER") or os.environ.get("PGSTUDIES_SERVER", ""),
        os.environ.get("PGPASSWORD", ""),
    )
    document = without_secrets(json.loads(executed.read_text(encoding="utf-8")), hide)
    if stopped is None:
        return document, None
    if isinstance(stopped, str):
        return document, NotebookError(f"{last_place(document)}: its kernel {stopped}")
    return document, error_of(document, stopped, hide)


def _about(chosen: Plan, record: Path) -> dict[str, Any]:
    about = {"study": chosen.study, "profile": chosen.profile, "parameters": chosen.parameters}
    if chosen.server:
        about["server"] = public(chosen.server)
    if record.exists():
        about["record"] = record.read_text(encoding="utf-8").strip()
    return about
