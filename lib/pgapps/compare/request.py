"""The request for a comparison: two sides, studies, blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from pgservers.addresses import Address
from pgservers.errors import StudyError
from pgservers.programs.installations import find_binaries
from pgservers.programs.releases import is_known, is_release
from pgservers.programs.versions import has, parse_version
from pgservers.servers.settings import (
    ENDANGERS_DATA,
    not_taken,
    read_settings,
    refused,
    require_wellformed,
    why_refused,
    without_refused,
)
from pgstudies.checking import checked
from pgstudies.parameters import checked as checked_parameters
from pgstudies.parameters import declared
from pgstudies.rooms import find_room, rooms

from ..execution.plan import plan, studies
from ..options import showable
from ..workload.schema import sql_lines
from .design import Comparison, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Text = Annotated[str, Meta(max_length=4000)]

_SQL = ".sql"

Value = bool | int | Annotated[float, Meta(ge=-1e15, le=1e15)] | Text

Parameters = Mapping[Text, Value | list[Value]]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to ``pgstudies compare``, which its report keeps for ``pgstudies rerun``.

    ``blocks``, ``minutes`` and ``instructions`` are None if the option is not given.
    """

    baseline: Side
    candidate: Side
    studies: Annotated[tuple[Text, ...], Meta(min_length=1)]
    profile: Text = "quick"
    parameters: Parameters = msgspec.field(default_factory=dict)
    arms: tuple[Text, ...] = ()
    case: Text | None = None
    pin: bool = True
    margin: Annotated[float, Meta(ge=0.001, le=1)] = 0.02
    blocks: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    minutes: Annotated[float, Meta(ge=0.01, le=1e6)] | None = None
    until_decided: bool = False
    instructions: bool | None = None

    @property
    def comparison(self) -> Comparison:
        """The part that a record keeps."""
        return Comparison(self.baseline, self.candidate, self.pin)

    @classmethod
    def from_dict(cls, values: object) -> Request:
        """The request from the types of JSON; raises StudyError for anything else.

        It may come from a stranger: settings that affect more than a server are refused.
        """
        what = "The request for a comparison is invalid"
        request = checked(values, cls, what)
        if not showable(values):
            raise StudyError(
                f"{what}: it has a number of more than 64 bits, or a text that is not one line."
            )
        return replace(
            request,
            baseline=_harmless(request.baseline, "The report's baseline"),
            candidate=_harmless(request.candidate, "The report's candidate"),
        )

    def with_servers(self, baseline: str | None, candidate: str | None) -> Request:
        """The request with the sides that the user gives, as for ``side``.

        A server without a file keeps the report's settings.  Raises StudyError if a side or a
        parameter of the report still names a directory of programs, which would be run, or an
        address, which would be connected to.
        """
        for study in self.studies:
            _require_harmless(study, self.parameters)
        return replace(
            self,
            baseline=_chosen("baseline", self.baseline, baseline),
            candidate=_chosen("candidate", self.candidate, candidate),
        )


def typed(request: Request) -> Request:
    """The request with its parameters in the types that its studies declare, as in records.

    Raises StudyError for an unknown study, profile or parameter, and for a value that is of the
    wrong type or out of its limits.
    """
    parameters: dict[str, Any] = {}
    for study in request.studies:
        if study not in (known := studies()):
            raise StudyError(f"There is no study {study}; the studies are: {', '.join(known)}.")
        planned = plan(
            study,
            profile=request.profile,
            server=request.baseline.server,
            parameters=request.parameters,
        )
        parameters |= {name: planned.parameters[name] for name in request.parameters}
    return replace(request, parameters=parameters)


def _chosen(name: str, reported: Side, text: str | None) -> Side:
    is_allowed = is_known(reported.server)
    if text:
        given = side(text, otherwise=reported.server if is_allowed else None)
        return replace(given, settings=given.settings or reported.settings)
    if is_allowed:
        return reported
    raise StudyError(
        f"The report's {name} is {reported.server!r}, and a report may not choose what is run or "
        f"connected to: name the server yourself, by --{name} SERVER."
    )


def _require_harmless(study: str, given: Parameters) -> None:
    """Raise StudyError for a parameter that names a directory, or a server that is no release."""
    for parameter in declared(find_room(study).notebook):
        name = parameter.name
        if not parameter.names or name not in given:
            continue
        words = checked_parameters(study, [parameter], {name: given[name]})[name]
        for word in [words] if isinstance(words, str) else words:
            if word and not (parameter.names == "server" and is_known(word)):
                raise StudyError(
                    f"The report's {name} has {word!r}, and a report may not choose what is run, "
                    f"read or connected to: use `pgstudies compare -p {name}=...`."
                )


def share_cores_alike(baseline: Side, candidate: Side) -> bool:
    """Whether both sides, or neither, have I/O workers; a session on one core waits for them.

    False if this is known of one side only.
    """
    return _has_workers(baseline) == _has_workers(candidate)


def _has_workers(side: Side) -> bool | None:
    method = side.settings.get("io_method")
    if method is not None:
        return method == "worker"
    version = _version(side)
    return None if version is None else has(version, "I/O workers")


def _version(side: Side) -> int | None:
    """The side's version number; None if only a connection would tell it."""
    if is_release(side.server):
        return parse_version(side.server)  # which fetches nothing
    if Address.parse(side.server).is_dsn:
        return None
    try:
        return find_binaries(side.server).version
    except StudyError:
        return None  # the error comes when it is measured


def reason_too_old(study: str, sides: Iterable[Side]) -> str | None:
    """Why no arm of a study can run on both sides, by ``since`` of its ``sizes.toml``, or None."""
    room = rooms().get(study)
    since = room.about.get("since") if room is not None else None
    if since is None:
        return None
    for side in sides:
        version = _version(side)
        if version is not None and version < parse_version(since):
            return f"it is about PostgreSQL {since} and later, and {side.server} is older"
    return None


def _harmless(side: Side, where: str) -> Side:
    if not side.server:
        raise StudyError(f"{where} names no server.")
    if side.sql:
        raise StudyError(f"{where} has SQL of its own, which a report may not.")
    known = require_wellformed(side.settings, where)
    found = refused(known) + sorted(ENDANGERS_DATA & known.keys())
    if found:
        raise StudyError(
            f"{where} sets {', '.join(found)}, which a report may not, because it affects more "
            f"than the server or endangers its data: use `pgstudies compare` with a settings file."
        )
    return replace(side, settings=known)


def side(text: str, *, otherwise: str | None, tell: Callable[[str], object] | None = None) -> Side:
    """A side as the command line has it: SERVER, FILE, SERVER+FILE or SERVER+FILE+FILE.

    A file named *.sql has SQL, any other has settings.  ``otherwise`` is the server for files
    alone; None: they need a server.  If ``tell`` is given, settings that affect more than a server
    are left out, as are lines that are no settings, and it gets a sentence on each.  Raises
    StudyError for such a setting otherwise, for an address with a password, and for a file that
    cannot be read.
    """
    try:
        return _side(text, otherwise, tell)
    except (OSError, RuntimeError, ValueError) as error:  # ~nobody/x, 5,000 characters, a zero byte
        why = error.strerror if isinstance(error, OSError) else error
        excerpt = text if len(text) < 60 else f"{text[:60]}..."
        raise StudyError(
            f"{excerpt!r} is neither a server nor a file of settings or SQL: {why}."
        ) from None


def divided(text: str) -> tuple[str, list[Path]]:
    """The server of a side's text, and its files; the server is empty for files alone."""
    files: list[Path] = []
    while True:
        rest, plus, name = text.rpartition("+")
        if (file := _file(name)) is None:
            return text, files
        files.insert(0, file)
        if not plus:
            return "", files
        text = rest


def _side(text: str, otherwise: str | None, tell: Callable[[str], object] | None) -> Side:
    server, files = divided(text)
    if files and not server:
        if otherwise is None:
            raise StudyError(f"Name the server of {text} as well: SERVER+{text}.")
        server = otherwise
    scripts = [file for file in files if file.suffix == _SQL]
    files = [file for file in files if file.suffix != _SQL]
    if len(files) > 1 or len(scripts) > 1:
        raise StudyError("A side takes one file of settings, and one *.sql.")
    address = Address.parse(server)  # before anything is repeated: it may hold a password
    if address.secrets:
        raise StudyError(
            "A comparison keeps the addresses of its servers, so there must be no password in "
            "them: write it into ~/.pgpass."
        )
    address = address.absolute()
    _, plus, name = server.rpartition("+")
    if plus and not address.is_dsn and not Path(address.text).exists():
        raise StudyError(f"There is no file {name} of settings or SQL.")
    lines = tuple(line for script in scripts for line in sql_lines(script))
    if not files:
        return Side(address.text, sql=lines)
    (file,) = files
    left: dict[str, str] = {}
    settings = read_settings(file, None if tell is None else left)
    kept = without_refused(settings, str(file), leave_out=tell is not None)
    left |= {name: why_refused(name) for name in settings if name not in kept}
    if tell is not None:
        for name, why in left.items():
            tell(f"Left out of {file.name}: {name}: {why}.")
    return Side(address.text, kept, lines)


def without_rejected(side: Side, tell: Callable[[str], object]) -> Side:
    """The side without the settings that its programs reject; ``tell`` gets the reasons.

    Raises StudyError if no setting is left.
    """
    if not side.settings or Address.parse(side.server).is_dsn:
        return side
    binaries = find_binaries(side.server)
    found = not_taken(binaries, side.settings)
    for name, why in found.items():
        tell(f"Left out for {binaries.version_text}: {name} = {side.settings[name]}: {why}.")
    kept = {name: value for name, value in side.settings.items() if name not in found}
    if not kept:
        raise StudyError(f"{side.server} accepts none of the settings: use another file.")
    return replace(side, settings=kept)


def check_settings(settings: Mapping[str, str], request: Request) -> dict[str, str]:
    """The settings of a workload that a side's release does not know, each with such releases.

    A server runs without them.  Raises StudyError for a value that a side rejects.
    """
    unknown: dict[str, str] = {}
    for server in dict.fromkeys((request.baseline.server, request.candidate.server)):
        if not settings or Address.parse(server).is_dsn:
            continue
        binaries = find_binaries(server)
        for name, why in not_taken(binaries, settings).items():
            if not why.startswith("unrecognized configuration parameter"):
                raise StudyError(
                    f"settings.conf: {name} = {settings[name]} is not taken by "
                    f"{binaries.version_text}: {why}."
                )
            other = f"{unknown[name]} and " if name in unknown else ""
            unknown[name] = f"{other}{binaries.version_text}"
    return unknown


def _file(name: str) -> Path | None:
    try:
        file = Path(name).expanduser()
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long a name, or ~ of an unknown user
        return None
