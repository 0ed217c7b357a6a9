"""Facts about the machine: complete, fit for JSON, and never an exception."""

from __future__ import annotations

import json
import os
import re
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil
import pytest

from pgservers.host.facts import (
    git_revision,
    governor,
    host_facts,
    mount_of,
    nearest_existing,
    packages,
)


def test_facts_are_fit_for_json(tmp_path: Path) -> None:
    facts = host_facts(tmp_path)
    assert json.loads(json.dumps(facts)) == facts


def test_every_key_is_documented(tmp_path: Path) -> None:
    documented = set(re.findall(r"``(\w+)``", str(host_facts.__doc__)))
    assert host_facts(tmp_path).keys() == documented - {"path"}


def test_sizes_and_cores_agree_with_the_system(tmp_path: Path) -> None:
    facts = host_facts(tmp_path)
    assert facts["memory_bytes"] == psutil.virtual_memory().total
    assert facts["logical_cores"] == os.cpu_count()
    assert facts["allowed_cores"] == sorted(os.sched_getaffinity(0))
    assert facts["kernel"].endswith(os.uname().release)


def test_file_system_is_that_of_a_directory_still_to_be_made(tmp_path: Path) -> None:
    there, to_come = host_facts(tmp_path), host_facts(tmp_path / "to" / "come")
    keys = ("file_system", "mount_point", "mount_options", "device")
    assert [there[k] for k in keys] == [to_come[k] for k in keys]
    assert there["file_system"]
    assert tmp_path.is_relative_to(there["mount_point"])


def test_nearest_existing_goes_up_until_something_is_there(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path) == tmp_path
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path
    assert nearest_existing(Path("surely-not-here") / "b") == Path.cwd()


def test_mount_is_the_innermost_and_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mount(point: Path, kind: str) -> SimpleNamespace:
        return SimpleNamespace(mountpoint=str(point), fstype=kind, opts="rw", device="x")

    inner = tmp_path / "inner"
    inner.mkdir()
    beside = tmp_path / "inn"  # a prefix of the name, and not a directory above it
    mounts = [
        mount(Path("/"), "ext4"),
        mount(inner, "xfs"),
        mount(inner, "btrfs"),
        mount(beside, "tmpfs"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    assert mount_of(inner).fstype == "btrfs"
    assert mount_of(tmp_path).fstype == "ext4"


def test_what_the_system_does_not_tell_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise PermissionError("not for you")

    for name in ("disk_partitions", "virtual_memory", "swap_memory", "cpu_freq", "boot_time"):
        monkeypatch.setattr(psutil, name, refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(os, "getloadavg", refuse)
    monkeypatch.delattr(os, "sched_getaffinity")
    facts = host_facts(tmp_path)
    unknown = {key for key, value in facts.items() if value is None}
    assert unknown >= {"memory_bytes", "swap_bytes", "file_system", "load_average", "cpu_mhz"}
    assert unknown >= {"allowed_cores", "booted_at", "clock_source", "virtualization"}


@pytest.mark.parametrize(
    ("governors", "said"),
    [
        (["performance", "performance"], "performance"),
        (["powersave", "performance"], "performance,powersave"),
        ([], None),
    ],
)
def test_governor_speaks_for_every_core(
    tmp_path: Path, governors: list[str], said: str | None
) -> None:
    for core, name in enumerate(governors):
        file = tmp_path / f"cpu{core}" / "cpufreq" / "scaling_governor"
        file.parent.mkdir(parents=True)
        file.write_text(f"{name}\n")
    assert governor(tmp_path) == said


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
