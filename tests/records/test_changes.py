"""What changed in a notebook since a record was made, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from pgstudies.records.changes import what_changed

if TYPE_CHECKING:
    from pgstudies.records.info import Setup

MADE: dict[str, Any] = {"code": {"work": "1", "ROWS": "2"}, "settings": {}, "arms": []}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),  # programs built again, for one: they are in no notebook
        ({"code": {}}, ""),
        ({"code": {"work": "3", "ROWS": "2"}}, "`work`"),
        ({"settings": {"jit": "off"}}, "`settings`"),
        ({"code": {"work": "3", "ROWS": "4"}}, "`ROWS` and `work`"),
    ],
)
def test_what_changed_in_a_notebook_is_named(changed: dict[str, Any], told: str) -> None:
    assert what_changed(cast("Setup", MADE), cast("Setup", MADE | changed), {}) == told
