"""What a notebook's functions reach: an edit of it tells, an edit of anything else does not."""

from __future__ import annotations

import importlib
import linecache
import subprocess
import sys
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgstudies.records.reached import Reached

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTEBOOK = """
import functools
import random
import re
from dataclasses import dataclass
from enum import Enum
from random import Random
from string import Template

import numpy as np
import polars as pl
from psycopg import sql

rows, blocks, server = 100, 6, "embedded"
parameters = {"rows": rows, "blocks": blocks, "server": server}
HOW = parameters | {"more": 1}
INSERT = "INSERT INTO t SELECT 1"
STEPS = {"a": (1, 2.5), "b": [b"x", None, {"fill": "70"}]}
NAMES = {"one", "two", "three"}
FRAME = pl.DataFrame({"start": [1, 2]})
QUERY = sql.SQL("SELECT {}").format(1)
PATTERN = re.compile("a+")
KEYS = np.array([[21, 22], [23, 24]])
TEXT = Template("$one")
draw_of = Random(31)
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
    return elsewhere

def deeper(n):
    return INSERT, QUERY, PATTERN, deeper

class Worker:
    __slots__ = ("size",)
    def __init__(self, size):
        self.size = size
    @functools.cached_property
    def work(self):
        return 51

worker = Worker(52)

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
loop.append(loop)

def prepare(trial, arm):
    trial.elsewhere, trial.server = rows, HOW
    trial.all = KEYS, TEXT, draw_of, worker, told, decorated
    return loop, wide, later

def procedure(trial, arm, repeat=3):
    draw = random.Random(f"{rows} {trial.block}")
    work = lambda: [helper(c.twice()) for c in CASES]
    yield work, NAMES, FRAME, found
"""

EDITS = {
    "a constant": ("INTO t SELECT 1", "INTO t SELECT 2"),
    "a number deep in a constant": ("2.5", "2.6"),
    "a text deep in a constant": ("70", "71"),
    "a member of a set": ("three", "four"),
    "a table": ('"start": [1, 2]', '"start": [1, 3]'),
    "a composed query": (".format(1)", ".format(2)"),
    "a regular expression": ("a+", "b+"),
    "a helper of a helper": ("return INSERT, QUERY", "return QUERY, INSERT"),
    "a method of a class": ("return 2 * self.size", "return 3 * self.size"),
    "a field's default": ("size: int = 3", "size: int = 5"),
    "a member of an enumeration": ("SMALL = 1", "SMALL = 2"),
    "a value in an instance": ("Case(4)", "Case(5)"),
    "a value that a closure keeps": ("made(10)", "made(11)"),
    "an argument bound beforehand": ("deeper, 5", "deeper, 6"),
    "a default of an argument": ("repeat=3", "repeat=4"),
    "the procedure itself": ("yield work", "yield 1, work"),
    "what prepares": ("return loop, wide", "return wide, loop"),
    "an array": ("[23, 24]", "[23, 25]"),
    "an object that cannot be looked into": ('"$one"', '"$two"'),
    "where random numbers begin": ("Random(31)", "Random(32)"),
    "a value in a slot": ("Worker(52)", "Worker(53)"),
    "a property that is kept": ("return 51", "return 50"),
    "a case of a function of several": ("value + 61", "value + 62"),
    "what a decorator is given": ("TIMES = 41", "TIMES = 42"),
    "a library in place of another": ("import random\n", "import secrets as random\n"),
}

OTHERS = {
    "a function that is not reached": ("return elsewhere", "return not elsewhere"),
    "a constant that is not reached": ("elsewhere = 1", "elsewhere = 2"),
    "a comment between cells": ("found = {}", "\n# empty yet\nfound = {}"),
    "how often blocks are run": ("blocks, server = 100, 6", "blocks, server = 100, 7"),
    "the server": ('"embedded"', '"17"'),
    "the order in which a set is written": ('"one", "two"', '"two", "one"'),
}


def executed(text: str, name: str = "") -> dict[str, Any]:
    """The names of a notebook whose cells have this text, with their source at hand."""
    file = f"<cell {name or hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": "__main__", "In": ["", text, "%magic"]}
    exec(compile(text, file, "exec"), space)
    return space


def reached(space: Mapping[str, Any], *files: Path) -> Reached:
    functions = {name: space[name] for name in ("prepare", "procedure")}
    return Reached(functions, files, space.get("parameters", {}))


def digests(text: str) -> dict[str, str]:
    return reached(executed(text)).digests


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_of_what_is_reached_is_told_by_name(edit: tuple[str, str]) -> None:
    assert NOTEBOOK.count(edit[0]) == 1
    before, after = digests(NOTEBOOK), digests(NOTEBOOK.replace(*edit))
    assert 1 <= len(changed(before, after)) <= 2


@pytest.mark.parametrize("edit", OTHERS.values(), ids=OTHERS)
def test_an_edit_of_anything_else_makes_no_difference(edit: tuple[str, str]) -> None:
    assert NOTEBOOK.count(edit[0]) == 1
    assert digests(NOTEBOOK) == digests(NOTEBOOK.replace(*edit))


def test_names_are_those_of_the_notebook() -> None:
    found = digests(NOTEBOOK)
    assert {"prepare", "procedure", "helper", "deeper", "INSERT", "FRAME", "found"} <= found.keys()
    # A parameter is compared as such, and an attribute is no global.
    assert not {"rows", "elsewhere", "server", "parameters", "unused"} & found.keys()


def test_a_parameter_that_a_cell_has_changed_is_none() -> None:
    assert "rows" in digests(f"{NOTEBOOK}\nrows = 200\n")


def test_two_processes_agree() -> None:
    code = (
        "import json, sys; from tests.records.test_reached import NOTEBOOK, digests; "
        "sys.stdout.write(json.dumps(digests(NOTEBOOK)))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_what_a_run_fills_counts_as_it_was_before() -> None:
    """As in JupyterLab, where the cell that measures is run again after an interrupt."""
    space = executed(NOTEBOOK)
    first = reached(space)
    for statement in ("a", "b"):
        space["found"][statement] = 1
        again = reached(space)
        assert again.digests["found"] != first.digests["found"]
        first.settle()
        assert reached(space).digests == first.digests
    space["found"]["by hand"] = 1
    assert reached(space).digests["found"] != first.digests["found"]


def test_a_module_counts_by_its_text_with_those_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("reached_here", "reached_there"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    inner, outer = tmp_path / "reached_there.py", tmp_path / "reached_here.py"
    inner.write_text("def work(): pass\n")
    outer.write_text("from reached_there import work\n")
    notebook = "import reached_here\ndef prepare(t, a): pass\ndef procedure(t, a): reached_here\n"
    space = executed(notebook)
    before = reached(space).digests
    inner.write_text("def work(): return 1\n")
    assert changed(reached(space).digests, before) == {"reached_there.py"}
    # One of the study's room counts as such.
    room = partial(reached, space, outer, inner)
    in_room = room().digests
    inner.write_text("def work(): return 2\n")
    assert changed(room().digests, in_room) == {"reached_there.py"}


def changed(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}


@pytest.mark.parametrize("how", ["import reached_here", "def f(): import reached_here\nf"])
def test_a_module_counts_also_by_what_it_takes_from_others_before_it_is_loaded_or_after(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("reached_here", "reached_there"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    inner, outer = tmp_path / "reached_there.py", tmp_path / "reached_here.py"
    inner.write_text("SIZE = 1\n")
    outer.write_text("from reached_there import SIZE\ndef work(): return SIZE\n")
    used = "f()" if "def" in how else "reached_here.work()"
    space = executed(
        f"{how}\ndef prepare(t, a): pass\ndef procedure(t, a): {used}\n", name=f"{how}"
    )
    before = reached(space).digests
    inner.write_text("SIZE = 2\n")
    assert changed(reached(space).digests, before) == {"reached_there.py"}
    outer.write_text("from reached_there import SIZE\ndef work(): return -SIZE\n")
    assert "reached_here.py" in changed(reached(space).digests, before)


def test_a_module_that_is_edited_during_a_run_is_another_once_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reached_here", raising=False)
    file = tmp_path / "reached_here.py"
    file.write_text("def work(): return 1\n")
    notebook = (
        "import reached_here\nfrom reached_here import work\n"
        "def prepare(t, a): work()\ndef procedure(t, a): reached_here.work()\n"
    )
    first = reached(executed(notebook))
    file.write_text("def work(): return 100\n")
    first.settle()
    # What is loaded has not changed, but what another process loads has.
    assert changed(reached(executed(notebook)).digests, first.digests) >= {"reached_here.py"}
    del sys.modules["reached_here"]
    importlib.invalidate_caches()
    again = reached(executed(notebook)).digests
    assert changed(again, first.digests) == {"reached_here.py", "work", "work'"}


def test_of_the_study_itself_nothing_counts_that_a_run_adds_to_it() -> None:
    notebook = (
        "from pgstudies.notebook import Study\n"
        'study = Study("swept", {"rows": 1})\n'
        "def prepare(t, a): study.parameters\n"
        "def procedure(t, a): [study.record, study.name]\n"
    )
    space = executed(notebook)
    before = reached(space).digests
    space["study"].verdicts = pl.DataFrame({"a": [1]})
    space["study"]._record = space
    assert reached(space).digests == before
    assert before.keys() == {"prepare", "procedure", "study"}
    other = reached(executed(notebook.replace('"swept"', '"other"'))).digests
    assert changed(other, before) == {"study"}


def test_functions_without_source_count_by_their_code() -> None:
    def compiled(text: str) -> dict[str, Any]:
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(dedent(text), space)
        return space

    text = """
        def prepare(t, a): pass
        def procedure(t, a): return [x + 1 for x in t]
    """
    assert reached(compiled(text)).digests == reached(compiled(text)).digests
    assert reached(compiled(text)).digests != reached(compiled(text.replace("1", "2"))).digests
