"""Copies of data directories: exact, no more than needed, and by no link that others planted."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pgservers.errors import SpaceError
from pgservers.servers.snapshots import mirror

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("state")
    return tmp_path / "a"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "b"


def require_alike(source: Path, target: Path) -> None:
    shown = subprocess.run(["diff", "-r", source, target], capture_output=True, check=False)
    assert shown.returncode == 0, shown.stdout


def test_mirror_copies_only_what_differs(source: Path, target: Path) -> None:
    (source / "deep").mkdir()
    (source / "deep" / "changed").write_text("old")
    (source / "link").symlink_to("file")
    assert mirror(source, target) == 8
    (target / "deep" / "changed").write_text("new")  # of the same size
    (target / "deep" / "extra").write_text("extra")
    (target / "gone").mkdir()
    assert mirror(source, target) == 3
    require_alike(source, target)
    assert (target / "link").readlink() == Path("file")


def test_mirror_shortens_a_file_and_trades_files_for_directories(
    source: Path, target: Path
) -> None:
    (source / "was_file").mkdir()
    (source / "was_file" / "inner").write_text("1")
    (source / "was_directory").write_text("22")
    target.mkdir()
    (target / "was_file").write_text("x")
    (target / "was_directory" / "deep").mkdir(parents=True)
    (target / "file").write_text("x" * 100_000)
    assert mirror(source, target) == 8
    require_alike(source, target)
    assert mirror(source, target) == 0


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_mirror_follows_no_link_that_was_put_there(
    source: Path, target: Path, link: Callable[[Path, Path], None]
) -> None:
    """The server's account could put one into its data directory, and root copies there."""
    victim = source.parent / "victim"
    victim.write_text("not ours")
    mirror(source, target)
    (target / "file").unlink()
    link(victim, target / "file")

    mirror(source, target)
    assert (target / "file").read_text() == "state"
    assert victim.read_text() == "not ours"
    assert victim.stat().st_ino != (target / "file").stat().st_ino


def test_a_disk_that_fills_while_copying_is_named(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.copy_file_range", full)
    with pytest.raises(SpaceError, match="PGSTUDIES_RUN_DIR"):
        mirror(source, target)
