"""A copy that plans as the server does: heights of btrees, subplans, partitions, ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgapps.plans.btrees import entry_bytes, height
from pgapps.plans.explain import growth, is_same, lines_of, parting, tables_of
from pgapps.plans.foresee import Foreseen, Foresight, foresee
from pgapps.plans.queries import Query
from pgapps.plans.scripts import _settings
from pgapps.plans.source import opened
from pgapps.plans.text import as_text
from pgservers.servers.serve import serve
from tests.plans.servers import address_of
from tests.servers_at_hand import embedded, require

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TALL = """
CREATE TABLE one (id int PRIMARY KEY, few int);
CREATE TABLE two (a int, b int, c text COLLATE "C");
CREATE TABLE long (key text COLLATE "C" PRIMARY KEY);
INSERT INTO one SELECT i, i % 9 FROM generate_series(1, 60000) i;
INSERT INTO two SELECT i / 4, i % 4, md5(i::text) FROM generate_series(1, 150000) i;
INSERT INTO long SELECT repeat(md5(i::text), 12) FROM generate_series(1, 15000) i;
CREATE INDEX ON one (few);
CREATE INDEX ON two (a, b);
CREATE UNIQUE INDEX ON two (c);
CREATE TABLE small (id int PRIMARY KEY);
INSERT INTO small SELECT generate_series(1, 50);
CREATE TABLE ledger AS SELECT i AS id, i % 97 AS part FROM generate_series(1, 120000) i;
CREATE TABLE closed AS SELECT 3 * i AS id FROM generate_series(1, 60000) i;
CREATE TABLE sql_jobs (id int);
"""

LOOKED_UP = [
    "SELECT * FROM small WHERE id = 5",
    "SELECT * FROM one WHERE id = 5",
    "SELECT * FROM one WHERE few = $1 LIMIT 1",
    "SELECT * FROM two WHERE a = 5 AND b = 2",
    "SELECT * FROM two WHERE c = $1",
    "SELECT * FROM long WHERE key = $1",
]

# For these the planner looks for the ends of an index, which the copy has not.
ENDS = [
    "SELECT * FROM one WHERE id > 59990",
    "SELECT * FROM long WHERE key > 'f'",
    "SELECT * FROM one JOIN two ON two.a = one.id WHERE one.id < 20 ORDER BY one.id",
]


def asked(texts: Sequence[str]) -> list[Query]:
    return [Query(text, text) for text in texts]


@pytest.fixture(scope="module")
def tall(run_base: Path) -> Iterator[str]:
    assert run_base.exists()
    with embedded({"fsync": "off", "autovacuum": "off"}) as server:
        with server.connect() as connection:
            connection.execute(TALL)
            connection.execute("VACUUM ANALYZE")
        yield address_of(server)


def test_descents_cost_the_same_on_the_copy(tall: str) -> None:
    with opened(tall) as source:
        pages = {name: size // 8192 for name, size in source.sizes.items()}
        heights = {name: height(pages[name], entry) for name, entry in source.entries.items()}
        found = foresee(source, asked(LOOKED_UP), to="embedded")
        ends = foresee(source, asked(ENDS), to="embedded")
    assert [query.verdict for query in ends.queries] == ["same"] * len(ENDS)
    assert heights == {
        "public.small_pkey": 0,
        "public.one_pkey": 1,
        "public.one_few_idx": 1,
        "public.two_a_b_idx": 2,
        "public.two_c_idx": 2,
        "public.long_pkey": 3,
    }
    for query in found.queries:
        assert query.verdict == "same", query.reason
        assert query.before
        assert query.after
        assert query.after["Total Cost"] == query.before["Total Cost"], query.query.text


def test_an_entry_ends_after_a_column_that_is_unique() -> None:
    rows = [("i", 4, False), ("i", 400, True), ("i", 9000, False), ("j", 4, True), ("j", 40, False)]
    assert entry_bytes(rows) == {"i": 416 + 4, "j": 16 + 4}


def test_a_subplan_that_is_no_longer_hashed_is_another_plan(tall: str) -> None:
    texts = [
        "SELECT count(*) FROM ledger WHERE id NOT IN (SELECT id FROM closed)",
        "SELECT id, id IN (SELECT id FROM closed) FROM ledger",
        "WITH done AS MATERIALIZED (SELECT id FROM closed) "
        "SELECT count(*) FROM ledger WHERE id NOT IN (SELECT id FROM done)",
    ]
    with opened(tall) as source:
        found = foresee(source, asked(texts), to="embedded", settings={"work_mem": "512kB"})
    assert [query.verdict for query in found.queries] == ["another plan"] * 3
    assert "with 1 hashed subplans becomes " in as_text(found)


def test_a_query_whose_cost_grows_manyfold_is_named() -> None:
    was, becomes = ({"Node Type": "a", "Plan Rows": 1, "Total Cost": c} for c in (100.0, 450.0))
    query = Foreseen(Query("q", "SELECT 1"), "same", was, becomes)
    assert growth(was, becomes) == 4.5
    text = as_text(Foresight([query], "", "", "", [], {}))
    assert "\nq: the same plan at 4 times the estimated cost" in text
    near = Foreseen(query.query, "same", was, was)
    assert "the same plan at" not in as_text(Foresight([near], "", "", "", [], {}))


def test_plans_that_hash_other_subplans_part_there() -> None:
    hashed, plain = (
        {"Node Type": "Seq Scan", "Output": [f"({h}SubPlan 1)"]} for h in ("hashed ", "")
    )
    assert not is_same(hashed, plain)
    assert parting(hashed, plain)[0] == "Seq Scan with 1 hashed subplans"


def test_of_partitions_with_plans_alike_the_first_is_shown() -> None:
    scans = [{"Node Type": kind, "Relation Name": f"part_{n}", "Plan Rows": 1, "Total Cost": 1.0}
             for n, kind in enumerate(["Seq Scan"] * 18 + ["Index Scan"])]  # fmt: skip
    plan = {"Node Type": "Append", "Plan Rows": 1, "Total Cost": 9.0, "Plans": scans}
    assert [line.text for line in lines_of(plan)] == [
        "Append",
        "Seq Scan on part_0",
        "and 17 more like it",
        "Index Scan on part_18",
    ]


def test_a_table_is_the_servers_own_by_its_schema_and_not_by_its_name() -> None:
    scan = {"Node Type": "Seq Scan", "Relation Name": "sql_jobs"}
    assert tables_of(scan | {"Schema": "public"}) == {"sql_jobs"}
    assert tables_of(scan | {"Schema": "information_schema"}) == set()


def test_a_search_path_keeps_public_and_the_schemas_of_extensions() -> None:
    paths = ['"me", sales, public', "ext, gone"]
    assert _settings(paths, {"sales", "public", "ext"}) == {
        "settings.conf": 'search_path = \'"sales", "public", "ext"\'\n'
    }
    assert _settings(["public"], {"sales", "public"}) == {}


OLDER = """
CREATE TABLE ev (id int, at timestamptz NOT NULL) PARTITION BY RANGE (at);
CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE ev_2 PARTITION OF ev FOR VALUES FROM ('2021-01-01') TO ('2099-01-01');
INSERT INTO ev SELECT i, timestamptz '2020-01-01' + i * interval '1 hour'
    FROM generate_series(1, 20000) i;
CREATE INDEX ON ev (at);
CREATE TABLE booking (id int PRIMARY KEY, during tstzrange NOT NULL);
INSERT INTO booking SELECT i, tstzrange(timestamptz '2025-01-01' + i * interval '1 hour',
    timestamptz '2025-01-01' + i * interval '1 hour' + interval '2 hours')
    FROM generate_series(1, 20000) i;
CREATE INDEX ON booking USING gist (during);
CREATE TABLE sales (id int, status text, at timestamptz);
"""


def test_what_an_older_server_shows_is_compared_alike_or_not_judged() -> None:
    require("14")
    pruned = [
        "SELECT * FROM ev WHERE at > now() - interval '1 hour'",
        "SELECT count(*) FROM ev WHERE at >= CURRENT_DATE",
    ]
    ranges = ["SELECT * FROM booking WHERE during && tstzrange('2025-01-02', '2025-01-06')"]
    untyped = ["SELECT sum(CASE WHEN status = $1 THEN $2 ELSE $3 END) FROM sales"]
    with serve("14", settings={"autovacuum": "off", "jit": "off"}) as server:
        with server.connect() as connection:
            connection.execute(OLDER)
            connection.execute("VACUUM ANALYZE")
        with opened(address_of(server)) as source:
            found = foresee(source, asked([*pruned, *ranges, *untyped]), to="embedded").queries
    assert [query.verdict for query in found[:2]] == ["same"] * 2
    assert [query.verdict for query in found[2:]] == ["not judged"] * 2
    assert "no statistics of the ranges booking.during" in found[2].reason
    assert "with casts ($1::date)" in found[3].reason
    assert "USAGE" not in found[3].reason
