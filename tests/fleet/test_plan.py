"""What a sweep is to do: its file read and checked, spread over hosts and blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgstudies import paths
from pgstudies.errors import StudyError
from pgstudies.fleet.ledger import Unit
from pgstudies.fleet.plan import overview, read_sweep

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SWEEP = """
hosts = ["bench1", "bench2"]
blocks = 2
[[run]]
study = "swept"
servers = ["16", "embedded"]
parameters = { pause_s = [0.0, 0.5], twice = false }
[[run]]
study = "swept"
blocks = 1
"""


pytestmark = pytest.mark.usefixtures("private")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "NOTEBOOKS", NOTEBOOKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(text: str) -> Path:
    file = Path("sweep.toml")
    file.write_text(text)
    return file


def test_every_combination_is_a_cell(place: Path) -> None:
    sweep = read_sweep(written(SWEEP))
    assert sweep.ledger == str(place / "sweep")
    assert [
        (c.server, c.parameters["pause_s"], c.parameters["twice"], c.blocks) for c in sweep.cells
    ] == [
        ("16", 0.0, False, 2),
        ("16", 0.5, False, 2),
        ("embedded", 0.0, False, 2),
        ("embedded", 0.5, False, 2),
        ("", 0.0, True, 1),
    ]
    assert len({cell.id for cell in sweep.cells}) == 5


def test_first_blocks_come_first_and_each_once() -> None:
    units = list(read_sweep(written(SWEEP)).units())
    assert len(units) == len(set(units)) == 2 * (4 * 2 + 1)
    assert [unit.block for unit in units] == [1] * 10 + [2] * 8
    assert [unit.host for unit in units[:4]] == ["bench1", "bench2"] * 2


def test_a_list_is_a_grid_only_where_the_study_wants_one_value() -> None:
    text = 'hosts = ["a"]\n[[run]]\nstudy = "swept"\nparameters = {{ sizes = {} }}'
    one = read_sweep(written(text.format("[3, 4]")))
    assert [cell.parameters["sizes"] for cell in one.cells] == [[3, 4]]
    two = read_sweep(written(text.format("[[3], [4, 5]]")))
    assert [cell.parameters["sizes"] for cell in two.cells] == [[3], [4, 5]]


def test_a_cell_keeps_its_name_when_others_come_and_blocks_are_added() -> None:
    before = read_sweep(written(SWEEP)).cells[-1]
    after = read_sweep(written('hosts = ["c"]\n[[run]]\nstudy = "swept"\nblocks = 9')).cells[0]
    assert before.id == after.id


def test_the_overview_counts_what_is_done() -> None:
    sweep = read_sweep(written(SWEEP))
    cell = sweep.cells[1]
    done = {Unit("swept", cell.id, "bench2", 1), Unit("swept", cell.id, "bench2", 77)}
    table = overview(sweep, done)
    assert table.height == 10
    assert table["done"].to_list() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert table["differs"].to_list()[3] == "pause_s=0.5 twice=False"
    assert table["block_s"].null_count() == 10


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", 'must name its hosts, each once, as hosts = ["bench1", "bench2"]'),
        ('hosts = ["a", "a"]', "each once"),
        ('hosts = ["a/b"]', "'a/b' is not a host's name"),
        ('hosts = ["a"]', "nothing to measure"),
        ('hosts = "a"', "hosts must be a list, and it is 'a'"),
        ('hosts = ["a"]\nhost = 1', "'host', which is none of ledger, hosts"),
        ('hosts = ["a"]\nrun = [1]', "must be a table"),
        ("hosts = [", "not valid TOML"),
        ('hosts = ["a"]\n[[run]]\nstudy = "sweet"', "There is no study sweet"),
        ('hosts = ["a"]\n[[run]]\nstudy = "swept"\nblocks = 0', "blocks must be at least 1"),
        ('hosts = ["a"]\n[[run]]\nstudy = "swept"\nblocks = true', "must be a whole number"),
        (
            'hosts = ["a"]\n[[run]]\nstudy = "swept"\nparameters = { paws = 1 }',
            "swept has no parameter paws",
        ),
        (
            'hosts = ["a"]\n[[run]]\nstudy = "swept"\nparameters = { server = "16" }',
            "write servers =",
        ),
        (
            'hosts = ["a"]\n[[run]]\nstudy = "swept"\nservers = ["postgresql://u:secret@h/d"]',
            "must not hold its password",
        ),
        (
            'hosts = ["a"]\n[[run]]\nstudy = "swept"\n[[run]]\nstudy = "swept"',
            "asks twice for swept",
        ),
    ],
)
def test_what_is_wrong_is_said(text: str, sentence: str) -> None:
    with pytest.raises(StudyError) as caught:
        read_sweep(written(text))
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(StudyError, match=r"nowhere\.toml cannot be read: No such file"):
        read_sweep(Path("nowhere.toml"))
