"""Every study finishes on a server that is not ours, with less than everything to be had there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgstudies.parameters import declared
from pgstudies.paths import NOTEBOOKS
from pgstudies.runner import run_study, studies

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {
    "blocks": 1,
    "connections": [3, 9],
    "iterations": 2,
    "objects": 20,
    "releases": [],
    "rows": 5000,
    "starts": 10,
    "statements": 10,
}
"""What makes a run small, by the parameter's name; a study is given those that it has."""

LEFT_OUT = {
    "cluster_order": "its cache cannot be made cold",
    "mvcc_catalog": "only a superuser can remove the cache files of this server",
}
"""What each page must say of what cannot be had there."""


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize("study", studies())
def test_a_role_without_special_rights_gets_a_page(study: str, dsn: str, tmp_path: Path) -> None:
    has = {parameter.name for parameter in declared(NOTEBOOKS / f"{study}.ipynb")}
    small = {name: value for name, value in SMALL.items() if name in has}
    page = run_study(study, server=dsn, parameters=small, output=tmp_path / "page.ipynb")
    text = page.read_text(encoding="utf-8")
    assert LEFT_OUT[study] in text
    assert "p@ss" not in text
    assert ": NO\\n" not in text
