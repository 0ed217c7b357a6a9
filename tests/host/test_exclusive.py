"""The lock of a host: held once, waited for, and gone with its holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from pgservers.errors import ServerError
from pgservers.host.exclusive import host_lock_file, only_one_here

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOLDER = """
import time
from pgservers.errors import ServerError
from pgservers.host.exclusive import only_one_here
with only_one_here("a long study"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PGSTUDIES_HOST_LOCK", str(tmp_path / "lock"))
    return tmp_path / "lock"


def holder() -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_one_waits_for_the_other_and_says_for_whom(capsys: pytest.CaptureFixture[str]) -> None:
    with holder() as process:
        entered = threading.Event()

        def enter() -> None:
            with only_one_here("mine"):
                entered.set()

        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(1.5)
        process.send_signal(signal.SIGKILL)  # nothing of its own can release the lock
        assert entered.wait(20)
        thread.join()
    said = capsys.readouterr().err
    assert said == f"Waiting: a long study (process {process.pid}) measures on this host.\n"


def test_nobody_waits_for_the_dead(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with only_one_here("mine"):
            assert lock.read_text() == f"mine (process {os.getpid()})\n"
    assert capsys.readouterr().err == ""


def test_it_is_one_file_for_all_accounts(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with only_one_here("mine"):
        assert lock.stat().st_mode & 0o666 == 0o666
    monkeypatch.delenv("PGSTUDIES_HOST_LOCK")
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert str(host_lock_file()) == "/tmp/pgstudies-measuring.lock"


def test_a_link_is_not_followed(lock: Path, tmp_path: Path) -> None:
    lock.symlink_to(tmp_path / "somebody's")
    with pytest.raises(ServerError, match="symbolic link"), only_one_here("mine"):
        pass
    assert not (tmp_path / "somebody's").exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda p: p.symlink_to("/dev/null")])
def test_what_is_no_file_is_refused_in_one_sentence(
    lock: Path, make: Callable[[Path], None]
) -> None:
    make(lock)
    sentence = "set PGSTUDIES_HOST_LOCK to another file"
    with pytest.raises(ServerError, match=sentence), only_one_here("mine"):
        pass


def test_another_name_of_a_file_is_not_written_over(lock: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("1")
    lock.hardlink_to(tmp_path / "precious")
    with pytest.raises(ServerError, match="hard link"), only_one_here("mine"):
        pass
    assert (tmp_path / "precious").read_text() == "1"


@pytest.mark.parametrize("place", ["/nonexistent/lock", "/proc/lock"])
def test_a_lock_that_cannot_be_made_is_one_sentence(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_HOST_LOCK", place)
    sentence = f"{place}, the lock of this host, cannot be used"
    with pytest.raises(ServerError, match=sentence), only_one_here("mine"):
        pass


def test_what_another_account_wrote_cannot_draw_on_the_terminal(
    lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with holder() as process:
        lock.write_bytes(b"\x1b[2Jmalice\xff\n")
        threading.Timer(1, process.kill).start()
        with only_one_here("mine"):
            pass
    assert capsys.readouterr().err == "Waiting: [2Jmalice\ufffd measures on this host.\n"
