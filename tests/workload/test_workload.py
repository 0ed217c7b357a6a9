"""A workload of somebody's own: how a directory is read, how long a turn is, and a comparison."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgapps.compare.counted import counted
from pgapps.compare.design import Side
from pgapps.compare.judging.measured import loaded
from pgapps.compare.judging.result import Result, result_of
from pgapps.compare.request import Request
from pgapps.compare.run import compared as measured_run
from pgapps.compare.text import as_text
from pgapps.counting.valgrind import reason_no_valgrind
from pgapps.workload.counting import statement_units
from pgapps.workload.scripts import read_workload
from pgapps.workload.turns import round_125
from pgapps.workload.writing import new_workload
from pgservers.errors import StudyError
from pgstudies.measuring.pgbench import pgbench
from tests.servers_at_hand import skip_but_not_in_ci

if TYPE_CHECKING:
    from pathlib import Path

    from pgstudies.measuring.trial import Trial

EXAMPLE = ["orders of a customer", "sales of a month by city", "stock"]


def test_a_file_is_a_script_and_so_is_what_follows_each_name(shop: Path) -> None:
    text = "-- What follows is for the shop.\n\n-- name: first one\nSELECT 1;\n\n"
    (shop / "two.sql").write_text(text + "--name:  second\n\\set i random(1, 9)\nSELECT :i;\n")
    scripts = read_workload(shop).scripts
    assert [(s.name, s.file.name, s.line) for s in scripts] == [
        ("one", "one.sql", 1),
        ("first one", "two.sql", 4),
        ("second", "two.sql", 7),
    ]
    assert scripts[2].text == "\\set i random(1, 9)\nSELECT :i;\n"


def test_marks_of_scripts_say_what_is_expected(shop: Path) -> None:
    marked = "-- name: claim\n-- expect:  < 0.7\nSELECT 1;\n-- name: other\n--control\nSELECT 2;\n"
    (shop / "two.sql").write_text(marked)
    assert read_workload(shop).expected == {"claim": "< 0.7", "other": "control"}


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("one.sql", "SELECT 1;\n\\sleep 1 s\n", r"one.sql, line 2: \\sleep is not allowed"),
        ("one.sql", "\\shell ls\n", r"one.sql, line 1: \\shell .* it runs a program"),
        ("one.sql", "-- Nothing yet.\n", "has no script"),
        ("two.sql", "-- name: one\nSELECT 2;\n", "two scripts called 'one'"),
        ("one.sql", "-- expect: faster\nSELECT 1;\n", r"one.sql, line 1: .* not 'faster'"),
        ("one.sql", "-- expect: < 0\nSELECT 1;\n", r"a ratio of times, .* not '< 0'"),
        ("one.sql", "-- control\nSELECT 1;\n-- expect: > 1\n", "the script has 2 marks"),
        ("settings.conf", "work_mem\n", "line 1: write settings as in postgresql.conf"),
        ("settings.conf", "archive_command = 'rm -r /'\n", "sets archive_command"),
    ],
)
def test_what_cannot_be_measured_is_told(shop: Path, file: str, text: str, words: str) -> None:
    (shop / file).write_text(text)
    with pytest.raises(StudyError, match=words):
        read_workload(shop)


def test_a_directory_without_a_schema_or_none_at_all_is_told(shop: Path) -> None:
    (shop / "schema.sql").unlink()
    with pytest.raises(StudyError, match="has no schema"):
        read_workload(shop)
    with pytest.raises(StudyError, match="pgstudies new-workload DIR"):
        read_workload(shop / "nowhere")


def test_what_the_schema_includes_is_no_script_and_all_else_is_ignored(shop: Path) -> None:
    (shop / "schema.sql").write_text("\\i more.sql\n\\copy t from rows.csv csv\n")
    (shop / "more.sql").write_text("CREATE TABLE t (i int);\n")
    (shop / "rows.csv").write_text("1\n")
    (shop / "README").write_text("Not of the run.")
    (shop / "other").mkdir()
    (shop / "other" / "two.sql").write_text("SELECT 2;\n")
    found = read_workload(shop)
    assert [script.name for script in found.scripts] == ["one"]
    assert found.ignored == ["README", "other"]
    (shop / "README").write_text("Of no run.")
    digests = [found.digest, read_workload(shop).digest]
    for name in ("one.sql", "schema.sql", "more.sql", "rows.csv"):
        with (shop / name).open("a") as file:
            file.write("1\n")
        digests.append(read_workload(shop).digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 5


@pytest.mark.parametrize(
    ("number", "round_one"), [(1, 1), (4, 2), (5, 5), (9, 5), (10, 10), (49, 20), (730, 500)]
)
def test_turns_are_of_1_2_5_10_and_so_on(number: int, round_one: int) -> None:
    assert round_125(number) == round_one


def test_a_script_of_pgbenchs_own_is_known_by_its_name() -> None:
    found = read_workload("pgbench:tpcb-like")
    (script,) = found.scripts
    assert (found.schema, script.name) == (None, "tpcb-like")
    assert script.text.startswith("\\set aid random(1, 100000 * :scale)\n")
    with pytest.raises(StudyError, match="no script 'tpch'; it has tpcb-like, simple-update"):
        read_workload("pgbench:tpch")


def test_the_example_is_a_workload_and_is_not_written_twice(tmp_path: Path) -> None:
    home = tmp_path / "shop"
    files = new_workload(home)
    assert {file.name for file in files} >= {"schema.sql", "orders.sql", "stock.sql"}
    scripts = read_workload(home).scripts
    assert [script.name for script in scripts] == EXAMPLE
    with pytest.raises(StudyError, match="use another name"):
        new_workload(home)


WITHOUT_HASHING = Side("embedded", {"enable_hashjoin": "off", "enable_hashagg": "off"})


def compared(
    directory: Path | str,
    records: Path,
    monkeypatch: pytest.MonkeyPatch,
    candidate: Side = WITHOUT_HASHING,
    **parameters: Any,
) -> Result:
    """One block of the workload on the embedded server, and on it without hashing."""
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(records))
    parameters = dict[str, Any](directory=str(directory), turn_ms=5, turns=2) | parameters
    wanted: dict[str, Any] = {"parameters": parameters, "blocks": 1, "instructions": False}
    request = Request(Side("embedded"), candidate, ("workload",), **wanted)
    complaints: list[str] = []
    run = measured_run(request, tell=lambda _: None, warn=complaints.append)
    if complaints:
        raise StudyError(*complaints)
    how: dict[str, Any] = {"profile": "quick", "crashes": run.crashes}
    return result_of(request.comparison, run.measured, case=None, margin=0.02, **how)


def test_a_workload_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = tmp_path / "shop"
    new_workload(shop)
    (shop / "z.sql").write_text("\nSELECT ';'; -- ;\nSELECT *\nFROM missing;\n")
    result = compared(shop, tmp_path / "records", monkeypatch)
    assert sorted(result.effects["step"]) == EXAMPLE
    assert EXAMPLE[1] in result.plans["step"].to_list()
    turns = result.measured[0].samples.filter(
        pl.col("metric") == "duration_s", pl.col("step").is_in(EXAMPLE)
    )
    assert turns.group_by("arm", "step").len()["len"].to_list() == [2] * 3 * len(EXAMPLE)
    text = " ".join(as_text(result, command="").split())
    assert result.code in {1, 2}, "it was not measured whole"
    assert result.scripts_left_out == ["z"]
    assert "workload, z: z.sql, line 3, on PostgreSQL 18" in text
    assert 'relation "missing" does not exist' in text


def test_a_script_that_crashes_the_candidate_costs_itself_alone(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "two.sql").write_text("SELECT 2;\n")

    def crashing(trial: Trial, step: str, script: str, **how: Any) -> None:
        if "2" in script and trial.value("SHOW enable_hashjoin") == "off":
            os.kill(trial.connection.info.backend_pid, signal.SIGSEGV)
            raise StudyError("server closed the connection unexpectedly")
        pgbench(trial, step, script, **how)

    monkeypatch.setattr("pgapps.workload.steps.pgbench", crashing)
    result = compared(shop, tmp_path / "records", monkeypatch)
    assert result.code == 1
    assert result.effects["step"].to_list() == ["one"]
    text = " ".join(as_text(result).split())
    assert text.startswith("CRASH of the candidate: 0 of 1 step slower")
    assert "Crash, candidate: two.sql, on PostgreSQL 18" in text
    assert "was terminated by signal 11" in text


@pytest.mark.thorough
def test_a_workload_of_which_no_script_runs_is_told_why(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "one.sql").write_text("SELEC 1;\n")
    why = r"No script can run: one\.sql, line 1, on .* syntax error at or near"
    with pytest.raises(StudyError, match=why):
        compared(shop, tmp_path / "records", monkeypatch)


def test_a_statement_of_the_schema_that_fails_is_told_by_its_line(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "schema.sql").write_text("CREATE TABLE t (i int);\n\nCREATE TABEL u (i int);\n")
    with pytest.raises(StudyError, match=r'schema.sql, line 3, fails on PostgreSQL .* "TABEL"'):
        compared(shop, tmp_path / "records", monkeypatch)


@pytest.mark.thorough
def test_of_a_script_with_several_statements_each_is_told(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "one.sql").write_text(
        "\\set last random(1, 9)\nBEGIN;\n"
        "-- How many rows there are.\nSELECT count(*)\nFROM generate_series(1, 20000);\n"
        "SELECT current_setting('enable_hashjoin'), :last BETWEEN 1 AND 9;\nEND;\n"
    )
    result = compared(shop, tmp_path / "records", monkeypatch)
    counted, told = "2: SELECT count(*) FROM generate_series(1, 20000)", "3: SELECT current"
    assert {"", counted} <= set(result.effects["case"])  # the others hardly take a tenth of a ms
    seen = result.measured[0].samples.filter(pl.col("metric") == "result")
    assert seen.filter(case=counted)["value"].n_unique() == 1
    assert [(step[:22], side, row) for _, _, step, side, row in result.rows.rows()] == [
        (f"one, {told}", "baseline", "('on', True)"),
        (f"one, {told}", "candidate", "('off', True)"),
    ]
    text = " ".join(as_text(result, command="").split())
    assert "The two answer differently: workload, this server, 3: SELECT" in text
    assert "candidate ('off', True)" in text


@pytest.mark.thorough
def test_a_script_of_pgbenchs_own_is_compared_with_several_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compared("pgbench:simple-update", tmp_path / "records", monkeypatch, clients=2)
    turns = result.measured[0].samples.filter(pl.col("metric") == "duration_s", case="")
    assert turns["step"].unique().to_list() == ["simple-update"]
    assert result.guards.filter(guard="results")["passed"].to_list() == [True]


def test_an_index_of_one_side_is_compared(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "INSERT INTO t SELECT n FROM generate_series(1, 100000) n;"
    (shop / "schema.sql").write_text(f"CREATE TABLE t (i int);\n{rows}\n")
    (shop / "one.sql").write_text("SELECT i FROM t WHERE i = 7;\n")
    indexed = Side("embedded", sql=("CREATE INDEX CONCURRENTLY ON t", "(i);"))
    result = compared(shop, tmp_path / "records", monkeypatch, indexed)
    assert result.guards.filter(guard="results")["passed"].to_list() == [True]
    assert result.plans["step"].to_list() == ["one"]
    ((before, after),) = result.analyzed.select("baseline", "candidate").rows()
    assert "Buffers: shared" in before
    assert "Rows Removed by Filter: 99999" in before
    assert "Index" in after
    sizes = {side: facts["size_bytes"] for side, facts in loaded(result.measured[0]).items()}
    assert sizes["candidate"] - sizes["baseline"] > 200 * 8192
    text = " ".join(as_text(result).split())
    assert "Candidate: embedded with CREATE INDEX CONCURRENTLY ON t (i);" in text
    assert "Loaded: 1 table, 100,000 rows, 3." in text
    assert " on the candidate" in text
    wrong = Side("embedded", sql=("SELECT 1;", "CREATE INDEX ON missing (i);"))
    with pytest.raises(StudyError, match=r"SQL of this side, line 2, fails .* does not exist"):
        compared(shop, tmp_path / "records", monkeypatch, wrong)


def test_statements_are_looked_at_under_the_workloads_settings(shop: Path) -> None:
    (shop / "schema.sql").write_text("CREATE SCHEMA stall;\nCREATE TABLE stall.t (i int);\n")
    (shop / "one.sql").write_text("SELECT i FROM t;\n")
    (shop / "settings.conf").write_text("search_path = 'stall'\n")
    (unit,) = statement_units("workload", "embedded", {"directory": str(shop)})
    assert (unit.query, unit.settings) == ("SELECT i FROM t", {"search_path": "stall"})


def test_the_statements_themselves_are_counted(shop: Path, run_base: Path) -> None:
    reason = reason_no_valgrind()
    if reason:
        skip_but_not_in_ci(reason)
    (shop / "schema.sql").write_text(
        "CREATE TABLE t (i int);\nINSERT INTO t VALUES (7);\n"
        "CREATE TABLE rows AS SELECT generate_series(1, 20000) AS j;\n"
    )
    (shop / "alter.sql").write_text("BEGIN; ALTER TABLE rows ALTER j SET NOT NULL; ROLLBACK;\n")
    (shop / "one.sql").write_text(
        "BEGIN;\n"
        "SELECT i FROM t; -- the row\n"
        "UPDATE t SET i = i\n  WHERE current_setting('work_mem') = '1MB';\n"
        "END;\n"
    )
    candidate = Side("embedded", {"work_mem": "1MB"})
    request = Request(Side("embedded"), candidate, ("workload",), instructions=True)
    units = list(statement_units("workload", "embedded", {"directory": str(shop)}))
    assert [unit.name for unit in units] == [
        "alter, 2: ALTER TABLE rows ALTER j SET NOT NULL",
        "one, 2: SELECT i FROM t",
        "one, 3: UPDATE t SET i = i WHERE current_setting('work_m…",
    ]
    scripts = ("alter", "one", "one")
    assert [unit.steps for unit in units] == [
        (unit.name, script) for unit, script in zip(units, scripts, strict=True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGSTUDIES_CACHE", str(run_base / "counted"))
        found = counted(request, [units[0], units[2]]).units.sort("unit").to_dicts()
    alter, update = found
    assert alter["baseline"] > 20_000 * 20, "a second ALTER had nothing to look at"
    assert update["ratio"] > 1.05  # only there the row is found, and changed
