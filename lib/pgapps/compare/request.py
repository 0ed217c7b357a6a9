"""What is asked: two sides, studies, blocks."""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgservers.addresses import EMBEDDED, Address
from pgservers.errors import StudyError
from pgservers.programs.installations import find_binaries
from pgservers.programs.releases import find_release, is_release, releases
from pgservers.programs.versions import has_io_workers, parse_version
from pgservers.servers.settings import (
    ENDANGERS_DATA,
    read_settings,
    refused,
    require_allowable,
    require_wellformed,
)
from pgstudies.measuring.design import Comparison, Side
from pgstudies.rooms import rooms

from ..execution.plan import plan, studies

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping


@dataclass(frozen=True)
class Request:
    """What ``pgstudies compare`` was asked for; a report keeps it, to be asked again.

    ``blocks`` and ``minutes`` are what the command said, or None.
    """

    baseline: Side
    candidate: Side
    studies: tuple[str, ...]
    profile: str = "quick"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    arms: tuple[str, ...] = ()
    case: str | None = None
    copies: bool = True
    pin: bool = True
    margin: float = 0.02
    blocks: int | None = None
    minutes: float | None = None
    until_decided: bool = False
    instructions: bool = False
    clock: bool = False
    strict: bool = False

    @property
    def comparison(self) -> Comparison:
        """The part that the notebooks need, without a limit of time."""
        return Comparison(self.baseline, self.candidate, self.arms, self.copies, self.pin)

    def as_dict(self) -> dict[str, Any]:
        """The request in the types of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: object) -> Request:
        """The request of which ``as_dict`` made this; raises StudyError for anything else.

        Whoever wrote it may be a stranger: settings that reach out of a server are refused.
        """
        if not isinstance(values, dict):
            raise _no_request("it holds nothing by name")
        names = {f.name for f in fields(cls)}
        unknown = sorted(map(str, set(values) - names)) or sorted(_NEEDED - set(values))
        if unknown:
            raise _no_request(f"{unknown[0][:60]!r} is missing, or is nothing it can hold")
        for name, fits in _FITS.items():
            if name in values and not fits(values[name]):
                raise _no_request(f"its {name} cannot be read")
        sides = {name: _side_in(values[name], name) for name in ("baseline", "candidate")}
        lists = {name: tuple(values.get(name, ())) for name in ("studies", "arms")}
        return cls(**{**values, **sides, **lists})

    def with_servers(self, baseline: str | None, candidate: str | None) -> Request:
        """The same with sides that the user gives, as for ``side``.

        The report's settings stay with a server that is given without a file.  Raises StudyError
        where a server remains that a report may not choose: a directory of programs, which would
        be run, and an address, which would be connected to.
        """
        return replace(
            self,
            baseline=_chosen("baseline", self.baseline, baseline),
            candidate=_chosen("candidate", self.candidate, candidate),
        )


def typed(request: Request) -> Request:
    """The same with its parameters in the types that its studies declare, as records have them.

    Raises StudyError for a study, profile or parameter that there is not, and for a value that is
    of another type or out of its limits.
    """
    parameters: dict[str, Any] = {}
    for study in request.studies:
        if study not in (known := studies()):
            raise StudyError(f"There is no study {study}; the studies are: {', '.join(known)}.")
        checked = plan(
            study,
            profile=request.profile,
            server=request.baseline.server,
            parameters=request.parameters,
        )
        parameters |= {name: checked.parameters[name] for name in request.parameters}
    return replace(request, parameters=parameters)


def _chosen(name: str, told: Side, text: str | None) -> Side:
    may_be_told = told.server == EMBEDDED or is_release(told.server)
    if text:
        given = side(text, otherwise=told.server if may_be_told else None)
        return Side(given.server, given.settings or told.settings)
    if may_be_told:
        return told
    raise StudyError(
        f"The report's {name} is {told.server!r}, and a report may not choose what is run or "
        f"connected to: name the server yourself, by --{name} SERVER."
    )


def share_cores_alike(baseline: Side, candidate: Side) -> bool:
    """Whether both sides, or neither, have I/O workers, which on one core a session would wait for.

    True where one cannot be told: the guard "cores" looks at the servers themselves.
    """
    have = [_has_workers(side) for side in (baseline, candidate)]
    return None in have or have[0] == have[1]


def _has_workers(side: Side) -> bool | None:
    method = side.settings.get("io_method")
    if method is not None:
        return method == "worker"
    version = _version(side)
    return None if version is None else has_io_workers(version)


def _version(side: Side) -> int | None:
    """The side's version as the server counts, as far as it is known without connecting."""
    if is_release(side.server):
        return parse_version(side.server)  # which fetches nothing
    if Address.parse(side.server).is_dsn:
        return None
    try:
        return find_binaries(side.server).version
    except StudyError:
        return None  # which is told when it is to be measured


def reason_too_old(study: str, sides: Iterable[Side]) -> str | None:
    """Why no arm of a study could run on both sides, by ``since`` of its ``sizes.toml``, or None.

    What cannot be seen beforehand, measuring tells.
    """
    room = rooms().get(study)
    since = room.about.get("since") if room is not None else None
    if since is None:
        return None
    for side in sides:
        version = _version(side)
        if version is not None and version < parse_version(since):
            return f"it is about PostgreSQL {since} and later, and {side.server} is older"
    return None


def require_alike_builds(baseline: Side, candidate: Side) -> None:
    """Raise StudyError where the two are known to be built at other levels of optimisation.

    What cannot be seen beforehand, the guard "builds" looks at.
    """
    if baseline.server == candidate.server:
        return
    before, after = (optimisation(side.server) for side in (baseline, candidate))
    if before is None or after is None or before == after:
        return
    pairs = [
        f"{name} and {alike[-1]}"
        for name, level in ((baseline.server, before), (candidate.server, after))
        if is_release(name)
        and (
            alike := [
                r.name for r in releases() if optimisation(r.name) == level and r.name != name
            ]
        )
    ]
    raise StudyError(
        f"{baseline.server} is built with {before} and {candidate.server} with {after}, so any "
        f"difference could be the compiler's. Compare two that are built alike"
        f"{': ' if pairs else ''}{', or '.join(pairs)}."
    )


def optimisation(server: str) -> str | None:
    """The optimisation that a server's programs were compiled with, such as -O2, or None."""
    if is_release(server):
        flags = find_release(server).built
    elif Address.parse(server).is_dsn:
        return None
    else:
        try:
            pg_config = find_binaries(server).program("pg_config")
            flags = "" if pg_config is None else _answer(pg_config, "--cflags")
        except StudyError:
            return None  # which is told when it is to be measured
    levels = re.findall(r"(?<!\S)-O\w*", flags)
    return levels[-1] if levels else None


def _answer(program: Path, option: str) -> str:
    try:
        done = subprocess.run(
            [program, option], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


_NEEDED = {"baseline", "candidate", "studies"}


def _no_request(why: str) -> StudyError:
    return StudyError(f"The request for a comparison is invalid: {why}.")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) < _LONGEST_PATH


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


def _is_number(value: object, low: float, high: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and low <= value <= high and math.isfinite(value)  # type: ignore[operator,arg-type]


def _is_value(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_value(v) and not isinstance(v, list | tuple) for v in value)
    return isinstance(value, bool) or _is_text(value) or _is_number(value, -1e15, 1e15)


def _is_parameters(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return all(_is_text(n) for n in value) and all(map(_is_value, value.values()))


def _is_blocks(value: object) -> bool:
    return value is None or (isinstance(value, int) and _is_number(value, 1, 1e6))


_FITS: dict[str, Callable[[object], bool]] = {
    "studies": lambda v: _is_texts(v) and bool(v),
    "profile": _is_text,
    "parameters": _is_parameters,
    "arms": _is_texts,
    "case": lambda v: v is None or _is_text(v),
    "copies": lambda v: isinstance(v, bool),
    "pin": lambda v: isinstance(v, bool),
    "until_decided": lambda v: isinstance(v, bool),
    "instructions": lambda v: isinstance(v, bool),
    "clock": lambda v: isinstance(v, bool),
    "strict": lambda v: isinstance(v, bool),
    "margin": lambda v: _is_number(v, 0.001, 1.0),
    "blocks": _is_blocks,
    "minutes": lambda v: v is None or _is_number(v, 0.01, 1e6),
}


def _side_in(values: object, name: str) -> Side:
    if not isinstance(values, dict) or not set(values) <= {"server", "settings"}:
        raise _no_request(f"its {name} cannot be read")
    server, settings = values.get("server"), values.get("settings", {})
    if not _is_text(server) or not server or not isinstance(settings, dict):
        raise _no_request(f"its {name} cannot be read")
    where = f"The report's {name}"
    known = require_wellformed(settings, where)
    found = refused(known) + sorted(ENDANGERS_DATA & known.keys())
    if found:
        raise StudyError(
            f"{where} sets {', '.join(found)}, which a report may not: that reaches beyond the "
            f"server or endangers its data. Run `pgstudies compare` with a settings file instead."
        )
    return Side(str(server), known)


_LONGEST_PATH = 4000


def side(
    text: str, *, otherwise: str | None, allowed: Collection[str] = (), leave_out: bool = False
) -> Side:
    """A side as the command line has it: SERVER, FILE of settings, or SERVER+FILE.

    ``otherwise`` is the server of a file that stands alone, if it may.  Settings that reach out of
    a server are taken from a file only where ``allowed``, and dropped with ``leave_out``.  Raises
    StudyError for such a setting, an address with a password, and a file that cannot be read.
    """
    try:
        return _side(text, otherwise, allowed, leave_out)
    except (OSError, RuntimeError, ValueError) as error:  # ~nobody/x, 5,000 characters, a zero byte
        why = error.strerror if isinstance(error, OSError) else error
        shown = text if len(text) < 60 else f"{text[:60]}..."
        raise StudyError(f"{shown!r} is neither a server nor a file of settings: {why}.") from None


def _side(text: str, otherwise: str | None, allowed: Collection[str], leave_out: bool) -> Side:
    server, plus, name = text.rpartition("+")
    file = _file(name)
    if file is not None and not plus:
        if otherwise is None:
            raise StudyError(f"Name the server of {text} as well: SERVER+{text}.")
        server = otherwise
    elif file is None:
        server = text
    address = Address.parse(server)  # before anything is repeated: it may hold a password
    if address.secrets:
        raise StudyError(
            "A comparison keeps the addresses of its servers, so there must be no password in "
            "them: write it into ~/.pgpass."
        )
    address = address.absolute()
    if file is None and plus and not address.is_dsn and not Path(address.text).exists():
        raise StudyError(f"There is no file of settings {name}.")
    if file is None:
        return Side(address.text)
    settings = read_settings(file)
    return Side(address.text, _without_refused(settings, str(file), allowed, leave_out))


def _file(name: str) -> Path | None:
    """The file of that name, or None where there is none."""
    try:
        file = Path(name).expanduser()
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long a name, or ~ of a user there is none of
        return None


def _without_refused(
    settings: dict[str, str], file: str, allowed: Collection[str], leave_out: bool
) -> dict[str, str]:
    require_allowable(allowed)
    found = refused(settings, allowed)
    if not found:
        return settings
    kept = {name: value for name, value in settings.items() if name not in found}
    if not leave_out:
        raise StudyError(
            f"{file} sets {', '.join(found)}, which say where a server listens, which files it "
            f"uses or which programs it runs: --leave-out compares without these, and "
            f"--allow-setting NAME takes one, but for those that place a managed server."
        )
    if not kept:
        raise StudyError(f"{file} has no settings but those left out.")
    return kept
