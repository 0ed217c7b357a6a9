"""The design of a comparison: both sides of every arm, and the records that it adds blocks to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from pgapps.compare.design import COMPARED, SIDES, Comparison, Side, designed
from pgservers.errors import StudyError
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.design import Design
from tests.made_up import info

if TYPE_CHECKING:
    from pgstudies.records.info import Info

PLAIN = [Arm("one"), Arm("two", state="other")]


def of_both(comparison: Comparison, *arms: Arm, fresh: bool = False) -> Design:
    return designed("s", arms or PLAIN, comparison, fresh=fresh)


def test_a_comparison_without_one_of_its_servers_ends() -> None:
    errors: dict[str | None, StudyError] = {"18": StudyError("there is no 18")}
    with pytest.raises(StudyError, match="there is no 18"):
        of_both(Comparison(Side("14"), Side("18"))).served(errors)


def test_an_arm_without_its_extension_is_left_out_on_all_sides() -> None:
    both = of_both(Comparison(Side("14"), Side("18"))).served({}, {"one, candidate": "no headers"})
    left = [arm.name for arm in both.arms if arm.not_run == "no headers, on the candidate"]
    assert left == ["one, baseline", "one, baseline (again)", "one, candidate"]
    assert all(arm.not_run is None for arm in both.arms if arm.name not in left)


def test_a_comparison_has_every_arm_on_both_sides_and_its_own_name() -> None:
    comparison = Comparison(Side("14"), Side("18", {"jit": "on"}))
    design = of_both(comparison, PLAIN[0]).served({})
    names = ["one, baseline", "one, baseline (again)", "one, candidate"]
    assert [arm.name for arm in design.arms] == names
    assert [arm.server for arm in design.arms] == [None, None, "18"]
    assert design.arms[2].settings == {"jit": "on"}
    assert design.arms[1].copy_of == names[0]
    assert [arm.own_programs for arm in design.arms] == [True, True, True]
    assert design.study == f"{COMPARED}s"
    assert {**design.completed(info("s"))}["comparison"] == comparison.as_dict()
    assert design.units(design.arms) == ([], [list(design.arms)])
    assert design.fall_with(design.arms[2]) == list(design.arms)
    assert [design.describe(arm)["side"] for arm in design.arms] == list(SIDES)
    assert design.fails_on(design.arms[2]) == "the candidate"


def test_where_only_settings_differ_all_sides_run_from_the_same_programs() -> None:
    design = of_both(Comparison(Side("18"), Side("18", {"jit": "on"})), PLAIN[0])
    assert [arm.own_programs for arm in design.arms] == [False, False, False]


def test_a_comparison_of_which_no_arm_can_run_says_why() -> None:
    with pytest.raises(StudyError, match="No arm can be compared: why"):
        of_both(Comparison(Side("14"), Side("18")), Arm("one", not_run="why"))


def test_blocks_are_added_also_to_complete_records_but_to_none_of_before() -> None:
    begun = {"started_at": "2026-11-21T00:00:00+00:00", "status": "complete"}
    comparison = Comparison(Side("14"), Side("18"))
    whole = cast("Info", {**info("s", comparison=comparison.as_dict()), **begun})
    part = cast("Info", {**whole, "status": "interrupted"})
    later = of_both(comparison, fresh=True)
    other = of_both(replace(comparison, candidate=Side("17")))
    designs = [of_both(comparison), later, other, Design(study="s", arms=tuple(PLAIN))]
    assert [design.continues(whole) for design in designs] == [True, False, False, False]
    assert [design.continues(part) for design in designs] == [True, False, False, True]
    assert later.fresh
