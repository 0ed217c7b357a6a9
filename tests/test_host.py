"""Facts about the machine: complete, fit for JSON, and never an exception."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil
import pytest

from pgstudies.host import governor, host_facts, mount_of, nearest_existing


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
