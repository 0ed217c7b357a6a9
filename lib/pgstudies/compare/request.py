"""What is asked: two sides, studies, blocks."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..addresses import Address
from ..errors import StudyError
from ..measuring.comparison import Comparison, Side

if TYPE_CHECKING:
    from collections.abc import Mapping


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

    @property
    def comparison(self) -> Comparison:
        """The part that the notebooks need."""
        seconds = 60 * self.minutes / len(self.studies) if self.minutes else 0.0
        return Comparison(self.baseline, self.candidate, self.arms, self.copies, self.pin, seconds)

    def as_dict(self) -> dict[str, Any]:
        """The request in the types of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Request:
        """The request of which ``as_dict`` made this; raises StudyError for anything else."""
        try:
            sides = {name: Side(**values[name]) for name in ("baseline", "candidate")}
            lists = {name: tuple(values[name]) for name in ("studies", "arms")}
            return cls(**{**values, **sides, **lists})
        except (TypeError, KeyError) as error:
            raise StudyError(f"This is no request for a comparison: {error}.") from None


_SETTING = re.compile(r"\s*([A-Za-z_][\w.$]*)\s*(?:=|\s)\s*('(?:[^']|'')*'|[^#'\s]\S*)\s*(?:#.*)?")


def side(text: str, *, otherwise: str) -> Side:
    """A side as the command line has it: SERVER, FILE of settings, or SERVER+FILE.

    ``otherwise`` is the server of a file that stands alone.  Raises StudyError for an address with
    a password, and for a file that cannot be read.
    """
    server, plus, name = text.rpartition("+")
    file = _file(name)
    if file is not None and not plus:
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
    return Side(address.text, read_settings(file) if file else {})


def _file(name: str) -> Path | None:
    """The file of that name, or None where there is none."""
    try:
        file = Path(name).expanduser()
        return file if file.is_file() else None
    except (OSError, RuntimeError):  # too long a name, or ~ of a user there is none of
        return None


def read_settings(file: Path) -> dict[str, str]:
    """The settings of a file in the form of postgresql.conf, by lower-case name.

    Raises StudyError for a line that is none, and for a file without any.
    """
    settings: dict[str, str] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{file} cannot be read as a file of settings: {error}.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _SETTING.fullmatch(line)
        if found is None:
            raise StudyError(
                f"{file}, line {number}: write settings as in postgresql.conf, name = value."
            )
        name, value = found.groups()
        if value.startswith("'"):
            value = value[1:-1].replace("''", "'")
        settings[name.lower()] = value
    if not settings:
        raise StudyError(f"{file} holds no setting.")
    return settings
