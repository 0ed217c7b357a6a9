"""One check of ``pgstudies doctor``, and the line that it prints."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from pgservers.errors import CannotRun, ServerError
from pgservers.programs.compilers import compiler_version, find_compiler, find_make, server_headers
from pgservers.programs.extensions import (
    FINDS_EXTENSIONS,
    NAMES,
    build,
    create_extension,
    self_test,
)
from pgservers.servers.managed import ManagedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.servers.serve import Server


@dataclass(frozen=True)
class Check:
    """One thing examined."""

    name: str
    ok: bool | None  # None: something will be left out; False: no study can run
    sentence: str  # what was found, and its consequence
    exit_code: int = 0  # when ``ok`` is False

    @property
    def line(self) -> str:
        """The check as ``pgstudies doctor`` prints it."""
        mark = {True: "ok", None: "--", False: "NO"}[self.ok]
        return f"{mark}  {self.name:15} {self.sentence}"


def examine_extensions(server: Server) -> Iterator[Check]:
    """Check each step of building an extension, up to the first failure; restarts the server."""
    reason = server.capabilities.reason("build")
    if reason is not None:
        yield _broken("extensions", reason)
        return
    assert isinstance(server, ManagedServer)
    step, names = "pg_config", ", ".join(NAMES)
    try:
        pg_config = server.binaries.program("pg_config")
        if pg_config is None:
            raise CannotRun("the server has no pg_config")
        yield Check(step, True, str(pg_config))
        step = "headers"
        server_headers(server.binaries)
        yield Check(step, True, f"the headers of {server.version_text} are installed")
        step = "compiler"
        compiler = find_compiler()
        found = f"{shlex.join(compiler)}: {compiler_version(compiler)}; {find_make()}"
        yield Check(step, True, found)
        step = "build"
        for name in NAMES:
            build(name, server.binaries)
        yield Check(step, True, f"the extensions {names} are built")
        step = "create"
        for name in NAMES:
            with _created(server, name):
                pass
        yield Check(step, True, f"CREATE EXTENSION works for {names}")
        step = "self-test"
        seen = []
        for name in NAMES:
            with _created(server, name) as connection:
                seen.append(f"{name}: {self_test(name, connection)}")
        yield Check(step, True, "; ".join(seen))
    except (CannotRun, ServerError, psycopg.Error) as error:
        yield _broken(step, str(error).partition("\n")[0])


def _broken(name: str, reason: str) -> Check:
    return Check(name, None, f"arms that need a C extension: not run: {reason}")


@contextmanager
def _created(server: ManagedServer, name: str) -> Iterator[psycopg.Connection[Any]]:
    """A session with an extension, which is dropped afterwards.

    From 18 on the planner calls every index access method that has an operator of the query, so one
    that the server cannot load would break later queries.
    """
    server.restart(build(name, server.binaries))
    with server.connect() as connection:
        create_extension(connection, name)
        yield connection
        if connection.info.server_version >= FINDS_EXTENSIONS:
            extension = sql.Identifier(name)
            connection.execute(sql.SQL("DROP EXTENSION {} CASCADE").format(extension))
