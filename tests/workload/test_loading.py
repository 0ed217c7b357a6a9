"""What people have as a schema: dumps of parts, with roles, of other releases, rows at random."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from pgapps.workload.loaded import vacuum
from pgapps.workload.loading import Tables, lacking, load
from pgapps.workload.schema import contents
from pgapps.workload.scripts import read_workload
from pgservers.errors import StudyError
from pgservers.servers.serve import serve
from pgservers.terminal import notice_once
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.trial import Trial
from tests.servers_at_hand import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer
    from tests.workload.conftest import Loaded

pytestmark = pytest.mark.usefixtures("private")


@pytest.fixture(autouse=True)
def _told_again() -> None:
    """A notice of another test is shown again."""
    notice_once.cache_clear()


SHOP = """
CREATE SCHEMA sales;
CREATE TABLE sales.customers (id int PRIMARY KEY, name text);
CREATE TABLE sales.orders (id int PRIMARY KEY, customer int REFERENCES sales.customers);
CREATE FUNCTION sales.noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER noted BEFORE INSERT ON sales.orders FOR EACH ROW EXECUTE FUNCTION sales.noted();
INSERT INTO sales.customers SELECT i, 'customer ' || i FROM generate_series(1, 10) i;
INSERT INTO sales.orders SELECT i, 1 + i % 10 FROM generate_series(1, 100) i;
CREATE ROLE clerk;
ALTER TABLE sales.orders OWNER TO clerk;
GRANT SELECT ON sales.orders TO clerk;
"""


@pytest.fixture(scope="module")
def original(managed: ManagedServer) -> Iterator[ManagedServer]:
    """A server with a shop, of which dumps are made."""
    with managed.connect() as connection:
        connection.execute("DROP SCHEMA IF EXISTS sales CASCADE")
        connection.execute(SHOP.encode())
    yield managed
    with managed.connect() as connection:
        connection.execute("DROP SCHEMA sales CASCADE")
        connection.execute("DROP ROLE clerk")


@pytest.mark.parametrize(
    ("options", "customers", "said"),
    [
        (["-t", "sales.orders"], 0, "The schema sales is made"),
        (["-n", "sales"], 10, "The role clerk is made"),
        (["-n", "sales", "-Fc"], 10, ""),
        (["-t", "sales.orders", "-Fc"], 0, "The schema sales is made"),
        (["-C", "-n", "sales"], 10, "Passed over: CREATE DATABASE pgstudies"),
        (["-C", "--clean", "-n", "sales"], 10, "Passed over: DROP DATABASE pgstudies"),
    ],
)
def test_dumps_of_every_kind_are_loaded(  # noqa: PLR0917  (fixtures and a case)
    original: ManagedServer,
    loaded: Loaded,
    shop: Path,
    capfd: pytest.CaptureFixture[str],
    options: list[str],
    customers: int,
    said: str,
) -> None:
    (shop / "schema.sql").unlink()
    name = "schema.dump" if "-Fc" in options else "schema.sql"
    command = [str(original.binaries.program("pg_dump")), *options, f"--file={shop / name}"]
    subprocess.run(command, check=True, env=original.environment())
    with loaded(Tables(read_workload(shop).schema)) as trial:
        assert trial.value("SELECT count(*) FROM sales.orders") == 100
        if customers:
            assert trial.value("SELECT count(*) FROM sales.customers") == customers
    told = capfd.readouterr().err
    assert said in told
    if not customers:
        assert "Passed over: ALTER TABLE ONLY sales.orders ADD CONSTRAINT" in told
        assert "Passed over: CREATE TRIGGER noted" in told


WITH_EXTENSION = """
CREATE EXTENSION {extension};
CREATE TABLE kept (i int);
CREATE TABLE gone (c nowhere_type);
COPY gone (c) FROM stdin;
x
y
\\.
CREATE INDEX ON gone (c);
INSERT INTO kept VALUES (1);
"""


def test_an_extension_is_left_out_with_what_needs_it(
    loaded: Loaded, shop: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    schema = shop / "schema.sql"
    schema.write_text(WITH_EXTENSION.format(extension="no_such_thing"))
    with pytest.raises(StudyError, match=r"line 2, .*-p without=no_such_thing"):
        loaded(Tables(schema)).__enter__()
    with loaded(Tables(schema, without=["no_such_thing"])) as trial:
        assert trial.value("SELECT count(*) FROM kept") == 1
    said = capfd.readouterr().err
    for statement in ("CREATE EXTENSION no_such_thing", "CREATE TABLE gone", "COPY gone"):
        assert f"Passed over: {statement}" in said
    assert 'Passed over: CREATE INDEX ON gone (c) (relation "gone" does not exist)' in said
    schema.write_text("CREATE TABLE gone (c nowhere_type);\n")
    with pytest.raises(StudyError, match='type "nowhere_type" does not exist'):
        loaded(Tables(schema)).__enter__()


def test_a_workload_is_loaded_into_the_oldest_release(shop: Path) -> None:
    require("9.3")
    (shop / "schema.sql").write_text(
        "CREATE EXTENSION IF NOT EXISTS plpgsql;\nCREATE ROLE clerk;\n"
        "CREATE TABLE t (i int);\nALTER TABLE t OWNER TO clerk;\n"
        "INSERT INTO t SELECT generate_series(1, 3);\n"
    )
    with serve("9.3", settings={"fsync": "off"}, unprivileged=True) as server:
        server.restore("empty", lambda: None)
        with Trial(server, Arm("plain"), block=1) as trial:
            load(trial, Tables(read_workload(shop).schema))
            vacuum(trial)
            assert trial.value("SELECT count(*) FROM t") == 3


def test_an_extension_that_one_side_lacks_is_named_with_that_side(shop: Path) -> None:
    require("9.6")
    schema = shop / "schema.sql"
    schema.write_text("CREATE EXTENSION plpgsql;\n")
    assert lacking(schema, ["embedded", "9.6"]) == {}
    schema.write_text("CREATE EXTENSION pg_trgm;\nCREATE EXTENSION amcheck;\n")
    found = lacking(schema, ["embedded", "9.6"])
    assert found.get("amcheck") in {"embedded", "9.6"}
    assert "pg_trgm" not in found


@pytest.mark.parametrize(
    ("text", "draws"),
    [
        ("INSERT INTO t SELECT random() * 9;", "schema.sql, line 1, by random"),
        ("\nCREATE TABLE u AS SELECT gen_random_uuid ();", "line 2, by gen_random_uuid"),
        ("INSERT INTO t VALUES (now());", "by now"),
        ("INSERT INTO t VALUES (CURRENT_DATE);", "by CURRENT_DATE"),
        ("DO $$ BEGIN INSERT INTO t VALUES (random()); END $$;", "by random"),
        ("INSERT INTO t VALUES ('random()');", ""),
        ("CREATE TABLE u (at timestamptz DEFAULT now());", ""),
        ("CREATE FUNCTION f() RETURNS float LANGUAGE sql AS 'SELECT random()';", ""),
        ("INSERT INTO t SELECT myrandom(1);", ""),
        ("SELECT pg_catalog.setval('s', 5, true);", ""),
    ],
)
def test_rows_that_differ_each_time_are_seen(shop: Path, text: str, draws: str) -> None:
    (shop / "schema.sql").write_text(text + "\n")
    found = contents(shop / "schema.sql").draws
    assert draws in found
    assert bool(draws) == bool(found)


def test_rows_drawn_at_random_are_the_same_on_every_server(
    loaded: Loaded, shop: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (shop / "schema.sql").write_text(
        "CREATE TABLE t (i int PRIMARY KEY, f float);\n"
        "INSERT INTO t SELECT i, random() FROM generate_series(1, 100) i;\n"
    )
    tables = Tables(shop / "schema.sql")
    query = "SELECT sum(f * i)::text FROM t"
    drawn = []
    for _ in range(3):
        with loaded(tables) as trial:
            drawn.append(trial.value(query))
    assert len(set(drawn)) == 1
    assert "are made once, for all servers: schema.sql, line 2, by random" in capfd.readouterr().err
    with loaded(Tables(shop / "schema.sql")) as trial:
        assert trial.value(query) != drawn[0]
