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
    from collections.abc import Callable, Iterator

    from pgservers.servers.serve import Server


@dataclass(frozen=True)
class Check:
    """One thing examined.

    Attributes:
        name: What was examined.
        ok: True if nothing is missing, None if something will be left out, False if no study can
            run.
        sentence: What was found, and its consequence.
        exit_code: For scripts, when ``ok`` is False.

    """

    name: str
    ok: bool | None
    sentence: str
    exit_code: int = 0

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
    links: list[tuple[str, Callable[[ManagedServer], str]]] = [
        ("pg_config", _pg_config),
        ("headers", _headers),
        ("compiler", _compiler),
        ("build", _build),
        ("create", _create),
        ("self-test", _self_tests),
    ]
    for name, link in links:
        try:
            yield Check(name, True, link(server))
        except (CannotRun, ServerError, psycopg.Error) as error:
            yield _broken(name, str(error).partition("\n")[0])
            return


def _broken(name: str, reason: str) -> Check:
    return Check(name, None, f"arms that need a C extension: not run: {reason}")


def _pg_config(server: ManagedServer) -> str:
    pg_config = server.binaries.program("pg_config")
    if pg_config is None:
        raise CannotRun("the server has no pg_config")
    return str(pg_config)


def _headers(server: ManagedServer) -> str:
    server_headers(server.binaries)
    return f"the headers of {server.version_text} are installed"


def _compiler(_: ManagedServer) -> str:
    compiler = find_compiler()
    return f"{shlex.join(compiler)}: {compiler_version(compiler)}; {find_make()}"


def _build(server: ManagedServer) -> str:
    for name in NAMES:
        build(name, server.binaries)
    return f"the extensions {', '.join(NAMES)} are built"


def _create(server: ManagedServer) -> str:
    for name in NAMES:
        with _created(server, name):
            pass
    return f"CREATE EXTENSION works for {', '.join(NAMES)}"


def _self_tests(server: ManagedServer) -> str:
    seen = []
    for name in NAMES:
        with _created(server, name) as connection:
            seen.append(f"{name}: {self_test(name, connection)}")
    return "; ".join(seen)


@contextmanager
def _created(server: ManagedServer, name: str) -> Iterator[psycopg.Connection[Any]]:
    """A session with an extension, which is dropped afterwards.

    From 18 on the planner calls every index access method that has an operator of the query, so a
    server that cannot load one is of no use.
    """
    server.restart(build(name, server.binaries))
    with server.connect() as connection:
        create_extension(connection, name)
        yield connection
        if connection.info.server_version >= FINDS_EXTENSIONS:
            extension = sql.Identifier(name)
            connection.execute(sql.SQL("DROP EXTENSION {} CASCADE").format(extension))
