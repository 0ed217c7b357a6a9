"""Whatever ends a run leaves no server behind, and nothing that is not ours is touched."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pgservers.files import try_lock
from pgservers.servers.leftovers import find_postmaster, sweep
from pgservers.servers.serve import serve
from tests.servers_at_hand import is_alive, wait_until_dead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.servers.managed import ManagedServer

HOLDER = """
import json, sys, time
from pgservers.servers.serve import serve
with serve("embedded") as server:
    watchdog = server._instance._watchdog.pid
    print(json.dumps({"pids": server.pids(), "watchdog": watchdog,
                      "directory": str(server.data_directory.parent)}), flush=True)
    time.sleep(600)
"""

pytestmark = pytest.mark.usefixtures("private")


class Holder:
    """Another Python with a server running."""

    def __init__(self, base: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PGSTUDIES_RUN_DIR": str(base)},
        )
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.servers = [psutil.Process(pid) for pid in told["pids"]]
        self.watchdog = psutil.Process(told["watchdog"])
        self.directory = Path(told["directory"])

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait()


@pytest.fixture
def holder(run_base: Path) -> Iterator[Holder]:
    holder = Holder(run_base)
    yield holder
    if holder.process.poll() is None:
        holder.end(signal.SIGKILL)
    if holder.process.stdout:
        holder.process.stdout.close()
    assert wait_until_dead(holder.servers)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_server_outlives_its_python(holder: Holder, how: signal.Signals) -> None:
    holder.end(how)
    assert wait_until_dead([*holder.servers, holder.watchdog])
    assert not holder.directory.exists()


def test_without_the_watchdog_the_next_start_cleans_up(holder: Holder) -> None:
    holder.watchdog.kill()
    assert wait_until_dead([holder.watchdog])
    holder.end(signal.SIGKILL)
    assert is_alive(holder.servers[0])

    with serve("embedded"):
        assert wait_until_dead(holder.servers)
    assert not holder.directory.exists()


STARTING = """
import json, os, signal
from pgservers.servers.instance import Instance
from pgservers.servers.serve import serve
def started(self, pid):
    print(json.dumps({"pid": pid, "directory": str(self.path)}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
Instance.started = started
with serve("embedded"):
    pass
"""


def test_a_server_that_was_told_to_nobody_ends_with_who_was_starting_it(run_base: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTING],
        capture_output=True,
        text=True,
        env={**os.environ, "PGSTUDIES_RUN_DIR": str(run_base)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    told = json.loads(done.stdout)
    with suppress(psutil.NoSuchProcess):
        assert wait_until_dead([psutil.Process(told["pid"])])
    directory = Path(told["directory"])
    until = time.monotonic() + 60
    while directory.exists():
        assert time.monotonic() < until
        time.sleep(0.1)


def segments(*pids: int) -> list[str]:
    """The System V segments that these processes made."""
    rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [row for row in rows if int(row.split()[4]) in pids]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("watchdog", ["lives", "killed"])
def test_what_a_killed_server_left_in_memory_is_freed(
    watchdog: str, holder: Holder, run_base: Path
) -> None:
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in holder.servers]
    dynamic = {Path(p) for p in re.findall(r"/dev/shm/PostgreSQL\.\d+", "".join(maps))}
    pids = [process.pid for process in holder.servers]
    assert dynamic
    assert segments(*pids)
    if watchdog == "killed":
        holder.watchdog.kill()
    for process in holder.servers:
        process.kill()
    holder.end(signal.SIGKILL)
    assert wait_until_dead([*holder.servers, holder.watchdog])
    assert segments(*pids)
    assert holder.directory in sweep(run_base)
    assert segments(*pids) == []
    assert not [file for file in dynamic if file.exists()]
    assert not holder.directory.exists()


def test_shared_memory_that_is_in_use_is_left_alone(managed: ManagedServer, tmp_path: Path) -> None:
    """postmaster.pid of a dead run names the segment of a server that runs."""
    data = tmp_path / "s-00000000" / "data"
    data.mkdir(parents=True)
    shutil.copy(managed.data_directory / "postmaster.pid", data)
    status = (managed.data_directory / "postmaster.pid").stat()
    os.chown(data / "postmaster.pid", status.st_uid, status.st_gid)
    (data.parent / "owner.lock").touch(0o600)
    assert sweep(tmp_path) == [data.parent]
    assert len(segments(managed.postmaster_pid)) == 1


def test_a_live_run_is_left_alone(managed: ManagedServer, run_base: Path) -> None:
    assert sweep(run_base) == []
    assert is_alive(psutil.Process(managed.postmaster_pid))


def test_directories_and_links_of_others_are_left_alone(tmp_path: Path) -> None:
    """Without a lock file of its own it is not ours, whatever it is called."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    precious = run / "s-0badcafe" / "data" / "precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("1")
    (run / "other").mkdir()
    elsewhere.mkdir()
    (elsewhere / "owner.lock").touch()
    (run / "s-00000002").symlink_to(elsewhere)

    assert sweep(run) == []
    assert precious.read_text() == "1"
    assert (elsewhere / "owner.lock").exists()


def test_a_process_number_used_again_is_not_taken_for_the_server(tmp_path: Path) -> None:
    """postmaster.pid names a live process, which is not the server of that directory."""
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        data = tmp_path / "s-00000000" / "data"
        data.mkdir(parents=True)
        (data / "postmaster.pid").write_text(f"{bystander.pid}\n{data}\n")
        lock = try_lock(data.parent / "owner.lock")
        assert lock is not None
        os.close(lock)

        assert find_postmaster(data) is None
        assert sweep(tmp_path) == [data.parent]
        time.sleep(0.1)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    """What a dead run left, and a name in /tmp where its socket was."""
    instance = tmp_path / "s-00000001"
    instance.mkdir()
    (instance / "owner.lock").touch()
    (instance / "socket").symlink_to(f"/tmp/pgstudies-{secrets.token_hex(8)}")
    return instance


def test_a_socket_kept_elsewhere_is_removed_too(instance: Path) -> None:
    short = (instance / "socket").readlink()
    (short / "socket").mkdir(parents=True)
    (short / "socket" / ".s.PGSQL.5432.lock").touch()
    assert sweep(instance.parent) == [instance]
    assert not short.exists()


def test_a_link_planted_where_the_socket_was_is_left_alone_at_once(
    instance: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgservers.servers.leftovers._TIMEOUT_S", 1e9)  # a second try hangs
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    planted = (instance / "socket").readlink()
    planted.symlink_to(victim)
    try:
        assert sweep(instance.parent) == [instance]
        assert (victim / "precious").exists()
        assert planted.is_symlink()
    finally:
        planted.unlink()


KILLED_IN_INITDB = """
import os, signal, sys, threading, time
from pathlib import Path
from pgservers.servers.serve import serve

def kill() -> None:
    while True:
        for instance in Path(os.environ["PGSTUDIES_RUN_DIR"]).glob("s-*"):
            if (instance / "data" / sys.argv[1]).exists():
                os.kill(os.getpid(), signal.SIGKILL if sys.argv[2] == "kill" else signal.SIGTERM)
                return
        time.sleep(0.001)

def stop(*_: object) -> None:
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, stop)
threading.Thread(target=kill, daemon=True).start()
serve("embedded")
"""

IN_A_NAMESPACE = """
mount -t tmpfs -o mode=1777 tmpfs /dev/shm || exit 99
"$@" 2>/dev/null
for i in $(seq 300); do ls -d "$PGSTUDIES_RUN_DIR"/s-* >/dev/null 2>&1 || break; sleep 0.1; done
ls -d "$PGSTUDIES_RUN_DIR"/s-* 2>/dev/null
tail -n +2 /proc/sysvipc/shm
ls /dev/shm
"""
"""Runs a command where no other process's shared memory is seen; writes what is left of it."""


@pytest.mark.root
@pytest.mark.parametrize("how", ["kill", "interrupt"])
@pytest.mark.parametrize("when", ["PG_VERSION", "postmaster.pid", "base/1/1259", "base/5"])
def test_a_run_that_ends_in_initdb_leaves_no_shared_memory(
    when: str, how: str, run_base: Path
) -> None:
    base = run_base / "killed"
    base.mkdir(mode=0o711)
    command = ["unshare", "--ipc", "--mount", "sh", "-c", IN_A_NAMESPACE, "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-c", KILLED_IN_INITDB, when, how],
        env={**os.environ, "PGSTUDIES_RUN_DIR": str(base)},
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(base)
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip(f"no namespace to be alone in: {done.stderr.strip()}")
    ours = [line for line in done.stdout.splitlines() if not line.startswith("pgstudies-tests-")]
    assert ours == []
