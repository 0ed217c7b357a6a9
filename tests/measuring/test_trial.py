"""A trial: what it counts is the statement's, whichever way the statement is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from pgservers.errors import StudyError
from pgservers.host import usage
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.counters import cpu_seconds
from tests.measuring.test_measure import ARMS, run, value

if TYPE_CHECKING:
    from pgstudies.measuring.trial import Trial
    from pgstudies.records.reading import Record

pytestmark = pytest.mark.usefixtures("private")


def touched(record: Record) -> list[float]:
    hit, read = value(record, "buffers_hit"), value(record, "buffers_read")
    return [h + r for h, r in zip(hit, read, strict=True)]


def test_counted_quantities_are_those_of_the_statement() -> None:
    """A table of known size: every page is touched by the count, and by nothing else."""

    def count(trial: Trial, _: Arm) -> None:
        size = trial.value("SELECT pg_relation_size('t') / 8192")
        trial.execute("VACUUM (FREEZE) t")
        trial.timed("count", "SELECT count(*) FROM t")
        trial.record("count", "size", size, "blocks")
        trial.timed("insert", "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 10) i")

    record = run(procedure=count, blocks=1)
    assert touched(record) == value(record, "size")
    assert value(record, "wal_bytes") == [0] * 3
    assert all(b > 0 for b in value(record, "wal_bytes", "insert"))
    assert all(cpu > 0 for cpu in value(record, "cpu_s"))


def test_a_short_statement_is_recorded_as_one_run_of_many() -> None:
    """Beside statements that psycopg prepares by itself, and more than once in a trial."""

    def many(trial: Trial, _: Arm) -> None:
        for __ in range(10):
            trial.value("SELECT count(*) FROM t")
        trial.repeated("count", "SELECT count(*) FROM t", 7, iteration=1)
        trial.repeated("count", "SELECT count(*) FROM t", 7, iteration=2)
        trial.record("count", "size", trial.value("SELECT pg_relation_size('t') / 8192"), "blocks")

    record = run(procedure=many, blocks=1)
    assert touched(record) == [size for size in value(record, "size") for _ in range(2)]


def test_a_prepared_statement_runs_once_for_each_row_of_parameters() -> None:
    def look_up(trial: Trial, _: Arm) -> None:
        trial.execute("CREATE INDEX ON t(i)")
        query = "INSERT INTO t SELECT i, d || $2 FROM t WHERE i = $1"
        for keys in ([1, 2, 3], [4, 5]):
            trial.prepared("copy", query, [(key, "new") for key in keys])
        found = trial.value("SELECT string_agg(i::text, ' ' ORDER BY i) FROM t WHERE d = 'xnew'")
        assert found == "1 2 3 4 5"
        with pytest.raises(psycopg.errors.DivisionByZero):
            trial.prepared("wrong", "SELECT 1 / $1::int", [(1,), (0,), (1,)])
        with pytest.raises(StudyError, match="nothing to run for none"):
            trial.prepared("none", "SELECT $1", [])

    def fill(trial: Trial, _: Arm) -> None:
        trial.execute("CREATE TABLE t AS SELECT i, 'x'::text d FROM generate_series(1, 100) i")

    record = run(arms=[Arm("plain")], prepare=fill, procedure=look_up, blocks=1)
    assert len(value(record, "duration_s", "copy")) == 4
    assert all(cpu > 0 for cpu in value(record, "cpu_s", "copy"))


def test_a_sequence_of_statements_is_recorded_as_one_of_them() -> None:
    between: list[int] = []

    def sequence(trial: Trial, _: Arm) -> None:
        inserts = [f"INSERT INTO t VALUES ({-i}, 'x')" for i in range(1, 6)]
        count = "SELECT count(*) FROM t WHERE i < 0"
        with trial.server.connect() as other:
            trial.each("insert", inserts, between=lambda: between.extend(*other.execute(count)))
        with pytest.raises(psycopg.errors.UndefinedTable):
            trial.each("wrong", ["SELECT 1", "SELECT * FROM nowhere"])
        with pytest.raises(StudyError, match="no statement to run for nothing"):
            trial.each("nothing", [])

    record = run(procedure=sequence, blocks=1, arms=ARMS[:1])
    assert between == [1, 2, 3, 4, 5] * 2
    assert len(value(record, "duration_s", "insert")) == 2
    assert all(v > 0 for v in value(record, "cpu_s", "insert"))
    assert value(record, "duration_s", "wrong") == []


@pytest.mark.usefixtures("on_disk")
def test_a_cold_table_is_read_from_the_device_and_then_not_again() -> None:
    def cold(trial: Trial, _: Arm) -> None:
        assert trial.make_cold("t", step="count")
        trial.timed("count", "SELECT count(*) FROM t", case="cold")
        trial.timed("count", "SELECT count(*) FROM t", case="warm")
        trial.record("count", "size", trial.value("SELECT pg_relation_size('t')"), "bytes")

    def fill(trial: Trial, _: Arm) -> None:
        trial.execute("CREATE TABLE t(i int, d text)")
        trial.execute("INSERT INTO t SELECT i, repeat('x', 800) FROM generate_series(1, 20000) i")

    record = run(procedure=cold, prepare=fill, arms=ARMS[:1], blocks=1)
    read = record.measured.filter(metric="read_bytes")
    assert min(read.filter(case="cold")["value"].to_list()) >= value(record, "size")[0]
    assert read.filter(case="warm")["value"].to_list() == [0, 0]


def test_cpu_time_is_none_where_the_kernel_does_not_account_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (cpu_seconds(os.getpid()) or 0) > 0
    texts = {"1": "5000000000 7 9\n", "2": "250000000 7 9\n", "3": "0 0 0\n", "4": ""}
    for pid, text in texts.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "schedstat").write_text(text)
    monkeypatch.setattr(usage, "Path", lambda path: tmp_path / Path(path).relative_to("/proc"))
    assert cpu_seconds(1, 2) == 5.25
    assert usage.scheduled(1, 2) == (5.25, 14e-9)
    for hidden in (3, 4, 5):  # switched off, empty, and no such file
        assert cpu_seconds(hidden) is None
        assert cpu_seconds(1, hidden) is None
