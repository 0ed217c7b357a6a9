"""DSNs: what they say without their secrets, and what went wrong in words when they do not work."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from .errors import ServerError

_SECRET = {
    "password",
    "passfile",
    "sslpassword",
    "sslkey",
    "oauth_client_secret",
    "scram_client_key",
}
_SECRET |= {"scram_server_key"}


# What libpq and the server say, and what we say; the first that fits is used.
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


def is_dsn(spec: str) -> bool:
    """Whether this is a URI or a ``key=value`` string for libpq."""
    if spec.startswith(("postgresql://", "postgres://")):
        return True
    return re.match(r"\s*[a-z_]+\s*=", spec) is not None


def parse_dsn(dsn: str) -> dict[str, str]:
    """The parts of a DSN by libpq's names.

    Raises ServerError, which never repeats the DSN because there may be a password in it.
    """
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    except psycopg.ProgrammingError:
        raise ServerError(
            "The DSN cannot be read: it looks like postgresql://user@host:5432/database, with "
            "special characters percent-encoded."
        ) from None
    if "@" in parts.get("host", ""):
        raise ServerError(
            "The DSN cannot be read: an @ in a password must be written as %40 there; better give "
            "the password in PGPASSWORD or in ~/.pgpass."
        )
    return parts


def without_password(spec: str) -> str:
    """The same server without password and other secrets; what is no DSN comes back as it is.

    Raises ServerError for a DSN that cannot be read.
    """
    return write_uri(parse_dsn(spec)) if is_dsn(spec) else spec


def write_uri(parts: dict[str, str]) -> str:
    """A ``postgresql://`` URI of the parts of a DSN, secrets left out."""
    rest = {name: value for name, value in parts.items() if name not in _SECRET and value}
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
    said = str(error)
    for pattern, sentence in _COMPLAINTS:
        if re.search(pattern, said):
            return ServerError(f"No connection to {spec}: {sentence}.")
    last = said.strip().splitlines()[-1] if said.strip() else type(error).__name__
    return ServerError(f"No connection to {spec}: {last}")


SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
"""What must not get into a notebook, by libpq's names."""


def holds_password(server: str) -> bool:
    """Whether the address of a server holds a secret, or may hold one for all we can tell."""
    if "=" not in server and "://" not in server:
        return False

    try:
        return is_dsn(server) and any(parse_dsn(server).get(name) for name in SECRETS)
    except ServerError:
        return True
