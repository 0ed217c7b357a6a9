"""What a notebook's functions reach: an edit of it tells, an edit of anything else does not."""

from __future__ import annotations

import linecache
import subprocess
import sys
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

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
    space: dict[str, Any] = {"__name__": "__main__"}
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
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert 1 <= len(changed) <= 2


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
    assert reached(space).digests["reached_here"] != before["reached_here"]
    # One of the study's room counts as such.
    room = partial(reached, space, outer, inner)
    in_room = room().digests
    inner.write_text("def work(): return 2\n")
    changed = {name for name, digest in room().digests.items() if digest != in_room[name]}
    assert changed == {"reached_there.py"}


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
