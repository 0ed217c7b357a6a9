"""The steps of a workload: pgbench's own command line, mixes, seeds, and what fails."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pgapps.workload.loading import Tables, tables_of
from pgapps.workload.pgbench_options import asked
from pgapps.workload.scripts import read_workload
from pgapps.workload.steps import altered, defined, steps_of
from pgapps.workload.turns import Turn, tried
from pgservers.errors import StudyError
from pgservers.programs.installations import counts_failures
from tests.made_up import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.workload.conftest import Loaded

HOW: dict[str, Any] = {"clients": 1, "protocol": "prepared", "variables": {"scale": 1}}
RANDOM_KEY = "\\set i random(1, 1000000000)\nINSERT INTO t VALUES (:i);\n"


@pytest.mark.parametrize(
    ("statement", "taken"),
    [
        ("SELECT to_char(now(), 'HH24:MI:SS')", ":MI, :SS"),
        ("""SELECT '{"a":true}'::json""", ":true"),
        ("SELECT $x$it's :here$x$", ":here"),
        ("SELECT :i, 'a::text', '12:30', 'it''s'", None),
        ("-- it's :not quoted\nSELECT 1 /* ':nor' */", None),
    ],
)
def test_a_name_in_quotes_is_no_parameter_unless_text_is_sent(
    shop: Path, statement: str, taken: str | None
) -> None:
    (shop / "one.sql").write_text(f"\\set i 1\n{statement};\n")
    workload = read_workload(shop)
    found = altered(workload, "prepared")
    assert list(found) == (["one"] if taken else [])
    assert not taken or f"pgbench takes {taken} in quotes" in found["one"]
    assert altered(workload, "simple") == {}


def test_a_command_line_of_pgbench_is_taken_over(shop: Path) -> None:
    line = (
        f"pgbench -n -f {shop}/one.sql@3 -b tpcb-like@1 -D x=1 --define=y=a -s 10 -c 8 -j 2 -T 60"
    )
    parameters, ignored = asked(line, None)
    assert ignored == ["-n", "-j 2", "-T 60"]
    assert parameters == {
        "directory": str(shop),
        "protocol": "simple",
        "mix": ["one@3", "pgbench:tpcb-like@1"],
        "define": ["x=1", "y=a"],
        "scale": "10",
        "clients": "8",
    }
    parameters, _ = asked("-M extended -f one.sql", str(shop))
    assert (parameters["directory"], parameters["protocol"]) == (str(shop), "extended")


@pytest.mark.parametrize(
    ("line", "directory", "mix"),
    [
        ("-c 4", "tpcb-like", None),
        ("-S -N", "select-only", ["pgbench:select-only", "pgbench:simple-update"]),
        ("-S -b si@3", "select-only", ["pgbench:select-only", "pgbench:si@3"]),
    ],
)
def test_a_command_line_without_files_is_of_pgbenchs_own_scripts(
    line: str, directory: str, mix: list[str] | None
) -> None:
    parameters, _ = asked(line, None)
    assert (parameters["directory"], parameters.get("mix")) == (f"pgbench:{directory}", mix)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-i -s 10", "-i cannot be used in a comparison: pgbench's tables are created"),
        ("--rate=100", "--rate cannot be used in a comparison: turns run as fast as they can"),
        ("--connect", "--connect cannot be used in a comparison: sessions are opened once"),
        ("--max-tries=3", "--max-tries cannot be used in a comparison: a transaction that fails"),
        ("-R 100", "-R cannot be used in a comparison: turns run as fast as they can"),
        ("-f a.sql -f /x/b.sql", "must be in one directory"),
        ("-f 'a", "pgbench command line cannot be measured"),
        ("--wrong", "--wrong"),
    ],
)
def test_what_a_comparison_cannot_take_over_is_told(line: str, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        asked(line, None)


def test_variables_are_names_with_values() -> None:
    assert defined(["x=1", "where=a = b"]) == {"x": "1", "where": "a = b"}
    for text in ("x", "1x=2", "=1", "pgstudies_turn=1"):
        with pytest.raises(StudyError, match="given as name=value"):
            defined([text])


def test_scripts_are_mixed_by_name_or_file_with_pgbenchs_own(shop: Path) -> None:
    (shop / "two.sql").write_text("-- name: second\nSELECT 2;\n")
    (shop / "three.sql").write_text("SELECT 3;\n")
    found = read_workload(shop, ["one@3", "two", "pgbench:select-only@2", "three@0"])
    assert [script.name for script in found.scripts] == ["one", "second", "select-only"]
    assert found.weights == (3, 1, 2)
    assert found.uses_pgbench_tables
    assert [step.name for step in steps_of(found)] == ["one@3, second@1, select-only@2"]
    alone = read_workload(shop, ["one@3"])
    assert [step.name for step in steps_of(alone)] == ["one"]
    assert not alone.uses_pgbench_tables


@pytest.mark.parametrize(
    ("mix", "said"),
    [
        (["four"], "no script 'four' to mix; there is one"),
        (["one", "one@2"], "two scripts called 'one'"),
        (["one@0"], "No script of the mix has a weight above 0"),
    ],
)
def test_what_cannot_be_mixed_is_told(shop: Path, mix: list[str], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        read_workload(shop, mix)


def test_scripts_on_pgbenchs_own_tables_need_no_schema(shop: Path) -> None:
    (shop / "schema.sql").unlink()
    (shop / "one.sql").write_text("SELECT count(*) FROM pgbench_branches;\n")
    assert read_workload(shop).schema is None


def test_pgbenchs_own_tables_stand_beside_those_of_the_schema(loaded: Loaded, shop: Path) -> None:
    (shop / "one.sql").write_text("SELECT abalance FROM pgbench_accounts WHERE aid = 1;\n")
    with loaded(tables_of(read_workload(shop), 1, ())) as trial:
        assert trial.value("SELECT count(*) FROM pgbench_accounts") == 100_000
        assert trial.value("SELECT count(*) FROM t") == 0
    (shop / "schema.sql").write_text("CREATE TABLE pgbench_accounts (aid int, abalance int);\n")
    with loaded(tables_of(read_workload(shop), 1, ())) as trial:
        assert trial.value("SELECT count(*) FROM pgbench_accounts") == 0


def test_rows_with_random_keys_are_inserted_again_and_again(loaded: Loaded, shop: Path) -> None:
    (shop / "schema.sql").write_text("CREATE TABLE t (i bigint PRIMARY KEY);\n")
    for name in ("one", "two"):
        (shop / f"{name}.sql").write_text(RANDOM_KEY)
    workload = read_workload(shop)
    tables = Tables(workload.schema)
    with loaded(tables) as trial:
        found = tried(trial, tables, steps_of(workload), 0.2, options=HOW)
        assert min(turn.transactions for turn in found.values()) > 1


def test_a_script_in_a_pipeline_is_looked_at_and_run(loaded: Loaded, shop: Path) -> None:
    (shop / "one.sql").write_text(
        "\\startpipeline\nINSERT INTO t VALUES (:x);\nINSERT INTO t VALUES (:x);\n\\endpipeline\n"
    )
    (step,) = steps_of(read_workload(shop))
    variables = {"x": "7"}
    with loaded(Tables(shop / "schema.sql")) as trial:
        step.look(trial, seed=1, protocol="prepared", variables=variables)
        step.run(trial, step.name, Turn(5, []), seed=2, **HOW | {"variables": variables})
        assert trial.value("SELECT count(*) FROM t WHERE i = 7") == 10


def test_an_error_is_told_with_its_file_and_line_and_what_may_help(
    loaded: Loaded, shop: Path
) -> None:
    (shop / "one.sql").write_text(
        "-- name: first\nSELECT 1;\n\n-- name: both\nSELECT 1 \\; SELECT 2;\n"
    )
    first, both = steps_of(read_workload(shop))
    with loaded(Tables(shop / "schema.sql")) as trial:
        first.run(trial, "first", Turn(1, []), seed=1, **HOW)
        said = r"one\.sql, line 5, on PostgreSQL .*multiple commands.*-p protocol=simple"
        with pytest.raises(StudyError, match=said):
            both.run(trial, "both", Turn(1, []), seed=1, **HOW)
        both.run(trial, "both", Turn(1, []), seed=1, **HOW | {"protocol": "simple"})


def test_statements_of_a_script_are_timed_and_scripts_of_a_mix(loaded: Loaded, shop: Path) -> None:
    (shop / "one.sql").write_text("SELECT pg_sleep(0.001);\nSELECT 2;\n")
    (shop / "two.sql").write_text("SELECT 3;\n")
    one, _ = steps_of(read_workload(shop))
    (mix,) = steps_of(read_workload(shop, ["one", "two"]))
    slow = "1: SELECT pg_sleep(0.001)"
    with loaded(Tables(shop / "schema.sql")) as trial:
        one.run(trial, "one", Turn(2, [slow]), seed=1, **HOW)
        mix.run(trial, "mix", Turn(20, []), seed=1, **HOW)
        timed = {
            (row["step"], row["case"]) for row in rows_of(trial) if row["metric"] == "duration_s"
        }
    assert timed == {("one", ""), ("one", slow), ("mix", ""), ("mix", "one"), ("mix", "two")}


def test_a_statement_that_took_no_time_was_not_timed(
    loaded: Loaded, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pgbench reports 0 for a statement whose answer is there when it first looks."""
    (shop / "one.sql").write_text("SELECT 1;\nSELECT 2;\n")
    (step, *_) = steps_of(read_workload(shop))
    lines = "         0.000           0 SELECT 1;\n         0.250           0 SELECT 2;\n"

    def reported(*_: object, report: Callable[[str], None], **__: object) -> None:
        report(lines)

    monkeypatch.setattr("pgapps.workload.steps.pgbench", reported)
    with loaded(Tables(shop / "schema.sql")) as trial:
        step.run(trial, "one", Turn(1, ["1: SELECT 1", "2: SELECT 2"]), seed=1, **HOW)
        timed = [(row["case"], row["value"]) for row in rows_of(trial) if row["step"] == "one"]
    assert timed == [("2: SELECT 2", 0.00025)]


OLD = """#!/bin/sh
case "$*" in
    --version) echo "pgbench (PostgreSQL) 14.24" ;;
    *--failures-detailed*) echo "pgbench: unrecognized option" >&2; exit 1 ;;
    *) echo "pgbench: error: client 0 script 0 aborted in command 8 query 0:" \\
        "ERROR:  deadlock detected" >&2; exit 2 ;;
esac
"""


def test_a_failure_that_ends_an_old_pgbench_is_told(
    loaded: Loaded, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (step,) = steps_of(read_workload(shop))
    old = tmp_path / "pgbench"
    old.write_text(OLD)
    old.chmod(0o755)
    assert not counts_failures(old)
    with loaded(Tables(shop / "schema.sql")) as trial:
        known = trial.server.capabilities
        monkeypatch.setattr(trial.server, "capabilities", replace(known, pgbench=old))
        with pytest.raises(StudyError, match=r"one\.sql, line 1.*pgbench before 15 ends there"):
            step.run(trial, "one", Turn(1, []), seed=1, **HOW)


def test_only_the_files_that_a_mix_names_are_read(shop: Path) -> None:
    (shop / "bad.sql").write_text("\\sleep 1 ms\nSELECT 1;\n")
    (shop / "take.pgbench").write_text("SELECT 2;\n")
    mixed = read_workload(shop, ["take.pgbench@2", "one"])
    assert [script.text for script in mixed.scripts] == ["SELECT 2;\n", "SELECT 1;\n"]
    for mix in ([], ["bad"]):
        with pytest.raises(StudyError, match="sleep is not allowed in a script"):
            read_workload(shop, mix)
