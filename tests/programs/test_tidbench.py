"""The extension tidbench: every structure finds what it should, holds what it says, and lets go."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import dict_row

from tests.servers_at_hand import extended

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer

    Connection = psycopg.Connection[Any]

NOTHING = "nothing"
STRUCTURES = ["array", "hash", "intset", "tbm", "radix", "radix_tree", "tidstore"]
DENSE = (10_000, 100, 1, 1000, 1100)
SPARSE = (100_000, 2, 50, 1, 1000)
ROWS = 291  # that fit on a page of 8 kB


@pytest.fixture(scope="module")
def server(run_base: Path) -> Iterator[ManagedServer]:
    with extended("tidbench", run_base) as server:
        yield server


@pytest.fixture
def c(server: ManagedServer) -> Iterator[Connection]:
    with server.connect() as connection:
        yield connection


def prepare(c: Connection, shape: tuple[int, ...], *more: Any) -> dict[str, int]:
    arguments = [*shape, *more]
    marks = ", ".join(["%s"] * len(arguments))
    return row(c, f"SELECT * FROM tidbench_prepare({marks})", arguments)


def run(c: Connection, structure: str) -> dict[str, int]:
    """Load a structure and look all probes up; the extension checks how many are found."""
    loaded = row(c, "SELECT * FROM tidbench_load(%s)", [structure])
    return loaded | row(c, "SELECT * FROM tidbench_look_up()")


def row(c: Connection, query: str, parameters: Sequence[Any] = ()) -> dict[str, int]:
    with c.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(query, parameters).fetchone()
    assert found is not None
    return found


def held_bytes(c: Connection) -> int:
    """Memory that the backend holds, all contexts together."""
    return row(c, "SELECT sum(total_bytes)::int8 AS held FROM pg_backend_memory_contexts")["held"]


@contextmanager
def cancelled(c: Connection, timeout: str) -> Iterator[None]:
    """Expect that the server cancels a statement after this time."""
    c.execute(f"SET statement_timeout = '{timeout}'")
    with pytest.raises(errors.QueryCanceled):
        yield
    c.execute("RESET statement_timeout")


def dead_tids(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """The post's arguments, spelled out once more."""
    blocks, dead_per_page, interval, consecutive, page_interval = shape
    return [
        (block, offset)
        for block in range(blocks)
        if block % page_interval < consecutive
        for offset in range(1, dead_per_page * interval + 1)
        if offset % interval == 0
    ]


def test_these_are_the_structures_and_no_other(c: Connection) -> None:
    assert c.execute("SELECT tidbench_structures()").fetchone() == ([NOTHING, *STRUCTURES],)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="nothing is prepared"):
        run(c, "array")
    with pytest.raises(errors.UndefinedObject, match='there is no structure "btree"'):
        run(c, "btree")


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1, 1),
        (7, 3, 2, 2, 3),
        (1000, 1, ROWS, 1, 1),
        (300, ROWS, 1, 9, 10),
        (513, 97, 3, 5, 700),
        (257, 64, 1, 256, 256),
    ],
)
def test_all_of_them_find_every_dead_row_and_no_other(
    c: Connection, shape: tuple[int, ...]
) -> None:
    """What is found is checked by the extension, which counts by arithmetic; and here, too."""
    dead = len(dead_tids(shape))
    rows = shape[0] * shape[1] * shape[2]
    for shuffled in (True, False):
        assert prepare(c, shape, 0, 3, shuffled) == {
            "dead_count": dead,
            "index_count": rows,
            "probe_count": rows,
            "expected_hits": dead,
        }
        for structure in STRUCTURES:
            ran = run(c, structure)
            assert (ran["hits"], ran["probe_count"]) == (dead, rows), structure


@pytest.mark.parametrize("shape", [DENSE, SPARSE])
def test_a_sample_in_the_order_of_the_table_is_spread_over_it(
    c: Connection, shape: tuple[int, ...]
) -> None:
    per_page, probes = shape[1] * shape[2], 9973
    rows = shape[0] * per_page
    dead = set(dead_tids(shape))
    each, rest = divmod(rows, probes)
    places = [i * each + i * rest // probes for i in range(probes)]
    hits = sum((place // per_page, place % per_page + 1) in dead for place in places)
    assert prepare(c, shape, probes, 1, False)["expected_hits"] == hits
    assert {run(c, structure)["hits"] for structure in STRUCTURES} == {hits}


def test_a_sample_is_drawn_by_its_seed(c: Connection) -> None:
    hits = [prepare(c, DENSE, 5000, seed)["expected_hits"] for seed in (1, 2, 3, 1)]
    assert hits[0] == hits[3]
    assert len(set(hits)) == 3
    share = prepare(c, DENSE)["dead_count"] / (DENSE[0] * 100)
    assert all(abs(h / 5000 - share) < 0.02 for h in hits)
    for structure in STRUCTURES:
        prepare(c, DENSE, 5000, -7)
        assert run(c, structure)["probe_count"] == 5000


def test_the_empty_structure_finds_nothing_and_takes_nothing(c: Connection) -> None:
    prepare(c, DENSE, 1000)
    ran = run(c, NOTHING)
    assert (ran["hits"], ran["probe_count"]) == (0, 1000)
    assert ran["size_bytes"] <= 8192


def test_blocks_are_numbers_of_more_than_32_bits_with_their_offsets(c: Connection) -> None:
    """Shifted as 32 bits, block 8,388,608 would be block 0: 610 rows would be found in vain."""
    prepared = prepare(c, (9_000_000, 1, 1, 1, 1000), 0, 1, False)
    assert prepared["expected_hits"] == 9000
    for structure in ("radix", "radix_tree", "tidstore"):
        assert run(c, structure)["hits"] == 9000


def test_a_table_may_be_as_large_as_there_are_blocks(c: Connection) -> None:
    shape = (2**32 - 2, ROWS, 1, 1, 10_000_000)
    prepared = prepare(c, shape, 100_000, 1, False)
    assert prepared["index_count"] == (2**32 - 2) * ROWS
    assert prepared["dead_count"] == 430 * ROWS
    for structure in STRUCTURES:
        assert run(c, structure)["hits"] == prepared["expected_hits"]


def test_sizes_are_what_the_structures_are_made_of(c: Connection) -> None:
    dead = prepare(c, (50_000, 100, 1, 1000, 1100), 1)["dead_count"]
    assert dead == 4_550_000
    pages = dead // 100
    # In a block of 64 kB, nodes of 40 bytes and 64 values, each with 8 bytes of the allocator; a
    # node is for 32 pages. Every other size of node has had a block, too.
    bottom = math.ceil(pages / 32 / (65536 // (40 + 64 * 8 + 8)))
    wanted = {
        "array": 6 * dead,
        # 42 entries of 24 bytes, and 256 buckets of 8, at a time; half of the last block of 8 MB
        "hash": (1024 + 8) / 42 * dead + (2048 + 8) / 256 * 2**23 + 2**22,
        "tbm": 48 * 2**16,
        "radix": 65536 * (bottom + 4) + 8192 * 8,
    }
    sizes = {structure: run(c, structure)["size_bytes"] for structure in wanted}
    assert sizes == {name: pytest.approx(size, rel=0.02) for name, size in wanted.items()}


def test_the_trees_are_smaller_than_the_array_where_much_is_dead(c: Connection) -> None:
    trees = ["radix", "radix_tree", "tidstore", "intset", "array"]  # hash would take a second
    prepare(c, (100_000, 100, 1, 1000, 1100), 1)
    dense = {structure: run(c, structure)["size_bytes"] for structure in trees}
    assert sorted(trees, key=dense.__getitem__) == trees
    prepare(c, (1_000_000, 2, 50, 1, 1000), 1)
    sparse = {structure: run(c, structure)["size_bytes"] for structure in STRUCTURES}
    assert sparse["array"] == min(sparse.values())


def test_dead_rows_of_a_real_table(c: Connection) -> None:
    c.execute("CREATE TEMP TABLE t AS SELECT k, repeat('x', 100) FROM generate_series(1, 50000) k")
    deleted = "DELETE FROM t WHERE k % 13 = 5 OR k BETWEEN 3000 AND 4000 RETURNING ctid"
    c.execute("CREATE TEMP TABLE gone (tid tid)")
    c.execute(f"WITH gone AS ({deleted}) INSERT INTO gone SELECT ctid FROM gone")
    prepared = row(
        c,
        "SELECT p.*, count(*) AS gone, (pg_relation_size('t') / 8192)::int8 AS blocks "
        "FROM (SELECT array_agg(tid ORDER BY tid) AS tids FROM gone) a, gone, "
        "LATERAL tidbench_prepare_tids(tids, pg_relation_size('t') / 8192, 60) p "
        "GROUP BY 1, 2, 3, 4",
    )
    assert prepared["dead_count"] == prepared["gone"] == prepared["expected_hits"] > 4000
    assert prepared["index_count"] == prepared["blocks"] * 60
    assert {run(c, structure)["hits"] for structure in STRUCTURES} == {prepared["gone"]}


def test_tids_that_are_given_mean_the_same_as_arguments(c: Connection) -> None:
    shape = (500, 5, 4, 3, 7)
    tids = [f"({block},{offset})" for block, offset in dead_tids(shape)]
    given = "SELECT * FROM tidbench_prepare_tids(%s::tid[], 500, 20, %s, 9, %s)"
    for probes, shuffled in ((0, True), (777, True), (777, False)):
        prepared = row(c, given, [tids, probes, shuffled])
        sizes = [run(c, structure)["size_bytes"] for structure in STRUCTURES]
        assert prepare(c, shape, probes, 9, shuffled) == prepared
        assert [run(c, structure)["size_bytes"] for structure in STRUCTURES] == sizes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("0, 1, 1, 1, 1", "blocks must be at least 1"),
        ("-1, 1, 1, 1, 1", "blocks must be at least 1"),
        ("4294967295, 1, 1, 1, 1", "blocks must be at most 4294967294"),
        ("10, 0, 1, 1, 1", "dead_per_page must be at least 1"),
        ("10, 1, -5, 1, 1", "interval must be at least 1"),
        ("10, 1, 1, 0, 1", "consecutive must be at least 1"),
        ("10, 1, 1, 1, 0", "page_interval must be at least 1"),
        ("10, 292, 1, 1, 1", "dead_per_page must be at most 291"),
        ("10, 1, 292, 1, 1", "interval must be at most 291"),
        ("10, 98, 3, 1, 1", "dead_per_page times interval must be at most 291"),
        ("10, 4294967296, 4294967296, 1, 1", "dead_per_page must be at most 291"),
        ("10, 1, 1, 3, 2", "consecutive must be at most page_interval"),
        ("10, 1, 1, 1, 1, -1", "probes must be at least 0"),
        ("4294967294, 291, 1, 1, 1", r"1249835482554 dead TIDs take \d+ MB, and this machine has"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(
    c: Connection, arguments: str, message: str
) -> None:
    with pytest.raises(psycopg.Error, match=message):
        c.execute(f"SELECT tidbench_prepare({arguments})")
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        run(c, "array")


@pytest.mark.parametrize(
    ("tids", "message"),
    [
        ("{}", "there must be at least one dead TID"),
        ("{NULL}", "without NULLs"),
        ('{{"(1,1)"},{"(2,1)"}}', "an array of one dimension"),
        ('{"(1,1)","(1,1)"}', "dead TIDs must ascend, and none be there twice"),
        ('{"(2,1)","(1,1)"}', "dead TIDs must ascend"),
        ('{"(10,1)"}', r"TID \(10,1\) is in no table of 10 blocks and 20 rows per page"),
        ('{"(9,21)"}', r"TID \(9,21\) is in no table"),
        ('{"(9,0)"}', r"TID \(9,0\) is in no table"),
    ],
)
def test_tids_that_mean_nothing_are_refused(c: Connection, tids: str, message: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match=message):
        c.execute("SELECT tidbench_prepare_tids(%s::tid[], 10, 20)", [tids])


def test_some_probes_at_a_time_are_all_of_them(c: Connection) -> None:
    expected = prepare(c, SPARSE, 1000, 5)["expected_hits"]
    for structure in STRUCTURES:
        c.execute("SELECT tidbench_load(%s)", [structure])
        parts = [
            row(c, "SELECT * FROM tidbench_look_up(%s, %s)", [first, count])
            for first, count in ((0, 300), (300, 1), (301, 0))
        ]
        assert [part["probe_count"] for part in parts] == [300, 1, 699]
        assert sum(part["hits"] for part in parts) == expected
    for first, count in ((-1, 5), (999, 2), (1001, 0), (0, -1)):
        with pytest.raises(errors.InvalidParameterValue, match="not among the 1000"):
            c.execute("SELECT tidbench_look_up(%s, %s)", [first, count])
    prepare(c, SPARSE, 10)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="no structure is loaded"):
        c.execute("SELECT tidbench_look_up()")


def test_a_structure_takes_the_place_of_the_one_before(c: Connection) -> None:
    prepare(c, SPARSE, 1000)
    run(c, NOTHING)
    before = held_bytes(c)
    for structure in STRUCTURES:
        run(c, structure)
    run(c, NOTHING)
    assert abs(held_bytes(c) - before) < 64 * 1024
    prepare(c, (100_000, 100, 1, 1000, 1100), 1)
    assert held_bytes(c) > before + 50_000_000
    c.execute("SELECT tidbench_release()")
    assert held_bytes(c) <= before + 64 * 1024
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        run(c, "array")


@pytest.mark.parametrize("structure", [NOTHING, *STRUCTURES])
def test_a_lookup_that_is_cancelled_lets_go_of_its_memory(c: Connection, structure: str) -> None:
    prepare(c, (4_000_000, 1, ROWS, 1, 100))
    c.execute("SELECT tidbench_load(%s)", [structure])
    before = held_bytes(c)
    with cancelled(c, "100ms"):
        c.execute("SELECT tidbench_look_up()")
    assert abs(held_bytes(c) - before) < 64 * 1024


def test_a_load_that_is_cancelled_lets_go_of_its_memory(c: Connection) -> None:
    prepared = prepare(c, (100_000, 100, 1, 1000, 1100), 100)
    before = held_bytes(c)
    with cancelled(c, "20ms"):
        run(c, "hash")
    assert abs(held_bytes(c) - before) < 64 * 1024
    assert run(c, "radix")["hits"] == prepared["expected_hits"] > 0


def test_a_preparation_that_is_cancelled_leaves_nothing(c: Connection) -> None:
    prepare(c, SPARSE, 1)
    c.execute("SELECT tidbench_release()")
    before = held_bytes(c)
    with cancelled(c, "20ms"):
        prepare(c, (1_000_000, 100, 1, 1000, 1100), 90_000_000)
    assert held_bytes(c) <= before + 64 * 1024
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        run(c, "array")


def test_sessions_do_not_share_what_they_prepare(server: ManagedServer, c: Connection) -> None:
    prepare(c, SPARSE, 10)
    with server.connect() as other:
        with pytest.raises(errors.ObjectNotInPrerequisiteState):
            run(other, "array")
        assert prepare(other, DENSE, 20)["probe_count"] == 20
    assert run(c, "array")["probe_count"] == 10
