"""Units of work take the statements of their study's procedure from its notebook."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from pgapps.counting.units import units
from pgservers import paths
from pgservers.errors import StudyError
from pgstudies.records.reading import find_record, read_record
from pgstudies.rooms import TEMPLATE, find_room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pgapps.counting.units import Unit

    Made = Callable[..., tuple[Unit, ...]]

CELLS = '''
FILL = "INSERT INTO t SELECT i FROM generate_series(1, {}) i"
QUERY = """SELECT * FROM {table} a JOIN {table} b USING (i)
    WHERE i = $1"""
LOOK = "SELECT look(%s, %s)"
INDEXES = {"hash": "USING hash ({column})", "of one": 1}
rows = len(FILL)
'''

UNIT = """
[[unit]]
name = "one thing"
statements = ["STATEMENT"]
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """The units of a study that is made of cells and of a ``units.toml``."""
    monkeypatch.setattr(paths, "NOTEBOOKS", (tmp_path,))
    room = tmp_path / "made"
    room.mkdir()

    def make(text: str, *cells: str) -> tuple[Unit, ...]:
        code = [{"cell_type": "code", "source": [cell]} for cell in cells or [CELLS]]
        (room / "made.ipynb").write_text(json.dumps({"cells": code}))
        (room / "units.toml").write_text(text)
        units.cache_clear()
        return units("made")

    yield make
    units.cache_clear()


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("<FILL 20>", "INSERT INTO t SELECT i FROM generate_series(1, 20) i"),
        ("<QUERY wide, i % 5>", "SELECT * FROM wide a JOIN wide b USING (i) WHERE i = i % 5"),
        ("x; PERFORM <LOOK 1, 2>; y", "x; PERFORM look(1, 2); y"),
        ("CREATE INDEX ON t <INDEXES[hash] i>", "CREATE INDEX ON t USING hash (i)"),
        ("SELECT 1 <= 2, 3 << 4, 5 <> 6", "SELECT 1 <= 2, 3 << 4, 5 <> 6"),
    ],
)
def test_a_name_stands_for_the_procedure_s_statement(made: Made, written: str, sent: str) -> None:
    (unit,) = made(UNIT.replace("STATEMENT", written))
    assert unit.statements == (sent,)


def test_a_change_of_the_procedure_s_statement_changes_the_unit(made: Made) -> None:
    text = UNIT.replace("STATEMENT", "<FILL 20>")
    (before,) = made(text, CELLS, "%matplotlib inline")
    (after,) = made(text, CELLS.replace("INTO t ", "INTO u "))
    assert before.what_counts() != after.what_counts()
    assert after.statements == ("INSERT INTO u SELECT i FROM generate_series(1, 20) i",)


def test_values_that_a_table_replaces_may_be_names_and_what_they_take(made: Made) -> None:
    each = 'each = { how = ["<INDEXES[hash] i>", ""], n = [1, 2] }\n'
    found = made(UNIT.replace("STATEMENT", "<FILL <n>> <how>") + each)
    assert [unit.statements[0].partition("(1, ")[2] for unit in found] == [
        "1) i USING hash (i)",
        "2) i ",
    ]


def test_a_unit_may_say_whose_work_it_is(made: Made) -> None:
    about = 'arm = "<arm>"\nsteps = ["find, <arm>", "find"]\neach.arm = ["heap", ""]\n'
    found = made(UNIT.replace("one thing", "one <arm> thing") + about)
    assert [(unit.arm, unit.steps) for unit in found] == [
        ("heap", ("find, heap", "find")),
        ("", ("find, ", "find")),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (UNIT.replace("STATEMENT", "<FILL2 20>"), r"made names FILL2, .* did you mean FILL\?$"),
        (UNIT.replace("STATEMENT", "<arm>"), r"made names arm, .* defines\.$"),
        (UNIT.replace("STATEMENT", "<LOOK 1>"), "made gives LOOK 1 values; it takes 2"),
        (UNIT + "size = [1, 2]\n", "unit 'one thing' has 'size', .* sizes, .*, each, with"),
        (UNIT + "with = { arm = 1 }\n", "unit 'one thing', with, .* a list"),
        (UNIT + "each = { arm = [1, 2], how = [1] }\n", "'one thing' .* different lengths in each"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(made: Made, text: str, why: str) -> None:
    with pytest.raises(StudyError, match=why):
        made(text)


def test_the_template_s_unit_is_what_its_procedure_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = find_room(TEMPLATE)
    copy = shutil.copytree(room.directory, tmp_path / "copied")
    shutil.move(copy / room.notebook.name, copy / "copied.ipynb")
    monkeypatch.setattr(paths, "NOTEBOOKS", (tmp_path,))
    units.cache_clear()
    full, half = units("copied")
    units.cache_clear()
    assert half.prepare == (
        "CREATE TABLE t(i int, d text) WITH (fillfactor = 50)",
        "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 10000) i",
        "VACUUM FREEZE ANALYZE t",
    )
    assert "PERFORM count(*) FROM t;" in full.script


def test_each_size_of_a_scanned_table_is_made_as_the_procedure_makes_its_one() -> None:
    code = "\n".join(find_room("sync_scans").code)
    made = re.findall(r"EXECUTE '(.*)';", units("sync_scans")[0].prepare[0])
    of_procedure = [
        re.sub(r"' \|\| (7 \* )?size(?: \|\| ')?", lambda m: "{}" if m[1] else "", text)
        for text in made
    ]
    assert len(made) == 3
    for text in of_procedure:
        assert text.replace("''", "'") in code


def test_keys_collide_in_the_unit_as_they_do_in_the_procedure() -> None:
    fills = {text for u in units("hash_index") if "colliding" in u.name for text in u.prepare}
    (made,) = (text for text in fills if "CASE" in text)
    value = re.sub(r".*SELECT i, (.*) FROM.*", r"\1", made).replace("10000", "{half}")
    assert value in "\n".join(find_room("hash_index").code)


def test_every_step_that_a_unit_names_was_timed_in_its_study() -> None:
    named = {(unit.study, step) for unit in units() for step in unit.steps}
    assert named
    timed = set()
    for study in {study for study, _ in named}:
        measured = read_record(find_record(study, paths.REFERENCE_RECORDS)).measured
        steps = measured.filter(metric="duration_s").select("step", "case").unique().rows()
        timed |= {(study, f"{step}, {case}" if case else step) for step, case in steps}
    assert named <= timed
