"""Files: written whole or not at all, and one sentence where they cannot be written."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pgservers.errors import SpaceError, StudyError
from pgservers.files import (
    cannot_write,
    read_regular,
    read_text,
    size_text,
    space_error,
    spread,
    sweep_temporary,
    temporary_directory,
    write_file,
    write_new_file,
)
from pgservers.host.facts import mount_of


def test_a_file_is_written_whole_and_its_directory_made(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b.txt"
    write_file(target, "one")
    write_file(target, b"two")
    assert target.read_bytes() == b"two"
    assert list(target.parent.iterdir()) == [target]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    target = tmp_path / "b.txt"
    write_file(target, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SpaceError, match=f"{target}: .* set PGSTUDIES_CACHE"):
        write_file(target, "new", "PGSTUDIES_CACHE")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_in_the_way_of_a_directory_is_an_error_and_no_earlier_writer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for write in (write_file, write_new_file):
        with pytest.raises(SpaceError, match="Cannot write to"):
            write(tmp_path / "file" / "a", "text")


def test_of_two_writers_of_a_new_file_the_first_wins(tmp_path: Path) -> None:
    assert write_new_file(tmp_path / "a", "first")
    assert not write_new_file(tmp_path / "a", "second")
    assert (tmp_path / "a").read_text() == "first"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS])
def test_errors_of_space_are_known_from_others(number: int) -> None:
    error = OSError(number, os.strerror(number))
    assert str(space_error(error, "/x")) == str(cannot_write(error, "/x"))
    assert space_error(OSError(errno.ENOENT, "No such file"), "/x") is None


def test_sizes_are_decimal() -> None:
    assert [size_text(n) for n in (1, 999, 5e9)] == ["1 byte", "999 bytes", "5.0 GB"]


HOLDER = """
import sys
from pathlib import Path
from pgservers.files import temporary_directory
with temporary_directory(sys.argv[1]) as path:
    (path / "deep").mkdir()
    (path / "deep" / "socket").touch()
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("pgservers.files.SHORT", str(tmp_path / "other"))
    return tmp_path


def test_a_temporary_directory_goes_with_its_owner_or_with_the_next_sweep(here: Path) -> None:
    command, pipe = [sys.executable, "-c", HOLDER, str(here)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        path = here / holder.stdout.readline().strip()
        sweep_temporary()
        assert (path / "deep" / "socket").exists()
        holder.kill()
    assert path.exists()
    sweep_temporary()
    assert list(here.iterdir()) == []
    with temporary_directory() as mine:
        sweep_temporary()
        assert mine.stat().st_mode & 0o777 == 0o700
    assert list(here.iterdir()) == []


def test_a_hidden_temporary_directory_is_swept_where_it_was_made(here: Path) -> None:
    (here / "pages").mkdir()
    with temporary_directory(here / "pages", hidden=True) as mine:
        assert mine.name.startswith(".")
        sweep_temporary(here / "pages")
        assert mine.is_dir()
    mine.mkdir()
    (mine / "owner.lock").touch()  # of a process that is dead
    sweep_temporary()
    assert mine.is_dir()
    sweep_temporary(here / "pages")
    assert not mine.exists()


def test_a_sweep_of_temporary_files_takes_only_what_is_ours(here: Path) -> None:
    kept = here / "kept"
    kept.mkdir()
    (kept / "owner.lock").touch()
    (here / "pgstudies-aaaaaaaa").symlink_to(kept)  # a link
    (here / "pgstudies-tests-x").mkdir()  # another name
    (here / "pgstudies-bbbbbbbb").mkdir()  # not locked yet
    (here / "pgstudies-cccccccc").touch()  # no directory
    full = here / "pgstudies-dddddddd"  # an old one that nobody ever locked, with something in it
    full.mkdir()
    (full / "file").touch()
    os.utime(full, (0, 0))
    linked = here / "pgstudies-eeeeeeee"  # with a link in place of a lock
    linked.mkdir()
    (linked / "owner.lock").symlink_to(kept / "owner.lock")
    before = sorted(here.rglob("*"))
    empty = here / "pgstudies-ffffffff"  # of a process that was killed before it could lock it
    empty.mkdir()
    os.utime(empty, (0, 0))
    if os.geteuid() == 0:
        foreign = here / "pgstudies-gggggggg"
        foreign.mkdir()
        (foreign / "owner.lock").touch()
        os.chown(foreign, 65534, 65534)
        before = sorted([*before, foreign, foreign / "owner.lock"])
    sweep_temporary()
    assert sorted(here.rglob("*")) == before


@pytest.mark.skipif(shutil.which("lsattr") is None, reason="there is no lsattr")
def test_servers_are_spread_over_ext4_and_elsewhere_nothing_happens(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o300)
    for directory in (tmp_path, closed, tmp_path / "nowhere", Path("/dev/shm"), Path("/proc")):
        spread(directory)
    told = subprocess.run(["lsattr", "-d", tmp_path], capture_output=True, text=True, check=False)
    mount = mount_of(tmp_path)
    assert mount is not None
    assert ("T" in told.stdout.partition(" ")[0]) is (mount.fstype == "ext4")


def test_what_would_be_waited_for_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("fifo", "loop", "missing", ".", "x\0y", "x" * 300, "/dev/zero", "~nobody_there/x"):
        with pytest.raises(StudyError, match="cannot be read as a log"):
            read_regular(tmp_path / name if name[0] not in "/~" else Path(name), 10, "a log")


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "ten").write_bytes(b"x" * 10)
    assert read_regular(tmp_path / "ten", 10, "a log") == b"x" * 10
    with pytest.raises(StudyError, match="too long for a log: the limit is 9 bytes"):
        read_regular(tmp_path / "ten", 9, "a log")
    (tmp_path / "ten").write_bytes(b"ab\xff")
    with pytest.raises(StudyError, match="it is not UTF-8 from byte 2 on"):
        read_text(tmp_path / "ten", "a log")


def test_a_directory_that_is_swept_as_it_is_removed_goes_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = shutil.rmtree

    def swept(path: Path, **how: bool) -> None:
        usual(path)
        if not how:
            path.mkdir()
            (path / "owner.lock").touch()
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    with temporary_directory() as path:
        monkeypatch.setattr(shutil, "rmtree", swept)
    assert not path.exists()
