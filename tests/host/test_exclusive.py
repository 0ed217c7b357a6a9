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


def test_it_is_one_file_for_all_accounts_and_nobody_waits_for_the_dead(
    lock: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with only_one_here("mine"):
            assert lock.read_text() == f"mine (process {os.getpid()})\n"
            assert lock.stat().st_mode & 0o666 == 0o666
    assert capsys.readouterr().err == ""
    monkeypatch.delenv("PGSTUDIES_HOST_LOCK")
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert str(host_lock_file()) == "/tmp/pgstudies-measuring.lock"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: p.symlink_to(p.with_name("precious")), "symbolic link"),
        (lambda p: p.symlink_to(p.with_name("missing")), "symbolic link"),
        (lambda p: p.hardlink_to(p.with_name("precious")), "hard link"),
        (lambda p: p.symlink_to("/dev/null"), "symbolic link"),
        (os.mkfifo, "Not a file"),
        (os.mkdir, "directory"),
    ],
)
def test_what_is_no_file_of_one_name_is_refused_and_not_written_over(
    lock: Path, make: Callable[[Path], None], why: str
) -> None:
    lock.with_name("precious").write_text("1")
    make(lock)
    words = f"{why}.*set PGSTUDIES_HOST_LOCK to another file"
    with pytest.raises(ServerError, match=words), only_one_here("mine"):
        pass
    assert lock.with_name("precious").read_text() == "1"
    assert not lock.with_name("missing").exists()


@pytest.mark.parametrize("place", ["/nonexistent/lock", "/proc/lock"])
def test_a_lock_that_cannot_be_made_is_named(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSTUDIES_HOST_LOCK", place)
    words = f"{place}, the lock of this host, cannot be used"
    with pytest.raises(ServerError, match=words), only_one_here("mine"):
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
