"""Parameters: what a notebook declares, and the sentence for every wrong value."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgapps.execution.plan import plan, studies
from pgservers import paths
from pgservers.errors import StudyError
from pgstudies.parameters import checked, declared, study_parameters
from pgstudies.rooms import find_room, rooms
from tests.made_up import ROOMS

if TYPE_CHECKING:
    from pathlib import Path

PARAMETERS = declared(ROOMS / "well" / "well.ipynb")
DEFAULTS = {
    "rows": 50_000,
    "iterations": 4,
    "share": 0.02,
    "cold": True,
    "starts": [1, 2, 3],
    "memory": 80,
    "order": "random",
    "server": "",
}


def values(**given: object) -> dict[str, Any]:
    return checked("well", PARAMETERS, given)


def notebook(path: Path, cell: str) -> Path:
    cells = [{"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": cell}]
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_a_declaration_is_read_whole() -> None:
    assert [p.name for p in PARAMETERS] == list(DEFAULTS)
    rows, iterations, share, cold, starts, memory, order, server = PARAMETERS
    assert (rows.type, rows.default, rows.help) == ("int", 50_000, "rows in the table")
    assert (rows.minimum, rows.maximum, rows.limits) == (2000, None, "at least 2000")
    assert (iterations.minimum, iterations.maximum) == (1, 10)
    assert (share.type, share.minimum, share.maximum) == ("float", 0.0, 1.0)
    assert (cold.type, cold.default, cold.limits) == ("bool", True, "")
    assert (starts.type, starts.default, starts.minimum) == ("list[int]", [1, 2, 3], 1)
    assert (memory.unit, memory.limits) == ("MB", "between 16 and 1024 MB")
    assert (order.choices, order.limits) == (("random", "fixed"), "random or fixed")
    assert server.help == "where to measure; empty: $PGSTUDIES_SERVER or embedded"


def test_a_notebook_without_the_cell_has_no_parameters() -> None:
    assert declared(ROOMS / "no_parameters" / "no_parameters.ipynb") == ()
    with pytest.raises(StudyError, match="no_parameters has no parameters, so rows cannot be set"):
        checked("no_parameters", (), {"rows": 1})


@pytest.mark.parametrize(
    "cell",
    [
        'names: list[str] = ["a", "b"]  # names of arms [a|b|c]',
        'names: list[str] = [\n    "a",  # first\n    "b",\n]  # names of arms [a|b|c]\n',
        'names: list[str] = [  # names of arms [a|b|c]\n    "a",\n    "b",\n]\n',
        'names: list[str] = (\n    ["a", "b"]  # names of arms [a|b|c]\n)\n',
    ],
)
def test_an_assignment_over_several_lines_keeps_its_comment(cell: str, tmp_path: Path) -> None:
    (parameter,) = declared(notebook(tmp_path / "n.ipynb", cell))
    assert (parameter.default, parameter.help) == (["a", "b"], "names of arms")
    assert parameter.limits == "a, b or c"


@pytest.mark.parametrize(
    ("cell", "limits", "text", "value"),
    [
        ("more: list[str] = []  # more arms [a|b]", "a or b", "b", ["b"]),
        ('more: list[str] = ["a"]  # arms [|a|b]', "a or b", "b", ["b"]),
        ('more: list[str] = ["a"]  # arms [|]', "", "/x,b", ["/x", "b"]),
    ],
)
def test_a_list_may_be_empty_if_its_default_is_or_its_limits_say_so(
    cell: str, limits: str, text: str, value: list[str], tmp_path: Path
) -> None:
    known = declared(notebook(tmp_path / "n.ipynb", cell))
    assert checked("n", known, {"more": ""}) == {"more": []}
    assert checked("n", known, {"more": text}) == {"more": value}
    if limits:
        assert known[0].limits == limits
        with pytest.raises(StudyError, match=r"^n: more must be a or b, and ';DROP' is not\.$"):
            checked("n", known, {"more": "';DROP'"})


STUDIES = [room.notebook for room in rooms().values()]


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_every_parameter_of_every_study_has_help_and_limits(study: Path) -> None:
    for parameter in declared(study):
        assert parameter.help, parameter.name
        if (study.stem, parameter.name) == ("releases", "releases"):
            assert not parameter.choices  # it takes directories as well
            continue
        if parameter.type not in {"str", "bool", "list[str]"}:  # which are free, or have two values
            assert parameter.limits, parameter.name
        if parameter.name == "releases":
            assert parameter.choices == tuple(tomllib.loads(paths.RELEASES.read_text()))


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("rows = 1", "line 1 is not of the form `name: type = value"),
        ("import os", "line 1 is not of the form `name: type = value"),
        ("rows: dict = {}", "rows is of type dict, and a parameter is one of int, float, str,"),
        ("rows: int = 2 * n", "rows is not a plain value"),
        ("rows: int = 1.5", "rows must be a whole number, such as 50_000, and 1.5 is not"),
        ("rows: int = 1  # rows [2..]", "rows must be at least 2, and 1 is not"),
        ('name: str = ""  # name [1..2]', "name is text, which has no range"),
    ],
)
def test_a_wrong_declaration_names_the_notebook(cell: str, problem: str, tmp_path: Path) -> None:
    path = notebook(tmp_path / "wrong.ipynb", cell)
    with pytest.raises(StudyError) as caught:
        declared(path)
    assert str(caught.value).startswith(f"{path}, the cell of parameters: {problem}")


def test_a_file_that_is_no_notebook_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "torn.ipynb"
    with pytest.raises(StudyError, match=r"^There is no notebook at .*torn\.ipynb\.$"):
        declared(path)
    path.write_text("{")
    with pytest.raises(StudyError, match=r"torn\.ipynb is not a notebook that can be read"):
        declared(path)


def test_defaults_fill_in_what_is_not_given() -> None:
    assert values() == DEFAULTS
    assert values(rows=3000) == DEFAULTS | {"rows": 3000}
    assert list(values(server="16", rows=3000)) == list(DEFAULTS)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("rows", "1_000_000", 1_000_000),
        ("rows", "1000000", 1_000_000),
        ("rows", " 1e6 ", 1_000_000),
        ("rows", 1e6, 1_000_000),
        ("share", "0.5", 0.5),
        ("share", ".5", 0.5),
        ("share", 1, 1.0),
        ("cold", "False", False),
        ("cold", "true", True),
        ("cold", False, False),
        ("cold", "0", False),
        ("cold", 1, True),
        ("starts", "4,5", [4, 5]),
        ("starts", "[4, 5]", [4, 5]),
        ("starts", '["4", "5"]', [4, 5]),  # as a shell's user types JSON
        ("starts", "[4_000, 5]", [4000, 5]),
        ("starts", "7", [7]),
        ("starts", [4, 5], [4, 5]),
        ("order", "fixed", "fixed"),
        ("server", "postgresql://me@db/x?a=b", "postgresql://me@db/x?a=b"),
        ("server", 16, "16"),  # what papermill makes of `-p server 16`
    ],
)
def test_text_and_values_are_read_alike(name: str, given: object, value: object) -> None:
    found = values(**{name: given})[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "needs", "refused"),
    [
        *(("rows", text, "a whole number", f'"{text}"') for text in ("many", "1.5", "inf", "")),
        ("rows", True, "a whole number", "True"),
        ("rows", None, "a whole number", "None"),
        ("rows", "10", "at least 2000", "10"),
        ("iterations", "11", "between 1 and 10", "11"),
        ("share", "much", "a number", '"much"'),
        ("share", "nan", "between 0.0 and 1.0", "nan"),
        ("cold", "perhaps", "true or false", '"perhaps"'),
        ("cold", 2, "true or false", "2"),
        ("starts", "1,x", "whole numbers with commas between", '"x"'),
        ("starts", 7, "whole numbers with commas between", "7"),
        ("starts", "1,0", "at least 1", "0"),
        ("memory", "8", "between 16 and 1024 MB", "8"),
        ("order", "sorted", "random or fixed", "sorted"),
        ("server", True, "text", "True"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(
    name: str, given: object, needs: str, refused: str
) -> None:
    sentence = rf"^well: {name} must be {needs}(, such as [^ ]+)?, and {refused} is not\.$"
    with pytest.raises(StudyError, match=sentence):
        values(**{name: given})


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"starts": ""}, "at least one value"),
        ({"starts": []}, "at least one value"),
        ({"starts": "1,2,1"}, "starts has 1 twice"),
        ({"row": 1}, r"did you mean rows\? It has rows, iterations, .* order and server\.$"),
        ({"zzz": 1}, "no parameter zzz; it has rows, iterations"),
    ],
)
def test_what_is_missing_repeated_or_unknown_is_named(given: dict[str, Any], what: str) -> None:
    with pytest.raises(StudyError, match=what):
        values(**given)


def test_a_notebook_checks_its_own_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "NOTEBOOKS", (ROOMS,))
    surroundings: dict[str, Any] = {"__name__": "__main__", "pl": object()}
    namespace = surroundings | DEFAULTS | {"rows": 2500}
    assert study_parameters("well", namespace) == DEFAULTS | {"rows": 2500}
    with pytest.raises(StudyError, match=r"^well: rows must be at least 2000, and 1 is not\.$"):
        study_parameters("well", namespace | {"rows": 1})


def test_a_notebook_that_was_given_a_password_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "NOTEBOOKS", (ROOMS,))
    study_parameters("well", DEFAULTS | {"server": "postgresql://me@db/x"})
    assert capsys.readouterr().err == ""
    study_parameters("well", DEFAULTS | {"server": "postgresql://me:hidden@db/x"})
    said = capsys.readouterr().err
    assert "now holds the password" in said
    assert "hidden" not in said


WORDS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=30),
    st.lists(st.one_of(st.integers(), st.floats(), st.text(max_size=5)), max_size=4),
)
SERVERS = ["embedded", "9.6", "~nobody/x", "x" * 5000]
SERVERS += ["jdbc:postgresql://me:secret@h/d", "PASSWORD=secret"]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(studies()), st.data())
def test_whatever_a_parameter_is_given_is_taken_or_refused_in_one_sentence(
    study: str, data: st.DataObject
) -> None:
    names = [p.name for p in declared(find_room(study).notebook)] + ["nothing_known"]
    given_values = data.draw(st.dictionaries(st.sampled_from(names), WORDS, max_size=3))
    if data.draw(st.booleans()):
        given_values["server"] = data.draw(st.sampled_from(SERVERS))
    said = ""
    try:
        plan(study, parameters=given_values)
    except StudyError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1
    # Hypothesis draws this module's own strings, too, and a value that is refused is repeated.
    assert "secret" not in said or "secret" in given_values.values()
