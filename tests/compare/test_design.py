"""The design of a comparison: both sides of every arm, and the records that it adds blocks to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from pgapps.compare.design import COMPARED, SIDES, Comparison, Side, designed
from pgservers.errors import StudyError
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.design import Design
from tests.made_up import info

if TYPE_CHECKING:
    from pgstudies.records.info import Info

PLAIN = [Arm("one", settings={"jit": "off"}), Arm("two", state="other")]

RELEASES = Comparison(Side("14"), Side("18", {"work_mem": "64MB"}))


def of_both(comparison: Comparison = RELEASES, *arms: Arm, fresh: bool = False) -> Design:
    return designed("s", arms or PLAIN, comparison, fresh=fresh)


def test_a_comparison_without_one_of_its_servers_ends() -> None:
    errors: dict[str | None, StudyError] = {"18": StudyError("there is no 18")}
    with pytest.raises(StudyError, match="there is no 18"):
        of_both().served(errors)


def test_an_arm_without_its_extension_is_left_out_on_all_sides() -> None:
    both = of_both().served({}, {"one, candidate": "no headers"})
    left = [arm.name for arm in both.arms if arm.not_run == "no headers, on the candidate"]
    assert left == ["one, baseline", "one, baseline (again)", "one, candidate"]
    assert all(arm.not_run is None for arm in both.arms if arm.name not in left)


def test_a_comparison_has_every_arm_on_both_sides_and_its_own_name() -> None:
    design = of_both().served({})
    assert [(arm.name, arm.server, dict(arm.settings)) for arm in design.arms] == [
        ("one, baseline", None, {"jit": "off"}),
        ("one, baseline (again)", None, {"jit": "off"}),
        ("one, candidate", "18", {"jit": "off", "work_mem": "64MB"}),
        ("two, baseline", None, {}),
        ("two, baseline (again)", None, {}),
        ("two, candidate", "18", {"work_mem": "64MB"}),
    ]
    one, two = list(design.arms[:3]), list(design.arms[3:])
    assert [design.own(arm) for arm in design.arms] == [PLAIN[0]] * 3 + [PLAIN[1]] * 3
    assert one[1].copy_of == one[0].name
    assert all(arm.own_programs for arm in design.arms)
    assert design.study == f"{COMPARED}s"
    assert {**design.completed(info("s"))}["comparison"] == msgspec.to_builtins(RELEASES)
    assert design.units(design.arms) == ([], [one, two])
    assert design.fall_with(one[2]) == one
    assert [design.describe(arm)["side"] for arm in one] == list(SIDES)
    assert design.fails_on(one[2]) == "the candidate"


def test_where_only_settings_differ_all_sides_run_on_one_server_from_the_same_programs() -> None:
    arms = of_both(Comparison(Side("18"), Side("18", {"jit": "on"})), PLAIN[1]).arms
    assert [(arm.server, arm.own_programs) for arm in arms] == [(None, False)] * 3


def test_a_comparison_of_which_no_arm_can_run_says_why() -> None:
    with pytest.raises(StudyError, match="No arm can be compared: why"):
        of_both(RELEASES, Arm("one", not_run="why")).served({})


def test_blocks_are_added_also_to_complete_records_but_to_none_of_before() -> None:
    begun = {"started_at": "2026-11-21T00:00:00+00:00", "status": "complete"}
    whole = cast("Info", {**info("s", comparison=msgspec.to_builtins(RELEASES)), **begun})
    part = cast("Info", {**whole, "status": "interrupted"})
    later = of_both(fresh=True)
    other = of_both(replace(RELEASES, candidate=Side("17")))
    designs = [of_both(), later, other, Design(study="s", arms=tuple(PLAIN))]
    assert [design.continues(whole) for design in designs] == [True, False, False, False]
    assert [design.continues(part) for design in designs] == [True, False, False, True]
    assert later.fresh
