"""The sizes of every study: each profile is valid, and quick is what the notebook says."""

from __future__ import annotations

import pytest

from pgapps.authoring.new_study import problems
from pgapps.execution.plan import plan, profiles_of, studies
from pgstudies.parameters import declared
from pgstudies.rooms import find_room, rooms


@pytest.mark.parametrize("study", studies())
def test_every_size_of_a_study_has_enough_blocks_for_an_interval(study: str) -> None:
    least = 1 if study in rooms("counts") else 6
    for profile in {*profiles_of(find_room(study))} - {"smallest"}:
        assert plan(study, profile=profile).parameters["blocks"] >= least


@pytest.mark.parametrize("study", studies())
def test_every_study_is_whole(study: str) -> None:
    assert list(problems(study)) == []


@pytest.mark.parametrize("study", studies())
def test_no_size_repeats_what_the_notebook_says(study: str) -> None:
    """Quick is the notebook's own defaults, and has no file."""
    defaults = {p.name: p.default for p in declared(find_room(study).notebook)}
    assert plan(study).parameters == {n: v for n, v in defaults.items() if n != "server"}
    for profile in profiles_of(find_room(study)):
        values = {n: v for n, v in find_room(study).about.get(profile, {}).items() if n != "about"}
        assert [n for n, v in values.items() if defaults[n] == v] == [], profile


def test_a_larger_size_says_what_it_is_and_how_long_it_takes() -> None:
    for name, room in rooms().items():
        for profile in profiles_of(room)[1:]:
            assert plan(name, profile=profile).about.endswith(".")
