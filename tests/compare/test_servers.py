"""Comparing two servers that run: a planted difference is found, and where there is none, none."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from playwright.sync_api import expect

from pgapps.compare.design import Side
from pgapps.compare.judging.result import Result, result_of
from pgapps.compare.request import Request
from pgapps.compare.rotation import NO_TIME
from pgapps.compare.run import compared as measured_run
from pgapps.execution.run import run_study
from pgservers import paths
from pgservers.errors import StudyError
from pgstudies.records.reading import list_records, read_record
from tests.made_up import ROOMS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

STUDY = "two_sides"
TWENTYFOLD = Side("embedded", {"planted.work": "400000"})
"""Whatever else the machine does, twenty times the work takes longer."""


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The notebooks are those of the tests, and records are kept apart from the user's."""
    place = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "NOTEBOOKS", (ROOMS,))
        patch.setenv("PGSTUDIES_NOTEBOOKS", str(ROOMS))
        patch.setenv("PGSTUDIES_RECORDS", str(place / "records"))
        for name in ("PGSTUDIES_SERVER", "PGSTUDIES_REPLAY", "PGSTUDIES_FRESH"):
            patch.delenv(name, raising=False)
        yield place


def compared(candidate: Side, **more: Any) -> Result:
    wanted = {"blocks": 8} | more
    request = Request(Side("embedded"), candidate, (STUDY,), instructions=False, **wanted)
    complaints: list[str] = []
    run = measured_run(request, tell=lambda _: None, warn=complaints.append)
    assert not complaints, complaints
    return result_of(request.comparison, run.measured, case=None, margin=1.0, profile="quick")


@pytest.fixture(scope="module")
def planted() -> Result:
    return compared(TWENTYFOLD)


def guards(result: Result) -> dict[str, bool | None]:
    return dict(result.guards.select("guard", "passed").rows())


def verdicts(result: Result, arm: str = "plain") -> dict[str, str]:
    return dict(result.effects.filter(of=arm).select("step", "verdict").rows())


def sentence(result: Result, guard: str) -> str:
    return str(result.guards.filter(guard=guard)["sentence"].item())


def test_a_planted_difference_is_found_where_it_is_and_explained(planted: Result) -> None:
    assert verdicts(planted)["work"] == "slower"
    assert verdicts(planted, "other")["work"] == "slower"
    assert "slower" not in {verdicts(planted)["find"], verdicts(planted)["draw"]}
    assert "cpu_s" in planted.reasons.filter(step="work", of="plain")["metric"].to_list()
    counted = ["settings", "builds", "cores", "results", "plans", "both sides"]
    assert {name: guards(planted)[name] for name in counted} == dict.fromkeys(counted, True)


def test_random_results_and_an_arm_that_fails_on_one_side_are_left_out(planted: Result) -> None:
    assert sentence(planted, "results").endswith(
        "Drawn at random, so not compared: two_sides, other, draw; two_sides, plain, draw."
    )
    assert "refusing" not in planted.effects["of"].to_list()
    failed = "two_sides, refusing: it fails on the candidate: division by zero"
    assert failed in sentence(planted, "both sides")


@pytest.mark.thorough
def test_blocks_are_added_to_those_that_there_are(planted: Result) -> None:
    (before,) = planted.measured
    (more,) = compared(TWENTYFOLD, blocks=9).measured
    assert (more.blocks, more.paths[:1]) == (9, before.paths)
    is_of_before = pl.col("block") <= 8
    assert more.samples.filter(is_of_before).equals(before.samples.filter(is_of_before))
    assert compared(TWENTYFOLD, blocks=9).measured[0].paths == more.paths


def test_a_time_that_is_too_short_for_two_blocks_measures_one() -> None:
    other = Side("embedded", {"work_mem": "8MB"})
    (found,) = compared(other, blocks=None, minutes=0.01, arms=("plain",)).measured
    assert (found.blocks, found.infos[0]["status"]) == (1, "complete")


def test_an_arm_without_time_is_left_out_and_stays_so() -> None:
    other = Side("embedded", {"work_mem": "9MB"})
    (found,) = compared(other, blocks=None, minutes=0.01).measured
    reasons = {arm["of"]: arm["not_run"] for arm in found.infos[0]["arms"]}
    assert list(reasons.values()).count(NO_TIME) == 2  # a study keeps one of its three
    assert found.samples["of"].n_unique() == 1
    (more,) = compared(other, blocks=2).measured
    assert (more.blocks, more.paths[0]) == (2, found.paths[0])
    assert set(more.samples["of"]) == set(found.samples["of"])


@pytest.mark.usefixtures("planted")
def test_the_records_are_not_those_of_the_study() -> None:
    assert list_records(STUDY).is_empty()
    assert list_records(f"compare_{STUDY}").height >= 1


def test_where_there_is_no_difference_none_is_found() -> None:
    result = compared(Side("embedded"), arms=("plain",))
    assert not {"slower", "faster"} & set(verdicts(result).values())
    assert guards(result)["results"] is True


def test_another_plan_is_seen() -> None:
    without = Side("embedded", {"enable_indexscan": "off", "enable_indexonlyscan": "off"})
    result = compared(without, blocks=1, arms=("plain",))
    assert guards(result)["plans"] is False
    (row,) = result.plans.iter_rows(named=True)
    assert row["step"] == "find"
    assert row["baseline"].startswith("Index Only Scan using t_i on t")
    assert guards(result)["settings"] is True  # it was declared


def test_a_server_that_is_not_there_cannot_be_compared_with(tmp_path: Path) -> None:
    request = Request(Side("embedded"), Side(str(tmp_path)), (STUDY,), blocks=1)
    with pytest.raises(StudyError, match="holds no PostgreSQL"):
        measured_run(request, tell=lambda _: None, warn=lambda _: None)


def command(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pgapps", *arguments],
        cwd=place,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(place: Path, *arguments: str) -> tuple[int, str, str]:
    """The exit code of a command, its output and its complaints."""
    process = command(place, *arguments)
    said, complained = process.communicate(timeout=300)
    assert "Traceback" not in complained
    return process.returncode, said, complained


@pytest.fixture(scope="module")
def reported(place: Path) -> tuple[Path, int, str]:
    """The report of a regression, the exit code and what was written to the terminal."""
    (place / "more.conf").write_text("planted.work = 400000\n")
    arguments = ["--candidate", "more.conf", "--study", STUDY, "--arm", "plain"]
    arguments += ["--margin", "1", "--blocks", "8", "--report", "out.html"]
    code, said, _ = ended(place, "compare", *arguments)
    return place / "out.html", code, said


def test_the_command_says_regression_by_its_exit_code(reported: tuple[Path, int, str]) -> None:
    _, code, said = reported
    lines = said.splitlines()
    assert lines[:2] == ["Baseline:  embedded", "Candidate: embedded with planted.work = 400000"]
    failed = "because a guard failed" in said  # what noise may do to order, drift and copies
    assert code == (2 if failed else 1)
    assert lines[2:4] == ["A block of each study in turn, 8 of each:", "  two_sides: plain"]
    assert max(map(len, lines[4:-1])) <= 72


def test_the_report_opens_without_a_network(page: Page, reported: tuple[Path, int, str]) -> None:
    page.context.set_offline(True)
    page.goto(reported[0].as_uri())
    for chart in page.locator(".vega-chart").all():
        chart.scroll_into_view_if_needed()
        expect(chart).to_have_attribute("data-live", "")
    assert page.locator("h1").inner_text()
    assert page.locator(".guards dt").count() == 15
    with page.expect_download() as download:
        page.get_by_role("link", name="two_sides-samples.parquet").click()
    samples = pl.read_parquet(download.value.path())
    assert samples["block"].n_unique() == 8


@pytest.mark.thorough
def test_a_report_is_measured_again(place: Path, reported: tuple[Path, int, str]) -> None:
    before = list_records(f"compare_{STUDY}").height
    arguments = [str(reported[0]), "--yes", "--report", "again.html"]
    code, said, complained = ended(place, "rerun", *arguments)
    assert code in {1, 2}, complained
    assert (place / "again.html").exists()
    assert list_records(f"compare_{STUDY}").height == before + 1
    assert "two_sides 8 blocks" in said


@pytest.mark.thorough
def test_after_ctrl_c_what_is_finished_is_in_the_report(place: Path) -> None:
    arguments = ["--candidate", "embedded", "--study", STUDY, "--blocks", "200"]
    process = command(place, "compare", *arguments, "--report", "cut.html")
    records = place / "records" / f"compare_{STUDY}"
    end = time.monotonic() + 120
    while not list(records.glob("*/blocks/0002.parquet")) and time.monotonic() < end:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=100)
    assert process.returncode == 130
    assert "interrupted; what is finished is kept" in complained
    assert "because there are too few blocks for an interval of 9 steps" in " ".join(said.split())
    assert (place / "cut.html").exists()


@pytest.mark.thorough
def test_it_ends_with_the_look_that_decides(place: Path) -> None:
    (place / "most.conf").write_text("planted.work = 400001\n")
    arguments = ["--candidate", "most.conf", "--study", STUDY, "--arm", "plain", "--case", "work"]
    arguments += ["--until-decided", "--minutes", "3", "--report", "looks.html"]
    _, said, complained = ended(place, "compare", *arguments)
    said = " ".join(said.split())
    assert "Intervals hold however often the blocks were looked at." in said
    looks = re.findall(r"(\d+) blocks: (\d) of 1 steps are decided\.", complained)
    # What noise may do to order, drift and copies keeps a look from deciding; then it goes on.
    assert looks[0][0] == "7"
    assert [decided for _, decided in looks[:-1]] == ["0"] * (len(looks) - 1)
    assert looks[-1][1] == "1" or "because a guard failed" in said


@pytest.mark.thorough
@pytest.mark.usefixtures("planted")  # a record that has the arm
def test_a_study_without_the_arm_leaves_the_others(place: Path) -> None:
    arguments = ["--candidate", "embedded", "--study", "swept", "--study", STUDY]
    arguments += ["--arm", "other", "--blocks", "1", "--report", "some.html"]
    code, said, _ = ended(place, "compare", *arguments)
    assert code == 2
    assert "  swept: not compared, has no such arm\n" in said
    assert "two_sides 1 block" in said


@pytest.mark.usefixtures("planted")
def test_what_is_not_compared_is_not_run(place: Path) -> None:
    alone = run_study(STUDY, parameters={"blocks": 1}, output=place / f"{STUDY}.ipynb").record
    compared_by = list_records(f"compare_{STUDY}")["path"][0]
    assert alone is not None
    steps, of_compared = ({*read_record(path).measured["step"]} for path in (alone, compared_by))
    assert steps - of_compared == {"alone"}
