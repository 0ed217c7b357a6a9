"""Semaphores of processes that were killed with all that could have removed them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pgservers.host.shared_memory import free_semaphores

HOLDER = """
import multiprocessing, time
from pgservers.host.shared_memory import name_semaphores
name_semaphores()
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /dev/shm")
def test_semaphores_go_when_their_process_is_dead_and_not_before() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as holder:
        assert holder.stdout is not None
        file = Path(f"/dev/shm/sem.{holder.stdout.readline().strip()[1:]}")
        free_semaphores()
        assert file.exists()
        os.killpg(holder.pid, signal.SIGKILL)  # with Python's own cleaner
    assert file.exists()
    free_semaphores()
    assert not file.exists()
