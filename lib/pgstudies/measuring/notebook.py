"""What a notebook asks before it measures: whether an extension or a release can be had here.

These read the environment, as ``measure`` does.  Where a record is analysed instead of measuring,
nothing is built or fetched, and so nothing is missing: the record's arms are known.
"""

from __future__ import annotations

from .. import programs
from ..orders import Orders


def reason_no_extension(name: str, server: str = "") -> str | None:
    """Why ``server``, a notebook's parameter, cannot have one of our C extensions, or None.

    It is built for that server if need be, once.
    """
    orders = Orders.given()
    if orders.replay:
        return None
    return programs.reason_no_extension(name, orders.server_for(server))


def extension_settings(name: str, server: str = "") -> dict[str, str]:
    """The settings with which that server finds the extension; none where it cannot have it."""
    orders = Orders.given()
    return {} if orders.replay else programs.extension_settings(name, orders.server_for(server))


def reason_not_available(release: str) -> str | None:
    """Why a release cannot be had here, or None; raises StudyError when there is no such one."""
    programs.find_release(release)
    return None if Orders.given().replay else programs.reason_not_available(release)
