"""What a notebook is given by environment variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgstudies.run_options import RunOptions

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_relative_record_is_that_of_the_shell_where_the_kernel_works_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "records").mkdir(parents=True)
    (tmp_path / "notebook").mkdir()
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("PGSTUDIES_REPLAY", "data/records")
    monkeypatch.chdir(tmp_path / "notebook")
    assert RunOptions.given().replay == str(tmp_path / "data" / "records")
    monkeypatch.chdir(tmp_path)
    assert RunOptions.given().replay == "data/records"
    monkeypatch.setenv("PGSTUDIES_REPLAY", "nowhere")
    assert RunOptions.given().replay == "nowhere"
