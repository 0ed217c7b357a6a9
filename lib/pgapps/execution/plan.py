"""The plan of a run: everything that can be checked before it starts."""

from __future__ import annotations

from contextlib import suppress
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
"""Sizes of a run; smallest is for tests, and only its counts are meaningful."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that was checked.

    Attributes:
        study: The study's name.
        notebook: Its source notebook.
        profile: One of ``PROFILES``.
        parameters: Name and value of every parameter but ``server``.
        server: The server in force; an empty text for the embedded one.
        injected: The parameters that papermill writes into the notebook, without the server.
        about: What ``sizes.toml`` says about this size and its duration; may be empty.
        replay: The record to analyse; None to measure.

    """

    study: str
    notebook: Path
    profile: str
    parameters: dict[str, Any]
    server: Address
    injected: dict[str, Any]
    about: str
    replay: Path | None = None


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
    replay: str | Path | None = None,
) -> PlannedRun:
    """Check a run: ``parameters`` override the profile's, which override the notebook's.

    ``usual_server`` is used if no server is given, as ``$PGSTUDIES_SERVER`` is.  ``replay`` is a
    record to analyse instead of measuring, or a directory from which ``find_record`` takes one: its
    profile applies, and its parameters where none are given.

    Raises StudyError for an unknown study, profile or parameter, for a value that is of the wrong
    type or out of its limits and for a record that cannot be read; ServerError for an address that
    cannot be read.
    """
    room = find_room(study)
    given, record = dict(parameters or {}), None
    if replay is not None:
        from pgstudies.records.reading import find_record, read_record  # noqa: PLC0415  (imports polars)

        record = find_record(study, replay)
        info = read_record(record).info  # whole, before a kernel starts
        profile = info.get("profile") or profile
        given = _still_taken(room, info["parameters"]) | given
    if server and given.setdefault("server", server) != server:
        raise StudyError("Two servers are given: leave out --server or -p server=...")
    known_parameters = declared(room.notebook)
    if server and all(p.name != "server" for p in known_parameters):
        del given["server"]  # a study that needs none still runs with the others
    of_profile, about = _profile(room, profile)
    values = checked(study, known_parameters, of_profile | given)
    asked = Address.parse(str(values.pop("server", "")) or usual_server).absolute()
    # The page of a summary has no cell of parameters that were not asked for.
    injected = values if room.kind != "summary" else {n: values[n] for n in given if n in values}
    return PlannedRun(study, room.notebook, profile, values, asked, injected, about, record)


def _still_taken(room: Room, values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a record that the notebook, which may be newer, still takes.

    Without server and repository: a stranger's record must not choose what is run.
    """
    kept: dict[str, Any] = {}
    for parameter in declared(room.notebook):
        if parameter.name in values and parameter.name not in {"server", "repo"}:
            with suppress(StudyError):
                kept |= checked(room.name, [parameter], {parameter.name: values[parameter.name]})
    return kept


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
