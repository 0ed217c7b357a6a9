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


def test_facts_are_documented_fit_for_json_and_those_of_the_system(tmp_path: Path) -> None:
    facts = host_facts(tmp_path)
    assert json.loads(json.dumps(facts)) == facts
    assert facts.keys() == set(re.findall(r"``(\w+)``", str(host_facts.__doc__))) - {"path"}
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
    (tmp_path / ".gitignore").write_text("*.tmp\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "One")
    return tmp_path


def test_packages_are_those_that_measuring_rests_on() -> None:
    found = packages()
    assert found["psycopg"] == metadata.version("psycopg")
    assert found.keys() >= {"python", "pgstudies", "polars", "psycopg-binary", "scipy"}
    assert not found.keys() & {"pytest", "mypy", "jupyterlab", "jupyter-book"}


@pytest.mark.parametrize(
    ("name", "dirty"), [("code.py", True), ("new.py", True), ("ignored.tmp", False)]
)
def test_changed_and_new_files_make_a_checkout_dirty(
    repository: Path, monkeypatch: pytest.MonkeyPatch, name: str, dirty: bool
) -> None:
    clean = git_revision(repository)
    assert clean is not None
    assert not clean["dirty"]
    assert len(str(clean["revision"])) == 40
    (repository / name).write_text("2\n")
    assert git_revision(repository) == clean | {"dirty": dirty}
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as a hook does
    assert git_revision(repository) == clean | {"dirty": dirty}


def test_there_is_no_revision_without_git_or_in_a_repository_of_others(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = repository / "unpacked", tmp_path_factory.mktemp("outside")
    inside.mkdir()
    assert git_revision(inside) is None
    assert git_revision(outside) is None
    monkeypatch.setenv("PATH", str(outside))
    assert git_revision(repository) is None
