"""No committed file tells where on a machine somebody worked."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pgservers.paths import ROOT

OF_SOMEBODY = re.compile(
    r"(?<![\w.~/-])/(?:root|work|mnt|home/(?!me/|linuxbrew/)|Users)/?[\w.]+/[^\s\"',:)]*"
)
"""Paths below the homes of the made-up user "me" and of Homebrew belong to nobody."""

OF_DATA = re.compile(r"(?<![\w.~/-])/(?:root|work|mnt|tmp|var|srv|opt|home|Users)/[^\s\"',:)]+")
"""Data may name only directories of the system."""

BEFORE = {
    *("771988", "c38f59", "78c252", "b00e93", "091276", "51dcf7", "e36282", "3b20e3", "e7a313"),
    *("619996", "dbfc5f", "31ab14", "f5a3e5", "658718", "45d95f", "7bd1de", "e7f57e", "adf500"),
    *("472cd2", "a70879", "ca7b36", "1e4f88", "472c32", "067d44", "6239d2", "9d29c8", "c3e48b"),
}
"""Records that name such a path.  They are never edited; add no more."""


def named(file: Path) -> list[str]:
    """The places on a machine that a file of the project names."""
    pattern = OF_DATA if file.is_relative_to(ROOT / "data") else OF_SOMEBODY
    return pattern.findall(file.read_bytes().decode(errors="replace"))


def committed() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout")
    return [file for name in listed.stdout.decode().split("\0") if (file := ROOT / name).is_file()]


def test_no_committed_file_has_a_path_of_whoever_measured() -> None:
    others = (f for f in committed() if f.parent.name[-6:] not in BEFORE and f != Path(__file__))
    assert {str(file): found for file in others if (found := named(file))} == {}


def test_a_path_of_somebody_is_found_anywhere_and_in_data_any_that_is_not_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.ground.test_paths.ROOT", tmp_path)
    (tmp_path / "data").mkdir()
    for path in ("/home/hacker/x", "/work/h/pgcache/commits", "/root/a/b"):
        (tmp_path / "a.md").write_text(f"measured with `{path}/bin`")
        assert named(tmp_path / "a.md")
    for path in ("/tmp/x/bin", "/var/cache/pgstudies/y", "/home/me/y"):
        file = tmp_path / "data" / "peers.csv"
        file.write_text(f"a,b\n{path},/usr/lib/postgresql/19/bin\n")
        assert named(file) == [path]
