"""A workload from a server's own queries: scripts with values typical of their columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from pgapps.plans.queries import Query
from pgapps.plans.scripts import Column, script_of, typical, write_scripts
from pgapps.workload.loading import load, tables_of
from pgapps.workload.scripts import read_workload
from pgapps.workload.steps import steps_of
from pgapps.workload.turns import Turn
from pgapps.workload.writing import UnknownError, unquoted
from pgservers.errors import StudyError
from pgservers.servers.serve import serve
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.trial import Trial
from tests.plans.servers import address_of
from tests.servers_at_hand import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer

SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name text, city text);
CREATE TABLE orders (id int PRIMARY KEY, customer int, placed date, state text);
CREATE TABLE notes (id int PRIMARY KEY, tags text[], pages int[], days date[]);
INSERT INTO customers SELECT i, 'o''name ' || i, 'city ' || i % 5 FROM generate_series(1, 999) i;
INSERT INTO orders SELECT i, 1 + i % 99, date '2026-01-01' + i % 300, 'state: ' || i % 3
    FROM generate_series(1, 9999) i;
INSERT INTO notes SELECT i, ARRAY['t:' || i % 7, 'all'], ARRAY[i, i + 1],
    ARRAY[date '2026-01-01' + i] FROM generate_series(1, 999) i;
"""


def column(table: str, name: str, kind: str = "integer", **known: Any) -> Column:
    values: dict[str, Any] = {"distinct": -1.0, "common": [], "frequencies": [], "bounds": []}
    return Column("public", table, name, kind, **(values | known))


COLUMNS = {
    "orders": [
        column("orders", "id", bounds=["1", "500", "9999"]),
        column("orders", "state", "text", common=["o'k", "a:b\\n"], frequencies=[0.5, 0.5]),
        column(
            "orders",
            "tags",
            "text[]",
            bounds=["{a,b}", '{"b:c"}'],
            elements=["a", "b"],
            element_frequencies=[0.9, 0.9, 0.1, 0.2],
        ),
        column("orders", "codes", "integer[]", common=["{7,8}"], frequencies=[1.0]),
        column("orders", "about", "jsonb", bounds=["{}"]),
        column("orders", "hidden"),
    ],
    "customers": [
        column("customers", "id", bounds=["7", "9"]),
        column("customers", "name", "text", bounds=["x", "y"]),
    ],
}


def script(text: str) -> str:
    """The script of a query, without its remarks."""
    found = script_of(Query("", text), COLUMNS)
    return "".join(line for line in found.splitlines(keepends=True) if not line.startswith("--"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "SELECT * FROM orders WHERE id = $1",
            "\\set p1 random(1, 9999)\nSELECT * FROM orders WHERE id = :p1;\n",
        ),
        (
            "SELECT 1 FROM customers c JOIN orders o ON o.id = c.id WHERE c.id > $2 LIMIT $3",
            "\\set p2 random(7, 9)\nSELECT 1 FROM customers c JOIN orders o ON o.id = c.id "
            "WHERE c.id > :p2 LIMIT 10;\n",
        ),
        (
            "/* app:x */ SELECT * FROM orders WHERE id = ANY ($1::int[])",
            "\\set p1 random(1, 9999)\n"
            "SELECT * FROM orders WHERE id = ANY (ARRAY[:p1]::integer[]::int[]);\n",
        ),
        (
            "SELECT * FROM customers WHERE lower(name) = $1",
            "\\set p1 random(1, 2)\n"
            "SELECT * FROM customers WHERE lower(name) = lower((ARRAY['x', 'y']::text[])[:p1]);\n",
        ),
        (
            "SELECT * FROM orders WHERE id BETWEEN $1 AND $2",
            "\\set p1 random(1, 9999)\n\\set p2 random(1, 9999)\n"
            "SELECT * FROM orders WHERE id BETWEEN LEAST(:p1, :p2) AND GREATEST(:p1, :p2);\n",
        ),
        (
            "SELECT * FROM orders o WHERE o.id >= $1 AND o.id < $2",
            "\\set p1 random(1, 9999)\n\\set p2 random(1, 9999)\n"
            "SELECT * FROM orders o WHERE o.id >= LEAST(:p1, :p2) AND o.id < GREATEST(:p1, :p2);\n",
        ),
        (
            "SELECT * FROM orders WHERE id < $1 OR id < $2 AND id > $3",
            "\\set p1 random(1, 9999)\n\\set p2 random(1, 9999)\n\\set p3 random(1, 9999)\n"
            "SELECT * FROM orders WHERE id < :p1 OR id < :p2 AND id > :p3;\n",
        ),
        (
            "INSERT INTO orders (id) VALUES ($1)",
            "\\set p1 random(10000, 1000009999)\nINSERT INTO orders (id) VALUES (:p1);\n",
        ),
        (
            "UPDATE orders SET id = id + $1 WHERE $2 = $3",
            "UPDATE orders SET id = id + 1 WHERE 1 = 1;\n",
        ),
        (
            "SELECT count(*) FROM orders WHERE placed > now() - interval $1",
            "SELECT count(*) FROM orders WHERE placed > now() - interval '1 day';\n",
        ),
        ("SELECT count(*) FROM orders", "SELECT count(*) FROM orders;\n"),
    ],
)
def test_parameters_get_values_of_the_columns_they_are_compared_with(text: str, found: str) -> None:
    assert script(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT * FROM orders WHERE length(state) = $1", "the values of \\$1 cannot be"),
        ("SELECT * FROM orders WHERE hidden = $1", "no statistics of orders.hidden"),
        ("SELECT * FROM orders WHERE tags = ANY ($1)", "tags is an array, and the parameter an"),
        ("SELECT * FROM orders WHERE about @> $1", "the values of \\$1 cannot be determined"),
        ("SELECT * FROM orders WHERE about[$1] = $2", "the values of \\$2 cannot be determined"),
        ("SELECT * FROM orders JOIN unnest($1::int[]) AS u (i) ON u.i = id", "the values of"),
        ("SELECT * FROM orders WHERE note = ':name'", "pgbench would read"),
        ("SELECT 'a'; DROP TABLE orders", "pgbench would read"),
        ("SELECT 1 \\shell id", "pgbench would read"),
        ("COPY orders TO STDOUT", "it is no SELECT"),
    ],
)
def test_a_query_of_which_no_script_can_be_made_says_why(text: str, why: str) -> None:
    with pytest.raises(UnknownError, match=why):
        script(text)


A_TAG = "(ARRAY[{}]::text[])[:p1]".format(", ".join(["'a'"] * 20 + ["'b'"] * 20))

CODE = "((ARRAY[{}]::text[])[:p1]::integer[])".format(", ".join(["'{7,8}'"] * 40))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("SELECT * FROM orders WHERE $1 = ANY (tags)", A_TAG),
        ("SELECT * FROM orders o WHERE $1::text <> ALL (o.tags)", A_TAG),
        ("SELECT * FROM orders WHERE tags @> $1", f"ARRAY[{A_TAG}]::text[]"),
        ("SELECT * FROM orders WHERE $1::text[] <@ tags", f"ARRAY[{A_TAG}]::text[]"),
        ("SELECT * FROM orders WHERE tags && ARRAY[$1]", A_TAG),
        ("SELECT * FROM orders WHERE tags[5] = $1", A_TAG),
        ("SELECT * FROM orders WHERE tags[5] = ANY ($1)", f"ARRAY[{A_TAG}]::text[]"),
        ("UPDATE orders SET tags = array_append(tags, $1)", A_TAG),
        ("UPDATE orders SET tags = tags || $1", f"ARRAY[{A_TAG}]::text[]"),
        ("INSERT INTO orders (tags) VALUES (ARRAY[$1])", A_TAG),
        ("SELECT * FROM orders WHERE codes[2] = $1", f"{CODE}[1]"),
        ("SELECT * FROM orders WHERE codes = $1", CODE[1:-1]),
        ("SELECT * FROM orders WHERE codes <@ $1", CODE[1:-1]),
        (
            "SELECT * FROM orders WHERE tags = $1::text[]",
            "(ARRAY['{a,b}', E'\\x7b\\x22b\\x3ac\\x22\\x7d']::text[])[:p1]::text[]",
        ),
        ("SELECT * FROM orders WHERE id IN (SELECT unnest($1::int[]))", "ARRAY[:p1]::integer[]"),
        ("SELECT * FROM orders WHERE id = ANY (ARRAY[$1])", ":p1"),
        ("SELECT * FROM orders WHERE tags[$1] IS NULL", "1"),
    ],
)
def test_arrays_get_arrays_and_elements_of_the_statistics(text: str, value: str) -> None:
    lines = [line for line in script(text).splitlines() if not line.startswith("\\set p1 ")]
    assert lines == [f"{text.replace('$1', value)};"]


def test_rows_of_arrays_are_inserted_with_new_keys() -> None:
    found = script("INSERT INTO orders (id, state) SELECT * FROM unnest($1::int[], $2::text[])")
    assert "\\set p1 random(10000, 1000009999)" in found
    assert "unnest(ARRAY[:p1]::integer[]::int[], ARRAY[(ARRAY['o''k'" in found


def test_values_are_as_frequent_as_in_the_column() -> None:
    found = typical(["a", "b"], [0.5, 0.25], ["c", "d", "e"])
    assert (found.count("a"), found.count("b")) == (20, 10)
    assert set(found) == {"a", "b", "c", "d", "e"}
    assert typical([], [], []) == []


def test_no_value_is_a_command_or_a_variable_of_pgbenchs() -> None:
    found = script("SELECT * FROM orders WHERE state = $1")
    assert "'o''k'" in found
    assert "E'a\\x3ab\\x5cn'" in found
    assert not re.search(r":b|\\n", found.partition("\n")[2])


@pytest.mark.parametrize(("name", "kept"), [('"A""b"', 'A"b'), ("Ab", "ab")])
def test_names_are_read_as_the_server_reads_them(name: str, kept: str) -> None:
    assert unquoted(name) == kept


ARRAYS = [
    "SELECT id FROM notes WHERE tags @> ARRAY['t:1']",
    "SELECT id FROM notes WHERE tags && '{all,t:2}'",
    "SELECT id FROM notes WHERE 't:1' = ANY (tags)",
    "SELECT tags FROM notes WHERE id = ANY ('{1,2}'::int[])",
    "SELECT id FROM notes WHERE pages = ARRAY[1, 2]",
    "SELECT id FROM notes WHERE pages <@ '{1,2}'",
    "SELECT id FROM notes WHERE pages[1] = 7",
    "SELECT id FROM notes WHERE '2026-02-01' = ANY (days)",
    "UPDATE notes SET tags = tags || '{new}' WHERE id = 5",
]


@pytest.fixture(scope="module")
def shop(run_base: Path) -> Iterator[ManagedServer]:
    """A server whose application's tables are found by its role's search_path."""
    assert run_base.exists()
    with embedded({"fsync": "off", "autovacuum": "off"}) as server:
        with server.connect() as c:
            c.execute("CREATE ROLE app; CREATE SCHEMA stall; SET search_path = stall")
            c.execute(SHOP)
            c.execute("ANALYZE; ALTER ROLE app SET search_path = stall, public")
            c.execute("GRANT USAGE ON SCHEMA stall TO app")
            c.execute("GRANT SELECT ON ALL TABLES IN SCHEMA stall TO app")
            c.execute("GRANT INSERT ON stall.orders TO app; GRANT UPDATE ON stall.notes TO app")
            c.execute("RESET search_path; SELECT pg_stat_statements_reset()")
            c.execute("SET ROLE app; SET search_path = stall")
            for text in (
                "SELECT name FROM customers WHERE id = 5",
                "SELECT state, count(*) FROM orders WHERE state = 'state: 1' GROUP BY state",
                "SELECT * FROM orders WHERE placed BETWEEN '2026-02-01' AND '2026-03-01' LIMIT 5",
                "INSERT INTO orders (id, customer, state) VALUES (999999, 7, 'new')",
                "SELECT * FROM customers WHERE length(name) = 9",
                *ARRAYS,
            ):
                c.execute(text)
        yield server


def test_the_scripts_of_a_servers_queries_run_beside_its_dump(
    shop: ManagedServer, tmp_path: Path
) -> None:
    home = tmp_path / "shop"
    log = shop.data_directory.parent / "log"
    before = log.stat().st_size
    said = "\n".join(write_scripts(home, address_of(shop), 40, ["app"], lambda _: None))
    assert log.read_bytes()[before:] == b""
    assert f"has {4 + len(ARRAYS)} of the {5 + len(ARRAYS)} queries that took most time" in said
    assert "SELECT * FROM customers WHERE length(name) = $1: the values of" in said
    assert "typical of the columns, by pg_stats, and not those of the calls" in said
    for file in home.glob("*.sql"):
        assert "-- The values are typical of the columns" in file.read_text()
    (home / "schema.sql").write_text(f"CREATE SCHEMA stall;\nSET search_path = stall;\n{SHOP}")
    workload = read_workload(home)
    assert workload.settings == {"search_path": '"stall", "public"'}
    how: dict[str, Any] = {"clients": 1, "protocol": "prepared", "variables": {"scale": 1}}
    with (
        serve("embedded", settings={"fsync": "off", **workload.settings}, unprivileged=True) as own,
        Trial(own, Arm("plain"), block=1) as trial,
    ):
        load(trial, tables_of(workload, 1, ()))
        steps = steps_of(workload)
        assert len(steps) == 4 + len(ARRAYS)
        for seed, step in enumerate(steps):
            step.run(trial, step.name, Turn(9, []), seed=seed, **how)
        assert trial.value("SELECT count(*) FROM stall.orders WHERE id > 9999") == 9


def test_what_cannot_be_written_ends_in_a_sentence(shop: ManagedServer, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="already: use another name"):
        write_scripts(tmp_path, address_of(shop), 40, [], lambda _: None)
    with pytest.raises(StudyError, match="no such query of this database"):
        write_scripts(tmp_path / "new", address_of(shop), 40, ["nobody"], lambda _: None)
    assert not (tmp_path / "new").exists()
