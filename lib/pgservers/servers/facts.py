"""The facts of a running server for records and comparisons."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

from ..errors import ServerError
from ..host.facts import postgres_revision
from ..programs.installations import cflags_of
from ..programs.releases import find_release, is_release
from .settings import NOT_RECORDED

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

    from ..programs.installations import Binaries
    from .serve import Server


_JIT = 110000
"""The first release that compiles queries."""


def server_facts(server: Server) -> dict[str, Any]:
    """The facts of a running server: version, build, settings, capabilities.

    ``elsewhere`` is whether its address is another machine's.  ``source`` is where a managed
    server's programs are from, ``stands_in`` why they replace the wheel's, ``programs`` their
    digest; ``cflags`` are its compiler flags, null where unknown.
    """
    capabilities = server.capabilities
    with server.connect() as connection:
        elsewhere = _is_elsewhere(connection)
        build = connection.execute("SELECT version()").fetchone()
        cflags = _cflags(server, connection)
    return {
        "spec": server.spec,
        "source": server.binaries.source if server.binaries else None,
        "stands_in": (server.binaries.stands_in or None) if server.binaries else None,
        "programs": digest_of(server.binaries) if server.binaries else None,
        "version": server.version,
        "version_text": server.version_text,
        "build": build[0] if build else None,
        "cflags": cflags,
        "owned": capabilities.has("restart"),
        "elsewhere": elsewhere,
        "superuser": capabilities.has("superuser"),
        "contrib": sorted(capabilities.contrib),
        "nondefault_settings": server.nondefault_settings().to_dicts(),
        "unmet_settings": {k: list(v) for k, v in server.unmet_settings.items()},
    }


def _is_elsewhere(connection: psycopg.Connection[TupleRow]) -> bool:
    address = connection.info.hostaddr  # empty on a Unix socket
    ours = {a.address.partition("%")[0] for them in psutil.net_if_addrs().values() for a in them}
    return bool(address) and not ip_address(address).is_loopback and address not in ours


def examined(server: Server) -> dict[str, Any]:
    """The facts of a running server that must be equal on both sides of a comparison.

    ``settings`` maps every name to value and source, ``assertions`` is on or off, ``build`` names
    the compiler, ``cflags`` are its flags or None where this role may not see them, ``revision`` is
    that of the programs' checkout or None, ``jit_available`` is whether sessions can compile
    queries.
    """
    with server.connect() as connection:
        settings = connection.execute(
            "SELECT name, setting, source FROM pg_settings WHERE name <> ALL (%s)", [NOT_RECORDED]
        ).fetchall()
        cflags = _cflags(server, connection)
        build = connection.execute("SELECT version()").fetchone()
        jit = _can_compile(connection)
    known = {name: [value, source] for name, value, source in settings}
    return {
        "version_text": server.version_text,
        "settings": known,
        "assertions": known.get("debug_assertions", [None])[0],
        "cflags": cflags,
        "build": build[0] if build else None,
        "jit_available": jit,
        "revision": postgres_revision(server.binaries.bindir) if server.binaries else None,
    }


def _can_compile(connection: psycopg.Connection[TupleRow]) -> bool:
    if connection.info.server_version < _JIT:
        return False
    try:
        return connection.execute("SELECT pg_catalog.pg_jit_available()").fetchone() == (True,)
    except psycopg.Error:  # the library exists, but LLVM does not
        return False


def _cflags(server: Server, connection: psycopg.Connection[TupleRow]) -> str | None:
    # The view exists from 9.6 on, by default for superusers alone.
    may_ask = connection.info.server_version >= 90600 and connection.execute(
        """
        SELECT has_table_privilege('pg_catalog.pg_config', 'SELECT')
               AND has_function_privilege('pg_catalog.pg_config()', 'EXECUTE')
        """
    ).fetchone() == (True,)
    if not may_ask:
        if is_release(server.spec):
            return find_release(server.spec).built.partition(", ")[2]
        with suppress(ServerError):  # a pg_config without the headers, as in Debian's packages
            return (cflags_of(server.binaries) or None) if server.binaries else None
        return None
    query = "SELECT setting FROM pg_catalog.pg_config WHERE name = 'CFLAGS'"
    found = connection.execute(query).fetchone()
    return found[0] if found else None


def identity(server: Server) -> str:
    """A digest of a managed server's programs and libraries; of any other server its version."""
    return digest_of(server.binaries) if server.binaries else server.version_text


def digest_of(binaries: Binaries) -> str:
    """A digest of an installation's programs and libraries."""
    bindir = binaries.bindir
    whole = hashlib.sha256((bindir / "postgres").read_bytes())
    for library in sorted(p for n in ("lib", "lib64") for p in (bindir.parent / n).rglob("*.so")):
        if library.is_file():  # old builds have dangling links
            whole.update(library.read_bytes())
    return whole.hexdigest()[:16]
