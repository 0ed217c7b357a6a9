"""A run checked before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgservers.addresses import Address
from pgservers.errors import StudyError
from pgstudies.parameters import checked, declared
from pgstudies.rooms import find_room, rooms

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pgstudies.rooms import Room


QUICK = "quick"
"""The size of the defaults in a notebook."""

PROFILES = (QUICK, "standard", "published", "smallest")
"""Sizes of a run; of the smallest only counts mean anything, and only to tests."""


@dataclass(frozen=True)
class PlannedRun:
    """A run with everything checked that can be checked before it starts.

    Attributes:
        study: The study's name.
        notebook: Its source notebook.
        profile: One of ``PROFILES``.
        parameters: Name and value of every parameter but ``server``.
        server: The server asked for; an empty text for ``$PGSTUDIES_SERVER``.
        injected: What papermill writes into the notebook: no password is in it.
        about: What ``sizes.toml`` says of this size, and of how long it takes; it may be empty.

    """

    study: str
    notebook: Path
    profile: str
    parameters: dict[str, Any]
    server: Address
    injected: dict[str, Any]
    about: str


def studies() -> list[str]:
    """The names of all notebooks that measure, in the order of the book."""
    return list(rooms("study", "check", "counts", "workload"))


def plan(
    study: str,
    *,
    profile: str = "quick",
    server: str | None = None,
    parameters: Mapping[str, object] | None = None,
    usual_server: str = "",
) -> PlannedRun:
    """Check a run: ``parameters`` go before the profile's, which go before the notebook's.

    ``usual_server`` is the one of a run that names none, as ``$PGSTUDIES_SERVER`` says.

    Raises StudyError for an unknown study, profile or parameter, and for a value that is of the
    wrong type or out of its limits; ServerError for an address that cannot be read.
    """
    room = find_room(study)
    given = dict(parameters or {})
    if server and given.setdefault("server", server) != server:
        raise StudyError("Two servers are given: leave out --server or -p server=...")
    known_parameters = declared(room.notebook)
    if server and all(p.name != "server" for p in known_parameters):
        del given["server"]  # a study that needs none still runs with the others
    of_profile, about = _profile(room, profile)
    values = checked(study, known_parameters, of_profile | given)
    asked = Address.parse(str(values.pop("server", ""))).absolute()
    if not asked.text:
        Address.parse(usual_server)  # is refused here if it is unreadable
    # An address with a password reaches the kernel by its environment only: whatever is injected
    # stays in the notebook, and the notebook goes into the book.
    # Of a summary only what was asked for: its page is not to begin with a cell of parameters.
    injected = dict(values) if room.kind != "summary" else {n: values[n] for n in given}
    if any(p.name == "server" for p in known_parameters):
        injected["server"] = "" if asked.secrets else asked.text
    return PlannedRun(study, room.notebook, profile, values, asked, injected, about)


def _profile(room: Room, profile: str) -> tuple[dict[str, object], str]:
    """The values of a profile, and its description; quick has the notebook's own values."""
    if profile not in PROFILES:
        raise StudyError(f"There is no profile {profile}; the profiles are: {', '.join(PROFILES)}.")
    if profile not in profiles_of(room):
        raise StudyError(
            f"{room.name} has no {profile} profile: its sizes.toml has no [{profile}]."
        )
    values = dict(room.about.get(profile, {}))
    return values, str(values.pop("about", ""))


def profiles_of(room: Room) -> list[str]:
    """The profiles that a study has."""
    return [name for name in PROFILES if name == QUICK or name in room.about]
