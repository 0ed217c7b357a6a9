"""The Dask workers of a sweep: one for a host, with one thread, which starts blocks and watches."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import socket
import subprocess
import sys
from collections import deque
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any

import dask
from distributed import LocalCluster, Nanny, get_worker

from ..errors import ServerError
from ..host.facts import git_revision, packages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


SLOT = {"bench": 1}
"""Every worker has one, and a block takes it."""


TOPIC = "pgstudies"
"""Where workers say what a user should hear at once."""


_CONFIG = {
    "distributed.worker.profile.enabled": False,  # it would interrupt us a hundred times a second
    "distributed.worker.daemon": False,
    "distributed.scheduler.worker-ttl": "60s",
}


_TOLD = re.compile(r"(Waiting|Removed what)\b.*")


_running: set[subprocess.Popen[str]] = set()


def measure_unit(request: dict[str, Any]) -> tuple[int, str]:
    """Have a unit measured by a process of its own: its exit code, and what it said of an error.

    ``request`` is that of ``blockrun.carry_out``.  A negative code is the signal that ended it.
    """
    host = request["unit"]["host"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pgstudies.fleet.block"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _running.add(process)
    last: deque[str] = deque(maxlen=3)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        # Its input stays open for as long as this process lives: that is how it knows.
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        for line in process.stderr:
            last.append(line.strip())
            if told := _TOLD.search(line):
                get_worker().log_event(TOPIC, {"host": host, "says": told[0]})
        said = process.stdout.read().strip()
        return process.wait(), said or " ".join(last)
    finally:
        _running.discard(process)
        with process:  # closes its input, should we leave early
            pass


def abort_running() -> None:
    """Stop the blocks that this worker runs, servers first."""
    for process in list(_running):
        process.terminate()


def about() -> dict[str, str]:
    """Who a worker is and what it would measure with: host, then versions by name."""
    revision = git_revision() or {}
    changed = " and changes" if revision.get("dirty") else ""
    return {
        "host": socket.gethostname(),
        **packages(),
        "python": platform.python_version(),
        "distributed": metadata.version("distributed"),
        "checkout": f"{revision.get('revision', 'unknown')}{changed}",
    }


def serve_as_worker(scheduler: str, name: str) -> None:
    """Be the worker of this host until the scheduler ends; raises ServerError if there is none."""
    with dask.config.set(_CONFIG):
        try:
            asyncio.run(_serve(scheduler, name))
        except (OSError, TimeoutError, ValueError) as error:
            raise unreachable(scheduler, error) from None
        except RuntimeError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            raise unreachable(scheduler, error.__cause__) from None


def unreachable(scheduler: str, error: Exception) -> ServerError:
    """What to say when a scheduler cannot be reached."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ServerError(
        f"There is no scheduler to reach at {scheduler} ({said}): "
        f"`dask scheduler` starts one and says its address."
    )


async def _serve(scheduler: str, name: str) -> None:
    async with Nanny(
        scheduler,
        name=name,
        nthreads=1,
        resources=SLOT,
        memory_limit=0,
        dashboard=False,
        death_timeout=60,
    ) as nanny:
        await nanny.finished()


@contextmanager
def local_cluster(names: Sequence[str]) -> Iterator[str]:
    """A scheduler in this process and a worker for each name; yields the scheduler's address.

    They are sessions of their own, so that Ctrl-C is for us alone, and end with the scheduler.
    """
    with (
        dask.config.set(_CONFIG),
        LocalCluster(
            n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50
        ) as own,
    ):
        command = [sys.executable, "-m", "pgstudies", "worker", own.scheduler_address, "--name"]
        workers = [
            subprocess.Popen([*command, name], stdin=subprocess.DEVNULL, start_new_session=True)
            for name in names
        ]
        try:
            yield own.scheduler_address
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
