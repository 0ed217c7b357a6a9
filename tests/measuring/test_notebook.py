"""What a notebook asks before it measures."""

from __future__ import annotations

import pytest

import pgstudies as pg
from pgservers.errors import StudyError


def test_a_release_that_there_is_not_is_an_error() -> None:
    with pytest.raises(StudyError, match=r"^There is no release '8\.4'; there are 9\.3, "):
        pg.reason_not_available("8.4")
