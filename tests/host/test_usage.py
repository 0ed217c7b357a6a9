"""What processes used, read from the kernel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pgservers.host.usage import device_bytes


@pytest.mark.skipif(device_bytes([os.getpid()]) is None, reason="this system hides what it reads")
def test_a_process_that_ends_while_it_is_read_has_read_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def read_late(file: Path) -> str:
        with file.open() as opened:
            if str(child.pid) in file.parts:
                child.communicate()
            return opened.read()

    monkeypatch.setattr(Path, "read_text", read_late)
    assert device_bytes([child.pid, os.getpid()]) == device_bytes([os.getpid()])
    assert device_bytes([child.pid]) == 0.0
