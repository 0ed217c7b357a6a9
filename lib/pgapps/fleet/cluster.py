"""Scheduler, workers and client of a sweep, by Dask: who listens where, and for whom."""

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

from .certificates import credentials, make_certificates
from .workers import resources_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


_CONFIG = {
    "distributed.worker.profile.enabled": False,  # it would interrupt us a hundred times a second
    "distributed.worker.daemon": False,
    # Dask's pages ask nobody for a certificate.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}

dask.config.update_defaults({"distributed": {"scheduler": {"worker-ttl": "60s"}}})

_NO_PAGES: dict[str, Any] = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""Dask's dashboard is off, although it keeps a port."""


def serve_as_scheduler(
    host: str, port: int, certificates: Path | None, ready: Callable[[str], None]
) -> None:
    """Run the scheduler of sweeps until interrupted; ``ready`` is called with its address.

    Raises StudyError without certificates, ServerError when it cannot listen there.
    """
    security = credentials(f"tls://{host}", certificates, "scheduler")

    async def serve() -> None:
        async with Scheduler(
            host=host, port=port, protocol="tls", security=security, **_NO_PAGES
        ) as scheduler:
            ready(scheduler.address)
            await scheduler.finished()

    with _configured():
        try:
            asyncio.run(serve())
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            reason = _reason(error)
            if reason is None:
                raise
            raise ServerError(
                f"No scheduler can listen on {host}, port {port} ({reason}): "
                f"name an address of this machine and a port that is free."
            ) from None


def serve_as_worker(scheduler: str, name: str, certificates: Path | None) -> None:
    """Run this host's sweep worker until the scheduler ends.

    It listens where the scheduler reaches it and nowhere else.  Raises StudyError without
    certificates, ServerError if there is no scheduler.
    """
    security = credentials(scheduler, certificates, "worker")

    async def serve() -> None:
        host = get_address_host(scheduler)
        socket.getaddrinfo(host, None)  # for a name that is not known; Dask would only warn
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
    with _configured():
        try:
            asyncio.run(serve())
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            reason = _reason(error)
            if reason is None:
                raise
            raise _unreachable(scheduler, reason) from None


@contextmanager
def connected(scheduler: str, certificates: Path | None) -> Iterator[Client]:
    """A client of the scheduler; raises as ``serve_as_worker`` does."""
    security = credentials(scheduler, certificates, "client")
    try:
        client = Client(scheduler, security=security, timeout=30, set_as_default=False)
    except (OSError, TimeoutError, ValueError, RuntimeError) as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise _unreachable(scheduler, reason) from None
    with client:
        yield client


@contextmanager
def local_cluster(names: Sequence[str]) -> Iterator[Client]:
    """A scheduler in this process and a worker for each name, on 127.0.0.1; yields a client.

    Their certificate is in a temporary directory that only this user can read.  The workers are
    sessions of their own, so that Ctrl-C reaches only this process, and end with the scheduler.
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
    # Dask puts its scratch directory first on the path of modules, and left to itself it takes one
    # in /tmp that another account may have made.
    with (
        scratch(records_dir() / ".dask") as private,
        dask.config.set({**_CONFIG, "temporary-directory": str(private)}),
    ):
        yield private


def _reason(error: BaseException) -> str | None:
    """A line on an error of the network; None for any other error."""
    if isinstance(error, RuntimeError):  # by which Dask says that a server did not start
        return _reason(error.__cause__) if error.__cause__ is not None else None
    if not isinstance(error, (OSError, TimeoutError, ValueError, OverflowError)):
        return None
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _unreachable(scheduler: str, reason: str) -> ServerError:
    return ServerError(
        f"There is no scheduler to reach at {scheduler} ({reason}): `pgstudies scheduler` starts "
        f"one and says its address, and its certificate must be the one given here."
    )
