"""Servers for tests and what is asked of them, and of what a server leaves behind."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

import psutil
import pytest

from pgservers.errors import CannotRun
from pgservers.programs.extensions import build
from pgservers.programs.installations import find_binaries
from pgservers.programs.releases import find_release, reason_not_available
from pgservers.servers.managed import ManagedServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import psycopg

    from pgservers.servers.base import Limits

BUILDER = "dba"
LESSER = "lesser"
MAKER = "maker"
PASSWORD = "a password: p@ss/w0rd"


def embedded(settings: dict[str, str], limits: Limits | None = None) -> ManagedServer:
    binaries = find_binaries("embedded")
    return ManagedServer(binaries, spec="embedded", settings=settings, limits=limits)


@contextmanager
def extended(name: str, run_base: Path) -> Iterator[ManagedServer]:
    """An embedded server with one of our extensions, built in a cache of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGSTUDIES_CACHE", str(run_base / "cache"))
        try:
            built = build(name, find_binaries("embedded"))
        except CannotRun as reason:
            pytest.skip(str(reason))
        with embedded({"fsync": "off", **built}) as server:
            with server.connect() as connection:
                connection.execute(f"CREATE EXTENSION {name}")
            yield server


@contextmanager
def session_with_schema(server: ManagedServer) -> Iterator[psycopg.Connection[Any]]:
    """A session whose tables, settings and functions go with it."""
    with server.connect() as connection:
        connection.execute("CREATE SCHEMA mine")
        connection.execute("SET search_path = mine, public")
        yield connection
    with server.connect() as connection:
        connection.execute("DROP SCHEMA mine CASCADE")


def dsn_of(server: ManagedServer, role: str, password: str = PASSWORD) -> str:
    host = quote(server.environment()["PGHOST"], safe="")
    return f"postgresql://{role}:{quote(password, safe='')}@{host}:5432/pgstudies"


def make_table(connection: psycopg.Connection[Any], name: str, rows: int) -> None:
    """A frozen table of one row to a page, keys from 1."""
    connection.execute(f"CREATE TABLE {name}(i int, d text)")
    connection.execute(f"ALTER TABLE {name} ALTER d SET STORAGE PLAIN")
    connection.execute(
        f"INSERT INTO {name} SELECT i, repeat('x', 7000) FROM generate_series(1, {rows}) i"
    )
    connection.execute(f"VACUUM (FREEZE, ANALYZE) {name}")


def wait_until_dead(processes: Sequence[psutil.Process], timeout_s: float = 20) -> bool:
    """Whether all of them end in time; one that nobody has waited for yet is dead, too."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if not any(map(is_alive, processes)):
            return True
        time.sleep(0.02)
    return False


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


FETCHED_IN_CI = ["9.3", "9.6", "13", "14", "16", "17"]


def require(release: str) -> None:
    """Skip a test of a release that is not here; in CI some are fetched."""
    if release == "embedded":
        return
    if reason := reason_not_available(release):
        pytest.skip(reason)
    is_fetched = os.environ.get("CI") == "true" and release in FETCHED_IN_CI
    if not is_fetched and not find_release(release).cached:
        pytest.skip(f"{release} is not cached: pgstudies servers fetch {release}")


def skip_but_not_in_ci(reason: str) -> NoReturn:
    """Skip a test for what is missing here; in CI nothing may be missing."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
