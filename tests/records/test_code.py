"""What a run's code is: an edit of it is told by name, an edit of anything else is not."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pgservers.paths import ROOT
from pgstudies.records import code
from pgstudies.records.code import code_digests
from tests.made_up import copied_rooms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

NOTEBOOK = """
import functools
import random
from dataclasses import dataclass
from enum import Enum

import polars as pl

rows, blocks, server = 100, 6, "embedded"
parameters = {"rows": rows, "blocks": blocks, "server": server}
HOW = parameters | {"more": 1}
INSERT = "INSERT INTO t SELECT 1"
STEPS = {"a": (1, 2.5), "b": [b"x", None, {"fill": "70"}]}
FRAME = pl.DataFrame({"start": [1, 2]})
TIMES = 41
elsewhere = 1

class Kind(Enum):
    SMALL = 1

@dataclass(frozen=True)
class Case:
    size: int = 3
    kind: Kind = Kind.SMALL
    def twice(self):
        return 2 * self.size

CASES = [Case(), Case(4)]

def unused():
    'Draw a chart.'
    return elsewhere

def deeper(n):
    return INSERT, deeper

class Worker:
    more = 51

worker = Worker()

@functools.singledispatch
def told(value):
    return value

@told.register
def _(value: int):
    return value + 61

def times(count):
    def around(function):
        @functools.wraps(function)
        def inside():
            return [function() for _ in range(count)]
        return inside
    return around

@times(TIMES)
def decorated():
    return 1

@functools.cache
def helper(n):
    return [deeper(x) for x in STEPS]

def made(width):
    def inner():
        return width
    return inner

wide = made(10)
later = functools.partial(deeper, 5)
found = {}
loop = [found]
loop.append(71)
if blocks > 1:
    STEPS["c"] = 81
if blocks > 2:
    FRAME = FRAME.with_columns(end=82)
CASES += [Case(83)]
worker.more = 84
record = rows, 1

def prepare(trial, arm):
    trial.elsewhere, trial.server = rows, HOW
    trial.all = worker, told, decorated
    return loop, wide, later

def procedure(trial, arm, repeat=3):
    draw = random.Random(f"{rows} {trial.block}")
    work = lambda: [helper(c.twice()) for c in CASES]
    yield work, FRAME, found
"""

EDITS = {
    "a constant": ("INTO t SELECT 1", "INTO t SELECT 2"),
    "a text deep in a constant": ("70", "71"),
    "a table": ('"start": [1, 2]', '"start": [1, 3]'),
    "a helper of a helper": ("return INSERT, deeper", "return deeper, INSERT"),
    "a method of a class": ("return 2 * self.size", "return 3 * self.size"),
    "a field's default": ("size: int = 3", "size: int = 5"),
    "a member of an enumeration": ("SMALL = 1", "SMALL = 2"),
    "a value in an instance": ("Case(4)", "Case(5)"),
    "a value that a closure keeps": ("made(10)", "made(11)"),
    "an argument bound beforehand": ("deeper, 5", "deeper, 6"),
    "a default of an argument": ("repeat=3", "repeat=4"),
    "the procedure itself": ("yield work", "yield 1, work"),
    "what prepares": ("return loop, wide", "return wide, loop"),
    "a case of a function of several": ("value + 61", "value + 62"),
    "what a decorator is given": ("TIMES = 41", "TIMES = 42"),
    "a library in place of another": ("import random\n", "import secrets as random\n"),
    "what is appended": ("append(71)", "append(72)"),
    "an item that is set in a branch": ('"c"] = 81', '"c"] = 80'),
    "a global that is made of itself": ("end=82", "end=81"),
    "what is added in place": ("Case(83)", "Case(82)"),
    "an attribute that is set": ("more = 84", "more = 85"),
}

OTHERS = {
    "a function that is not reached": ("return elsewhere", "return not elsewhere"),
    "a constant that is not reached": ("elsewhere = 1", "elsewhere = 2"),
    "a comment between cells": ("found = {}", "\n# empty yet\nfound = {}"),
    "a comment in a function": ("    draw =", "    # By chance.\n\n    draw ="),
    "a docstring that is new": ("class Worker:", 'class Worker:\n    """It works."""'),
    "a docstring of what is not reached": ("Draw a chart.", "Draw charts."),
    "what is only looked at": ("record = rows, 1", "FRAME.describe()\nrecord = FRAME, 2"),
    "how often blocks are run": ("blocks, server = 100, 6", "blocks, server = 100, 7"),
    "the server": ('"embedded"', '"17"'),
}


def executed(*cells: str) -> dict[str, Any]:
    """The names of a notebook whose cells these are, as a kernel has them."""
    space: dict[str, Any] = {"__name__": "__main__", "In": ["", "%magic"]}
    for cell in cells:
        space["In"].append(cell)
        exec(compile(cell, "<cell>", "exec"), space)
    return space


def of(
    space: Mapping[str, Any], room: Path | None = None, also: Sequence[str] = ()
) -> dict[str, str]:
    functions = {name: space[name] for name in ("prepare", "procedure")}
    return code_digests(functions, room, space.get("parameters", {}), also)


def digests(*cells: str) -> dict[str, str]:
    """Those of a notebook, without the library's."""
    return {name: found for name, found in of(executed(*cells)).items() if "/" not in name}


def changed(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_of_what_is_reached_is_told_by_name(edit: tuple[str, str]) -> None:
    assert NOTEBOOK.count(edit[0]) == 1
    before, after = digests(NOTEBOOK), digests(NOTEBOOK.replace(*edit))
    assert len(changed(before, after)) == 1


@pytest.mark.parametrize("edit", OTHERS.values(), ids=OTHERS)
def test_an_edit_of_anything_else_makes_no_difference(edit: tuple[str, str]) -> None:
    assert NOTEBOOK.count(edit[0]) == 1
    assert digests(NOTEBOOK) == digests(NOTEBOOK.replace(*edit))


def test_names_are_those_of_the_notebook() -> None:
    found = digests(NOTEBOOK)
    assert {"prepare", "procedure", "helper", "deeper", "INSERT", "FRAME", "found"} <= found.keys()
    # A parameter is compared as such, and neither a local nor an attribute is a global.
    assert not {"rows", "elsewhere", "server", "unused", "draw"} & found.keys()


def test_a_parameter_that_a_cell_has_changed_is_none() -> None:
    assert "rows" in digests(NOTEBOOK, "rows = 200")


def test_two_processes_agree() -> None:
    program = (
        "import json, sys; from tests.records.test_code import NOTEBOOK, executed, of; "
        "sys.stdout.write(json.dumps(of(executed(NOTEBOOK)), sort_keys=True))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_what_a_run_fills_makes_no_difference() -> None:
    """As in JupyterLab, where the cell that measures is run again after an interrupt."""
    space = executed(NOTEBOOK)
    before = of(space)
    space["found"]["a"] = 1
    assert of(space) == before


def test_the_statement_counts_that_bound_a_global_last() -> None:
    """As in JupyterLab, where a cell is edited and run again, and cells before it are not."""
    small, large = "SIZE = 1", "SIZE = 2"
    functions = "def prepare(t, a): return SIZE\ndef procedure(t, a): pass"
    assert digests(small, functions, large) == digests(large, functions)
    assert digests(large, functions, small) == digests(small, functions)
    assert changed(digests(small, functions), digests(large, functions)) == {"SIZE"}


@pytest.mark.parametrize("passed", ["lambda t, a: SIZE", "partial(work, SIZE)", "work"])
def test_a_function_that_has_no_name_is_known_by_the_cell_that_passes_it(passed: str) -> None:
    def found(size: int) -> dict[str, str]:
        space = executed(
            "from functools import partial\ndef work(*_): return SIZE\ndef prepare(t, a): pass",
            f"SIZE = {size}",
            f"procedure, asked = None, dict(procedure={passed})",
        )
        functions = {"prepare": space["prepare"], "procedure": space["asked"]["procedure"]}
        return code_digests(functions, None, {})

    assert changed(found(1), found(2)) == {"SIZE"}


def test_of_a_room_what_counts_is_what_is_named(tmp_path: Path) -> None:
    room = copied_rooms(tmp_path, "edited") / "edited"
    (room / "page.py").write_text("from . import charts\n")
    (room / "published_starts.csv").write_text("a\n1\n")
    notebook = (
        "class Study:\n    def published(self, name): ...\n    module = published\n"
        "study = Study()\nsteps = study.module('steps')\nstarts = study.published('starts')\n"
        "def prepare(t, a): starts\ndef procedure(t, a): steps\n"
    )
    space = executed(notebook, "page = study.module('page')")
    before = of(space, room)
    assert {"arms.py", "steps.py", "published_starts.csv"} < before.keys()
    assert "page.py" not in before
    (room / "page.py").write_text("")
    assert of(space, room) == before
    (room / "published_starts.csv").write_text("a\n2\n")
    assert changed(of(space, room), before) == {"published_starts.csv"}


LIBRARY = {
    "what is recorded": ("pgstudies/measuring/trial.py", "def record(", "def recorded("),
    "what is written": ("pgstudies/records/writing.py", "schema=SAMPLES_SCHEMA,", ""),
    "what is counted": ("pgstudies/measuring/counters.py", "import ", "import os, "),
    "how servers start": ("pgservers/servers/managed.py", "import ", "import os, "),
    "a comparison": ("pgapps/compare/design.py", "class ComparisonDesign", "class Other"),
    "what a comparison sees": ("pgapps/compare/observing.py", "import ", "import os, "),
}
NOT_MEASURING = {
    "a comment": ("pgstudies/measuring/trial.py", "\n\n", "\n\n# a comment\n"),
    "a docstring": ("pgservers/servers/managed.py", '"""', '"""Another. '),
    "a chart": ("pgstudies/charts/effects.py", "import ", "import os, "),
    "the analysis": ("pgstudies/analysis/effects.py", "import ", "import os, "),
    "another application": ("pgapps/compare/text.py", "import ", "import os, "),
}


@pytest.fixture
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what these tests edit of the library, in its place."""
    for file in {file for file, *_ in (*LIBRARY.values(), *NOT_MEASURING.values())}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "lib" / file, tmp_path / file)
    monkeypatch.setattr(code, "_LIB", tmp_path)
    monkeypatch.setattr(code, "_library", code._library.__wrapped__)
    return tmp_path


def edited(lib: Path, edit: tuple[str, str, str]) -> set[str]:
    """What an edit of the library changes in the digests of a comparison."""
    file, old, new = edit
    space, also = executed(NOTEBOOK), ["pgapps.compare.design"]
    before, text = of(space, also=also), (lib / file).read_text()
    assert old in text
    (lib / file).write_text(text.replace(old, new, 1))
    return changed(of(space, also=also), before)


@pytest.mark.parametrize("what", [*LIBRARY, *NOT_MEASURING])
def test_an_edit_of_the_library_is_told_by_its_path_if_it_measures(lib: Path, what: str) -> None:
    told = {LIBRARY[what][0]} if what in LIBRARY else set()
    assert edited(lib, (LIBRARY | NOT_MEASURING)[what]) == told


def test_without_the_library_an_edit_of_it_would_not_be_seen(
    lib: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was while ``lib/`` counted as installed."""
    monkeypatch.setattr(code, "_library", dict)
    assert edited(lib, LIBRARY["what is recorded"]) == set()


def test_the_library_counts_whole_but_for_analysis_and_charts() -> None:
    found = of(executed("def prepare(t, a): pass\ndef procedure(t, a): pass"))
    for package in ("pgservers", "pgstudies"):
        files = {f.relative_to(ROOT / "lib") for f in (ROOT / "lib" / package).rglob("*.py")}
        parts = {f.as_posix() for f in files if not {"analysis", "charts"} & set(f.parts)}
        assert parts == {name for name in found if name.startswith(f"{package}/")}


def test_of_the_study_itself_nothing_counts_that_a_run_adds_to_it() -> None:
    notebook = (
        "from pgstudies.notebook import Study\n"
        'study = Study("swept", {"rows": 1})\n'
        "def prepare(t, a): study.parameters\n"
        "def procedure(t, a): [study.record, study.name]\n"
    )
    space = executed(notebook)
    before = of(space)
    space["study"]._record = space
    space["In"].append("study.effects()")
    assert of(space) == before
    other = of(executed(notebook.replace('"swept"', '"other"')))
    assert changed(other, before) == {"study"}


def test_functions_of_a_script_count_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "measuring_script.py"
    file.write_text("def prepare(t, a): pass\ndef procedure(t, a): pass\ndef other(t, a): pass\n")
    script = importlib.import_module("measuring_script")
    before = of(vars(script))
    assert changed(of(vars(script) | {"procedure": script.other}), before) == {"procedure"}
    file.write_text(f"{file.read_text()}SIZE = 1\n")
    assert changed(of(vars(script)), before) == {file.name}
