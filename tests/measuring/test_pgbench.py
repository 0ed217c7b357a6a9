"""Running pgbench: the same keys with the same seed, one row per transaction, counted reads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest

from pgservers.errors import CannotRun, StudyError
from pgservers.servers.base import NO_PGBENCH
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.pgbench import command_lines, drift, pgbench, read_log
from pgstudies.measuring.trial import Trial
from tests.made_up import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer

ROWS = 20_000
SCRIPT = "\\set i random(1, :rows)\nINSERT INTO seen VALUES (:i);\n"


@pytest.fixture
def managed(managed_on_disk: ManagedServer) -> ManagedServer:
    return managed_on_disk


@pytest.fixture
def trial(managed: ManagedServer) -> Iterator[Trial]:
    def build() -> None:
        with managed.connect() as connection:
            connection.execute("CREATE TABLE seen(i int)")
            wide = f"SELECT i, repeat('x', 900) d FROM generate_series(1, {ROWS}) i"
            connection.execute(f"CREATE TABLE wide AS {wide}")
            connection.execute("CREATE INDEX wide_i ON wide(i)")
            connection.execute("VACUUM ANALYZE wide")

    managed.restore("for pgbench", build)
    with Trial(managed, Arm("plain"), block=1) as trial:
        yield trial


def metric(trial: Trial, name: str) -> float:
    (value,) = [row["value"] for row in rows_of(trial) if row["metric"] == name]
    return float(value)


def seen(trial: Trial) -> list[int]:
    rows = trial.execute("SELECT i FROM seen ORDER BY ctid").fetchall()
    trial.execute("TRUNCATE seen")
    return [i for (i,) in rows]


def test_there_is_a_row_for_every_transaction(trial: Trial) -> None:
    log = pgbench(trial, "insert", SCRIPT, transactions=50, seed=1, variables={"rows": 9})
    assert log["transaction"].to_list() == list(range(1, 51))
    assert log["latency_s"].min() > 0  # type: ignore[operator]
    assert metric(trial, "duration_s") == pytest.approx(log["latency_s"].mean())
    assert {(row["step"], row["iteration"]) for row in rows_of(trial)} == {("insert", 0)}


def test_the_same_seed_draws_the_same_keys_and_another_seed_others(trial: Trial) -> None:
    drawn = []
    for seed in (7, 7, 8):
        pgbench(trial, "insert", SCRIPT, transactions=20, seed=seed, variables={"rows": ROWS})
        drawn.append(seen(trial))
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 20


def test_pages_and_bytes_read_are_those_of_pgbenchs_own_session(trial: Trial) -> None:
    query = "\\set i random(1, :rows)\nSELECT d FROM wide WHERE i = :i;\n"
    assert trial.make_cold("wide", step="select")
    pgbench(trial, "select", query, transactions=100, seed=3, variables={"rows": ROWS})
    read = metric(trial, "buffers_read")
    # A page of the table for every row, of 8 to a page, and the index of 57 pages.
    assert 1 < read < 1.6
    assert metric(trial, "read_bytes") >= 0.9 * read * 8192
    trial.rows.clear()
    pgbench(trial, "select", query, transactions=100, seed=3, variables={"rows": ROWS})
    assert metric(trial, "buffers_read") == 0
    assert metric(trial, "read_bytes") == 0


NOWHERE = "SELECT 1;\nSELECT * FROM nowhere;\n"


@pytest.mark.parametrize(
    ("script", "clients", "said"),
    [
        (NOWHERE, 1, r'script\.sql:2: .*"nowhere" does not exist'),
        ("SELECT 1;\n\\set i 1 +\n", 1, r"script\.sql:2: "),
        ("SELECT 1 / (:client_id - 1);\n", 3, "division by zero"),  # in one, others wait for it
        ({"good": ("SELECT 1;\n", 1), "bad": (NOWHERE, 1)}, 1, r"script2\.sql:2: .*nowhere"),
    ],
)
def test_a_script_that_fails_ends_the_step_with_its_line(
    trial: Trial, script: str | dict[str, tuple[str, int]], clients: int, said: str
) -> None:
    with pytest.raises(StudyError, match=said):
        pgbench(trial, "bad", script, transactions=20, seed=1, clients=clients)
    assert trial.rows == []
    assert pgbench(trial, "one", "SELECT 1;\n", transactions=2, seed=1).height == 2


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("", []),
        ("-- nothing;\n", []),
        ("SELECT 1;\nSELECT\n2;SELECT 3", [1, 2, 3]),
        ("\\set i random(1, \\\n  9)\n\nSELECT :i;\n\\if :i\nSELECT 1;\n", [1, 4, 5, 6]),
        ("SELECT 1 AS x \\gset\nSELECT 1 \\; SELECT 2;\nSELECT 3;\n", [1, 2, 3]),
        ("SELECT ';\n', \"a;\nb\", $x$;\n$x$;\n/* ;\n */ SELECT 2;\n", [1, 6]),
    ],
)
def test_the_commands_of_a_script_are_found_as_pgbench_counts_them(
    script: str, lines: list[int]
) -> None:
    assert command_lines(script) == lines


def test_a_command_that_the_protocol_does_not_have_is_told_by_its_line(trial: Trial) -> None:
    script = "SELECT 1;\n\n\\startpipeline\nSELECT 1;\n\\endpipeline\n"
    assert pgbench(trial, "pipeline", script, transactions=2, seed=1).height == 2
    with pytest.raises(StudyError, match=r"script\.sql:3: cannot use pipeline mode"):
        pgbench(trial, "pipeline", script, transactions=2, seed=1, protocol="simple")


def test_scripts_are_mixed_by_their_weights_and_alike_by_the_same_seed(trial: Trial) -> None:
    mix = {f"{i}": (f"INSERT INTO seen VALUES ({i});\n", weight) for i, weight in ((1, 3), (2, 1))}
    drawn = []
    for seed in (7, 7, 8):
        log = pgbench(trial, "mix", mix, transactions=200, seed=seed, clients=2)
        assert log.height == 400
        drawn.append(sorted(seen(trial)))
    assert drawn[0] == drawn[1] != drawn[2]
    assert 60 < drawn[0].count(2) < 140
    timed = {(row["step"], row["case"]) for row in rows_of(trial) if row["metric"] == "duration_s"}
    assert timed == {("mix", ""), ("mix", "1"), ("mix", "2")}


def test_transactions_that_fail_are_counted_and_not_timed(trial: Trial) -> None:
    trial.execute("CREATE SEQUENCE s")
    trial.execute(
        "CREATE FUNCTION fail(state text) RETURNS int LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'no' USING ERRCODE = state; END$$"
    )
    often = (
        "SELECT CASE nextval('s') % 10 WHEN 0 THEN fail('40001') WHEN 1 THEN fail('40001') "
        "WHEN 5 THEN fail('40P01') END;\n"
    )
    log = pgbench(trial, "often", often, transactions=20, seed=1)
    assert log["latency_s"].null_count() == 6
    assert metric(trial, "serialization_failures") == pytest.approx(0.2)
    assert metric(trial, "deadlocks") == pytest.approx(0.1)
    assert metric(trial, "duration_s") == pytest.approx(log["latency_s"].mean())
    with pytest.raises(StudyError, match="none of 3 transactions succeeded"):
        pgbench(trial, "always", "SELECT fail('40001');\n", transactions=3, seed=1)


# Two sessions wait until both have come so far, each time anew.
MEET = """
    CREATE FUNCTION meet(n int, other int) RETURNS void LANGUAGE plpgsql AS $$BEGIN
        WHILE NOT EXISTS (
            SELECT FROM pg_locks
            WHERE locktype = 'advisory' AND granted AND classid = n::oid AND objid = other::oid
        ) LOOP PERFORM pg_sleep(0.001); END LOOP;
    END$$
"""

DEADLOCK = """\\set n :n + 1
\\set other 1 - :client_id
BEGIN;
SELECT pg_advisory_xact_lock(:n, :client_id);
SELECT meet(:n, :other);
SELECT pg_advisory_xact_lock(:n, :other);
END;
"""

NOT_SERIALIZABLE = """\\set n :n + 1
\\set other 1 - :client_id
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT i FROM one;
SELECT pg_advisory_lock_shared(:n, :client_id);
SELECT meet(:n, :other);
UPDATE one SET i = i + 1;
END;
"""


@pytest.mark.parametrize(
    ("script", "failure", "other"),
    [
        (DEADLOCK, "deadlocks", "serialization_failures"),
        (NOT_SERIALIZABLE, "serialization_failures", "deadlocks"),
    ],
)
def test_of_two_sessions_that_must_collide_one_fails(
    trial: Trial, script: str, failure: str, other: str
) -> None:
    trial.execute("CREATE TABLE one AS SELECT 1 AS i")
    trial.execute(MEET)
    log = pgbench(trial, "two", script, transactions=3, seed=1, clients=2, variables={"n": 0})
    assert log["latency_s"].null_count() == 3
    assert metric(trial, failure) == 0.5
    assert other not in {row["metric"] for row in rows_of(trial)}


def test_the_cpu_time_of_a_session_that_sleeps_is_not_its_duration(trial: Trial) -> None:
    pgbench(trial, "sleep", "SELECT pg_sleep(0.02);\n", transactions=3, seed=1)
    assert metric(trial, "cpu_s") < 0.5 * metric(trial, "duration_s")
    trial.rows.clear()
    count = "SELECT count(*) FROM generate_series(1, 100000);\n"
    pgbench(trial, "count", count, transactions=3, seed=1)
    assert 0 < metric(trial, "cpu_s") < 1.1 * metric(trial, "duration_s")


def test_clients_run_each_their_transactions_at_the_same_time(
    trial: Trial, managed: ManagedServer
) -> None:
    script = "\\set i random(1, :rows)\nINSERT INTO seen VALUES (:i);\nSELECT pg_sleep(0.02);\n"
    before = set(managed.session_pids())
    log = pgbench(
        trial, "insert", script, transactions=5, seed=1, variables={"rows": ROWS}, clients=3
    )
    assert set(managed.session_pids()) == before  # no other server's turn has to wait for their end
    assert log.group_by("client").agg(pl.col("transaction").sort()).sort("client").rows() == [
        (client, [1, 2, 3, 4, 5]) for client in range(3)
    ]
    assert len(set(seen(trial))) > 10
    assert metric(trial, "duration_s") == pytest.approx(log["latency_s"].mean())


def test_without_pgbench_the_step_says_how_to_get_it(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = replace(trial.server.capabilities, missing={"pgbench": NO_PGBENCH}, pgbench=None)
    monkeypatch.setattr(trial.server, "capabilities", without)
    with pytest.raises(CannotRun, match="no pgbench here: install"):
        pgbench(trial, "select", "SELECT 1;\n", transactions=5, seed=1)


def test_a_server_that_is_not_ours_is_reached_with_its_password(elsewhere: Trial) -> None:
    assert pgbench(elsewhere, "one", "SELECT 1;\n", transactions=5, seed=1).height == 5
    assert "read_bytes" not in {row["metric"] for row in rows_of(elsewhere)}


def test_drift_compares_the_last_fourth_with_the_second() -> None:
    assert drift(pl.Series([9.0] * 4 + [1.0] * 4 + [9.0] * 4 + [2.0] * 4)) == 2
    assert drift(pl.Series([1.0] * 3)) == 1
    assert drift(pl.Series([], dtype=pl.Float64)) == 1


def test_a_log_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert read_log(tmp_path).is_empty()
