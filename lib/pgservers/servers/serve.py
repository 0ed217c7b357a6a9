"""The server that a study runs on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..addresses import EMBEDDED, Address
from ..errors import StudyError
from ..programs.accounts import server_account
from ..programs.installations import find_binaries, is_commit, is_directory
from ..programs.releases import find_release, is_known, is_release, listed, packaged
from ..terminal import notice_once
from .dsn import DsnServer
from .foreign_sessions import foreign_session
from .instance import prepare_run_dir
from .leftovers import directory_lock
from .managed import ManagedServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .base import Limits


Server = ManagedServer | DsnServer
"""A managed server, or an external one; ``capabilities`` say what each gives."""


def serve(
    spec: str = EMBEDDED,
    *,
    settings: Mapping[str, str] = {},
    cpu: int | None = None,
    limits: Limits | None = None,
    unprivileged: bool = False,
) -> Server:
    """The server that ``spec`` names, ready for use, as a context manager.

    ``spec`` is ``embedded``, a release such as ``9.6``, fetched if necessary or taken from an
    installed package, a commit that was built (``commit-568d4138c6``), a directory of binaries or a
    ``postgresql://`` DSN.
    ``settings`` are the study's, in every state.  ``cpu`` is the core to keep a managed server on;
    a running server stays where it is.  ``limits`` prepares the server for ``limited``.
    ``unprivileged`` is for what comes from others: it cannot do harm beyond our own database.
    A notice on stderr says what replaces the embedded server, and which package is used.

    Raises StudyError for any other word, and where an unprivileged role cannot be made or used;
    ServerError for a server that cannot be used.
    """
    address = Address.parse(spec)
    if address.is_dsn:
        return DsnServer(address, settings=settings, unprivileged=unprivileged)
    spec = _known(spec)
    binaries = find_binaries(spec)
    if binaries.stands_in:
        notice_once(f"Using {binaries.version_text}, {binaries.source}: {binaries.stands_in}.")
    if packaged(spec):
        notice_once(f"Using {binaries.version_text}, {binaries.source}.")
    return ManagedServer(
        binaries, spec=spec, settings=settings, cpu=cpu, limits=limits, unprivileged=unprivileged
    )


def require_server(spec: str) -> None:
    """Raise as ``serve`` does if a server does not exist; nothing is fetched or started."""
    address = Address.parse(spec)
    if address.is_dsn:
        foreign_session(address.parts, address.public).close()
        return
    spec = _known(spec)
    if not is_release(spec) and spec != EMBEDDED:
        find_binaries(spec)
    with directory_lock(prepare_run_dir(server_account())):
        pass


def _known(spec: str) -> str:
    """The name of a server on this machine; raises StudyError for any other word."""
    if is_release(spec):
        return find_release(spec).name
    if is_known(spec) or is_commit(spec) or os.sep in spec or is_directory(spec):
        return spec
    raise StudyError(
        f"{spec!r} is not a server: give `embedded`, one of the releases {listed()}, a directory "
        f"that holds initdb and postgres, or a DSN like postgresql://user@host:5432/database."
    )
