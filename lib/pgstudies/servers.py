"""The one way to a server: what the parameter ``server`` of every study means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .binaries import find_binaries
from .dsn import DsnServer
from .errors import ServerError
from .owned import OwnedServer
from .paths import run_dir
from .server import Capabilities, Server

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Capabilities", "DsnServer", "OwnedServer", "Server", "serve"]


def serve(
    spec: str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    cpu: int | None = None,
) -> OwnedServer | DsnServer:
    """A server, ready to use and to be used as a context manager.

    ``spec`` is ``embedded``, a directory of binaries, or a ``postgresql://`` DSN; nothing means
    ``$PGSTUDIES_SERVER``, else ``embedded``.  An owned server runs on the core ``cpu`` alone, if
    one is given.  Raises ServerError when it cannot be had, with a sentence that says why.
    """
    spec = spec or os.environ.get("PGSTUDIES_SERVER") or "embedded"
    if spec.startswith(("postgresql://", "postgres://")) or "=" in spec:
        return DsnServer(spec, settings=settings or {})
    if spec != "embedded" and not Path(spec).expanduser().is_dir():
        raise ServerError(
            f"There is no server {spec!r}: give embedded, a directory of PostgreSQL binaries "
            f"or a postgresql:// DSN."
        )
    return OwnedServer(
        find_binaries(spec), spec=spec, settings=settings or {}, base=run_dir(), cpu=cpu
    )
