"""A notebook's cells up to the one that measures, executed in this process without a kernel."""

from __future__ import annotations

import ast
import json
import linecache
import os
import re
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgservers.errors import NotebookError, StudyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgstudies.measuring.session import Measurement

    from .plan import PlannedRun


def measurement_of(planned: PlannedRun) -> Measurement:
    """What the notebook of a planned run asks to be measured.

    Its cells are executed up to ``study.measure(...)``, of which only the arguments are evaluated;
    their output is discarded.  Raises the StudyError of a cell; NotebookError for any other error,
    or if nothing is measured.
    """
    # A kernel keeps the sources of cells in ``In``, where a cell may look for its own.
    space: dict[str, Any] = {"__name__": planned.study, "In": [], "display": lambda *_, **__: None}
    os.environ.pop("PGSTUDIES_REPLAY", None)  # this process measures
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        for number, (source, is_parameters) in enumerate(_cells(planned.notebook), start=1):
            try:
                measured = _executed(source, f"<{planned.study}, cell {number}>", space)
            except StudyError:
                raise
            except Exception as error:
                what = f"{type(error).__name__}: {error}".rstrip(":. ")
                raise NotebookError(f"{planned.study} stopped in cell {number}: {what}.") from error
            if measured is not None:
                return replace(measured, parameters={**measured.parameters, "server": ""})
            if is_parameters:
                # Without secrets, for arms that depend on it; the caller has the address.
                space |= planned.injected | {"server": planned.server.public}
    raise NotebookError(f"The notebook of {planned.study} measures nothing.")


def _cells(notebook: Path) -> Iterator[tuple[str, bool]]:
    """The source of every cell of code, and whether it is the cell of parameters."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code" and (source := "".join(cell["source"])).strip():
            yield source, "parameters" in cell["metadata"].get("tags", [])


def _executed(source: str, name: str, space: dict[str, Any]) -> Measurement | None:
    """Execute a cell, up to ``study.measure(...)`` if it has that; what it asks for, or None."""
    space["In"].append(source)
    # For tracebacks, and for code that reads a function's source.
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    statements = ast.parse(re.sub(r"^%", "# %", source, flags=re.MULTILINE)).body
    for at, statement in enumerate(statements):
        value = getattr(statement, "value", None)
        match value:
            case ast.Call(func=ast.Attribute(value=ast.Name("study"), attr="measure") as asks):
                _run(statements[:at], name, space)
                asks.attr = "measurement"
                asked: Measurement = eval(compile(ast.Expression(value), name, "eval"), space)  # noqa: S307  (the notebook is code)
                return asked
    _run(statements, name, space)
    return None


def _run(statements: list[ast.stmt], name: str, space: dict[str, Any]) -> None:
    exec(compile(ast.Module(statements, []), name, "exec"), space)  # noqa: S102  (the notebook is code)
