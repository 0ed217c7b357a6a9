"""The disk behind a file: found through partitions, and its scheduler."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pgservers.host import disks
from pgservers.host.disks import scheduler_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_partition_and_mapping_are_followed_to_the_disk(tmp_path: Path) -> None:
    partition = tmp_path / "sda" / "sda2"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("2\n")
    for mapping, below in (("dm-0", partition), ("dm-1", tmp_path / "dm-0")):
        (tmp_path / mapping / "slaves").mkdir(parents=True)
        (tmp_path / mapping / "slaves" / below.name).symlink_to(below)
    assert disks._whole_disk(partition).name == "sda"
    assert disks._whole_disk(tmp_path / "dm-1").name == "sda"
    (tmp_path / "md0" / "slaves").mkdir(parents=True)
    for disk in ("sda", "sdb"):
        (tmp_path / "md0" / "slaves" / disk).symlink_to(tmp_path / disk)
    assert disks._whole_disk(tmp_path / "md0").name == "md0", "it is on several"


def test_a_file_is_on_the_disk_that_its_number_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path.stat().st_dev
    monkeypatch.setattr(disks, "DEVICES", tmp_path / "devices")
    assert disks.find_disk(tmp_path) is None
    disk = tmp_path / "devices" / f"{os.major(device)}:{os.minor(device)}"
    disk.mkdir(parents=True)
    assert disks.find_disk(tmp_path) == disk


def test_the_scheduler_is_the_one_in_brackets(tmp_path: Path) -> None:
    assert scheduler_of(tmp_path) is None
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "scheduler").write_text("none [mq-deadline] kyber\n")
    assert scheduler_of(tmp_path) == "mq-deadline"
    (tmp_path / "queue" / "scheduler").write_text("none")
    assert scheduler_of(tmp_path) == "none"
