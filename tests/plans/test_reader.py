"""What a role that may only read sees of the plans of others, and what is left in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgapps.doctor.doctor import _served
from pgapps.plans.explain import lines_of
from pgapps.plans.foresee import foresee
from pgapps.plans.queries import Query, queries_in
from pgapps.plans.source import opened
from pgapps.plans.text import as_text
from pgservers.errors import StudyError
from pgservers.paths import ROOT
from tests.plans.servers import add_reader, errors
from tests.plans.test_foresee import SCHEMA
from tests.servers_at_hand import dsn_of, embedded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer

EXAMPLE = ROOT / "notebooks" / "workload" / "example"

WRITES = {
    "update": "UPDATE orders SET state = $1 WHERE customer = $2",
    "delete": "DELETE FROM orders o USING customer c WHERE o.customer = c.id AND c.name = $1",
    "insert": "INSERT INTO orders SELECT id, $1 FROM customer WHERE tags @> ARRAY[$2]",
    "values": "INSERT INTO orders VALUES ($1, $2, DEFAULT, $3) ON CONFLICT DO NOTHING",
    "lock": "SELECT * FROM orders WHERE id = $1 FOR UPDATE SKIP LOCKED",
    "merge": "MERGE INTO orders o USING customer c ON o.id = c.id WHEN MATCHED THEN DELETE",
}

WRONG = {
    "missing": "SELECT * FROM nothing",
    "broken": "SELEC 1",
    "hidden": "SELECT * FROM pg_authid",
    "untyped": "SELECT $1 + $2 FROM orders",
}


@pytest.fixture(scope="module")
def server(run_base: Path) -> Iterator[ManagedServer]:
    assert run_base.exists()
    with embedded({"fsync": "off", "autovacuum": "off"}) as server:
        with server.connect() as c:
            c.execute(SCHEMA)
            c.execute("VACUUM ANALYZE")
            add_reader(c)
            c.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        yield server


@pytest.fixture
def no_customers(server: ManagedServer) -> Iterator[None]:
    with server.connect() as c:
        c.execute("REVOKE SELECT ON customer FROM reader")
        yield
        c.execute("GRANT SELECT ON customer TO reader")


def test_what_a_role_may_not_write_is_judged_by_its_rows_and_the_log_has_no_error(
    server: ManagedServer,
) -> None:
    before = errors(server)
    asked = [Query(name, text) for name, text in (WRITES | WRONG).items()]
    with opened(dsn_of(server, "reader")) as source:
        found = foresee(source, asked, to="embedded")
    assert errors(server) == before
    text = as_text(found)
    verdicts = {query.query.name: query.verdict for query in found.queries}
    assert verdicts == dict.fromkeys(WRITES, "same") | dict.fromkeys(WRONG, "not judged"), text
    update, merge = (
        [line.text for line in lines_of(query.after or {})]
        for query in found.queries
        if query.query.name in {"update", "merge"}
    )
    assert "Index Cond: (orders.customer = $1)" in update
    assert merge[0].startswith("Merge on orders")
    assert "has 5 of its 5 plans." in text
    assert "rows are found: 5 that write or lock rows, as reader may" in text
    assert "in place of the server's: 1 that reader may" in text


@pytest.mark.usefixtures("no_customers")
def test_a_role_that_may_not_read_every_table_is_refused_before_the_dump_and_by_the_doctor(
    server: ManagedServer,
) -> None:
    before = errors(server)
    with (
        pytest.raises(StudyError, match=r"may not read 1 of the 6 tables .*public.customer"),
        opened(dsn_of(server, "reader")),
    ):
        pass
    assert errors(server) == before
    studies, plans = _served(dsn_of(server, "reader"))
    assert (studies.ok, studies.exit_code, plans.ok) == (False, 3, False)
    assert "may not read 1 of 6 tables, such as public.customer: GRANT" in plans.sentence


def test_the_doctor_says_what_a_role_that_may_only_read_is_good_for(server: ManagedServer) -> None:
    studies, plans = _served(dsn_of(server, "reader"))
    assert (studies.name, studies.ok, plans.name, plans.ok) == ("server", None, "plans", True)
    assert "not run: The role reader" in studies.sentence
    assert "6 tables can be read" in plans.sentence
    with server.connect() as c:
        c.execute("REVOKE pg_read_all_stats FROM reader")
        _, plans = _served(dsn_of(server, "reader"))
        c.execute("GRANT pg_read_all_stats TO reader")
    assert plans.ok is None
    assert plans.sentence.endswith("by --queries only: GRANT pg_read_all_stats TO reader")


def test_a_new_workload_is_planned_as_it_is(server: ManagedServer) -> None:
    with server.connect() as c:
        c.execute("CREATE DATABASE example")
    with server.connect(dbname="example") as c:
        c.execute((EXAMPLE / "schema.sql").read_bytes())
        c.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        c.execute("VACUUM ANALYZE")
    with opened(dsn_of(server, "reader").replace("/pgstudies", "/example")) as source:
        found = foresee(source, queries_in(EXAMPLE), to="embedded")
    names = ["orders of a customer", "sales of a month by city", "stock"]
    assert [(q.query.name, q.verdict) for q in found.queries] == [(name, "same") for name in names]


def test_what_only_an_owner_is_shown_makes_a_query_not_judged(server: ManagedServer) -> None:
    text = "SELECT * FROM customer c JOIN orders o ON o.id = c.id WHERE lower(c.name) = $1"
    with opened(dsn_of(server, "reader")) as source:
        found = foresee(source, [Query("lower", text)], to="embedded")
    assert "the expression in the index public.customer_lower_idx" in found.queries[0].reason


def test_a_tablespace_with_costs_of_its_own_makes_a_query_not_judged(
    server: ManagedServer,
) -> None:
    with server.as_superuser("pgstudies") as c:
        c.execute("SET allow_in_place_tablespaces = on")
        c.execute("CREATE TABLESPACE fast LOCATION ''")
        c.execute("ALTER TABLESPACE fast SET (random_page_cost = 0, seq_page_cost = 9)")
        c.execute(
            """
            CREATE TABLE public.far TABLESPACE fast AS
            SELECT i * 7919 % 100000 AS i, i AS j FROM pg_catalog.generate_series(1, 100000) i;
            CREATE INDEX ON public.far (i) TABLESPACE fast;
            GRANT SELECT ON public.far TO reader;
            """
        )
        c.execute("VACUUM ANALYZE public.far")
    texts = ["SELECT * FROM far WHERE i < 30000", "SELECT count(*) FROM orders"]
    with opened(dsn_of(server, "reader")) as source:
        found = foresee(source, [Query(text, text) for text in texts], to="embedded")
    assert "the costs of far's tablespace fast" in found.queries[0].reason
    assert found.queries[1].verdict == "same"
