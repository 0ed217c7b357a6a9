"""The server that a study runs on, by the reader's choice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .binaries import EMBEDDED, find_binaries
from .capabilities import Capabilities
from .dsn import DsnServer, is_dsn, without_password
from .errors import StudyError
from .owned import OwnedServer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Capabilities",
    "DsnServer",
    "OwnedServer",
    "Server",
    "serve",
    "without_password",
]

Server = OwnedServer | DsnServer
"""Either kind; ``owned`` tells them apart."""


def serve(
    spec: str | None = None, *, settings: Mapping[str, str] = {}, cpu: int | None = None
) -> Server:
    """The server that ``spec`` names, ready for use, as a context manager.

    ``spec`` is ``embedded``, a directory of binaries or a ``postgresql://`` DSN; the default is
    ``$PGSTUDIES_SERVER``, else ``embedded``.  ``settings`` are the study's, in every state.
    ``cpu`` is the core to keep an owned server on; a running server stays where it is.

    Raises StudyError for any other word, and ServerError for a server that cannot be used.
    """
    wanted = spec or os.environ.get("PGSTUDIES_SERVER") or EMBEDDED
    if is_dsn(wanted):
        return DsnServer(wanted, settings=settings)
    if wanted != EMBEDDED and os.sep not in wanted and not Path(wanted).is_dir():
        raise StudyError(
            f"{wanted!r} names no server: give `embedded`, a directory that holds initdb and "
            f"postgres, or a DSN like postgresql://user@host:5432/database."
        )
    return OwnedServer(find_binaries(wanted), spec=wanted, settings=settings, cpu=cpu)
