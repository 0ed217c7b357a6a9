"""A run checked before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import yaml

from .. import paths
from ..addresses import Address
from ..errors import StudyError
from ..orders import Orders
from ..paths import shown
from .parameters import checked, declared

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


PROFILES = ("quick", "standard", "published")
"""Sizes of a run; the defaults in a notebook are those of quick."""


SUMMARIES = ("scorecard", "today")
"""Notebooks that measure nothing: they draw together what the studies have found."""


NO_POST = ("instrument", "releases")
"""Notebooks that run as the studies do and rerun no post: one tests the measuring itself, the other
counts instructions."""


EXACT = ("releases",)
"""Notebooks that find the same on every machine: `run all` leaves them to reference records."""


@dataclass(frozen=True)
class Plan:
    """A run with everything checked that can be checked before it starts.

    Attributes:
        study: The study's name.
        notebook: Its source notebook.
        profile: One of ``PROFILES``.
        parameters: Name and value of every parameter but ``server``.
        server: The server asked for; an empty text for ``$PGSTUDIES_SERVER``.
        injected: What papermill writes into the notebook: no password is in it.
        about: What the file of the profile says of this size, and of how long it takes; it may be
            empty.

    """

    study: str
    notebook: Path
    profile: str
    parameters: dict[str, Any]
    server: Address
    injected: dict[str, Any]
    about: str


def studies() -> list[str]:
    """The names of all studies, which are those of their notebooks."""
    names = {p.stem for p in paths.NOTEBOOKS.glob("[!._]*.ipynb")}
    return sorted(names.difference(SUMMARIES))


def plan(
    study: str,
    *,
    profile: str = "quick",
    server: str | None = None,
    parameters: Mapping[str, object] | None = None,
) -> Plan:
    """Check a run: ``parameters`` go before the profile's, which go before the notebook's.

    Raises StudyError for an unknown study, profile or parameter, and for a value that is of the
    wrong type or out of its limits; ServerError for an address that cannot be read.
    """
    if study not in (*studies(), *SUMMARIES):
        known = ", ".join(studies()) or f"none in {paths.NOTEBOOKS}"
        raise StudyError(f"There is no study {study}; the studies are: {known}.")
    notebook = paths.NOTEBOOKS / f"{study}.ipynb"
    given = dict(parameters or {})
    if server and given.setdefault("server", server) != server:
        raise StudyError("Two servers are given: leave out --server or -p server=...")
    known_parameters = declared(notebook)
    if server and all(p.name != "server" for p in known_parameters):
        del given["server"]  # a study that needs none still runs with the others
    of_profile, about = _profile(study, profile)
    values = checked(study, known_parameters, of_profile | given)
    asked = Address.parse(str(values.pop("server", ""))).absolute()
    if not asked.text:
        Address.parse(Orders.given().server)  # is refused here if it is unreadable
    # An address with a password reaches the kernel by its environment only: whatever is injected
    # stays in the notebook, and the notebook goes into the book.
    # Of a summary only what was asked for: its page is not to begin with a cell of parameters.
    injected = dict(values) if study not in SUMMARIES else {n: values[n] for n in given}
    if any(p.name == "server" for p in known_parameters):
        injected["server"] = "" if asked.secrets else asked.text
    return Plan(study, notebook, profile, values, asked, injected, about)


def _profile(study: str, profile: str) -> tuple[dict[str, object], str]:
    """The values of a profile, and the comment that its file begins with.

    Quick has no file, because it is what the notebook says.
    """
    if profile not in PROFILES:
        raise StudyError(f"There is no profile {profile}; the profiles are: {', '.join(PROFILES)}.")
    file = paths.PARAMETERS / profile / f"{study}.yaml"
    try:
        text = file.read_text(encoding="utf-8")
        values = yaml.safe_load(text) or {}
    except FileNotFoundError:
        if profile == PROFILES[0]:
            return {}, ""
        raise StudyError(f"{study} has no {profile} profile: there is no {shown(file)}.") from None
    except yaml.YAMLError as error:
        raise StudyError(
            f"{shown(file)} is not valid YAML: {' '.join(str(error).split())}."
        ) from None
    if not isinstance(values, dict):
        raise StudyError(f"{shown(file)} must hold lines of the form `name: value`.")
    comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return values, " ".join(line.lstrip("# ") for line in comment)
