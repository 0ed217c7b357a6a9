"""The address of a server: a word, a directory or a DSN; its secrets, and errors in words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from .errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping


EMBEDDED = "embedded"
"""The word for the PostgreSQL that is installed together with this package."""

_SECRETS = frozenset(
    {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
)

_NOT_SHOWN = _SECRETS | {"passfile", "sslkey"}  # places of secrets are private, too

_URI = re.compile(r"postgres(?:ql)?://", re.IGNORECASE)
_KEYWORDS = re.compile(r"[a-z_]+\s*=")

_CUT_IN_TWO = re.compile(r"(?:[^?]*@[^?]*@|[^/@]*/[^?]*@)")  # an @ of a password, unescaped

_SECRET_IN_PATH = re.compile(r"//.*@|.*pass\w*\s*[=:]", re.IGNORECASE | re.DOTALL)

# Messages of libpq and the server, and our sentences; the first match is used.
_COMPLAINTS = [
    (r"no password supplied", "it asks for a password: give one in PGPASSWORD or in ~/.pgpass"),
    (r"password authentication failed", "it refuses the password: check the user and the password"),
    (r'role ".*" does not exist', "it has no such user: check the user in the DSN"),
    (r'database ".*" does not exist', "it has no such database: create it, or name another"),
    (r"no pg_hba\.conf entry", "its pg_hba.conf does not let this user in from here"),
    (
        r"too many clients|too many connections|connection slots are reserved",
        "it has too many connections: close some, or raise its max_connections",
    ),
    (
        r"unsupported startup parameter",
        "a connection pooler there refuses the settings of a connection: give the address of the "
        "server itself",
    ),
    (r"closed the connection|terminating connection", "it has closed the connection: see its log"),
    (r"is starting up|is shutting down|recovery mode", "it is starting or stopping: try again"),
    (
        r"could not translate host name|Name or service not known|resolve host",
        "there is no host of that name: check the host in the DSN",
    ),
    (
        r"timeout expired|timed out|connection timeout",
        "it does not answer in time: check host and port, and any firewall between",
    ),
    (
        r"refused|No such file or directory|No route to host|unreachable|Is the server running",
        "it does not answer: start it, or check host and port in the DSN",
    ),
]


@dataclass(frozen=True, repr=False)
class Address:
    """A server's address, parsed: ``embedded``, a release, a directory or a DSN.

    Attributes:
        text: As libpq and ``serve`` take it, with its secrets; empty for the default.
        parts: Of a DSN by libpq's names, with its secrets; empty for any other.

    """

    text: str
    parts: Mapping[str, str] = field(compare=False)
    is_dsn: bool

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse the address that somebody gave.

        Raises ServerError, which never repeats the text because it may contain a password, for a
        DSN that libpq cannot read, or only by cutting a password in two, and for what looks like
        another program's address.
        """
        stripped = text.strip()
        uri = _URI.match(stripped)
        if uri is None and not _KEYWORDS.match(stripped):
            if _looks_like_an_address(stripped):
                raise _unreadable()
            return cls(text, MappingProxyType({}), is_dsn=False)
        if uri is not None:
            rest = stripped[uri.end() :]
            if _CUT_IN_TWO.match(rest):
                raise _cut_in_two()
            stripped = uri[0].lower() + rest
        try:
            parts = {name: str(value) for name, value in conninfo_to_dict(stripped).items()}
        except (psycopg.ProgrammingError, UnicodeDecodeError):  # %a0 is no character of UTF-8
            raise _unreadable() from None
        if "@" in parts.get("host", "") or not re.fullmatch(r"[\d,]*", parts.get("port", "")):
            raise _cut_in_two()
        open_parts = [value for name, value in parts.items() if name not in _SECRETS]
        if (
            re.search(r"=|://", parts.get("dbname", ""))  # an address within the address
            or re.search(r"[;=]", parts.get("host", ""))  # of ADO.NET: Host=...;Password=...
            or any(re.search(r";\s*[\w ]+=", value) for value in open_parts)
        ):
            raise _unreadable()
        return cls(stripped, MappingProxyType(parts), is_dsn=True)

    @property
    def public(self) -> str:
        """The address without password and other secrets."""
        return write_uri(self.parts) if self.is_dsn else self.text

    @property
    def secrets(self) -> frozenset[str]:
        """The passwords and keys in it."""
        return frozenset(self.parts[name] for name in _SECRETS if self.parts.get(name))

    def __repr__(self) -> str:
        return f"Address({self.public!r})"

    def absolute(self) -> Address:
        """The same server, a directory by its absolute path."""
        if self.is_dsn or not self.text or self.text == EMBEDDED:
            return self
        try:
            directory = Path(self.text).expanduser()
            is_path = "/" in self.text or directory.is_dir()
            place = str(directory.resolve())
        # Too long a name, ~ of an unknown user, or a link that leads to itself.
        except (OSError, RuntimeError, ValueError):
            return self
        return Address(place, self.parts, is_dsn=False) if is_path else self


def _looks_like_an_address(text: str) -> bool:
    """Whether a text looks like a misspelled or another program's address."""
    if text.startswith(("/", "~", ".")):
        return "://" in text or _SECRET_IN_PATH.match(text) is not None
    return re.search("[=@:]", text) is not None


def _unreadable() -> ServerError:
    return ServerError(
        "The address of the server cannot be read: write postgresql://user@host:5432/database, "
        "with special characters percent-encoded, or host=... dbname=..., with names in lower "
        "case; a directory begins with / or ./ instead."
    )


def _cut_in_two() -> ServerError:
    return ServerError(
        "The address of the server cannot be read: write %40 for an @, %3A for a : and %2F for "
        "a / within a password; better give it in PGPASSWORD or in ~/.pgpass."
    )


def write_uri(parts: Mapping[str, str]) -> str:
    """A ``postgresql://`` URI of the parts of a DSN, secrets left out."""
    rest = {name: value for name, value in parts.items() if name not in _NOT_SHOWN and value}
    user, database = rest.pop("user", ""), rest.pop("dbname", "")
    host, port = rest.get("host", ""), rest.get("port", "")
    place = ""
    if "/" not in host and "," not in host + port:
        place = f"[{host}]" if ":" in host else host
        place += f":{port}" if port else ""
        rest.pop("host", None)
        rest.pop("port", None)
    login = f"{quote(user, safe='')}@" if user else ""
    query = f"?{urlencode(rest, quote_via=quote, safe='/')}" if rest else ""
    return f"postgresql://{login}{place}/{quote(database, safe='')}{query}"


def explain(error: psycopg.Error, spec: str) -> ServerError:
    """One sentence on why there is no connection to ``spec``, which has no password in it."""
    message = str(error)
    answered = "FATAL:" in message  # so the server runs, whatever file it misses
    for pattern, sentence in _COMPLAINTS[:-1] if answered else _COMPLAINTS:
        if re.search(pattern, message):
            return ServerError(f"No connection to {spec}: {sentence}.")
    last = message.strip().splitlines()[-1] if message.strip() else type(error).__name__
    return ServerError(f"No connection to {spec}: {last:.200}")
