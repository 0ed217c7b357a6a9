"""What words name as points of a history: releases, and programs in directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgapps.counting.points import points
from pgservers.errors import StudyError
from pgservers.programs.cached import finish
from pgservers.programs.releases import find_release

if TYPE_CHECKING:
    from pathlib import Path


def programs(prefix: Path, version: str, *, flags: str = "-g -O2", changed: str = "") -> Path:
    """A directory whose programs say that they are of this version, and how they were built."""
    says = f"PostgreSQL {version} on x86_64-linux, compiled by gcc-14.2.0, 64-bit"
    (prefix / "bin").mkdir(parents=True)
    for name, answer in (
        ("initdb", f"initdb (PostgreSQL) {version}"),
        ("postgres", f"postgres (PostgreSQL) {version}"),
        ("pg_config", flags),
    ):
        program = prefix / "bin" / name
        program.write_text(f"#!/bin/sh\necho '{answer}'\nexit\n{says}\n{changed}\n")
        program.chmod(0o755)
    return prefix


def test_a_directory_is_called_by_its_version_and_says_how_it_was_built(tmp_path: Path) -> None:
    place = programs(tmp_path / "19", "19rc1 (Debian 19~rc1-1)")
    release, built = points(["18", str(place)])
    known = find_release("18")
    assert (release.name, release.version, release.built) == ("18", known.version, known.built)
    assert (built.name, built.version, built.built) == ("19rc1", "19rc1", "gcc 14.2.0, -O2")
    assert (built.server, built.reason) == (str(place), None)


def test_two_builds_that_say_the_same_are_told_apart(tmp_path: Path) -> None:
    places = [programs(tmp_path / name, "20devel", changed=name) for name in ("master", "patched")]
    one, other = points(list(map(str, places)))
    assert [one.name, other.name] == [f"20devel in {place}" for place in places]
    assert one.digest != other.digest


def test_a_commit_that_was_built_has_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path))
    builds = [tmp_path / "commits" / "abc" / "builds" / f"{n}123456789abcdef-1" for n in "45"]
    for build in builds:
        finish(programs(build, "8.4devel"))
    one, other = points(["commit-4123456789", "commit-5123456789"])
    assert (one.name, one.server) == ("commit-4123456789", "commit-4123456789")
    assert (other.name, other.version) == ("commit-5123456789", "8.4")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("8.4", r"no release '8\.4'"),
        ("./nothing", r"no directory \./nothing"),
        ("postgresql://me:secret@host/db", "already running"),
    ],
)
def test_a_word_that_names_no_programs_is_told(word: str, why: str) -> None:
    with pytest.raises(StudyError, match=why) as told:
        points([word])
    assert "secret" not in str(told.value)
