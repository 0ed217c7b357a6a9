"""The two sides of a comparison, as the command line names them: servers and files of settings."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .addresses import is_dsn
from .errors import StudyError
from .passwords import holds_password

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTING = re.compile(r"\s*([A-Za-z_][\w.$]*)\s*(?:=|\s)\s*('(?:[^']|'')*'|[^#'\s]\S*)\s*(?:#.*)?")


@dataclass(frozen=True)
class Side:
    """One of the two: a server in the words of ``serve``, and settings that only it has."""

    server: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        declared = ", ".join(f"{name} = {value}" for name, value in self.settings.items())
        return f"{self.server} with {declared}" if declared else self.server


def side(text: str, *, otherwise: str) -> Side:
    """A side as the command line has it: SERVER, FILE of settings, or SERVER+FILE.

    ``otherwise`` is the server of a file that stands alone.  Raises StudyError for an address with
    a password, and for a file that cannot be read.
    """
    server, plus, file = text.rpartition("+")
    if not plus and Path(text).expanduser().is_file():
        server, file = otherwise, text
    elif not plus or not Path(file).expanduser().is_file():
        if plus and not Path(text).expanduser().exists() and not is_dsn(text):
            raise StudyError(f"There is no file of settings {file}.")
        server, file = text, ""
    if is_dsn(server):
        if holds_password(server):
            raise StudyError(
                "A comparison keeps the addresses of its servers, so there must be no password in "
                "them: write it into ~/.pgpass."
            )
    elif os.sep in server or Path(server).expanduser().is_dir():
        server = str(Path(server).expanduser().resolve())
    return Side(server, read_settings(Path(file).expanduser()) if file else {})


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
