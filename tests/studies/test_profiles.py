"""The sizes of every study: each profile is valid, and quick is what the notebook says."""

from __future__ import annotations

import pytest
import yaml

from pgstudies.paths import NOTEBOOKS, PARAMETERS
from pgstudies.studies._plan import EXACT, PROFILES, plan, studies
from pgstudies.studies.new_study import problems
from pgstudies.studies.parameters import declared


@pytest.mark.parametrize("study", studies())
def test_every_size_of_a_study_has_enough_blocks_for_an_interval(study: str) -> None:
    least = 1 if study in EXACT else 6
    for profile in PROFILES:
        if profile == "quick" or (PARAMETERS / profile / f"{study}.yaml").exists():
            assert plan(study, profile=profile).parameters["blocks"] >= least


@pytest.mark.parametrize("study", studies())
def test_every_study_is_whole(study: str) -> None:
    assert list(problems(study)) == []


@pytest.mark.parametrize("study", studies())
def test_no_size_repeats_what_the_notebook_says(study: str) -> None:
    """Quick is the notebook's own defaults, and has no file."""
    defaults = {p.name: p.default for p in declared(NOTEBOOKS / f"{study}.ipynb")}
    assert plan(study).parameters == {n: v for n, v in defaults.items() if n != "server"}
    for file in PARAMETERS.glob(f"*/{study}.yaml"):
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert [n for n, v in values.items() if defaults[n] == v] == [], file


def test_there_is_no_profile_of_a_study_that_does_not_exist() -> None:
    assert {file.stem for file in PARAMETERS.glob("*/*.yaml")} <= set(studies())
