"""Hosts for the tests of sweeps: directories, workers and a scheduler on this machine."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psutil
import pytest

from pgapps.fleet.certificates import make_certificates
from pgapps.fleet.cluster import connected
from pgapps.fleet.plan import Sweep, read_sweep
from pgservers import paths
from pgservers.terminal import Progress
from tests.made_up import ROOMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from distributed import Client

    from pgservers.servers.managed import ManagedServer

NAMES = ["bench1", "bench2"]


class Place:
    """A directory for one test: sweep.toml, the ledger, and the records and lock of each host."""

    def __init__(self, base: Path, dsn: str) -> None:
        self.base = base
        self.dsn = dsn
        self.processes: list[subprocess.Popen[str]] = []
        self.certificates = base / "certificates"
        make_certificates(self.certificates)

    def sweep(self, *, blocks: int = 2, pause_s: float = 0.0, **others: Any) -> Sweep:
        """A sweep over both hosts, of one cell; ``others`` go to the top of its file."""
        names = json.dumps(others.pop("hosts", NAMES))
        server = others.pop("server", self.dsn)
        top = "".join(f"{name} = {json.dumps(value)}\n" for name, value in others.items())
        (self.base / "sweep.toml").write_text(
            f"hosts = {names}\nblocks = {blocks}\n{top}[[run]]\nstudy = 'swept'\n"
            f"servers = ['{server}']\nparameters = {{ pause_s = {pause_s:.1f} }}\n"
        )
        return read_sweep(self.base / "sweep.toml")

    def environment(self, host: str) -> dict[str, str]:
        """What sets one host apart from the other on this machine."""
        own = {
            "PGSTUDIES_NOTEBOOKS": str(ROOMS),
            "PGSTUDIES_RECORDS": str(self.base / host / "records"),
            "PGSTUDIES_HOST_LOCK": str(self.base / f"{host}.lock"),
            "PGSTUDIES_CERTIFICATES": str(self.certificates),
        }
        return dict(os.environ) | own

    def start(
        self, *arguments: str, host: str = "client", inside: Sequence[str] = (), **more: str
    ) -> subprocess.Popen[str]:
        """A command of ours, in a session of its own; ``more`` are variables."""
        process = subprocess.Popen(
            [*inside, sys.executable, "-m", "pgapps", *arguments],
            env=self.environment(host) | more,
            stdin=subprocess.DEVNULL,
            # Nobody reads what a worker says.
            stdout=subprocess.DEVNULL if arguments[0] == "worker" else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=self.base,
        )
        self.processes.append(process)
        return process

    def scheduler(
        self, host: str = "127.0.0.1", *, patience: str = "60s"
    ) -> tuple[subprocess.Popen[str], str]:
        """A scheduler in a process of its own, and its address.

        It gives up a worker that was silent for ``patience``; a busy machine keeps workers silent
        for seconds.
        """
        more = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": patience}
        process = self.start("scheduler", "--host", host, "--port", "0", **more)
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("scheduler: "), said
        return process, said.removeprefix("scheduler: ").strip()

    def worker(
        self, address: str, host: str, *, inside: Sequence[str] = (), **more: str
    ) -> subprocess.Popen[str]:
        """The worker of a host; ``more`` are variables."""
        return self.start("worker", address, "--name", host, host=host, inside=inside, **more)

    @contextmanager
    def connected(self, address: str, workers: int) -> Iterator[Client]:
        """A client of a scheduler, once it has so many workers."""
        with connected(address, self.certificates) as client:
            client.wait_for_workers(workers, timeout=60)
            yield client

    def command(self, address: str) -> subprocess.Popen[str]:
        """The sweep, as a user starts it."""
        return self.start("sweep", "sweep.toml", "--scheduler", address)


@contextmanager
def place_in(base: Path, server: ManagedServer, patch: pytest.MonkeyPatch) -> Iterator[Place]:
    patch.setattr(paths, "NOTEBOOKS", (ROOMS,))
    patch.setenv("PGSTUDIES_NOTEBOOKS", str(ROOMS))
    patch.setenv("PGSTUDIES_HOST_LOCK", str(base / "client.lock"))
    host = quote(server.environment()["PGHOST"], safe="")
    place = Place(base, f"postgresql://postgres@{host}:5432/postgres")
    yield place
    for process in place.processes:
        with process:  # which closes its pipe and waits
            for own in children_of(process):
                with suppress(psutil.NoSuchProcess):
                    own.kill()
            process.kill()


def children_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def place(
    tmp_path: Path, managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    with place_in(tmp_path, managed, monkeypatch) as place:
        yield place


@pytest.fixture
def terminal() -> io.StringIO:
    """What a user of the sweep would see."""
    return io.StringIO()


@pytest.fixture
def bar(terminal: io.StringIO) -> Iterator[Progress]:
    with Progress("sweep", 1, stream=terminal) as progress:
        yield progress


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def namespace() -> Iterator[tuple[list[str], str, str]]:
    """A network of its own: what to put before a command, our device to it, our address there."""
    name = f"pg{os.urandom(3).hex()}"
    ours, theirs, subnet = f"{name}a", f"{name}b", f"10.197.{os.urandom(1)[0]}"
    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespace can be made here")
    try:
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        ip("addr", "add", f"{subnet}.1/30", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", name, "addr", "add", f"{subnet}.2/30", "dev", theirs)
        ip("-n", name, "link", "set", theirs, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield ["ip", "netns", "exec", name], ours, f"{subnet}.1"
    finally:
        ip("netns", "del", name)
