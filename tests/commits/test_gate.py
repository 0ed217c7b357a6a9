"""The gate: what a diff touches, the table, the exit codes, and the shell of its action."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import typer
import yaml

from pgapps.commits.gate import as_markdown, changed_functions, limit_of, touched_first, verdict
from pgapps.commits.gate_command import gate
from pgapps.compare.counted import Counted
from pgapps.counting.by_function import moved
from pgapps.counting.units import Unit
from pgapps.options import for_git
from pgservers.errors import CannotRun, StudyError
from pgservers.paths import ROOT
from tests.commits.conftest import Scripted, commit, git

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pgapps.builds.repository import Repository

ACTION = ROOT / ".github" / "actions" / "gate"

DIFF = """\
diff --git a/nbtsearch.c b/nbtsearch.c
--- a/nbtsearch.c
+++ b/nbtsearch.c
@@ -669,2 +669,3 @@ _bt_compare(Relation rel,
     int ntupatts;
+    count_it(rel);
@@ -900 +901,5 @@ static bool _bt_first(IndexScanDesc scan)
+void
+count_it(Relation rel)
+{
+}
+extern void declared_only(void);
--- a/notes
+++ b/notes
"""


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """The command, with counts that the servers' files have: its exit code and what it prints."""
    monkeypatch.setattr(sys.modules[Counted.__module__], "Counter", Scripted)

    def call(**options: Any) -> tuple[int, str]:
        with pytest.raises(typer.Exit) as ended:
            gate(**options)
        return ended.value.exit_code, capsys.readouterr().out

    return call


def server(place: Path, cost: float) -> str:
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "postgres").write_text(str(cost))
    return str(place)


def units_of(*rows: tuple[Any, ...]) -> pl.DataFrame:
    """Units with both counts, their ratio, and why they were not counted."""
    columns = ["unit", "baseline", "candidate", "ratio", "reason"]
    types = dict.fromkeys(columns, pl.Float64()) | {"unit": pl.String(), "reason": pl.String()}
    return pl.DataFrame([*rows], schema=types, orient="row")


def test_a_diff_tells_the_functions_it_changes_and_adds() -> None:
    assert changed_functions(DIFF) == {"_bt_compare", "_bt_first", "count_it"}
    assert changed_functions("") == frozenset()


def test_units_that_a_change_touches_come_first_by_how_much() -> None:
    units = [Unit(name, (), study=name[0]) for name in ("a1", "a2", "b1", "b2", "c1")]
    functions = pl.DataFrame(
        [("a2", "f", 10.0), ("a2", "g", 90.0), ("b1", "f", 30.0), ("b1", "g", 70.0),
         ("c1", "g", 5.0)],
        schema=["unit", "function", "own"],
        orient="row",
    )  # fmt: skip
    order = touched_first(units, {"f"}, functions)
    assert [(unit.name, share) for unit, share in order[:2]] == [("b1", 0.3), ("a2", 0.1)]
    # Of the others one of each study before a second one of any.
    assert [unit.name for unit, _ in touched_first(units, set(), functions)] == [
        "a1", "b1", "c1", "a2", "b2",
    ]  # fmt: skip
    last = [Unit("b1", (), extension="ours"), *units[:2]]
    assert [unit.name for unit, _ in touched_first(last, {"f"}, functions)] == ["a2", "a1", "b1"]


def test_a_limit_is_a_percentage() -> None:
    limits = [limit_of(text) for text in ("0.5%", "2 %", "0.1%")]
    assert limits == pytest.approx([0.005, 0.02, 0.001])
    for text in ("0.5", "", "-1%", "0.01%", "many%"):
        with pytest.raises(StudyError, match="limit"):
            limit_of(text)


def test_the_exit_code_is_1_past_the_limit_only(
    tmp_path: Path, run: Callable[..., tuple[int, str]]
) -> None:
    base = server(tmp_path / "base", 1000)
    for cost, code, word in [
        (1004, 0, "dearer"),
        (1006, 1, "**past the limit**"),
        (1000.5, 0, "the same"),
        (900, 0, "cheaper"),
        (-1, 2, "head cannot do it: crashed"),
    ]:
        head = server(tmp_path / f"head {cost}", cost)
        found, out = run(base=base, head=head, unit=["one session started"])
        assert (found, word in out) == (code, True), out
        assert "Waiting, contention, caches" in out


def test_what_neither_side_can_do_does_not_count_against_a_change() -> None:
    broken = ("b", None, None, None, "no locale")
    assert verdict(units_of(("a", 10.0, 10.0, 1.0, None), broken), 0.005) == 0
    assert verdict(units_of(broken), 0.005) == 2


def test_a_pull_request_is_judged_from_where_it_branched_off(
    history: Callable[..., Repository], run: Callable[..., tuple[int, str]]
) -> None:
    repository = history([1000, 1000, 900])  # on the main branch, work became cheaper since v1
    source = repository.source
    git(source, "checkout", "--quiet", "-b", "patch", "v1")
    commit(source, "Only | add", {"nbtsearch.c": "int\n_bt_compare(int a)\n{\n}\n"})
    code, out = run(repo=source, base="v2", head="patch", most=2)
    assert code == 0
    assert out.count("| 1,000 | 1,000 | 1.0000 |") == 2
    assert "Functions in the diff: `_bt_compare`." in out
    assert repository.commit("v1").short in out
    commit(source, "Slower", {"cost": "1100"})
    code, out = run(repo=source, base="v2", head="patch", most=1)
    assert code == 1
    assert "| `_bt_compare` | 940 | 1,040 | +100 |" in out
    assert "more units were not asked for" in out


def test_a_change_that_no_unit_runs_is_not_judged(
    tmp_path: Path, run: Callable[..., tuple[int, str]]
) -> None:
    base, head = (server(tmp_path / name, 1000) for name in ("base", "head"))
    diff = tmp_path / "change.diff"
    diff.write_text("@@ -1 +1 @@ uuid_out(PG_FUNCTION_ARGS)\n+    return;\n")
    code, out = run(base=base, head=head, diff=diff, unit=["one session started"])
    assert code == 2
    assert "**Not judged: no unit that was counted runs a function of the diff." in out
    diff.write_text("@@ -1 +1 @@ scan(PG_FUNCTION_ARGS)\n+    return;\n")
    code, out = run(base=base, head=head, diff=diff, unit=["one session started"])
    assert (code, "| 6.0 % |" in out) == (0, True)
    slower = server(tmp_path / "slower", 1004)
    diff.write_text("@@ -1 +1 @@ inlined(int a)\n+    return;\n")
    code, _ = run(base=base, head=slower, diff=diff, unit=["one session started"])
    assert code == 0, "what it takes has changed, so it is run"


def test_what_cannot_be_judged_is_told(history: Callable[..., Repository], tmp_path: Path) -> None:
    repository = history([1000, None])
    source = repository.source
    with pytest.raises(CannotRun, match="does not build"):
        gate(repo=source, base="v0", head="v1")
    with pytest.raises(StudyError, match=r"All commits of .* are in v1"):
        gate(repo=source, base="v1", head="v0")
    with pytest.raises(StudyError, match="leave out --diff"):
        gate(repo=source, base="v0", head="v1", diff=tmp_path)
    with pytest.raises(StudyError, match="cannot be read"):
        gate(base="17", head="18", diff=tmp_path / "none")
    git(source, "checkout", "--quiet", "--orphan", "other")
    commit(source, "Of another tree")
    with pytest.raises(StudyError, match="no commit in common"):
        gate(repo=source, base="v0", head="other")


def test_git_bisect_run_skips_what_is_not_decided() -> None:
    told = {0: 0, 1: 1, 2: 125, 3: 125, 5: 133, 130: 130}
    assert {code: for_git(code, bisect_run=True) for code in told} == told
    assert all(for_git(code, bisect_run=False) == code for code in told)


def test_git_bisects_by_a_gate(
    history: Callable[..., Repository], run: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """Git's own ``bisect run`` is given the codes of the command, commit by commit."""
    costs = [1000, 1000, -1, 1000, 1000, 1100, 1100, 1100]
    repository = history(costs)
    base = server(tmp_path / "base", 1000)
    codes = {}
    for number, cost in enumerate(costs):
        head = server(tmp_path / f"v{number}", cost)
        codes[number], _ = run(base=base, head=head, unit=["one session started"], bisect_run=True)
    assert [*codes.values()] == [0, 0, 125, 0, 0, 1, 1, 1]
    source = repository.source
    cases = " ".join(f"{number}) exit {code};;" for number, code in codes.items())
    git(source, "bisect", "start", "v7", "v0")
    said = git(source, "bisect", "run", "sh", "-c", f"case $(cat number) in {cases} esac")
    assert f"{repository.commit('v5').sha} is the first bad commit" in said
    assert run(base="17", head="18", diff=tmp_path / "none", bisect_run=True) == (125, "")


def test_text_of_others_is_no_markdown() -> None:
    units = units_of(("a|b <i>@x", 1.0, 1.0, 1.0, None))
    moved = pl.DataFrame(schema=["unit", "function", "before", "after", "change"])
    text = as_markdown(units, moved, sides=("`x`", "a|b"), limit=0.005, shares={})
    assert r"| a\|b \<i\>\@x |" in text
    assert "Base is `'x'`, head `a/b`." in text


def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ACTION / "action.yml").read_text())
    return found


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_action_hands_on_the_table_and_the_exit_code(code: int, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "pgstudies"
    program.parent.mkdir()
    table = "" if code == 2 else "the table"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/told\n'
                       f'printf "%s" "{table}"\nexit {code}\n')  # fmt: skip
    program.chmod(0o755)
    (step,) = [step for step in action()["runs"]["steps"] if step.get("id") == "gate"]
    given = {"REPOSITORY": ".", "BASE": "a; touch x", "HEAD": "b", "LIMIT": "0.5%", "MOST": "8"}
    assert set(step["env"]) == {*given, "CCACHE_DIR"}
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=given
        | {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": str(ACTION),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "RUNNER_TEMP": str(tmp_path),
        },
    )
    assert done.returncode == code, done.stderr
    assert not (tmp_path / "x").exists()
    words = (tmp_path / "told").read_text().split("\n")[:-1]
    assert words == [
        "gate", "--repo", ".", "--base", "a; touch x", "--head", "b", "--limit", "0.5%",
        "--most", "8",
    ]  # fmt: skip
    summary = (tmp_path / "summary").read_text()
    assert summary.strip() == (table or "The gate could not judge this change (exit code 2): see "
                               "the log.")  # fmt: skip
    assert (tmp_path / "output").read_text() == f"report={tmp_path}/gate.md\n"


def test_the_actions_inputs_are_all_used() -> None:
    steps = action()["runs"]["steps"]
    used = "".join(str(value) for step in steps for value in step.get("env", {}).values())
    assert all(f"inputs.{name}" in used for name in action()["inputs"])
    for script in ("install.sh", "gate.sh"):
        assert os.access(ACTION / script, os.X_OK)
        subprocess.run(["bash", "-n", str(ACTION / script)], check=True)


def test_without_a_diff_there_is_no_column_about_it_and_a_missing_name_gets_a_hint() -> None:
    units = units_of(("a", 100.0, 101.0, 1.01, None))
    before, after = (
        pl.DataFrame({"function": ["f", "(no name) in postgres"], "own": own})
        for own in ([-3.0, 10.0], [2.0, 40.0])
    )
    functions = moved(before, after)
    assert functions.rows() == [("(no name) in postgres", 10, 40, 30), ("f", 0, 2, 2)]
    given: dict[str, Any] = {"sides": ("x", "y"), "limit": 0.005, "shares": {}}
    plain = as_markdown(units, functions.with_columns(unit=pl.lit("a")), **given)
    assert "in changed functions" not in plain
    assert "| a | 100 | 101 | 1.0100 | **past the limit** |" in plain
    assert "postgresql-N-dbgsym" in plain
    with_diff = as_markdown(units, functions.clear(), changed={"f"}, **given)
    assert "| a | 100 | 101 | 1.0100 | 0.0 % | **past the limit** |" in with_diff
    assert "dbgsym" not in with_diff
