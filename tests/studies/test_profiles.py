"""The sizes of every study: each profile is valid, and quick is what the notebook says."""

from __future__ import annotations

import pytest
import yaml

from pgstudies.paths import NOTEBOOKS, PARAMETERS
from pgstudies.studies._plan import PROFILES, plan, studies
from pgstudies.studies.parameters import declared


@pytest.mark.parametrize("study", studies())
@pytest.mark.parametrize("profile", PROFILES)
def test_every_study_has_every_size(study: str, profile: str) -> None:
    least = 1 if study == "releases" else 6  # a count is exact
    assert plan(study, profile=profile).parameters["blocks"] >= least


@pytest.mark.parametrize("study", studies())
def test_quick_is_the_notebooks_own_defaults(study: str) -> None:
    defaults = {p.name: p.default for p in declared(NOTEBOOKS / f"{study}.ipynb")}
    quick = yaml.safe_load((PARAMETERS / "quick" / f"{study}.yaml").read_text())
    assert quick == {name: defaults[name] for name in quick}


def test_there_is_no_profile_of_a_study_that_does_not_exist() -> None:
    assert {file.stem for file in PARAMETERS.glob("*/*.yaml")} <= set(studies())
