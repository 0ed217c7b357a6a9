"""Every study finishes on a server that is not ours, with less than everything to be had there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgstudies.runner import run_study, studies

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {"rows": 5000, "blocks": 1, "iterations": 2}


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize("study", studies())
def test_a_role_without_special_rights_gets_a_page(study: str, dsn: str, tmp_path: Path) -> None:
    page = run_study(study, server=dsn, parameters=SMALL, output=tmp_path / "page.ipynb")
    text = page.read_text(encoding="utf-8")
    assert "its cache cannot be made cold" in text
    assert "p@ss" not in text
    assert ": NO\\n" not in text
