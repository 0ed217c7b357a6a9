"""Plans foreseen from schema and statistics alone, on real servers."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgapps.plans.empty_copy import _program, empty_copy
from pgapps.plans.explain import explain, is_same, lines_of, parting, tables_of
from pgapps.plans.foresee import Foreseen, Foresight, foresee
from pgapps.plans.lacking import Extended, Lacking
from pgapps.plans.queries import _EXPLAINED, Query, top_queries
from pgapps.plans.source import _is_ours_alone, _serving, opened, programs_of
from pgapps.plans.text import as_text, confidence, headline, write_report
from pgapps.workload.statements import statements_in
from pgservers.errors import ServerError, StudyError
from pgservers.programs.installations import find_binaries
from pgservers.servers.serve import serve
from tests.plans.servers import address_of, errors
from tests.servers_at_hand import embedded, require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.servers.serve import Server

SCHEMA = """
CREATE TABLE customer (id int PRIMARY KEY, name text, tags text[], about jsonb);
CREATE TABLE orders (id int PRIMARY KEY, customer int REFERENCES customer, placed date, state text);
CREATE TABLE event (at timestamptz NOT NULL, who int) PARTITION BY RANGE (at);
CREATE TABLE event_1 PARTITION OF event FOR VALUES FROM ('2025-01-01') TO ('2025-07-01');
CREATE TABLE event_2 PARTITION OF event FOR VALUES FROM ('2025-07-01') TO ('2026-01-01');
CREATE TABLE product (id int PRIMARY KEY, kind int, sub int, place point);
INSERT INTO customer SELECT i, 'name ' || i, ARRAY['t' || i % 50], jsonb_build_object('k', i % 100)
    FROM generate_series(1, 5000) i;
INSERT INTO orders SELECT i, 1 + (i * 79) % 5000, date '2024-01-01' + i / 100,
    CASE WHEN i % 100 = 0 THEN 'open' ELSE 'done' END FROM generate_series(1, 50000) i;
INSERT INTO event SELECT timestamptz '2025-01-01 UTC' + i * interval '10 minutes', i % 100
    FROM generate_series(1000, 50000) i;
INSERT INTO product SELECT i, i % 50, i % 100, point(i % 100, i / 100)
    FROM generate_series(1, 10000) i;
CREATE INDEX ON orders (customer);
CREATE INDEX ON orders (id) WHERE state = 'open';
CREATE INDEX ON customer (lower(name));
CREATE INDEX ON customer USING gin (tags);
CREATE INDEX ON customer USING gin (about jsonb_path_ops);
CREATE INDEX ON product USING gist (place);
CREATE INDEX ON product USING hash (sub);
CREATE INDEX ON event USING brin (at);
CREATE STATISTICS kinds (dependencies, mcv) ON kind, sub FROM product;
"""

QUERIES = {
    "point": "SELECT * FROM orders WHERE id = $1",
    "open": "SELECT * FROM orders WHERE state = 'open' AND id < 1000",
    "join": "SELECT c.name FROM customer c JOIN orders o ON o.customer = c.id WHERE o.state = $1",
    "in": "SELECT * FROM orders WHERE customer = ANY ($1::int[])",
    "lower": "SELECT * FROM customer WHERE lower(name) = $1",
    "tags": "SELECT * FROM customer WHERE tags @> ARRAY['t7']",
    "json": "SELECT * FROM customer WHERE about @> '{\"k\": 5}'",
    "near": "SELECT * FROM product ORDER BY place <-> point(5, 5) LIMIT 5",
    "hash": "SELECT * FROM product WHERE sub = $1",
    "kinds": "SELECT count(*) FROM product WHERE kind = 3 AND sub = 3",
    "month": "SELECT count(*) FROM event WHERE at >= '2025-02-01' AND at < '2025-03-01'",
    "update": "UPDATE orders SET state = 'done' WHERE customer = $1",
    "delete": "DELETE FROM orders WHERE customer IN (SELECT id FROM customer WHERE name = $1)",
}

WRONG = {
    "broken": ("SELEC 1", "the server says: syntax error"),
    "missing": ("SELECT * FROM nothing", 'the server says: relation "nothing" does not exist'),
    "two": ("SELECT 1; DROP TABLE orders", "it is several statements"),
    "no query": ("VACUUM orders", "the server says: syntax error"),
}


def queries(*names: str) -> list[Query]:
    return [Query(name, QUERIES[name]) for name in names or QUERIES]


def loaded(server: Server) -> str:
    """Fill the server's database; its address."""
    with server.connect() as connection:
        connection.execute(SCHEMA)
        connection.execute("VACUUM ANALYZE")
    return address_of(server)


@pytest.fixture(scope="module")
def shop(run_base: Path) -> Iterator[str]:
    assert run_base.exists()
    with embedded({"fsync": "off", "autovacuum": "off", "random_page_cost": "1.5"}) as server:
        yield loaded(server)


def test_a_copy_plans_as_the_server_does(shop: str) -> None:
    with opened(shop) as source:
        found = foresee(source, queries(), to="embedded")
    assert {q.query.name: q.verdict for q in found.queries} == dict.fromkeys(QUERIES, "same")
    assert "has 13 of its 13 plans." in as_text(found)
    assert not found.notes
    for query in found.queries:
        assert query.before
        assert query.after
        assert query.after["Plan Rows"] == pytest.approx(query.before["Plan Rows"], rel=0.05)
        assert query.after["Total Cost"] == pytest.approx(query.before["Total Cost"], rel=0.1)


def test_the_copy_has_the_length_of_the_files_and_no_row(shop: str) -> None:
    with opened(shop) as source, empty_copy(source, "embedded", print) as copy:
        with copy.connect() as connection:
            sized = "SELECT name, pg_relation_size(name::regclass) FROM unnest(%s::text[]) name"
            sizes = connection.execute(sized, [list(source.sizes)]).fetchall()
            rows = connection.execute("SELECT count(*) FROM public.orders").fetchone()
            shown = connection.execute("SHOW random_page_cost").fetchone()
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                connection.execute("DELETE FROM public.orders")
        assert dict(sizes) == source.sizes
        assert source.sizes["public.orders"] > 2_000_000
        assert (rows, shown) == ((0,), ("1.5",))
        directory = copy.server.data_directory
    assert not directory.exists()


def test_the_server_is_only_read(shop: str) -> None:
    with opened(shop) as source:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            source.connection.execute("CREATE TABLE mine ()")
        for text, _ in WRONG.values():
            assert explain(source.connection, Query("x", text), "public").root is None
        left = source.connection.execute("SELECT count(*) FROM public.orders").fetchone()
        held = source.connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    assert (left, held) == ((50000,), (0,))


def test_a_server_by_its_address_lends_its_release_and_settings(
    shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("source", "foresee"):
        monkeypatch.setattr(f"pgapps.plans.{module}.programs_of", lambda *_: "embedded")
    other = f"{shop}&options=-cenable_hashjoin%3Doff"
    with opened(shop) as source:
        found = foresee(source, queries("join", "point"), to=other)
    assert [query.verdict for query in found.queries] == ["another plan", "same"]
    assert found.after.split(" with the settings of ")[1].startswith("postgresql://postgres@/")


def test_a_servers_own_programs_are_taken_if_they_are_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = find_binaries().version
    monkeypatch.setattr("pgapps.plans.source.installed", lambda _: find_binaries().bindir)
    assert programs_of(version) == str(find_binaries().bindir)
    assert programs_of(version - 1) == "18"
    monkeypatch.setattr("pgapps.plans.source.installed", lambda _: tmp_path)
    assert programs_of(180001) == "18", "what cannot be run is not taken"
    with pytest.raises(StudyError, match="PostgreSQL 77 can neither be fetched nor"):
        programs_of(770001)


def test_what_settings_change_is_named_and_what_cannot_be_judged_says_why(shop: str) -> None:
    asked = [*queries(), *(Query(name, text) for name, (text, _) in WRONG.items())]
    tried = {"enable_hashjoin": "off", "shared_buffers": "1TB", "log_min_messages": "debug5"}
    with opened(shop) as source:
        found = foresee(source, asked, to="embedded", settings=tried)
    (join,) = [query for query in found.queries if query.verdict == "another plan"]
    assert join.query.name == "join"
    assert parting(join.before or {}, join.after or {})[0] == "Hash Join"
    assert not is_same(join.before or {}, join.after or {})
    text = as_text(found)
    assert text.startswith("1 of 13 queries gets another plan; 4 not judged.\nControl: ")
    assert "has 13 of its 13 plans." in text
    assert "join: Hash Join becomes " in text
    assert "Not tried: shared_buffers, log_min_messages; no plan depends on " in text
    assert found.after.endswith(", enable_hashjoin = off")
    assert "Seq Scan on orders o  (rows " in text
    reasons = {query.query.name: query.reason for query in found.queries if query.reason}
    assert reasons.keys() == WRONG.keys()
    for name, (_, said) in WRONG.items():
        assert said in reasons[name]


MADE = [
    "CREATE INDEX made ON orders (placed)",  # a hundred rows of each day
    "CREATE INDEX made ON orders (state)",
    "CREATE INDEX made ON orders (customer, placed)",
    "CREATE UNIQUE INDEX made ON orders (id, customer) INCLUDE (state)",
    "CREATE INDEX made ON orders (id) WHERE state = 'open' AND customer > 10",
    "CREATE INDEX made ON customer (name text_pattern_ops) WITH (fillfactor = 90)",
]


@pytest.mark.parametrize("made", MADE)
def test_an_index_that_is_tried_has_the_size_that_it_would_have(shop: str, made: str) -> None:
    with psycopg.connect(shop) as connection:
        connection.execute(made)
        (size,) = connection.execute("SELECT pg_relation_size('made')").fetchone() or ()
        connection.rollback()
    script = statements_in([f"{made};"], Path("index.sql"))
    with (
        opened(shop) as source,
        empty_copy(source, "embedded", print, script=script) as copy,
        copy.connect() as connection,
    ):
        found = connection.execute("SELECT pg_relation_size('public.made')").fetchone()
        assert found == (pytest.approx(size, rel=0.1),)


def test_an_index_is_tried_on_the_copy_alone(shop: str, tmp_path: Path) -> None:
    made = "CREATE INDEX CONCURRENTLY ON orders (placed)"
    text = "SELECT id FROM orders WHERE placed = $1"
    # The second index of that name is small, and no longer as large as the first.
    again = "CREATE INDEX orders_customer_idx ON orders (customer) WHERE state = 'open'"
    lines = [f"{made};", "DROP INDEX orders_customer_idx;", f"{again};"]
    script = statements_in(lines, Path("index.sql"))
    asked = [Query("placed", text), *queries("point", "open")]
    with psycopg.connect(shop) as connection:
        connection.execute(made.replace("CONCURRENTLY ", ""))
        true = explain(connection, asked[0], "public", {})
        connection.rollback()
    with opened(shop) as source:
        found = foresee(source, asked, to="embedded", script=script)
        assert "public.orders_placed_idx" not in source.sizes
    placed, *others = found.queries
    assert (placed.verdict, [query.verdict for query in others]) == ("another plan", ["same"] * 2)
    assert true.root
    assert placed.after
    assert is_same(true.root, placed.after)
    assert placed.after["Total Cost"] == pytest.approx(true.root["Total Cost"], rel=0.02)
    text = as_text(found)
    assert f", {made}, DROP INDEX orders_customer_idx, {again}\n" in text
    # How many orders are open is estimated from a sample, which is another each time.
    planned = re.search(r"public\.orders_customer_idx is planned with (\d+\.\d) kB\.", text)
    assert planned is not None
    assert 16 < float(planned[1]) < 60  # the metapage, and one leaf at least
    assert "The index public.orders_placed_idx is planned with " in text
    (tmp_path / "index.sql").write_text("SELECT 1;\nCREATE INDEX ON missing (i);\n")
    script = statements_in((tmp_path / "index.sql").read_text().splitlines(), tmp_path)
    with opened(shop) as source, pytest.raises(StudyError, match="Line 2 of the SQL to try fails"):
        foresee(source, asked, to="embedded", script=script)


def test_the_report_has_both_plans_and_no_markup_of_a_query(shop: str, tmp_path: Path) -> None:
    hostile = Query(
        "<b>x</b>", "SELECT '<script>' FROM customer c JOIN orders o ON c.id = customer"
    )
    with opened(shop) as source:
        found = foresee(source, [hostile], to="embedded", settings={"enable_hashjoin": "off"})
    page = write_report(found, tmp_path / "plans.html").read_text()
    assert "&lt;b&gt;x&lt;/b&gt;: Hash Join becomes" in page
    assert "<script" not in page
    assert page.count("<mark>") >= 2


def test_a_release_without_client_programs_is_served_by_the_embedded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = find_binaries()
    monkeypatch.setattr(type(ours), "program", lambda self, name: self.bindir / name)
    none = SimpleNamespace(bindir=tmp_path, version=ours.version, program=lambda _: None)
    assert _program(none, "pg_dump") == ours.bindir / "pg_dump"  # type: ignore[arg-type]
    none.version += 10_000
    with pytest.raises(ServerError, match=r"There is no pg_dump in .*: name another by --to"):
        _program(none, "pg_dump")  # type: ignore[arg-type]


def test_the_servers_own_queries_need_its_extension(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as c:
        c.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        c.execute("SELECT count(*) FROM orders WHERE customer = 5")
        texts = [query.text for query in top_queries(c)[0]]
        c.execute("DROP EXTENSION pg_stat_statements")
        with pytest.raises(StudyError, match="--queries"):
            top_queries(c)
    assert "SELECT count(*) FROM orders WHERE customer = $1" in texts


@pytest.fixture
def watched(shop: str) -> Iterator[psycopg.Connection[Any]]:
    """A session of a superuser, where pg_stat_statements has statements of two roles and ours."""
    with psycopg.connect(shop, autocommit=True) as c:
        c.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        c.execute("CREATE ROLE app; CREATE ROLE monitor")
        c.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO app, monitor")
        c.execute("SELECT pg_stat_statements_reset()")
        c.execute("SET ROLE app")
        for _ in range(3):
            c.execute("SELECT * FROM orders WHERE id = 5")
        c.execute("(SELECT id FROM orders WHERE id < 9) UNION SELECT who FROM event_1")
        c.execute("CREATE TEMP TABLE t AS SELECT * FROM orders LIMIT 1; DROP TABLE t")
        c.execute("SET ROLE monitor")
        c.execute("SELECT count(*) FROM customer")
        c.execute("SELECT relname, extract(epoch FROM now()) FROM pg_class WHERE oid = 5")
        c.execute("RESET ROLE")
        yield c
        c.execute("DROP EXTENSION pg_stat_statements; DROP OWNED BY app, monitor")
        c.execute("DROP ROLE app, monitor")


def own_queries(shop: str, **chosen: Any) -> Foresight:
    with opened(shop) as source:
        queries, left_out = top_queries(source.connection, **chosen)
        return foresee(source, queries, to="embedded", top=50, left_out=left_out)


@pytest.mark.usefixtures("watched")
def test_the_servers_queries_are_those_of_applications_however_often_we_ask(shop: str) -> None:
    def asked() -> list[tuple[str | None, str]]:
        found = own_queries(shop)
        assert "that name no table but the catalogs" in as_text(found)
        return sorted((q.query.role, q.query.text) for q in found.queries)

    first = asked()
    assert first == [
        ("app", "(SELECT id FROM orders WHERE id < $1) UNION SELECT who FROM event_1"),
        ("app", "CREATE TEMP TABLE t AS SELECT * FROM orders LIMIT $1"),
        ("app", "SELECT * FROM orders WHERE id = $1"),
        ("monitor", "SELECT count(*) FROM customer"),
    ]
    assert asked() == first


@pytest.mark.usefixtures("watched")
def test_queries_are_chosen_by_role_and_by_calls_and_the_others_counted(shop: str) -> None:
    for chosen, text in (
        ({"roles": ["monitor"]}, "SELECT count(*) FROM customer"),
        ({"not_roles": ["monitor", "postgres"], "min_calls": 3}, "SELECT * FROM orders"),
    ):
        found = own_queries(shop, **chosen)
        (query,) = found.queries
        assert query.query.text.startswith(text)
        assert found.left_out["of other roles"] >= 3
    assert found.left_out["with fewer calls"] == 2
    with pytest.raises(StudyError, match=r"no such query of this database \(\d+ of other roles"):
        own_queries(shop, roles=["nobody"])


@pytest.fixture
def seller(shop: str) -> Iterator[str]:
    """A role with a schema of its name and settings of its own."""
    with psycopg.connect(shop, autocommit=True) as c:
        c.execute(
            """
            CREATE ROLE "Seller"; CREATE SCHEMA "Seller"; CREATE SCHEMA stall;
            CREATE TABLE stall.ware (a int PRIMARY KEY);
            CREATE TABLE "Seller".note (a int PRIMARY KEY);
            ALTER ROLE "Seller" SET search_path = "$user", stall;
            ALTER ROLE "Seller" SET enable_indexscan = off;
            ALTER ROLE "Seller" SET role = postgres;
            ALTER DATABASE pgstudies SET enable_bitmapscan = off;
            """
        )
        yield "Seller"
        c.execute('ALTER DATABASE pgstudies RESET ALL; DROP SCHEMA "Seller", stall CASCADE')
        c.execute('DROP OWNED BY "Seller"; DROP ROLE "Seller"')


def test_a_query_is_planned_as_the_role_that_ran_it(shop: str, seller: str) -> None:
    texts = ["SELECT * FROM ware WHERE a = 1", "SELECT * FROM note", "SELECT * FROM orders"]
    texts += ["SELECT * FROM stall.nothing"]
    asked = [Query(text, text, seller) for text in texts]
    with opened(shop) as source:
        found = foresee(source, [*asked, Query("mine", texts[0])], to="embedded").queries
        tried = foresee(source, asked[:1], to="embedded", settings={"enable_indexscan": "on"})
    assert [query.verdict for query in found] == ["same", "same", *["not judged"] * 3]
    assert (found[0].after or {})["Node Type"] == "Seq Scan"
    assert tried.queries[0].verdict == "another plan", "what is tried wins"
    assert 'it was looked for in "Seller", stall, the search_path of role Seller' in found[2].reason
    assert "looked for" not in found[3].reason, "it is written with its schema"
    assert 'looked for in "public", the search_path of role postgres' in found[4].reason


def test_a_query_that_row_security_binds_is_not_judged(shop: str, seller: str) -> None:
    with psycopg.connect(shop, autocommit=True) as c:
        c.execute("ALTER TABLE stall.ware ENABLE ROW LEVEL SECURITY")
    asked = [Query(f"{role}", "SELECT * FROM stall.ware", role) for role in (seller, None)]
    with opened(shop) as source:
        found = foresee(source, asked, to="embedded")
    assert [query.verdict for query in found.queries] == ["not judged", "same"]
    assert found.queries[0].reason.startswith("row security of ware binds role Seller")
    assert "    Seller (role Seller): SELECT * FROM stall.ware" in as_text(found)


def test_a_search_path_of_the_address_is_every_roles(shop: str, seller: str) -> None:
    with opened(f"{shop}&options=-csearch_path%3Dpublic") as source:
        settings = {"enable_indexscan": "off", "enable_bitmapscan": "off"}
        assert source.session(seller) == ("the address", '"public"', settings)
        with pytest.raises(StudyError, match="There is no role nobody on postgres"):
            source.require_role("nobody")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("-- a\n /* b ** / SELECT */ ((select 1) UNION SELECT 2)", True),
        ("MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE", True),
        ("/* b */ DROP TABLE t /* c */ SELECT", False),
        ("SELECTED", False),
        ("EXPLAIN SELECT 1", False),
        ("DECLARE c NO SCROLL CURSOR FOR SELECT 1", True),
        ("/* a */ COPY (SELECT 1) TO STDOUT", True),
        ("COPY t TO STDOUT", False),
        ("CREATE TEMP TABLE IF NOT EXISTS t (a) WITH (fillfactor = 9) AS (SELECT 1)", True),
        ("CREATE MATERIALIZED VIEW m AS SELECT 1", True),
        ("CREATE TABLE t (a int GENERATED ALWAYS AS (b) STORED, b int)", False),
        ("CREATE VIEW v AS SELECT 1", False),
    ],
)
def test_a_statement_is_known_by_its_first_word(shop: str, text: str, seen: bool) -> None:
    with psycopg.connect(shop) as c:
        assert c.execute("SELECT %s ~* %s", [text, _EXPLAINED]).fetchone() == (seen,)


def test_what_cannot_be_foreseen_ends_in_a_sentence(shop: str) -> None:
    nowhere = "postgresql://me@/x?host=/nowhere"
    for address, why in (("embedded", "Give the address"), (nowhere, "No connection")):
        with pytest.raises(StudyError, match=why), opened(address):
            pass
    with opened(shop) as source:
        for wrong, why in (
            ({"enable_nothing": "off"}, "enable_nothing = off cannot be tried in a session"),
            ({"work_mem": "many"}, "work_mem = many cannot be tried in a session: invalid value"),
            ({"shared_buffers": "1TB"}, "Nothing is left to try: shared_buffers: no"),
            ({"session_replication_role": "x"}, "session_replication_role cannot be tried: the"),
        ):
            shown: list[str] = []
            with pytest.raises(StudyError, match=why):
                foresee(source, [], to="embedded", settings=wrong, show=shown.append)
            assert shown == ["asking the server for its plans"], "nothing is dumped"
        with pytest.raises(ServerError, match="No connection"):
            foresee(source, [], to=nowhere)


def test_the_command_says_by_its_exit_code_what_it_found(shop: str, tmp_path: Path) -> None:
    (tmp_path / "join.sql").write_text(QUERIES["join"].replace("$1", ":state"))
    (tmp_path / "no.conf").write_text("enable_hashjoin = off\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "index.sql").write_text("CREATE INDEX ON product (kind);\n")
    here, command = str(tmp_path), [sys.executable, "-m", "pgapps", "plans", "--server", shop]
    for more, code, said in (
        (["--queries", here], 0, "0 of 1 queries get another plan."),
        (["--queries", here, "--setting", f"{here}/no.conf"], 1, "1 of 1 queries gets"),
        (["--queries", f"{here}/x"], 2, "x cannot be read: No such file"),
        (["--queries", here, "--with", f"{here}/x"], 2, "x cannot be read: No such file"),
        (["--queries", here, "--with", f"{here}/own/index.sql"], 0, "_idx is planned with "),
        (["--report", "x.txt"], 2, "The report must be a file named *.html"),
    ):
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert said in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_an_older_release_is_foreseen_without_a_control() -> None:
    require("14")
    any_of = "SELECT * FROM orders WHERE customer = 5 OR customer = 7"
    parts = "SELECT extract($1 FROM at) FROM event WHERE at > timestamptz $2 - interval $3"
    with (
        serve("14", settings={"autovacuum": "off", "jit": "off"}) as server,
        opened(loaded(server)) as source,
    ):
        asked = [*queries(), Query("or", any_of), Query("parts", parts)]
        found = foresee(source, asked, to="embedded")
    assert found.no_control.startswith("a release before 18 cannot be given")
    assert {"event_1", "event_2"} <= tables_of(found.queries[-1].after or {})
    assert "Planned without partition pruning on both sides: 1 with parameters" in as_text(found)
    verdicts = {q.query.name: q.verdict for q in found.queries}
    # Only a control could tell that they do not matter here.
    assert verdicts.pop("kinds") == "not judged"
    assert {q.reason for q in found.queries if q.reason} == {
        "the copy has no values of the extended statistics public.kinds"
    }
    # From 18 on, alternatives of one column are looked up in one scan of its index.
    assert verdicts.pop("or") == "another plan"
    assert set(verdicts.values()) == {"same"}


def test_a_locale_that_is_not_here_is_told_and_what_compares_texts_not_judged() -> None:
    require("17")
    texts = ["SELECT * FROM a WHERE t LIKE 'x%'", "SELECT * FROM a WHERE i = 5"]
    with serve("17", settings={"autovacuum": "off"}) as server:
        with server.connect() as c:
            c.execute(
                "CREATE DATABASE icu TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US' "
                "ENCODING UTF8"
            )
        with server.connect(dbname="icu") as c:
            c.execute("CREATE TABLE a (i int PRIMARY KEY, t text); CREATE INDEX ON a (t)")
        with opened(address_of(server, "icu")) as source:
            found = foresee(source, [Query(t, t) for t in texts], to="embedded")
    text = as_text(found)
    has_icu = "has not the icu locale en-US" not in text
    first = "same" if has_icu else "not judged"
    assert [q.verdict for q in found.queries] == [first, "same"]
    assert ("it compares texts" in text) != has_icu


SCAN = {"Node Type": "Seq Scan", "Relation Name": "a", "Filter": "((b = 1) AND (c = 2))"}


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        ({}, ""),
        ({"relations": ["b"]}, "the copy has no a"),
        ({"indexes": [("public.a_idx", "a"), ("public.b_idx", "b")]}, "no index public.a_idx"),
        ({"indexes": [("public.b_idx", "b")]}, ""),
        ({"statistics": [Extended("s", "a", False, ["b", "c"])]}, "extended statistics s"),
        ({"statistics": [Extended("s", "a", False, ["b", "d"])]}, ""),
        ({"statistics": [Extended("s", "a", True, ["b"])]}, "extended statistics s"),
        ({"expressions": [("i", "a", "lower(b)")]}, ""),
        ({"expressions": [("i", "a", "(b = 1)")]}, "of the expression in the index i"),
        ({"priced": [("b", "s")]}, ""),
        ({"priced": [("a", "s")]}, "the costs of a's tablespace s"),
        ({"guarded": {("me", "a")}}, "row security of a binds role me"),
        ({"guarded": {("me", "b"), ("you", "a")}}, ""),
        ({"locale": "libc locale xx"}, ""),
    ],
)
def test_what_a_copy_lacks_matters_to_the_queries_that_need_it(
    lacks: dict[str, Any], reason: str
) -> None:
    nothing: dict[str, Any] = {"relations": ["a"], "guarded": set(), "locale": ""}
    nothing |= {"indexes": [], "statistics": [], "expressions": []}
    lack = Lacking(**(nothing | lacks))
    found = lack.reason(["me"], [SCAN], is_reproduced=False)
    assert reason in found
    assert bool(reason) == bool(found)
    if "statistics" in lacks or "expressions" in lacks:
        assert lack.reason(["me"], [SCAN], is_reproduced=True) == ""


def test_what_earlier_releases_leave_out_of_a_plan_is_no_other_plan() -> None:
    assert is_same({"Node Type": "Sort"}, {"Node Type": "Sort", "Parallel Aware": False})


def made_up(before: float, after: float) -> Foreseen:
    was = {"Node Type": "a", "Plan Rows": 1, "Total Cost": before}
    becomes = {"Node Type": "b", "Plan Rows": 1, "Total Cost": after}
    query = Query("q", "SELECT 1")
    return Foreseen(query, "another plan", was, becomes, is_reproduced=True)


def test_the_answer_begins_with_how_far_to_trust_it() -> None:
    far, near = made_up(100, 103), made_up(100, 101.9)
    wrong = replace(far, verdict="not judged", is_reproduced=False)
    unknown = replace(far, verdict="not judged", is_reproduced=None)

    def answer(*queries: Foreseen, no_control: str = "") -> str:
        found = Foresight(queries, "", "", no_control, [], {})
        return " ".join([headline(found), *confidence(found)])

    control = "Control: a copy on the server's own release has"
    assert answer(far, far) == f"2 of 2 queries get another plan. {control} 2 of its 2 plans."
    assert answer(far, near, wrong).startswith(
        f"2 of 2 queries get another plan, 1 of them on the edge; 1 not judged. {control} 2 of its "
        f"3 plans; the others are not judged. On the edge: the estimated costs of both plans are "
    )
    assert answer(far, no_control="why").endswith("plan. Control: none; why.")
    assert "Control: the server gave no plan" in answer(unknown)


def test_a_plan_on_the_edge_is_told_beside_its_plans(tmp_path: Path) -> None:
    found = Foresight([made_up(100, 100.5)], "", "", "", [], {})
    assert "\nq: a becomes b, on the edge\n" in as_text(found)
    page = write_report(found, tmp_path / "plans.html").read_text()
    assert "<h2>q: a becomes b, on the edge</h2>" in page
    assert page.index("Control: a copy") < page.index("Before: ")


def test_a_setting_of_the_start_that_plans_depend_on_is_tried(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as c:
        c.execute("CREATE TABLE ruled (a int PRIMARY KEY, b int)")
        c.execute(
            "CREATE RULE gone AS ON DELETE TO ruled DO INSTEAD UPDATE ruled SET b = 1 WHERE a = 5"
        )
    asked = [Query("delete", "DELETE FROM ruled WHERE a = 7")]
    try:
        with opened(shop) as source:
            tried = {"session_replication_role": "replica", "shared_buffers": "1TB"}
            found = foresee(source, asked, to="embedded", settings=tried)
    finally:
        with psycopg.connect(shop, autocommit=True) as c:
            c.execute("DROP TABLE ruled")
    assert found.queries[0].verdict == "another plan"
    assert found.after.endswith(", session_replication_role = replica")
    assert "Not tried: shared_buffers; no plan depends on" in as_text(found)


def test_the_programs_that_serve_us_are_known_and_only_run_if_others_cannot_change_them(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("postgres", "initdb"):
        (tmp_path / name).touch(mode=0o755)
    assert not _is_ours_alone(Path("bin"))
    assert not _is_ours_alone(tmp_path / "nowhere")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "parents", property(lambda _: [Path("/")]))
        tmp_path.chmod(0o755)
        assert _is_ours_alone(tmp_path)
        (tmp_path / "initdb").chmod(0o777)
        assert not _is_ours_alone(tmp_path)
    with opened(shop) as source:
        monkeypatch.setattr("pgapps.plans.source._is_ours_alone", lambda _: False)
        assert _serving(source.connection) == []
        monkeypatch.setattr("pgapps.plans.source._is_ours_alone", lambda _: True)
        (place, *_) = _serving(source.connection)
        assert find_binaries(place).version == source.version
        assert programs_of(source.version, source.connection) == str(place)


def test_a_server_whose_release_is_not_here_is_foreseen_without_a_control(
    shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgapps.plans.foresee._major", lambda _: 0)
    with opened(shop) as source:
        newer = replace(source, version=770000)
        with pytest.raises(StudyError, match=r"is PostgreSQL 77, and embedded is .*: give --to"):
            foresee(newer, [], to="embedded")
        monkeypatch.setattr("pgapps.plans.foresee.programs_of", lambda *_: programs_of(770000))
        found = foresee(source, queries("point"), to="embedded")
    assert [query.verdict for query in found.queries] == ["same"]
    assert "Control: none; the programs of PostgreSQL 18 are not at hand here." in as_text(found)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("DECLARE c CURSOR FOR SELECT * FROM orders ORDER BY id", "Index Scan"),
        ("COPY (SELECT * FROM orders WHERE id = 5) TO STDOUT (FORMAT csv)", "Index Scan"),
        ("CREATE TABLE x AS SELECT * FROM orders WHERE id = $1 WITH NO DATA", "Index Scan"),
        ("/* of */ (SELECT id FROM orders) UNION (SELECT id FROM customer)", "Unique"),
    ],
)
def test_the_query_within_a_statement_is_planned(shop: str, text: str, node: str) -> None:
    with opened(shop) as source:
        plan = explain(source.connection, Query("x", text), "public")
    assert next(lines_of(plan.root or {})).text.startswith(node)


@pytest.mark.parametrize("release", ["14", "embedded"])
def test_a_second_statement_is_not_executed_and_no_error_logged(release: str) -> None:
    require(release)
    texts = {
        "SELECT 1; SELECT pg_advisory_lock(7)": "it is several statements",
        "SELECT 1;\nSELECT pg_advisory_lock(7);": "it is several statements",
        "SELECT 1 WHERE $1 = 2; SELECT pg_advisory_lock(7)": "it is several statements",
        "SELECT 1 \\; SELECT pg_advisory_lock(7)": "syntax error",
        "SELECT 1 (; SELECT 2": "syntax error",
        "SELECT * FROM missing WHERE a = ';'": "does not exist",
        "SELECT oid FROM pg_class WHERE relname = ';' AND oid = $1;": "",
    }
    locks = "SELECT count(*) FROM pg_catalog.pg_locks WHERE locktype = 'advisory'"
    with (
        serve(release, settings={"autovacuum": "off"}) as server,
        opened(address_of(server)) as source,
    ):
        before = errors(server)
        for text, why in texts.items():
            plan = explain(source.connection, Query("x", text), "public")
            assert why in plan.reason, text
            assert (plan.root is None) == bool(why), text
        assert source.connection.execute(locks).fetchone() == (0,)
        assert errors(server) == before
        with pytest.raises(psycopg.Error):
            source.connection.execute("SELECT 1/0")
        assert len(errors(server)) > len(before), "it would be seen"
