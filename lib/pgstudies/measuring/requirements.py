"""Requirements of claims (``requires`` in claims.toml), and why a server does not meet them.

A requirement is one of ``Right``, a *cold cache*, a release that is measured beside the server, one
of this project's C extensions, or the name of a setting that the study gives a value of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, get_args

from pgservers.errors import CannotRun
from pgservers.programs.extensions import NAMES, build
from pgservers.programs.releases import is_release, reason_not_available
from pgservers.servers.base import Right
from pgservers.servers.settings import reason_not_settable

from ..analysis.claims import requirements
from .cold import reason_not_cold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgservers.servers.serve import Server

COLD = "cold cache"


def reason_unmet(requirement: str, server: Server) -> str | None:
    """Why the server does not meet it, or None if it does."""
    if requirement == COLD:
        return reason_not_cold(server)
    if is_release(requirement):
        return reason_not_available(requirement)
    if requirement in NAMES:
        return _reason_no_extension(requirement, server)
    if requirement in get_args(Right):
        return server.capabilities.reason(cast("Right", requirement))
    if server.capabilities.has("restart"):
        return server.reason_unknown(requirement)
    with server.connect() as connection:
        return reason_not_settable(connection, requirement)


def _reason_no_extension(name: str, server: Server) -> str | None:
    if server.binaries is None:
        return server.capabilities.reason("build")
    try:
        build(name, server.binaries)
    except CannotRun as reason:
        return str(reason)
    return None


def unmet_requirements(study: str, server: Server, settings: Mapping[str, str]) -> dict[str, str]:
    """The reason for each requirement of a study's claims that the server does not meet.

    ``settings`` are the study's own, in force unless they are among ``unmet_settings``.
    """
    met = settings.keys() - server.unmet_settings.keys()
    reasons = {name: reason_unmet(name, server) for name in requirements(study) if name not in met}
    return {name: reason for name, reason in reasons.items() if reason}
