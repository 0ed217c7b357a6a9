"""The tour of a DBA: a shop on an earlier release, a role that only reads, the truth on 18."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pgapps.plans.explain import explain, is_same
from pgapps.plans.foresee import foresee
from pgapps.plans.queries import Query, top_queries
from pgapps.plans.source import opened
from pgapps.plans.text import as_text
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve
from tests.plans.servers import add_reader, errors
from tests.servers_at_hand import dsn_of, require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgapps.plans.foresee import Foresight

# So few rows that ANALYZE reads them all, and finds the same twice.
SCHEMA = """
CREATE SCHEMA sales;
SET search_path = sales, public;
CREATE EXTENSION pg_trgm SCHEMA public;
CREATE TABLE customer (id int PRIMARY KEY, name text, city text, tags text[]);
CREATE TABLE item (id int PRIMARY KEY, kind int, title text, price int);
CREATE TABLE orders (id int PRIMARY KEY, customer int REFERENCES customer, placed date, state text);
CREATE TABLE line (orders int REFERENCES orders, item int REFERENCES item, pieces int);
CREATE TABLE visit (at date NOT NULL, customer int, page int) PARTITION BY RANGE (at);
CREATE TABLE visit_1 PARTITION OF visit FOR VALUES FROM ('2025-01-01') TO ('2025-05-01');
CREATE TABLE visit_2 PARTITION OF visit FOR VALUES FROM ('2025-05-01') TO ('2025-09-01');
CREATE TABLE visit_3 PARTITION OF visit FOR VALUES FROM ('2025-09-01') TO ('2026-01-01');
INSERT INTO customer SELECT i, 'name ' || i * 7919 % 5000, 'city ' || i % 50, ARRAY['t' || i % 20]
    FROM generate_series(1, 5000) i;
INSERT INTO item SELECT i, i % 30, 'title ' || i * 31 % 2000, i % 500
    FROM generate_series(1, 2000) i;
INSERT INTO orders SELECT i, 1 + i * 79 % 5000, date '2025-01-01' + i % 360,
    CASE WHEN i % 50 = 0 THEN 'open' ELSE 'done' END FROM generate_series(1, 20000) i;
INSERT INTO line SELECT 1 + i % 20000, 1 + i * 17 % 2000, i % 9 FROM generate_series(1, 29000) i;
INSERT INTO visit SELECT date '2025-01-01' + i % 360, 1 + i * 13 % 5000, i % 40
    FROM generate_series(1, 29000) i;
CREATE INDEX ON orders (customer);
CREATE INDEX ON orders (placed);
CREATE INDEX ON orders (id) WHERE state = 'open';
CREATE INDEX ON line (orders);
CREATE INDEX ON line (item);
CREATE INDEX ON customer (lower(name));
CREATE INDEX ON customer USING gin (name public.gin_trgm_ops);
CREATE INDEX ON customer USING gin (tags);
CREATE INDEX ON item (kind, price);
CREATE INDEX ON visit (customer);
CREATE INDEX ON visit (at, page);
"""

JOINED = "orders o JOIN customer c ON c.id = o.customer"

LINES = f"{JOINED} JOIN line l ON l.orders = o.id JOIN item i ON i.id = l.item"

QUERIES = [
    "SELECT * FROM customer WHERE id = 5",
    "SELECT * FROM customer WHERE lower(name) = 'name 7'",
    "SELECT * FROM customer WHERE name LIKE '%ame 49%'",
    "SELECT * FROM customer WHERE name % 'name 4999'",
    "SELECT * FROM customer WHERE tags @> ARRAY['t7']",
    "SELECT city, count(*) FROM customer GROUP BY city ORDER BY 2 DESC",
    "SELECT * FROM customer WHERE city = 'city 3' ORDER BY id LIMIT 5",
    "SELECT * FROM customer WHERE id = 5 OR id = 7",
    "SELECT * FROM customer WHERE id IN (5, 7, 9, 11)",
    "SELECT count(DISTINCT city) FROM customer",
    "SELECT * FROM item WHERE kind = 5 AND price < 100",
    "SELECT kind, max(price) FROM item GROUP BY kind",
    "SELECT * FROM item ORDER BY kind, price LIMIT 10",
    "SELECT * FROM item ORDER BY kind, title LIMIT 10",
    "SELECT * FROM item WHERE price < 7 AND kind IN (1, 2)",
    "SELECT * FROM orders WHERE customer = 5",
    "SELECT * FROM orders WHERE customer = 5 OR customer = 8",
    "SELECT * FROM orders WHERE state = 'open' AND id < 900",
    "SELECT count(*) FROM orders WHERE placed BETWEEN '2025-03-01' AND '2025-03-05'",
    "SELECT placed, count(*) FROM orders GROUP BY placed ORDER BY placed",
    f"SELECT o.* FROM {JOINED} WHERE c.id = 9",
    f"SELECT c.city, count(*) FROM {JOINED} GROUP BY c.city",
    f"SELECT sum(i.price * l.pieces) FROM {LINES} WHERE c.id = 9",
    f"SELECT i.kind, sum(l.pieces) FROM {LINES} WHERE o.placed = '2025-04-01' GROUP BY i.kind",
    f"SELECT c.id FROM {LINES} WHERE i.kind = 5 ORDER BY o.placed LIMIT 5",
    "SELECT * FROM customer c WHERE EXISTS (SELECT 1 FROM orders WHERE customer = c.id)",
    "SELECT * FROM customer c WHERE NOT EXISTS (SELECT 1 FROM visit WHERE customer = c.id)",
    "SELECT id, (SELECT count(*) FROM orders WHERE customer = c.id) FROM customer c WHERE id < 9",
    "SELECT * FROM orders o LEFT JOIN line ON orders = o.id WHERE o.id = 77",
    "SELECT item FROM line UNION SELECT id FROM item",
    "SELECT count(*) FROM visit WHERE at = '2025-06-07'",
    "SELECT page, count(*) FROM visit WHERE customer = 6 GROUP BY page",
    "SELECT v.page FROM visit v JOIN customer c ON c.id = v.customer WHERE c.city = 'city 4'",
    "WITH w AS (SELECT customer FROM visit WHERE page = 3) SELECT count(*) FROM w",
    "SELECT row_number() OVER (PARTITION BY city ORDER BY id) FROM customer",
    "UPDATE orders SET state = 'done' WHERE id = 4",
    "UPDATE orders o SET state = 'open' FROM customer c WHERE c.id = o.customer AND c.id = 17",
    "DELETE FROM line WHERE orders = 123",
    "INSERT INTO visit VALUES ('2025-02-03', 5, 6)",
    "INSERT INTO item SELECT id + 90000, 1, name, 5 FROM customer WHERE id = 12",
]

UNJUDGED = "SELECT * FROM customer WHERE lower(name) = $1"
"""What ANALYZE found of an index's expression is shown to its owner only."""


@contextmanager
def shop(release: str) -> Iterator[ManagedServer]:
    with serve(release, settings={"autovacuum": "off", "jit": "off"}) as server:
        assert isinstance(server, ManagedServer)
        with server.connect() as c:
            c.execute(SCHEMA)
            c.execute("VACUUM ANALYZE")
            add_reader(c)
            c.execute("CREATE ROLE app; ALTER ROLE app SET search_path = sales, public")
            c.execute("GRANT USAGE ON SCHEMA sales TO reader, app")
            c.execute("GRANT SELECT ON ALL TABLES IN SCHEMA sales TO reader")
            c.execute("GRANT ALL ON ALL TABLES IN SCHEMA sales TO app")
        yield server


def use(server: ManagedServer) -> None:
    """Run the queries as the application does, and undo what they change."""
    with server.connect() as c:
        c.execute("SELECT pg_stat_statements_reset()")
        c.execute("SET ROLE app; SET search_path = sales, public")
        for query in QUERIES:
            with c.transaction(force_rollback=True):
                c.execute(query)


def asked(server: ManagedServer) -> Foresight:
    with opened(dsn_of(server, "reader")) as source:
        queries, left_out = top_queries(source.connection, roles=["app"])
        return foresee(source, queries, to="embedded", top=50, left_out=left_out)


def true_plans(queries: list[Query]) -> list[Any]:
    """The plans of the loaded shop on the release that is foreseen, as one who may write."""
    with shop("embedded") as server, server.connect(prepare_threshold=None) as c:
        return [explain(c, query, "sales, public").root for query in queries]


@pytest.mark.thorough
@pytest.mark.parametrize("release", ["14", "17", "embedded"])
def test_a_shop_is_foreseen_twice_alike_and_as_it_is(release: str) -> None:
    require(release)
    with shop(release) as server:
        use(server)
        before = errors(server)
        first, second = asked(server), asked(server)
        assert errors(server) == before
    told = {q.query.text: q.verdict for q in first.queries}
    assert {q.query.text: q.verdict for q in second.queries} == told
    assert second.left_out == first.left_out
    assert len(told) == len(QUERIES)
    unjudged = {text for text, verdict in told.items() if verdict == "not judged"}
    assert unjudged == {UNJUDGED}, as_text(first)
    writes = [q for q in told if not q.startswith(("SELECT", "WITH"))]
    assert f"found: {len(writes)} that write or lock rows" in as_text(first)
    judged = [q for q in first.queries if q.query.text not in {*writes, UNJUDGED}]
    true = true_plans([q.query for q in judged])
    wrong = [q for q, root in zip(judged, true, strict=True) if not is_same(q.after or {}, root)]
    assert [q for q in wrong if not q.is_on_edge] == [], as_text(first)
