"""Scripts that are marked: what their author expected, and whether it came about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgapps.compare.text import as_text
from tests.compare.test_compare import first_line, info_of, logs, made_up, result, samples_of

if TYPE_CHECKING:
    from pgapps.compare.judging.result import Result


def marked(ratio: float, mark: str, **more: str) -> Result:
    """A comparison whose script insert takes ``ratio`` times as long, and is so marked."""
    steps = {"insert": logs(ratio), "select": logs(1.0)}
    info = info_of(parameters={"expected": {"insert": mark, **more}})
    return result(made_up(samples_of(steps), info))


@pytest.mark.parametrize(
    ("ratio", "mark", "is_met", "code"),
    [
        (0.5, "< 0.7", True, 0),
        (0.8, "< 0.7", False, 1),
        (0.7, "< 0.7", None, 2),
        (0.9, "= 0.9", True, 0),
        (0.8, "= 0.9", False, 1),
        (1.0, "control", True, 0),
        (0.8, "control", False, 1),
        (1.3, "> 1.2", True, 1),
        (1.1, "> 1.2", False, 1),
    ],
)
def test_a_script_is_as_expected_by_its_whole_interval(
    ratio: float, mark: str, is_met: bool | None, code: int
) -> None:
    found = marked(ratio, mark)
    assert found.expected["is_met"].to_list() == [is_met]
    assert found.code == code


def test_the_first_line_answers_what_was_expected() -> None:
    said = first_line(marked(0.5, "< 0.7", select="control"))
    assert said.startswith(
        "1 of 1 expectations met: 0.500; control unchanged within 0.3 %. Faster, and no regression"
    )
    missed = first_line(marked(0.8, "< 0.7"))
    assert missed.startswith("0 of 1 expectations met; not met: insert 0.800 (0.79")
    assert "expected < 0.7. NOT AS EXPECTED: 0 of 2 steps slower, 1 faster (0.800)" in missed
    moved = first_line(marked(0.8, "control"))
    assert moved.startswith("control CHANGED: insert 0.800 (")


def test_a_script_that_was_not_measured_leaves_its_expectation_open() -> None:
    found = marked(1.0, "control", uuid="< 0.5")
    assert found.expected["is_met"].to_list() == [True, None]
    assert found.code == 2
    assert "open: uuid, not measured" in first_line(found)
    assert "Not decided, because 1 expectation is open" in first_line(found)


def test_a_crash_of_the_candidate_is_a_regression_and_one_of_the_baseline_is_not() -> None:
    how = "one.sql, on PostgreSQL 18.6: server process was terminated by signal 11"
    measured = made_up(samples_of({"insert": logs(1.0)}), info_of())
    crashed = result(measured, crashes=[("candidate", how)])
    assert crashed.code == 1
    assert first_line(crashed).startswith("CRASH of the candidate: 0 of 1 step slower")
    assert "Crash, candidate: one.sql" in as_text(crashed)
    other = result(measured, crashes=[("baseline", how)])
    assert other.code == 2
    assert "because the baseline crashed" in first_line(other)
