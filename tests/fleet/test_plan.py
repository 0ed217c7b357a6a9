"""What a sweep is to do: its file read and checked, spread over hosts and blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from pgapps.fleet.ledger import SweepBlock
from pgapps.fleet.plan import overview, read_sweep
from pgservers import paths
from pgservers.errors import StudyError
from tests.made_up import ROOMS

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

ONE = 'hosts = ["a"]\n[[run]]\nstudy = "swept"\n'

pytestmark = pytest.mark.usefixtures("private")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "NOTEBOOKS", (ROOMS,))
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
    blocks = list(sweep.blocks())  # first blocks first, and each once
    assert len(blocks) == len(set(blocks)) == 2 * (4 * 2 + 1)
    assert [block.number for block in blocks] == [1] * 10 + [2] * 8
    assert [block.host for block in blocks[:4]] == ["bench1", "bench2"] * 2


def test_a_list_is_a_grid_only_where_the_study_wants_one_value() -> None:
    for sizes, wanted in (([3, 4], [[3, 4]]), ([[3], [4, 5]], [[3], [4, 5]])):
        sweep = read_sweep(written(f"{ONE}parameters = {{ sizes = {sizes} }}"))
        assert [cell.parameters["sizes"] for cell in sweep.cells] == wanted


def test_a_cell_keeps_its_name_when_others_come_and_blocks_are_added() -> None:
    before = read_sweep(written(SWEEP)).cells[-1]
    after = read_sweep(written(f"{ONE}blocks = 9")).cells[0]
    assert before.id == after.id


def test_the_overview_counts_what_is_done() -> None:
    sweep = read_sweep(written(SWEEP))
    cell = sweep.cells[1]
    done = {SweepBlock("swept", cell.id, "bench2", 1), SweepBlock("swept", cell.id, "bench2", 77)}
    table = overview(sweep, done)
    assert table.height == 10
    assert table["done"].to_list() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert table["differs"].to_list()[3] == "pause_s=0.5 twice=False"
    assert table["block_s"].null_count() == 10


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "must name its hosts"),
        ('hosts = ["a", "a"]', "each once"),
        ('hosts = ["a/b"]', "the host 'a/b'"),
        ('hosts = ["a"]', "nothing to measure"),
        ('hosts = "a"', "hosts must be a list"),
        ('hosts = ["a"]\nhost = 1', "'host', which is none of ledger, hosts, blocks, run"),
        ('hosts = ["a"]\nrun = [1]', "run 1 must be a table"),
        ('hosts = ["a"]\n[[run]]', "run 1 has no study"),
        (f'{ONE}[[run]]\nstudy = "swept"\nserver = "16"', "run 2 has 'server'"),
        (f'{ONE}servers = "postgresql://u:secret@h/d"', "servers must be a list"),
        (f'{ONE}servers = ["16", 17]', "run 1, servers 2 must be text"),
        ("hosts = [", "not valid TOML"),
        ('hosts = ["a"]\n[[run]]\nstudy = "sweet"', "There is no study sweet"),
        (f"{ONE}blocks = 0", "blocks must be a whole number >= 1"),
        (f"{ONE}blocks = true", "must be a whole number"),
        (f"{ONE}blocks = 100_000_000", "100000000 blocks on all hosts together"),
        (
            f"{ONE}parameters = {{ seed = {list(range(33))}, sizes = {[[n] for n in range(33)]} }}",
            "more than 1000 combinations",
        ),
        (f"hosts = {[f'h{n}' for n in range(1001)]}", "names 1001 hosts"),
        ('hosts = ["a"]\n[[run]]\nstudy = "well"', "well has no blocks"),
        ("blocks = 0x" + 4000 * "f", "more than 64 bits"),
        ('hosts = ["a"]\n[[run]]\nstudy = "a\\nb"', "not one line"),
        ("blocks = " + 5000 * "9", "not valid TOML"),
        ("a = " + 3000 * "[", "nested too deeply"),
        (f'ledger = "~nobody-at-all/a"\n{ONE}', "the ledger '~nobody-at-all/a' is no path"),
        (f"{ONE}parameters = {{ paws = 1 }}", "swept has no parameter paws"),
        (f'{ONE}parameters = {{ server = "16" }}', "write servers ="),
        (f'{ONE}servers = ["postgresql://u:secret@h/d"]', "must not hold its password"),
        (f'{ONE}[[run]]\nstudy = "swept"', "asks twice for swept"),
    ],
)
def test_what_is_wrong_is_said(text: str, what: str) -> None:
    with pytest.raises(StudyError) as caught:
        read_sweep(written(text))
    assert what in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(StudyError, match=r"nowhere\.toml cannot be read as a sweep: No such file"):
        read_sweep(Path("nowhere.toml"))


TEXTS = st.text(max_size=8) | st.sampled_from(
    [
        *("swept", "well", "scorecard", "quick", "standard", "16", "a", "../a", "/dev/null"),
        *("s3://", "://", "unheard-of://a", "~a/b", "postgresql://u@h/d", "postgresql://"),
        *("", "\0", "\u2028"),
    ]
)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXTS | st.dates(),
    lambda of: st.lists(of, max_size=3) | st.dictionaries(TEXTS, of, max_size=3),
    max_leaves=6,
)


def mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 5).flatmap(lambda n: good if n else bad)


PARAMETERS = mostly(
    st.fixed_dictionaries(
        {},
        optional={
            "pause_s": st.just(0.5) | st.lists(st.integers(0, 9), max_size=3),
            "seed": mostly(st.lists(st.integers(0, 9), max_size=40), VALUES),
            "sizes": mostly(st.lists(st.lists(st.integers(0, 9)), max_size=40), VALUES),
        },
    ),
    st.dictionaries(st.sampled_from(["twice", "sizes", "server", "blocks"]) | TEXTS, VALUES),
)
RUNS = st.fixed_dictionaries(
    {"study": mostly(st.just("swept"), TEXTS | VALUES)},
    optional={
        "profile": mostly(st.just("quick"), TEXTS),
        "servers": mostly(st.just(["16", ""]), st.lists(TEXTS, max_size=3) | VALUES),
        "parameters": mostly(PARAMETERS, VALUES),
        "blocks": mostly(st.integers(1, 3), st.integers()),
    },
)
SWEEPS = st.fixed_dictionaries(
    {
        "hosts": mostly(st.just(["a", "b"]), VALUES),
        "run": mostly(st.lists(RUNS, min_size=1, max_size=2), VALUES),
    },
    optional={"ledger": TEXTS, "blocks": mostly(st.integers(1, 3), VALUES)},
)


def as_toml(value: object) -> str:
    """A value as TOML has it, tables in one line."""
    if isinstance(value, dict):
        pairs = (f"{as_toml(k)} = {as_toml(v)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)


ALIKE = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), max_examples=100
)


@settings(ALIKE, max_examples=200)
@given(sweep=SWEEPS)
def test_whatever_is_written_comes_to_a_sweep_or_a_sentence(sweep: dict[str, object]) -> None:
    text = "".join(f"{name} = {as_toml(value)}\n" for name, value in sweep.items())
    is_one_sentence(text.encode())


@ALIKE
@given(
    cut=st.integers(0, len(SWEEP)),
    until=st.integers(0, len(SWEEP)),
    put=st.binary(max_size=4) | st.sampled_from([b"[[", b"{", b'"""', b"= 1", b"0x", b"\xff"]),
)
def test_whatever_a_typing_error_comes_to_a_sweep_or_a_sentence(
    cut: int, until: int, put: bytes
) -> None:
    is_one_sentence(SWEEP[:cut].encode() + put + SWEEP[until:].encode())


def is_one_sentence(content: bytes) -> None:
    Path("sweep.toml").write_bytes(content)
    try:
        sweep = read_sweep(Path("sweep.toml"))
    except StudyError as error:
        sentence = str(error)
    else:
        sentence = "a sweep"
        assert overview(sweep, set())["done"].sum() == 0
    event(sentence)
    assert len(sentence.splitlines()) == 1
