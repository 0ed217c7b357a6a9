"""Provenance: the packages that matter, and an honest revision."""

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from pgstudies.provenance import git_revision, packages


def git(directory: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", directory, *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "One")
    return tmp_path


def test_packages_hold_what_measuring_rests_on() -> None:
    found = packages()
    assert found["psycopg"] == metadata.version("psycopg")
    assert found.keys() >= {"python", "pgstudies", "polars", "psycopg-binary", "scipy"}


def test_packages_of_tests_and_of_the_laboratory_are_left_out() -> None:
    assert not packages().keys() & {"pytest", "mypy", "jupyterlab", "jupyter-book"}


def test_clean_checkout_is_clean(repository: Path) -> None:
    found = git_revision(repository)
    assert found is not None
    assert not found["dirty"]
    assert len(str(found["revision"])) == 40


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_changed_and_new_files_make_it_dirty(repository: Path, name: str) -> None:
    (repository / name).write_text("2\n")
    found = git_revision(repository)
    assert found is not None
    assert found["dirty"]


def test_ignored_files_do_not_make_it_dirty(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.tmp\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "Two")
    (repository / "x.tmp").write_text("")
    found = git_revision(repository)
    assert found is not None
    assert not found["dirty"]


def test_repository_around_an_archive_is_not_ours(repository: Path) -> None:
    inside = repository / "unpacked"
    inside.mkdir()
    assert git_revision(inside) is None


def test_none_outside_git_and_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_revision(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_revision(tmp_path) is None


def test_repository_named_by_a_hook_is_not_looked_at(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = git_revision(repository)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert git_revision(repository) == before
