"""What changed in a notebook since a record was made, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from pgstudies.records.changes import what_changed

if TYPE_CHECKING:
    from pgstudies.records.info import Setup

CODE = {"work": "1", "ROWS": "2", "pgstudies/measuring/trial.py": "3"}
MADE: dict[str, Any] = {"code": CODE, "settings": {}, "arms": []}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),  # programs built again, for one: they are in no notebook
        ({"code": {}}, ""),
        ({"code": CODE | {"work": "3"}}, "`work`"),
        ({"settings": {"jit": "off"}}, "`settings`"),
        ({"code": CODE | {"work": "3", "ROWS": "4"}}, "`ROWS` and `work`"),
        (
            {"code": CODE | {"work": "3", "pgstudies/measuring/trial.py": "4"}},
            "`work` and pgstudies/measuring/trial.py",
        ),
    ],
)
def test_what_changed_in_a_notebook_is_named(changed: dict[str, Any], told: str) -> None:
    assert what_changed(cast("Setup", MADE), cast("Setup", MADE | changed), {}) == told


def test_nothing_is_named_where_a_record_does_not_know_the_library() -> None:
    """Its digests were made in another way: all of them differ, and nothing need have changed."""
    old = MADE | {"code": {"work": "5", "ROWS": "6"}}
    assert what_changed(cast("Setup", old), cast("Setup", MADE), {}) == ""
