"""The disk behind a file: found through partitions, what was read from it, its scheduler."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from pgstudies.errors import CannotRun
from pgstudies.host import disks
from pgstudies.host.disks import disk_read_bytes, find_disk, read_ahead_bytes, scheduler_of
from pgstudies.servers._serve import serve
from pgstudies.servers.limits import scheduled
from tests.servers_at_hand import BUILDER, dsn_of

if TYPE_CHECKING:
    from pathlib import Path

    from pgstudies.servers.owned import OwnedServer


@pytest.fixture
def disk(owned: OwnedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that stand for the kernel's: the real disk's scheduler is everybody's."""
    device = owned.data_directory.stat().st_dev
    disk = tmp_path / f"{os.major(device)}:{os.minor(device)}"
    (disk / "queue").mkdir(parents=True)
    (disk / "queue" / "scheduler").write_text("none [mq-deadline] kyber\n")
    (disk / "stat").write_text("  500  3  4096  77  1 2 3 4 0 5 6\n")
    monkeypatch.setattr(disks, "DEVICES", tmp_path)
    return disk


def test_partition_and_mapping_are_followed_to_the_disk(tmp_path: Path) -> None:
    partition = tmp_path / "sda" / "sda2"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("2\n")
    for mapping, below in (("dm-0", partition), ("dm-1", tmp_path / "dm-0")):
        (tmp_path / mapping / "slaves").mkdir(parents=True)
        (tmp_path / mapping / "slaves" / below.name).symlink_to(below)
    assert disks._whole_disk(partition).name == "sda"
    assert disks._whole_disk(tmp_path / "dm-1").name == "sda"


def test_mapping_onto_several_disks_stays_itself(tmp_path: Path) -> None:
    for disk in ("sda", "sdb"):
        (tmp_path / disk).mkdir()
        (tmp_path / "md0" / "slaves").mkdir(parents=True, exist_ok=True)
        (tmp_path / "md0" / "slaves" / disk).symlink_to(tmp_path / disk)
    assert disks._whole_disk(tmp_path / "md0").name == "md0"


def test_sectors_read_are_told_in_bytes(owned: OwnedServer, disk: Path) -> None:
    assert find_disk(owned.data_directory) == disk
    assert disk_read_bytes(owned.data_directory) == 4096 * 512


def test_what_is_read_ahead_is_told_in_bytes(owned: OwnedServer, disk: Path) -> None:
    (disk / "queue" / "read_ahead_kb").write_text("128\n")
    assert read_ahead_bytes(owned.data_directory) == 131_072


def test_what_is_on_no_disk_has_read_nothing(
    owned: OwnedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "DEVICES", tmp_path)
    assert disk_read_bytes(owned.data_directory) is None
    assert read_ahead_bytes(owned.data_directory) is None
    with pytest.raises(CannotRun, match="not on a disk whose"), scheduled(owned, "none"):
        pass


def test_the_scheduler_is_the_one_in_brackets(disk: Path) -> None:
    assert scheduler_of(disk) == "mq-deadline"
    (disk / "queue" / "scheduler").write_text("none")
    assert scheduler_of(disk) == "none"
    (disk / "queue" / "scheduler").unlink()
    assert scheduler_of(disk) is None


def test_a_scheduler_is_put_back_whatever_happens(owned: OwnedServer, disk: Path) -> None:
    file, seen = disk / "queue" / "scheduler", ""
    with contextlib.suppress(KeyboardInterrupt), scheduled(owned, "kyber"):
        seen = file.read_text()
        raise KeyboardInterrupt
    assert seen == "kyber"
    assert file.read_text() == "mq-deadline"


def test_a_scheduler_the_kernel_refuses_is_answered_with_those_it_has(
    owned: OwnedServer, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(type(disk), "write_text", refuse)
    wanted = "no I/O scheduler cfq, but none mq-deadline kyber"
    with pytest.raises(CannotRun, match=wanted), scheduled(owned, "cfq"):
        pass


def test_a_word_that_is_no_scheduler_is_not_written(owned: OwnedServer, disk: Path) -> None:
    with pytest.raises(CannotRun, match="no name of an I/O scheduler"), scheduled(owned, "a b"):
        pass
    assert scheduler_of(disk) == "mq-deadline"


def test_the_disk_of_others_is_left_alone(stranger: OwnedServer) -> None:
    with (
        serve(dsn_of(stranger, BUILDER)) as server,
        pytest.raises(CannotRun, match="external server"),
        scheduled(server, "none"),
    ):
        pass
