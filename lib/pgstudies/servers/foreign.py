"""Sessions on a server of somebody else's, which may hold whatever its users have put there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

from ..addresses import explain
from ..errors import ServerError
from .settings import startup_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg.rows import TupleRow

_CONNECT_TIMEOUT_S = 10

_EMPTY_PATH = {"search_path": ""}
"""Whoever owns a database chooses where its sessions look for functions, and those would run with
our rights.  With this only what belongs to the server is found by its bare name."""


def foreign_session(
    parts: Mapping[str, str], spec: str, settings: Mapping[str, str] = {}, **kwargs: Any
) -> psycopg.Connection[TupleRow]:
    """A session at an address, in autocommit mode, whose search_path is empty from its start.

    ``parts`` are libpq's, ``spec`` is the address as it is shown, ``settings`` may name another
    search_path.  Raises ServerError where there is no connection, or one through a pooler that
    drops its settings.
    """
    wanted = _EMPTY_PATH | dict(settings)
    # Last, so that neither the address nor PGOPTIONS has another.
    given = parts.get("options") or os.environ.get("PGOPTIONS", "")
    arguments: dict[str, Any] = {
        "autocommit": True,
        "application_name": "pgstudies",
        "options": f"{given} {startup_options(wanted)}".strip(),
    }
    if "connect_timeout" not in parts and "PGCONNECT_TIMEOUT" not in os.environ:
        arguments["connect_timeout"] = _CONNECT_TIMEOUT_S
    try:
        session = psycopg.connect(make_conninfo(**parts), **(arguments | kwargs))
        row = session.execute("SELECT pg_catalog.current_setting('search_path')").fetchone()
    except psycopg.Error as error:
        raise explain(error, spec) from error
    if row != (wanted["search_path"],):
        session.close()
        raise ServerError(
            f"{spec} does not take the settings of a connection, as some poolers do not: give the "
            f"address of the server itself."
        )
    return session
