"""Scheduler, workers and client of a sweep, by Dask: who listens where."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dask
from distributed import Client, LocalCluster, Nanny, Scheduler
from distributed.comm.addressing import get_address_host
from distributed.utils import get_ip

from pgservers.errors import ServerError
from pgservers.host.shared_memory import name_semaphores
from pgservers.paths import records_dir
from pgservers.servers.leftovers import scratch
from pgservers.terminal import tell

from .certificates import credentials, make_certificates
from .workers import resources_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path


_CONFIG = {
    "distributed.worker.profile.enabled": False,  # it would interrupt us a hundred times a second
    "distributed.worker.daemon": False,
    # Dask serves its pages without asking for a certificate.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}

dask.config.update_defaults({"distributed": {"scheduler": {"worker-ttl": "60s"}}})

_NO_PAGES: dict[str, Any] = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""Turn Dask's dashboard off; its port stays open."""


def serve_as_scheduler(host: str, port: int, certificates: Path | None) -> None:
    """Run the scheduler of sweeps until interrupted, and print its address.

    Raises StudyError without certificates, ServerError if it cannot listen there.
    """
    security = credentials(f"tls://{host}", certificates, "scheduler")

    async def serve() -> None:
        async with Scheduler(
            host=host, port=port, protocol="tls", security=security, **_NO_PAGES
        ) as scheduler:
            tell(f"scheduler: {scheduler.address}")
            await scheduler.finished()

    what = f"No scheduler can listen on {host}, port {port}"
    advice = "name an address of this machine and a port that is free."
    with _configured(), _network_errors(what, advice):
        asyncio.run(serve())


def serve_as_worker(scheduler: str, name: str, certificates: Path | None) -> None:
    """Run this host's sweep worker until the scheduler ends.

    It listens where the scheduler reaches it and nowhere else.  Raises StudyError without
    certificates, ServerError if there is no scheduler.
    """
    security = credentials(scheduler, certificates, "worker")

    async def serve() -> None:
        host = get_address_host(scheduler)
        socket.getaddrinfo(host, None)  # raises for an unknown name, of which Dask would only warn
        async with Nanny(
            scheduler,
            host=get_ip(host),
            name=name,
            nthreads=1,
            resources=resources_of(name),
            memory_limit=0,
            death_timeout=60,
            security=security,
            **_NO_PAGES,
        ) as nanny:
            await nanny.finished()

    name_semaphores()
    with _configured(), _reaching(scheduler):
        asyncio.run(serve())


@contextmanager
def connected(scheduler: str, certificates: Path | None) -> Iterator[Client]:
    """A client of the scheduler; raises as ``serve_as_worker`` does."""
    security = credentials(scheduler, certificates, "client")
    with _reaching(scheduler):
        client = Client(scheduler, security=security, timeout=30, set_as_default=False)
    with client:
        yield client


@contextmanager
def local_cluster(names: Sequence[str]) -> Iterator[Client]:
    """A scheduler in this process and a worker for each name, on 127.0.0.1; yields a client.

    Their certificate is in a temporary directory that only this user can read.  Each worker runs in
    its own session, so that Ctrl-C reaches this process alone; workers end with the scheduler.
    """
    with _configured() as private:
        certificates = private / "certificates"
        make_certificates(certificates)
        security = credentials("tls://127.0.0.1", certificates, "scheduler")
        with LocalCluster(
            n_workers=0,
            host="127.0.0.1",
            protocol="tls",
            security=security,
            scheduler_kwargs=_NO_PAGES,
            silence_logs=50,
        ) as own:
            command = [sys.executable, "-P", "-m", "pgapps", "worker", own.scheduler_address]
            workers = [
                subprocess.Popen(
                    [*command, "--name", name],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env=os.environ | {"PGSTUDIES_CERTIFICATES": str(certificates)},
                )
                for name in names
            ]
            try:
                with connected(own.scheduler_address, certificates) as client:
                    yield client
            finally:
                for worker in workers:
                    worker.terminate()
                for worker in workers:
                    worker.wait()


@contextmanager
def _configured() -> Iterator[Path]:
    """Configure Dask for a sweep; yields a directory that only this user can read."""
    # Dask puts its scratch directory first on the path of modules; its default is one in /tmp that
    # another account may have made.
    with (
        scratch(records_dir() / ".dask") as private,
        dask.config.set({**_CONFIG, "temporary-directory": str(private)}),
    ):
        yield private


@contextmanager
def _network_errors(what: str, advice: str) -> Iterator[None]:
    """Raise an error of the network as ServerError: what failed, its reason and the advice."""
    try:
        yield
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        cause: BaseException | None = error
        while isinstance(cause, RuntimeError):  # Dask's, for a server that did not start
            cause = cause.__cause__
        if not isinstance(cause, (OSError, OverflowError, ValueError)):
            raise
        reason, *_ = str(cause).splitlines() or [type(cause).__name__]
        raise ServerError(f"{what} ({reason}): {advice}") from None


def _reaching(scheduler: str) -> AbstractContextManager[None]:
    return _network_errors(
        f"There is no scheduler to reach at {scheduler}",
        "`pgstudies scheduler` starts one and says its address, and its certificate must be the "
        "one given here.",
    )
