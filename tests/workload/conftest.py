"""A workload of one table and one script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    home = tmp_path / "shop"
    home.mkdir()
    (home / "schema.sql").write_text("CREATE TABLE t (i int);\n")
    (home / "one.sql").write_text("SELECT 1;\n")
    return home
