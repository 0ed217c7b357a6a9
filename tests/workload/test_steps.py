"""The steps of a workload: pgbench's own command line, mixes, seeds, and what fails."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pgapps.workload.loading import load, tables_of
from pgapps.workload.pgbench_options import asked
from pgapps.workload.scripts import read_workload
from pgapps.workload.steps import defined, steps_of
from pgapps.workload.turns import Turn, tried
from pgservers.errors import StudyError
from pgservers.programs.installations import counts_failures
from pgservers.servers.serve import serve
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.trial import Trial
from tests.made_up import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgservers.servers.serve import Server

HOW: dict[str, Any] = {"clients": 1, "protocol": "prepared", "variables": {"scale": 1}}
RANDOM_KEY = "\\set i random(1, 1000000000)\nINSERT INTO t VALUES (:i);\n"


@pytest.fixture(scope="module")
def server(run_base: Path) -> Iterator[Server]:
    assert run_base.exists()
    with serve("embedded", settings={"fsync": "off"}, unprivileged=True) as server:
        yield server


@contextmanager
def loaded(server: Server, home: Path) -> Iterator[Trial]:
    workload = read_workload(home)
    server.restore("empty", lambda: None)
    with Trial(server, Arm("plain"), block=1) as trial:
        load(trial, tables_of(workload, 1, ()))
        yield trial


# pgbench's own command line


def test_a_command_line_of_pgbench_is_taken_over(shop: Path) -> None:
    line = (
        f"pgbench -n -f {shop}/one.sql@3 -b tpcb-like@1 -D x=1 --define=y=a -s 10 -c 8 -j 2 -T 60"
    )
    found = asked(line, None)
    assert found.directory == str(shop)
    assert found.ours == ["-n", "-j 2", "-T 60"]
    assert found.parameters == {
        "protocol": "simple",
        "mix": ["one@3", "pgbench:tpcb-like@1"],
        "define": ["x=1", "y=a"],
        "scale": "10",
        "clients": "8",
    }
    assert asked("-M extended -f one.sql", str(shop)).parameters["protocol"] == "extended"
    assert asked("-f one.sql", str(shop)).directory == str(shop)


def test_a_command_line_without_files_is_of_pgbenchs_own_scripts() -> None:
    assert asked("-c 4", None).directory == "pgbench:tpcb-like"
    assert asked("-S -N", None).directory == "pgbench:select-only"
    assert asked("-S -b si@3", None).parameters["mix"] == [
        "pgbench:select-only",
        "pgbench:si@3",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-i -s 10", "-i cannot be used in a comparison: pgbench's tables are created"),
        ("--rate=100", "pgbench command line cannot .* --rate"),
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
        (["pgbench:tpch"], "pgbench has no script 'tpch'"),
    ],
)
def test_what_cannot_be_mixed_is_told(shop: Path, mix: list[str], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        read_workload(shop, mix)


def test_scripts_on_pgbenchs_own_tables_need_no_schema(shop: Path) -> None:
    (shop / "schema.sql").unlink()
    (shop / "one.sql").write_text("SELECT count(*) FROM pgbench_branches;\n")
    assert read_workload(shop).schema is None


# On a real server


def test_pgbenchs_own_tables_stand_beside_those_of_the_schema(server: Server, shop: Path) -> None:
    (shop / "one.sql").write_text("SELECT abalance FROM pgbench_accounts WHERE aid = 1;\n")
    with loaded(server, shop) as trial:
        assert trial.value("SELECT count(*) FROM pgbench_accounts") == 100_000
        assert trial.value("SELECT count(*) FROM t") == 0
    (shop / "schema.sql").write_text("CREATE TABLE pgbench_accounts (aid int, abalance int);\n")
    with loaded(server, shop) as trial:
        assert trial.value("SELECT count(*) FROM pgbench_accounts") == 0


def test_rows_with_random_keys_are_inserted_again_and_again(server: Server, shop: Path) -> None:
    (shop / "schema.sql").write_text("CREATE TABLE t (i bigint PRIMARY KEY);\n")
    for name in ("one", "two"):
        (shop / f"{name}.sql").write_text(RANDOM_KEY)
    workload = read_workload(shop)
    with loaded(server, shop) as trial:
        found = tried(trial, tables_of(workload, 1, ()), steps_of(workload), 0.2, options=HOW)
        assert min(turn.transactions for turn in found.values()) > 1


def test_a_script_in_a_pipeline_is_looked_at_and_run(server: Server, shop: Path) -> None:
    (shop / "one.sql").write_text(
        "\\startpipeline\nINSERT INTO t VALUES (:x);\nINSERT INTO t VALUES (:x);\n\\endpipeline\n"
    )
    (step,) = steps_of(read_workload(shop))
    how = HOW | {"variables": {"x": "7"}}
    with loaded(server, shop) as trial:
        step.look(trial, seed=1, protocol="prepared", variables={"x": "7"})
        step.run(trial, step.name, Turn(5, []), seed=2, **how)
        assert trial.value("SELECT count(*) FROM t WHERE i = 7") == 10


def test_an_error_is_told_with_its_file_and_line_and_what_may_help(
    server: Server, shop: Path
) -> None:
    (shop / "one.sql").write_text(
        "-- name: first\nSELECT 1;\n\n-- name: both\nSELECT 1 \\; SELECT 2;\n"
    )
    first, both = steps_of(read_workload(shop))
    with loaded(server, shop) as trial:
        first.run(trial, "first", Turn(1, []), seed=1, **HOW)
        said = r"one\.sql, line 5, on PostgreSQL .*multiple commands.*-p protocol=simple"
        with pytest.raises(StudyError, match=said):
            both.run(trial, "both", Turn(1, []), seed=1, **HOW)
        both.run(trial, "both", Turn(1, []), seed=1, **HOW | {"protocol": "simple"})


def test_statements_of_a_script_are_timed_and_scripts_of_a_mix(server: Server, shop: Path) -> None:
    (shop / "one.sql").write_text("SELECT pg_sleep(0.001);\nSELECT 2;\n")
    (shop / "two.sql").write_text("SELECT 3;\n")
    one, _ = steps_of(read_workload(shop))
    (mix,) = steps_of(read_workload(shop, ["one", "two"]))
    with loaded(server, shop) as trial:
        one.run(trial, "one", Turn(2, ["1: SELECT pg_sleep(0.001)"]), seed=1, **HOW)
        mix.run(trial, "mix", Turn(20, []), seed=1, **HOW)
        timed = {
            (row["step"], row["case"]) for row in rows_of(trial) if row["metric"] == "duration_s"
        }
    assert timed == {
        ("one", ""),
        ("one", "1: SELECT pg_sleep(0.001)"),
        ("mix", ""),
        ("mix", "one"),
        ("mix", "two"),
    }


OLD = """#!/bin/sh
case "$*" in
    --version) echo "pgbench (PostgreSQL) 14.24" ;;
    *--failures-detailed*) echo "pgbench: unrecognized option" >&2; exit 1 ;;
    *) echo "pgbench: error: client 0 script 0 aborted in command 8 query 0:" \\
        "ERROR:  deadlock detected" >&2; exit 2 ;;
esac
"""


def test_a_failure_that_ends_an_old_pgbench_is_told(
    server: Server, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "fails.sql").write_text("SELECT 1;\n")
    (step,) = [step for step in steps_of(read_workload(shop)) if step.name == "fails"]
    old = tmp_path / "pgbench"
    old.write_text(OLD)
    old.chmod(0o755)
    assert not counts_failures(old)
    with loaded(server, shop) as trial:
        monkeypatch.setattr(server, "capabilities", replace(server.capabilities, pgbench=old))
        with pytest.raises(StudyError, match=r"fails\.sql, line 1.*pgbench before 15 ends there"):
            step.run(trial, "fails", Turn(1, []), seed=1, **HOW)
